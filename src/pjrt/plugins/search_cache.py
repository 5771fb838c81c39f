"""The search cache: whether a search for installed plugins would find one that comes before the built-in devices.

A process that asks for the default device has to search all installed packages, which takes as long as to make a
client of ``cpu``. On most machines it finds nothing. So a process that finds nothing leaves a note, and later processes
with the same folders search only where a folder has changed, or where hardware has appeared for a plugin that was
found.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.plugins import builtin, env_vars
from pjrt.plugins.declaration import Declaration

_FORMAT = "pjrt search 1"
_NAMESPACE = "jax_plugins"  # a folder with plugins inside the folders of sys.path
_SETTLED_NS = 2_000_000_000
_MOST_NOTES = 100


def has_only_builtin() -> bool:
    """Whether an earlier process has searched the same folders in the same state, and the built-in devices came first.

    No, if anything else decides: an environment variable or a configuration file that names plugins.
    """
    if _is_configured():
        return False
    folders = _folders()
    try:
        state, *patterns = _note(folders).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
    return state == repr(_state(folders)) and not system.any_file(patterns)


def note(plugins: Iterable[Declaration]) -> None:
    """Leave a note that a search found these plugins, of which a built-in device is the default one.

    Plugins of wheels are noted if only their hardware is missing. With any other plugin each process searches: there is
    more that can change than folders.
    """
    patterns: list[str] = []
    for plugin in plugins:
        if plugin.origin == builtin.ORIGIN:
            continue
        if plugin.problem or not plugin.hardware or not plugin.origin.startswith("wheel "):
            return
        patterns += plugin.hardware
    folders = _folders()
    state = _state(folders)
    newest = max((stamp[-1] for stamp in state[1:] if stamp is not None), default=0)
    # A folder may change once more within the resolution of its time, as it does while a package is installed.
    if _is_configured() or time.time_ns() - newest < _SETTLED_NS:
        return
    path = _note(folders)
    try:
        system.make_protected_folder(path.parent)
        notes = list(path.parent.iterdir())
        for old in notes if len(notes) > _MOST_NOTES else ():
            old.unlink(missing_ok=True)
        system.write_whole(path, "\n".join([repr(state), *patterns]).encode())
    except OSError:
        pass  # Without a folder for caches, each process searches.


def _is_configured() -> bool:
    variables = (env_vars.NAMES_AND_PATHS, env_vars.PLUGIN_FOLDERS, env_vars.CONFIG)
    return any(map(os.environ.get, variables)) or env_vars.config_state() is not None


def _folders() -> list[str]:
    places = [os.path.abspath(place) for place in dict.fromkeys(sys.path)]
    return [*places, *(os.path.join(place, _NAMESPACE) for place in places)]


def _state(folders: Sequence[str]) -> tuple[Any, ...]:
    """Return the state of the folders, and of all else that decides what a search finds."""
    return (_FORMAT, sys.version, __file__, *folders), *map(system.file_stamp, folders)


def _note(folders: Sequence[str]) -> Path:
    return system.cache_folder() / "search" / f"{zlib.crc32(repr(folders).encode()):08x}.txt"
