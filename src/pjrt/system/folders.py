"""The folders of a user, and of all users."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

_APPLICATION = "pjrt"  # the name of our folders among those of other programs


def config_folder() -> Path:
    """Return the folder of this user's configuration of this package; it need not exist.

    ``$XDG_CONFIG_HOME/pjrt`` or ``~/.config/pjrt``; on macOS ``~/Library/Application Support/pjrt``; on Windows
    ``%APPDATA%\\pjrt``.
    """
    if sys.platform == "win32":
        return _folder_of("APPDATA", Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / _APPLICATION
    return _folder_of("XDG_CONFIG_HOME", Path.home() / ".config")


def cache_folder() -> Path:
    """Return the folder of this user's files that can be made again; it need not exist.

    ``$XDG_CACHE_HOME/pjrt`` or ``~/.cache/pjrt``; on macOS ``~/Library/Caches/pjrt``; on Windows
    ``%LOCALAPPDATA%\\pjrt\\Cache``.
    """
    if sys.platform == "win32":
        return _folder_of("LOCALAPPDATA", Path.home() / "AppData" / "Local") / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / _APPLICATION
    return _folder_of("XDG_CACHE_HOME", Path.home() / ".cache")


def _folder_of(variable: str, otherwise: Path) -> Path:
    """Return our folder below the one that an environment variable names, if its path is absolute."""
    folder = os.environ.get(variable, "")
    return (Path(folder) if os.path.isabs(folder) else otherwise) / _APPLICATION


def shared_folder() -> Path:
    """Return an existing folder in which every user of this machine may make files, and remove only their own.

    ``/run/lock`` where it is such a folder, which is never cleaned up while the machine runs, and otherwise ``/tmp``.
    On Windows it is ``%PROGRAMDATA%\\pjrt``.

    Raises:
        OSError: the folder cannot be made.
    """
    if sys.platform == "win32":
        folder = Path(os.environ.get("PROGRAMDATA", "C:\\ProgramData")) / _APPLICATION
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    locks = Path("/run/lock")
    try:
        mode = locks.lstat().st_mode
    except OSError:
        return Path("/tmp")
    for_everyone = stat.S_IWOTH | stat.S_ISVTX
    return locks if stat.S_ISDIR(mode) and mode & for_everyone == for_everyone else Path("/tmp")
