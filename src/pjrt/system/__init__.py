"""What differs between operating systems, and nothing else (floor 0: knows no other room, and every room may use it).

Shared libraries and their files, a user's folders, locks between processes, who may write to a file, hardware,
processes. The rest of the package asks here and names no system. What could not be tried on a system is said in
``docs/platforms.md``.

What goes wrong is an ``OSError``: the rooms above say what it means.
"""

from __future__ import annotations

from pjrt.system.file_stamp import FileStamp, file_stamp
from pjrt.system.folders import config_folder
from pjrt.system.hardware import any_file, count_files, processor_features
from pjrt.system.libraries import (
    is_library_file_name,
    library_file_names,
    library_suffixes,
    library_symbol,
    open_library,
    python_library,
    sign_library,
)
from pjrt.system.locks import try_lock
from pjrt.system.permissions import writable_by_everyone
from pjrt.system.processes import after_fork_in_child, process_command
from pjrt.system.shared_files import open_shared_file, shared_folder

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
    "open_shared_file",
    "process_command",
    "processor_features",
    "python_library",
    "shared_folder",
    "sign_library",
    "try_lock",
    "writable_by_everyone",
]
