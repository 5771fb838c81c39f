"""Opening the libraries of plugins. None is closed: a plugin's threads may be inside of it."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import tempfile
import threading
from pathlib import Path

from pjrt.api.errors import DataLossError, FailedPreconditionError
from pjrt.system import FileStamp, file_stamp, is_noexec, limit_xla_log, open_library
from pjrt.system.elf import is_library, missing_bytes

_lock = threading.Lock()
_opened: dict[str, dict[FileStamp | None, int]] = {}


def check_library_file(path: Path) -> None:
    """Refuse a file that is no library, or that ends before the parts to be loaded, as after a broken download.

    The dynamic linker ends the process on a library that is cut off. A library of another system or processor is left
    to the linker, which reports it.

    Raises:
        FailedPreconditionError: the file is no shared library.
        DataLossError: the file is cut off.
    """
    if path.is_dir():
        raise FailedPreconditionError(f"{path}: expected the file of a plugin's library, found a folder")
    if path.is_file() and os.access(path, os.R_OK) and not is_library(path):
        kind = "is empty" if not path.stat().st_size else "has something else in it"
        raise FailedPreconditionError(
            f"{path}: the library could not be opened: it is no shared library, the file {kind}; give the path of the "
            "plugin's library, or install the plugin again"
        )
    missing = missing_bytes(path)
    if missing is not None:
        has, needs = missing
        raise DataLossError(
            f"{path}: the library's file is cut off: it has {has} bytes, its header speaks of at least {needs}; "
            "get it again"
        )


def open_plugin_library(path: str) -> int:
    """Open a plugin's library, and return the system's handle: for the same file the same one.

    The dynamic linker knows a library by its path, and takes a file that was replaced for the one that it has in
    memory. So a file that has changed since its path was opened is copied, and the copy is opened beside the old code.

    Raises:
        OSError: the system cannot open the library, which the text explains; or the file cannot be copied.
    """
    stamp = file_stamp(path)
    limit_xla_log()  # many vendors' libraries have XLA inside
    with _lock:
        handles = _opened.setdefault(path, {})
        if stamp not in handles:
            handles[stamp] = _open_copy(path) if handles else open_library(path)
        return handles[stamp]


def _open_copy(path: str) -> int:
    copy = _copy_beside(path)
    try:
        return open_library(copy)
    finally:
        _remove(copy)


def _copy_beside(path: str) -> str:
    """Copy a library, to its own folder if possible: libraries that it needs may be found from there."""
    name = Path(path).name
    folders = [Path(path).parent, Path(tempfile.gettempdir())]
    for folder in folders:
        if is_noexec(folder):
            continue
        copy = folder / f".{secrets.token_hex(8)}.{name}"
        try:
            # Nobody else may open it, not for a moment: what it holds is run.
            with open(path, "rb") as source, open(copy, "xb", opener=functools.partial(os.open, mode=0o700)) as target:
                shutil.copyfileobj(source, target)
        except OSError:
            _remove(str(copy))
            continue
        return str(copy)
    raise OSError(
        f"an older {name} is in memory, and the new one cannot be copied to be opened beside it, neither to "
        f"{folders[0]} nor to {folders[1]}: name a folder in TMPDIR that files can be written to and libraries loaded "
        "from"
    )


def _remove(path: str) -> None:
    """Remove a file, unless the system keeps the files of open libraries."""
    try:
        os.unlink(path)
    except OSError:
        return
