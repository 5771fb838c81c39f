"""Shared libraries as files: those of plugins, checked and opened, and copies of our own with settings in them."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import tempfile
import threading
from pathlib import Path

from pjrt.api.errors import (
    DataLossError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from pjrt.system import FileStamp, file_stamp, is_noexec, limit_xla_log, open_library, sign_library
from pjrt.system.elf import is_library, missing_bytes

# The libraries of plugins. None is closed: a plugin's threads may be inside of it.

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


# Libraries with settings: each is a copy of one that comes with this package, with other text in it.

_SETTINGS_SIZE = 16384


def library_of(folder: Path) -> Path:
    """Return the path of the shared library that was compiled for a package of this one.

    Raises:
        InternalError: the file is missing.
    """
    import sysconfig  # here, because a plugin is loaded without it

    library = folder / f"_library{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.is_file():
        raise InternalError(
            f"the library that came with this package is not at {str(library)!r}; install the package again"
        )
    return library


def with_settings(template: Path, mark: bytes, settings: dict[str, str]) -> bytearray:
    """Return a copy of a library with settings: lines ``key=value`` behind a mark.

    Args:
        template: the library to copy.
        mark: what the place of the settings in the library begins with.
        settings: the values by key. Empty ones are left out.

    Raises:
        InvalidArgumentError: the settings have line breaks or are too long.
        InternalError: the library has no place for settings.
    """
    for key, value in settings.items():
        if "\n" in value:
            raise InvalidArgumentError(f"settings of a library must not contain line breaks, found {key}={value!r}")
    text = mark + "".join(f"{key}={value}\n" for key, value in settings.items() if value).encode()
    if len(text) >= _SETTINGS_SIZE:
        raise InvalidArgumentError(
            f"expected at most {_SETTINGS_SIZE} bytes of settings, found {len(text)}; use shorter paths"
        )
    content = bytearray(template.read_bytes())
    start = content.find(mark)
    if start < 0:
        raise InternalError("the library that came with this package is damaged; install the package again")
    content[start : start + _SETTINGS_SIZE] = text.ljust(_SETTINGS_SIZE, b"\0")
    return content


def write_with_settings(path: str | os.PathLike[str], template: Path, mark: bytes, settings: dict[str, str]) -> Path:
    """Write a copy of a library with settings to a file, and return its path.

    Raises:
        NotFoundError: the folder does not exist.
        InvalidArgumentError: the file cannot be written, or as ``with_settings`` has it.
        InternalError: as ``with_settings`` has it.
    """
    target = Path(path)
    if not target.absolute().parent.is_dir():
        raise NotFoundError(f"there is no folder {str(target.parent)!r} to write {target.name!r} to")
    content = with_settings(template, mark, settings)
    try:
        # A new file replaces the old one, and is not written over it: a process may have the old one loaded.
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        scratch.unlink(missing_ok=True)
        with open(scratch, "xb", opener=functools.partial(os.open, mode=0o755)) as file:  # others never write to it
            file.write(content)
        scratch.chmod(0o755)
        sign_library(scratch)
        scratch.replace(target)
    except OSError as error:
        raise InvalidArgumentError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
    return target


def check_loadable(folder: str | os.PathLike[str]) -> None:
    """Refuse a temporary folder from which no library can be loaded.

    Raises:
        FailedPreconditionError: the folder is on a file system that is mounted ``noexec``.
    """
    if is_noexec(folder):
        raise FailedPreconditionError(
            f"{os.fspath(folder)}: expected a temporary folder that libraries can be loaded from, found one on a file "
            "system mounted noexec; name another folder in TMPDIR"
        )


def read_settings(path: str | os.PathLike[str], mark: bytes) -> dict[str, str]:
    """Return the settings of a library by key; empty if it has none behind this mark, or cannot be read."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        return {}
    start = content.find(mark)
    if start < 0:
        return {}
    text = content[start + len(mark) : start + _SETTINGS_SIZE].partition(b"\0")[0]
    return dict(line.split("=", 1) for line in text.decode(errors="replace").splitlines() if "=" in line)
