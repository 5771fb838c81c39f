"""Where a user says something of plugins: the environment variables and the configuration file, and when they change.

Every client of a device in the box comes by here, so it is light.
"""

from __future__ import annotations

import os
import sys

from pjrt import system

NAMES_AND_PATHS = "PJRT_NAMES_AND_LIBRARY_PATHS"
LIBRARY_PATH = "PJRT_PLUGIN_LIBRARY_PATH"
CONFIG = "PJRT_CONFIG"

FILE_NAME = "plugins.toml"

FileState = tuple[str, int, int]
"""The path of a file, when it was changed, and its size."""


def config_path() -> str:
    """Where the configuration file is, if there is one; ``os.devnull`` stands for none."""
    named = os.environ.get(CONFIG)
    if named:
        return named
    try:
        return str(system.config_folder() / FILE_NAME)
    except RuntimeError:  # whoever runs this has no home
        return os.devnull


def config_state() -> FileState | None:
    """A value that is another one when the configuration file is; ``None`` if there is none, and none is asked for."""
    place = config_path()
    if place == os.devnull:
        return None
    try:
        status = os.stat(place)
    except OSError:
        return (place, 0, 0) if os.environ.get(CONFIG) else None
    return place, status.st_mtime_ns, status.st_size


def is_configured() -> bool:
    """Whether the user names any plugin, or says anything of one, so that it may be one in the box."""
    return bool(os.environ.get(NAMES_AND_PATHS)) or config_state() is not None


def state() -> object:
    """A value that is another one when there may be something else to find: new variables, search paths or files."""
    variables = tuple(os.environ.get(name) for name in (NAMES_AND_PATHS, LIBRARY_PATH, CONFIG))
    return variables, tuple(sys.path), config_state()
