"""What differs between operating systems, and nothing else (floor 0: knows no other room, and every room may use it).

Shared libraries and their files, folders, permissions, hardware, processes. The rest of the package asks here and names
no system. ``docs/platforms.md`` lists what is not tested on a system.

Failures are ``OSError``s: the layers above explain them.
"""

from __future__ import annotations

from pjrt.system.dynlib import (
    is_library_file_name,
    library_file_names,
    library_suffixes,
    library_symbol,
    open_library,
    python_library,
    sign_library,
)
from pjrt.system.file_stamp import FileStamp, file_stamp
from pjrt.system.folders import config_folder, shared_folder
from pjrt.system.hardware import any_file, count_files, processor_features
from pjrt.system.permissions import writable_by_everyone
from pjrt.system.processes import after_fork_in_child, process_command

__all__ = [
    "FileStamp",
    "after_fork_in_child",
    "any_file",
    "config_folder",
    "count_files",
    "file_stamp",
    "is_library_file_name",
    "library_file_names",
    "library_suffixes",
    "library_symbol",
    "open_library",
    "process_command",
    "processor_features",
    "python_library",
    "shared_folder",
    "sign_library",
    "writable_by_everyone",
]
