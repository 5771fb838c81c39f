"""From a declaration to a plugin: what is imported or opened, once, when it is first asked for."""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pjrt.api.attributes import Attributes
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, PjrtError, unimplemented
from pjrt.api.plugin import Plugin
from pjrt.api.topology import TopologyDescription
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.environment import set_environment

if TYPE_CHECKING:
    from pjrt.plugins.python_source import PythonSource

_API_VERSION = (0, 114)


class Loader:
    """The plugins that are loaded, each once, whichever thread asks first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, str], Slot] = {}

    def load(self, declaration: Declaration) -> Plugin:
        """The plugin of a declaration; it is loaded if it is not yet. Others can be loaded meanwhile.

        Raises:
            FailedPreconditionError: something is known against it, whether it is loaded or not.
            PjrtError: it cannot be loaded. It is tried again when it is asked for again.
        """
        declaration.check_usable()
        slot = self.slot(declaration)
        with slot.lock:
            if slot.plugin is None or not is_usable(slot.plugin):
                slot.plugin = open_plugin(declaration)
                slot.source = _noted(declaration)
            return slot.plugin

    def slot(self, declaration: Declaration) -> Slot:
        """The place of a plugin, loaded or not."""
        with self._lock:
            return self._slots.setdefault(_key(declaration), Slot(declaration))

    def loaded(self) -> dict[str, Plugin]:
        """The plugins that are loaded, by name."""
        with self._lock:
            slots = tuple(self._slots.values())
        return {slot.declaration.name: slot.plugin for slot in slots if slot.plugin and is_usable(slot.plugin)}

    def forget(self, declaration: Declaration) -> Plugin | None:
        """Has a plugin loaded anew when it is next asked for.

        Returns:
            What was loaded of it; ``None`` if nothing was.
        """
        with self._lock:
            slot = self._slots.pop(_key(declaration), None)
        return None if slot is None else slot.plugin


def is_usable(plugin: Plugin) -> bool:
    """Whether a plugin was not unloaded since it was loaded."""
    return bool(getattr(plugin, "is_loaded", True))


@dataclass(slots=True)
class Slot:
    """The place of one plugin. Its lock may be taken again by the thread that loads it: a plugin may ask for itself.

    Attributes:
        declaration: what is known of it.
        plugin: the plugin, if it is loaded.
        source: the files of one that is written in Python, as they were when it was loaded.
        lock: for who loads or unloads it.
    """

    declaration: Declaration
    plugin: Plugin | None = None
    source: PythonSource | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)


def _key(declaration: Declaration) -> tuple[str, str]:
    factory = declaration.factory
    place = factory if isinstance(factory, str) else f"object {id(factory)}"
    return declaration.name, str(declaration.library or place)


def open_plugin(declaration: Declaration) -> Plugin:
    """Loads what a declaration names.

    Raises:
        FailedPreconditionError: the package cannot be imported, or names something else.
        PjrtError: the library cannot be loaded, or is no PJRT plugin that this package can speak to.
    """
    set_environment(declaration)
    if declaration.library is not None:
        loaded: Plugin = importlib.import_module("pjrt.capi").load_plugin(declaration.library)
        return loaded
    return _made(declaration)


def _noted(declaration: Declaration) -> PythonSource | None:
    """The files of a plugin that was just loaded, to see later whether they have changed; ours do not."""
    if declaration.library is not None or str(declaration.factory).startswith("pjrt."):
        return None
    from pjrt.plugins.python_source import PythonSource, place_of

    place = place_of(declaration)
    return PythonSource(place) if place else None


def _made(declaration: Declaration) -> Plugin:
    factory: Any = declaration.factory
    try:
        if isinstance(factory, str):
            factory = named(factory)
        if isinstance(factory, type) and issubclass(factory, Plugin):
            factory = factory()
    except PjrtError:
        raise
    except Exception as error:
        raise FailedPreconditionError(
            f"the device {declaration.name!r} ({declaration.origin}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if isinstance(factory, Plugin):
        return factory
    if not callable(factory):
        raise FailedPreconditionError(
            f"the device {declaration.name!r} ({declaration.origin}) must be a function that makes clients or a "
            f"pjrt.Plugin, found {type(factory).__name__}"
        )
    return FactoryPlugin(declaration.name, factory)


def named(place: str) -> Any:
    """What ``module:attribute`` or ``/path/of/file.py:attribute`` names; it is imported for it."""
    if ".py:" in place:
        return importlib.import_module("pjrt.capi.export.loading").find_attribute(place)
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
        from pjrt.plugins import living

        client: object = self._factory(**options)
        if not isinstance(client, Client):
            raise FailedPreconditionError(
                f"the function that makes clients of {self._name!r} must return a pjrt.Client, "
                f"found {type(client).__name__}"
            )
        living.made(self._name, client)
        return client

    def topology(self, name: str = "", /, **options: Any) -> TopologyDescription:
        """A number of devices, where the function makes clients of ``pjrt.HostClient``'s kind.

        Args:
            name: the number, such as ``8``, which the function is given as ``num_devices``; may be left out.
            options: those of ``client``.
        """
        from pjrt.host.named_topology import named_topology

        if name and not _takes(self._factory, "num_devices"):
            raise unimplemented(self._name, f"the topology {name!r}", "what makes its clients takes no num_devices")
        return named_topology(self._name, self.client, name, options)


def _takes(function: Callable[..., Any], option: str) -> bool:
    """Whether a function has a parameter of that name, or any; taken to be so of one that does not tell."""
    try:
        inspect.signature(function).bind_partial(**{option: None})
    except TypeError:
        return False
    except ValueError:  # a compiled function without a signature
        return True
    return True
