"""Files that other processes see whole or not at all."""

from __future__ import annotations

import errno
import functools
import os
import secrets
import stat
from pathlib import Path

PARTIAL = ".partial"
"""The end of the names of files that are being written."""


def read_plain_file(path: str | os.PathLike[str]) -> bytes:
    """Read a file, and nothing that has a file's name only: a pipe would be waited for.

    Raises:
        OSError: it cannot be read, or is no plain file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", os.fspath(path))
        return file.read()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that other processes see whole or not at all; of several writers the last one's stays.

    Users outside of its group may not write to it.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        with open(partial, "xb", opener=functools.partial(os.open, mode=0o664)) as file:
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
