"""Paths of plugins' libraries as users and packages write them: which of them are safe to load."""

from __future__ import annotations

import os
from pathlib import Path

from pjrt import system
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError, PermissionDeniedError
from pjrt.system import elf


def library_path(path: str) -> Path:
    """Return the path of a library that a variable or the configuration file names, with links resolved.

    Raises:
        InvalidArgumentError: the path is relative, or leads to something that is no file.
        NotFoundError: nothing is at the path.
        PermissionDeniedError: every user of the machine could put another library there.
        DataLossError: the file is cut off.
    """
    resolved = safe_path(path)
    if not resolved.is_file():
        kind = "a folder" if resolved.is_dir() else "something else"
        raise InvalidArgumentError(f"{path}: expected a regular file, found {kind}")
    _check_complete(resolved)
    return resolved


def installed_library(path: str | Path) -> Path:
    """Return the path of a library that an installed package names, with links resolved.

    Its permissions are not checked: it is as safe as the package.

    Raises:
        NotFoundError: the file does not exist.
        DataLossError: the file is cut off.
    """
    try:
        resolved = Path(path).resolve()
    except RuntimeError as error:  # pathlib's error for a loop of links, before Python 3.13
        raise NotFoundError(f"{path}: its links form a loop; install the package again") from error
    if not resolved.is_file():
        raise NotFoundError(f"{path}: there is no such file; install the package again")
    _check_complete(resolved)
    return resolved


def safe_path(path: str) -> Path:
    """Return an absolute path with links resolved, after a check that only its owner can replace what is there.

    Raises:
        InvalidArgumentError: the path is relative.
        NotFoundError: nothing is at the path.
        PermissionDeniedError: every user of the machine could put something else there.
    """
    expanded = os.path.expanduser(path)
    if not os.path.isabs(expanded):
        raise InvalidArgumentError(
            f"{path!r} is a relative path, which depends on the current folder; write the absolute path"
        )
    try:
        danger = system.writable_by_everyone(expanded)
        resolved = Path(expanded).resolve(strict=True)
    except OSError as error:
        raise NotFoundError(f"{path}: {error.strerror or error}".replace("No such", "there is no such")) from error
    except RuntimeError as error:  # as above
        raise NotFoundError(f"{path}: its links form a loop") from error
    if danger:
        raise PermissionDeniedError(f"{path} is not safe: {danger}; remove that permission, or move the file")
    return resolved


def _check_complete(path: Path) -> None:
    missing = elf.missing_bytes(path)
    if missing is not None:
        size, needed = missing
        raise DataLossError(f"{path} is cut off: it has {size} bytes, and its header requires at least {needed}")
