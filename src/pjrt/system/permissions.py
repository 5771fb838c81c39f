"""Permissions of files."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path


def writable_by_everyone(path: str | os.PathLike[str]) -> str:
    """Return why every user of this machine could change or replace the file at a path; empty if they cannot.

    On POSIX the modes of the file or folder and of all folders above it are checked, both of the path as it is
    written and of its links' target. A folder such as ``/tmp``, where everyone may make files but remove only their
    own, is itself unsafe; a file in it is safe if it belongs to this user or to root.
    On Windows nothing is checked, and the result is empty: Python does not read the lists of permissions there.

    Raises:
        OSError: nothing is at the path, or it cannot be read.
    """
    if sys.platform == "win32":
        return ""
    absolute = Path(os.path.abspath(path))
    for way in (absolute, absolute.resolve(strict=True)):
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


def make_protected_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, if it is not there; users of other groups may not write.

    The mode does not depend on the process: some have a umask of 0.

    Raises:
        OSError: the folder cannot be made.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o775, exist_ok=True)


def readable_by_everyone(path: str | os.PathLike[str]) -> str:
    """Return why every user of this machine could read the file at a path; empty if they cannot.

    Only the mode of the file itself counts, as for the keys of ``ssh``: a folder may be opened later. On Windows
    nothing is checked, and the result is empty.

    Raises:
        OSError: nothing is at the path, or it cannot be read.
    """
    if sys.platform == "win32":
        return ""
    return f"everyone may read {os.fspath(path)}" if os.stat(path).st_mode & stat.S_IROTH else ""
