"""A user's folders."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

APPLICATION = "pjrt"
"""What the folders of this package are called among those of other programs."""


def config_folder() -> Path:
    """The folder of this user's settings for this package; it need not exist.

    ``$XDG_CONFIG_HOME/pjrt`` or ``~/.config/pjrt``; on macOS ``~/Library/Application Support/pjrt``; on Windows
    ``%APPDATA%\\pjrt``.
    """
    if sys.platform == "win32":
        return _folder_of("APPDATA", Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / APPLICATION
    return _folder_of("XDG_CONFIG_HOME", Path.home() / ".config")


def runtime_folder() -> Path:
    """A folder of this user alone for files that all of the user's processes share, such as locks; it is made.

    On POSIX it is ``/tmp/pjrt-UID`` whatever ``TMPDIR`` and ``XDG_RUNTIME_DIR`` say: processes that were started in
    different ways must meet there. On Windows it is ``%LOCALAPPDATA%\\pjrt``.

    Raises:
        OSError: it cannot be made, or what is there is another user's, or others can get at it.
    """
    if sys.platform == "win32":
        folder = _folder_of("LOCALAPPDATA", Path.home() / "AppData" / "Local")
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path("/tmp") / f"{APPLICATION}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} must be a folder of yours that nobody else can enter; remove it")
    return folder


def _folder_of(variable: str, otherwise: Path) -> Path:
    """Our folder below the one that an environment variable names, if it names one by its whole path."""
    named = os.environ.get(variable, "")
    return (Path(named) if os.path.isabs(named) else otherwise) / APPLICATION
