"""A user's folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_APPLICATION = "pjrt"  # what our folders are called among those of other programs


def config_folder() -> Path:
    """The folder of this user's settings for this package; it need not exist.

    ``$XDG_CONFIG_HOME/pjrt`` or ``~/.config/pjrt``; on macOS ``~/Library/Application Support/pjrt``; on Windows
    ``%APPDATA%\\pjrt``.
    """
    if sys.platform == "win32":
        return _folder_of("APPDATA", Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / _APPLICATION
    return _folder_of("XDG_CONFIG_HOME", Path.home() / ".config")


def _folder_of(variable: str, otherwise: Path) -> Path:
    """Our folder below the one that an environment variable names, if it names one by its whole path."""
    named = os.environ.get(variable, "")
    return (Path(named) if os.path.isabs(named) else otherwise) / _APPLICATION
