"""The libraries of plugins that this process has opened. None is closed: a plugin's threads may be inside of it."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from pathlib import Path

from pjrt.system import FileStamp, file_stamp, open_library

_lock = threading.Lock()
_opened: dict[str, dict[FileStamp | None, int]] = {}


def open_plugin_library(path: str) -> int:
    """Open a plugin's library, and return the system's handle: for the same file the same one.

    The dynamic linker knows a library by its path, and takes a file that was replaced for the one that it has in
    memory. So a file that has changed since its path was opened is copied, and the copy is opened beside the old code.

    Raises:
        OSError: the system cannot open the library, which the text explains; or the file cannot be copied.
    """
    stamp = file_stamp(path)
    with _lock:
        handles = _opened.setdefault(path, {})
        if stamp not in handles:
            handles[stamp] = _open_copy(path) if handles else open_library(path)
        return handles[stamp]


def _open_copy(path: str) -> int:
    copy = _copied(path)
    try:
        return open_library(copy)
    finally:
        _remove(copy)


def _copied(path: str) -> str:
    """A copy of a library, beside it if that can be: libraries that it needs may be found from where it lies."""
    name = Path(path).name
    for folder in (Path(path).parent, Path(tempfile.gettempdir())):
        copy = folder / f".{secrets.token_hex(8)}.{name}"
        try:
            shutil.copyfile(path, copy)
            copy.chmod(0o700)
        except OSError:
            _remove(str(copy))
            continue
        return str(copy)
    raise OSError(f"an older {name} is in memory, and the new one cannot be copied to be opened beside it")


def _remove(path: str) -> None:
    """Remove a file; a system that keeps the file of an open library has it stay."""
    try:
        os.unlink(path)
    except OSError:
        return
