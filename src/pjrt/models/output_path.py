"""Output paths: checks before any work is done, and errors of writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError, NotFoundError


def check_output_path(path: str | os.PathLike[str], suffixes: Sequence[str] = (), *, option: str = "") -> None:
    """Check that a file can be written to a path, before any work is done.

    Args:
        path: the path.
        suffixes: the supported suffixes; any if there are none.
        option: the option of the command that has the path, for messages.

    Raises:
        InvalidArgumentError: the suffix is unsupported, or the path is a folder.
        NotFoundError: the folder does not exist.
    """
    label = _label(path, option)
    if suffixes and Path(path).suffix not in suffixes:
        raise InvalidArgumentError(f"{label}: expected a name that ends in {', '.join(suffixes)}")
    if not Path(path).absolute().parent.is_dir():
        raise NotFoundError(f"{label}: there is no folder {str(Path(path).parent)!r}")
    if Path(path).is_dir():
        raise InvalidArgumentError(f"{label}: expected the name of a file, found a folder")


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], *, option: str = "") -> Iterator[None]:
    """Report an error of the operating system while a block writes a file.

    Raises:
        InvalidArgumentError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise InvalidArgumentError(f"{_label(path, option)}: cannot be written: {error.strerror or error}") from error


def _label(path: str | os.PathLike[str], option: str) -> str:
    return f"{option} {os.fspath(path)}".lstrip()
