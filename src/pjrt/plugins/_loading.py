"""From a declaration to a plugin: what is imported or opened, once, when it is first asked for."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pjrt.api.attributes import Attributes
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, InternalError, PjrtError
from pjrt.api.plugin import Plugin
from pjrt.plugins.declaration import Declaration

_API_VERSION = (0, 114)


class Loader:
    """The plugins that are loaded, each once, whichever thread asks first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, str], _Slot] = {}

    def load(self, declaration: Declaration) -> Plugin:
        """The plugin of a declaration; it is loaded if it is not yet. Others can be loaded meanwhile.

        Raises:
            PjrtError: it cannot be loaded. It is tried again when it is asked for again.
        """
        with self._lock:
            slot = self._slots.setdefault(_key(declaration), _Slot(declaration))
        with slot.lock:
            if slot.plugin is None:
                slot.plugin = open_plugin(declaration)
            return slot.plugin

    def loaded(self) -> dict[str, Plugin]:
        """The plugins that are loaded, by name."""
        with self._lock:
            slots = tuple(self._slots.values())
        return {slot.declaration.name: slot.plugin for slot in slots if slot.plugin is not None}

    def forget(self, declaration: Declaration) -> Plugin | None:
        """Has a plugin loaded anew when it is next asked for.

        Returns:
            What was loaded of it; ``None`` if nothing was.
        """
        with self._lock:
            slot = self._slots.pop(_key(declaration), None)
        return None if slot is None else slot.plugin


@dataclass(slots=True)
class _Slot:
    """The place of one plugin. Its lock may be taken again by the thread that loads it: a plugin may ask for itself."""

    declaration: Declaration
    plugin: Plugin | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)


def _key(declaration: Declaration) -> tuple[str, str]:
    factory = declaration.factory
    place = factory if isinstance(factory, str) else f"object {id(factory)}"
    return declaration.name, str(declaration.library or place)


def open_plugin(declaration: Declaration) -> Plugin:
    """Loads what a declaration names.

    Raises:
        FailedPreconditionError: something is known against it.
        InternalError: the package cannot be imported, or names something else.
        PjrtError: the library cannot be loaded, or is no PJRT plugin that this package can speak to.
    """
    if declaration.problem:
        raise FailedPreconditionError(
            f"the plugin {declaration.name!r} ({declaration.origin}) cannot be used: {declaration.problem}"
        )
    for variable, value in declaration.environment.items():
        os.environ.setdefault(variable, value)
    if declaration.library is not None:
        loaded: Plugin = importlib.import_module("pjrt.capi").load_plugin(declaration.library)
        return loaded
    return _made(declaration)


def _made(declaration: Declaration) -> Plugin:
    factory: Any = declaration.factory
    try:
        if isinstance(factory, str):
            factory = _object(factory)
        if isinstance(factory, type) and issubclass(factory, Plugin):
            factory = factory()
    except PjrtError:
        raise
    except Exception as error:
        raise InternalError(
            f"the device {declaration.name!r} ({declaration.origin}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if isinstance(factory, Plugin):
        return factory
    if not callable(factory):
        raise InternalError(
            f"the device {declaration.name!r} ({declaration.origin}) must be a function that makes clients or a "
            f"pjrt.Plugin, found {type(factory).__name__}"
        )
    return FactoryPlugin(declaration.name, factory)


def _object(place: str) -> Any:
    """What ``module:attribute`` names."""
    module, _, attributes = place.partition(":")
    found: Any = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        found = getattr(found, attribute)
    return found


class FactoryPlugin(Plugin):
    """A plugin that is a function that makes clients."""

    def __init__(self, name: str, factory: Callable[..., Client]) -> None:
        self._name = name
        self._factory = factory

    @property
    def name(self) -> str:
        return self._name

    @property
    def api_version(self) -> tuple[int, int]:
        return _API_VERSION

    @property
    def attributes(self) -> Attributes:
        return {}

    def client(self, /, **options: Any) -> Client:
        return self._factory(**options)
