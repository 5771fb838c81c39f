"""The differences between operating systems: shared libraries, folders, permissions, hardware, processes.

No other package names a system. This package knows no other one, and every package may use it. ``docs/platforms.md``
lists what is not tested on a system.

Failures are ``OSError``s: the layers above explain them.
"""

from __future__ import annotations

from pjrt.system.dynlib import (
    is_library_file_name,
    is_noexec,
    library_file_names,
    library_suffixes,
    library_symbol,
    open_library,
    open_library_content,
    sign_library,
    with_preloaded,
)
from pjrt.system.files import (
    PARTIAL,
    FileStamp,
    TemporaryFolder,
    cache_folder,
    config_folder,
    file_stamp,
    make_protected_folder,
    read_plain_file,
    readable_by_everyone,
    shared_folder,
    writable_by_everyone,
    write_whole,
    writing_whole,
)
from pjrt.system.hardware import any_file, count_files, processor_features
from pjrt.system.processes import (
    after_fork_in_child,
    close_in_child,
    describe_exit,
    end_with,
    end_with_parent,
    fork,
    is_writable,
    keep_freed_memory,
    limit_xla_log,
    most_open_files,
    peak_resident_bytes,
    process_command,
    release_freed_memory,
    reset_peak_resident_bytes,
    succeeds_in_fork,
    use_all_open_files,
)

__all__ = [
    "PARTIAL",
    "FileStamp",
    "TemporaryFolder",
    "after_fork_in_child",
    "any_file",
    "cache_folder",
    "close_in_child",
    "config_folder",
    "count_files",
    "describe_exit",
    "end_with",
    "end_with_parent",
    "file_stamp",
    "fork",
    "is_library_file_name",
    "is_noexec",
    "is_writable",
    "keep_freed_memory",
    "library_file_names",
    "library_suffixes",
    "library_symbol",
    "limit_xla_log",
    "make_protected_folder",
    "most_open_files",
    "open_library",
    "open_library_content",
    "peak_resident_bytes",
    "process_command",
    "processor_features",
    "read_plain_file",
    "readable_by_everyone",
    "release_freed_memory",
    "reset_peak_resident_bytes",
    "shared_folder",
    "sign_library",
    "succeeds_in_fork",
    "use_all_open_files",
    "with_preloaded",
    "writable_by_everyone",
    "write_whole",
    "writing_whole",
]
