"""Plugins in the folders, and libraries, that ``PJRT_PLUGIN_LIBRARY_PATH`` names.

In a folder, plugins are the libraries ``pjrt-plugin-NAME.so`` (or the system's suffix) and the manifests
``pjrt-plugin-NAME.json``, which belong to a library of the same name in the folder or contain a library's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pjrt import system
from pjrt.api.errors import PjrtError
from pjrt.plugins import env_vars
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import manifest, names_and_paths, safe_paths

VARIABLE = env_vars.PLUGIN_FOLDERS


def find() -> Iterator[Declaration]:
    """Return the plugins in the variable's order, those of one folder sorted by name."""
    for entry in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        try:
            path = safe_paths.safe_path(entry)
        except PjrtError as error:
            yield Declaration(entry, VARIABLE, problem=error.message)
            continue
        if path.is_dir():
            yield from _in_folder(path)
        else:
            yield _declared(Path(os.path.expanduser(entry)))


def _in_folder(folder: Path) -> Iterator[Declaration]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield Declaration(str(folder), VARIABLE, problem=f"the folder cannot be read: {error.strerror or error}")
        return
    manifests = {_name(path) for path in entries if _is_named(path, manifest.SUFFIX)}
    for path in entries:
        is_library = _is_named(path, *system.library_suffixes())
        if _is_named(path, manifest.SUFFIX) or (is_library and _name(path) not in manifests):
            yield _declared(path)


def _declared(path: Path) -> Declaration:
    name, origin = _name(path), f"{VARIABLE} {path}"
    try:
        plugin = names_and_paths.declare(name, origin, str(path))
        if plugin.library is not None or plugin.factory is not None:
            return plugin
        for suffix in system.library_suffixes():
            if path.with_suffix(suffix).exists():
                return replace(plugin, library=safe_paths.library_path(str(path.with_suffix(suffix))))
    except PjrtError as error:
        return Declaration(name, origin, problem=error.message)
    expected = manifest.PREFIX + name + system.library_suffixes()[0]
    return replace(plugin, problem=f"the manifest names no library, and there is no {expected} beside it")


def _is_named(path: Path, *suffixes: str) -> bool:
    return path.name.startswith(manifest.PREFIX) and path.suffix in suffixes and len(_name(path)) > 0


def _name(path: Path) -> str:
    return path.stem.removeprefix(manifest.PREFIX)
