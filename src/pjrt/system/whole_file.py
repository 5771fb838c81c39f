"""Files that other processes see complete or not at all, and that no other user may change."""

from __future__ import annotations

import errno
import functools
import os
import stat
from pathlib import Path

PARTIAL = ".partial"
"""The suffix of files that are being written."""


def read_plain_file(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file; reading a pipe would wait for its writer.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        return file.read()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that other processes see complete or not at all; the last of several writers wins.

    Users outside of its group may not write to it.
    """
    partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}{PARTIAL}")
    try:
        with open(partial, "xb", opener=functools.partial(os.open, mode=0o664)) as file:
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
