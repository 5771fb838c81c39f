"""Files that all users of the machine share."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

_ATTEMPTS = 100


def shared_folder() -> Path:
    """A folder in which every user of this machine may make files, and remove only their own; it is there.

    ``/run/lock`` where it is such a folder, which is never tidied up while the machine runs, and otherwise ``/tmp``. On
    Windows it is ``%PROGRAMDATA%\\\\pjrt``.

    Raises:
        OSError: it cannot be made.
    """
    if sys.platform == "win32":
        folder = Path(os.environ.get("PROGRAMDATA", "C:\\ProgramData")) / "pjrt"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    locks = Path("/run/lock")
    try:
        mode = locks.lstat().st_mode
    except OSError:
        return Path("/tmp")
    everyones = stat.S_IWOTH | stat.S_ISVTX
    return locks if stat.S_ISDIR(mode) and mode & everyones == everyones else Path("/tmp")


def open_shared_file(path: str | os.PathLike[str]) -> int:
    """Opens a file that every user of the machine may read and write, and makes it if it is not there.

    It is a file of that folder itself: no link, to a file of somebody else's, is followed.

    Returns:
        A descriptor for reading and writing, which no program inherits that is started from here.

    Raises:
        OSError: it cannot be opened, or is no plain file.
    """
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    for _ in range(_ATTEMPTS):
        try:
            descriptor = os.open(path, flags)  # first without O_CREAT, which systems refuse for files of others
        except FileNotFoundError:
            try:
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue  # somebody else has made it meanwhile
            if sys.platform != "win32":
                os.fchmod(descriptor, 0o666)
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return descriptor
        os.close(descriptor)
        raise PermissionError(f"{os.fspath(path)} must be a plain file that has this one name; remove it")
    raise FileExistsError(f"{os.fspath(path)} is made and removed all the time by somebody else")
