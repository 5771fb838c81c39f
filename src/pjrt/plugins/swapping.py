"""Hot swap: unloading plugins, and taking in what their libraries or Python sources have become, in a process that
goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pjrt.api.counting import counted
from pjrt.api.errors import FailedPreconditionError
from pjrt.plugins import registry
from pjrt.plugins._loading import Slot, open_plugin
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.python_source import PythonSource, Signature, place_of, reason, signature

if TYPE_CHECKING:
    from pjrt.capi import LoadedPlugin


def unload(name: str | os.PathLike[str]) -> bool:
    """Ends a plugin: its library leaves the process, or its modules are forgotten. It is loaded anew when it is next
    asked for.

    A library that cannot leave, because a thread is inside of it or it is marked to stay, stays in memory unused.

    Args:
        name: the plugin's name, or its library's path.

    Returns:
        Whether its code has left the process. ``False`` too where it was not loaded.

    Raises:
        FailedPreconditionError: something of it is alive; the message says what. Or it is known that it cannot be
            unloaded.
        NotFoundError: there is no such plugin.
    """
    declaration = registry.declaration(name)
    slot = registry.slot(declaration)
    with slot.lock:
        if slot.plugin is None:
            return False
        if declaration.library is not None:
            gone = _end_library(declaration, slot)
        else:
            source = _source(declaration, slot)
            _check_nothing_alive(declaration, source)
            if isinstance(declaration.factory, str):
                source.forget()
            gone = True
        slot.plugin = slot.source = None
        return gone


def reload(name: str | os.PathLike[str], *, force: bool = False) -> tuple[Path, ...]:
    """Takes in what a plugin's library or Python source has become, if it has changed since it was loaded.

    Clients that are made from now on run the new code, those of JAX included that a device was registered with; JAX
    gives its own up with ``jax.extend.backend.clear_backends()``. What was imported elsewhere from the plugin's modules
    stays what it was. A plugin that is not loaded is loaded.

    Args:
        name: the plugin's name, or its library's path.
        force: whether to do it where no file has changed.

    Returns:
        The files that had changed; empty where nothing was done.

    Raises:
        FailedPreconditionError: something of it is alive; the message says what. Or it cannot be loaded as it is now:
            a plugin in Python stays as it was then. Or it is known that it cannot be unloaded.
        NotFoundError: there is no such plugin.
    """
    declaration = registry.declaration(name)
    slot = registry.slot(declaration)
    with slot.lock:
        if slot.plugin is None:
            return _load_first(declaration, slot)
        if declaration.library is None:
            return _reload_source(declaration, slot, force)
        plugin: LoadedPlugin = slot.plugin  # type: ignore[assignment]  # what has a library is one of those
        changed = (declaration.library,) if plugin.has_changed else ()
        if changed or force:
            _end_library(declaration, slot)
            slot.plugin = None
            registry.get(name)
        return changed


def files(name: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The files that a plugin is made of: its library, or the source of its modules; none for a device in the box.

    Raises:
        NotFoundError: there is no such plugin.
    """
    declaration = registry.declaration(name)
    if declaration.library is not None:
        return (declaration.library,)
    slot, place = registry.slot(declaration), place_of(declaration)
    if not place or place.startswith("pjrt."):
        return ()
    return (slot.source or PythonSource(place)).files()


def noted(name: str | os.PathLike[str]) -> Mapping[Path, Signature]:
    """The files of a plugin that is written in Python, with their signatures as they were when it was loaded; empty for
    another, and for one that is not loaded.

    Raises:
        NotFoundError: there is no such plugin.
    """
    source = registry.slot(registry.declaration(name)).source
    return {} if source is None else source.noted()


def _load_first(declaration: Declaration, slot: Slot) -> tuple[Path, ...]:
    """Loads what is not loaded yet; of an earlier attempt that failed some modules may be imported."""
    place = place_of(declaration)
    if declaration.library is not None or not place or place.startswith("pjrt."):
        registry.load(declaration)
        return ()
    source = PythonSource(place)
    with source.renewed():
        registry.load(declaration)
    return ()


def _reload_source(declaration: Declaration, slot: Slot, force: bool) -> tuple[Path, ...]:
    from pjrt.capi.export.exported import renewing

    source = _source(declaration, slot)
    changed = source.changed()
    if not changed and not force:
        return ()
    _check_nothing_alive(declaration, source)
    names, known, place = source.names(), source.files(), place_of(declaration)
    try:
        with renewing(names), source.renewed():
            slot.plugin = open_plugin(replace(declaration, factory=place))
            slot.source = PythonSource(place)
    except BaseException as error:
        if not isinstance(error, Exception):
            raise
        raise FailedPreconditionError(
            f"the device {declaration.name!r} cannot be loaded as it is now, and stays as it was: "
            f"{_gone(changed)}{reason(error, known)}"
        ) from error
    return changed


def _gone(files: Iterable[Path]) -> str:
    """Says which files are not there any more: what the import says of it may name none of them."""
    missing = ", ".join(str(path) for path in files if signature(path) is None)
    return f"no longer there: {missing}; " if missing else ""


def _source(declaration: Declaration, slot: Slot) -> PythonSource:
    if slot.source is not None:
        return slot.source
    if place_of(declaration).startswith("pjrt."):
        raise FailedPreconditionError(f"the device {declaration.name!r} is a part of this package; it stays as it is")
    raise FailedPreconditionError(
        f"the device {declaration.name!r} was registered as an object that no module has at its top, so its source is "
        "not known; register it by its place, such as factory='mydevice:make_client'"
    )


def _check_nothing_alive(declaration: Declaration, source: PythonSource) -> None:
    from pjrt.plugins import living

    kinds = living.alive(declaration.name, source.names())
    if kinds:
        raise FailedPreconditionError(
            f"the device {declaration.name!r} cannot be swapped while something of it is alive: {counted(kinds)}; "
            "close its clients first (those of JAX: drop its arrays, then jax.extend.backend.clear_backends())"
        )


def _end_library(declaration: Declaration, slot: Slot) -> bool:
    if declaration.resident:
        raise FailedPreconditionError(
            f"{declaration.library}: the library of {declaration.name!r} cannot leave the process, for "
            f"{declaration.resident}; start a new process for new code of it"
        )
    plugin: LoadedPlugin = slot.plugin  # type: ignore[assignment]  # what has a library is one of those
    return plugin.unload()
