"""Who may write to a file."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path


def writable_by_everyone(path: str | os.PathLike[str]) -> str:
    """Why anyone on this machine could change what is at a path, or put something else there; empty if nobody could.

    On POSIX the modes of the file or folder and of all folders above it are looked at, both of the path as it is
    written and of what its links lead to. A folder such as ``/tmp``, where everyone may make files but remove only
    their own, is no place to look for something; what lies in it is safe if it belongs to this user or to root.
    On Windows nothing is looked at: permissions are lists there that Python does not read. It is always empty.

    Raises:
        OSError: there is nothing at the path, or it cannot be looked at.
    """
    if sys.platform == "win32":
        return ""
    written = Path(os.path.abspath(path))
    for way in (written, written.resolve(strict=True)):
        if not way.is_symlink() and way.stat().st_mode & stat.S_IWOTH:
            return f"everyone may write to {way}"
        for entry, folder in zip((way, *way.parents), way.parents, strict=False):
            mode = folder.stat().st_mode
            if not mode & stat.S_IWOTH:
                continue
            if not mode & stat.S_ISVTX:
                return f"everyone may write to {folder}"
            if entry.lstat().st_uid not in (0, os.getuid()):
                return f"{entry} belongs to another user, and everyone may write to {folder}"
    return ""
