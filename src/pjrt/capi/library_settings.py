"""Settings in shared libraries: a library is a copy of one that comes with this package, with other text in it."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path

from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, NotFoundError
from pjrt.system import is_noexec, sign_library

_SETTINGS_SIZE = 16384


def library_of(folder: Path) -> Path:
    """Return the path of the shared library that was compiled for a package of this one.

    Raises:
        InternalError: the file is missing.
    """
    library = folder / f"_library{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.is_file():
        raise InternalError(
            f"the library that came with this package is not at {str(library)!r}; install the package again"
        )
    return library


def write_with_settings(path: str | os.PathLike[str], template: Path, mark: bytes, settings: dict[str, str]) -> Path:
    """Write a copy of a library with settings: lines ``key=value`` behind a mark.

    Args:
        path: the file to write.
        template: the library to copy.
        mark: what the place of the settings in the library begins with.
        settings: the values by key. Empty ones are left out.

    Raises:
        NotFoundError: the folder does not exist.
        InvalidArgumentError: the file cannot be written, or the settings have line breaks or are too long.
        InternalError: the library has no place for settings.
    """
    target = Path(path)
    if not target.absolute().parent.is_dir():
        raise NotFoundError(f"there is no folder {str(target.parent)!r} to write {target.name!r} to")
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
