"""The stamp of a file, which differs where another file has taken its place."""

from __future__ import annotations

import os

FileStamp = tuple[int, int, int, int]
"""Device, inode, size in bytes, and the time of the last write in nanoseconds."""


def file_stamp(path: str | os.PathLike[str]) -> FileStamp | None:
    """Return the stamp of the file at a path; ``None`` if there is no file, or it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
