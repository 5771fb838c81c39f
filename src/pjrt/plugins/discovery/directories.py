"""Plugins in the folders that ``PJRT_PLUGIN_LIBRARY_PATH`` names, and libraries that it names one by one.

In a folder count files that are called ``pjrt-plugin-NAME`` and end as libraries do, and manifests
``pjrt-plugin-NAME.json``, beside a library of that name or with the path of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pjrt import system
from pjrt.api.errors import PjrtError
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import libraries, manifest, settings, variables

VARIABLE = settings.LIBRARY_PATH


def found() -> Iterator[Declaration]:
    """The plugins in the order of the variable, those of one folder by name."""
    for entry in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        try:
            path = libraries.safe(entry)
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
        plugin = variables.declared(name, origin, str(path))
    except PjrtError as error:
        return Declaration(name, origin, problem=error.message)
    if plugin.library is not None or plugin.factory is not None or plugin.problem:
        return plugin
    for suffix in system.library_suffixes():
        beside = path.with_suffix(suffix)
        if beside.exists():
            try:
                return replace(plugin, library=libraries.written(str(beside)))
            except PjrtError as error:
                return replace(plugin, problem=error.message)
    expected = manifest.PREFIX + name + system.library_suffixes()[0]
    return replace(plugin, problem=f"the manifest names no library, and there is no {expected} beside it")


def _is_named(path: Path, *suffixes: str) -> bool:
    return path.name.startswith(manifest.PREFIX) and path.suffix in suffixes and len(_name(path)) > 0


def _name(path: Path) -> str:
    return path.stem.removeprefix(manifest.PREFIX)
