"""From a declaration to a plugin: what is imported or opened, once, when it is first asked for."""

from __future__ import annotations

import importlib
import inspect
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pjrt.api.api_version import API_VERSION
from pjrt.api.attributes import Attributes
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, PjrtError, unimplemented
from pjrt.api.plugin import Plugin
from pjrt.api.topology import TopologyDescription
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.environment import set_environment
from pjrt.system import FileStamp, file_stamp


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
            return slot.plugin or slot.fill(open_plugin)

    def slot(self, declaration: Declaration) -> Slot:
        """The place of a plugin, loaded or not."""
        with self._lock:
            return self._slots.setdefault(_key(declaration), Slot(declaration))

    def loaded(self) -> dict[str, Plugin]:
        """The plugins that are loaded, by name."""
        with self._lock:
            slots = tuple(self._slots.values())
        return {slot.declaration.name: slot.plugin for slot in slots if slot.plugin}

    def forget(self, declaration: Declaration) -> Plugin | None:
        """Has a plugin loaded anew when it is next asked for.

        Returns:
            What was loaded of it; ``None`` if nothing was.
        """
        with self._lock:
            slot = self._slots.pop(_key(declaration), None)
        return None if slot is None else slot.plugin


@dataclass(slots=True)
class Slot:
    """The place of one plugin. Its lock may be taken again by the thread that loads it: a plugin may ask for itself.

    Attributes:
        declaration: what is known of it.
        plugin: the plugin, if it is loaded.
        files: the files that it was loaded from, with their stamps after that.
        loaded_at: when its loading began, in nanoseconds since the epoch.
        lock: held while it is loaded.
    """

    declaration: Declaration
    plugin: Plugin | None = None
    files: dict[Path, FileStamp | None] = field(default_factory=dict)
    loaded_at: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def fill(self, load: Callable[[Declaration], Plugin]) -> Plugin:
        """Load the plugin, note its files, and return it. If the loading fails the slot stays as it is."""
        begin = time.time_ns()
        self.plugin = plugin = load(self.declaration)
        self.files, self.loaded_at = _stamps(self.declaration), begin
        return plugin

    def changed_files(self) -> tuple[Path, ...]:
        """Return the files that are others than those that the plugin was loaded from, or are gone."""
        now = {**dict.fromkeys(self.files), **_stamps(self.declaration)}
        return tuple(sorted(path for path, stamp in now.items() if self._is_other(path, stamp)))

    def _is_other(self, path: Path, stamp: FileStamp | None) -> bool:
        # A file that was saved while it was loaded, or before a module was imported late, may be either.
        return stamp is None or stamp != self.files.get(path, stamp) or stamp[-1] > self.loaded_at


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


def _stamps(declaration: Declaration) -> dict[Path, FileStamp | None]:
    """The files of a plugin that is loaded, with their stamps; none for a built-in device."""
    if declaration.library is not None:
        return {declaration.library: file_stamp(declaration.library)}
    if str(declaration.factory).startswith("pjrt."):
        return {}
    from pjrt.plugins.module_files import ModuleFiles, place_of

    place = place_of(declaration)
    return ModuleFiles.of(place).stamps() if place else {}


def _made(declaration: Declaration) -> Plugin:
    factory: Any = declaration.factory
    try:
        if isinstance(factory, str):
            factory = named(factory)
        if isinstance(factory, type) and issubclass(factory, Plugin):
            factory = factory()
    except PjrtError:
        raise
    except (Exception, SystemExit) as error:
        from pjrt.capi.export.import_spec import located

        raise FailedPreconditionError(
            f"the device {declaration.name!r} ({declaration.origin}) cannot be loaded: {located(error)}"
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
        return importlib.import_module("pjrt.capi.export.import_spec").find_attribute(place)
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
        return API_VERSION

    @property
    def attributes(self) -> Attributes:
        return {}

    def client(self, /, **options: Any) -> Client:
        client: object = self._factory(**options)
        if not isinstance(client, Client):
            raise FailedPreconditionError(
                f"the function that makes clients of {self._name!r} must return a pjrt.Client, "
                f"found {type(client).__name__}"
            )
        return client

    def topology(self, name: str = "", /, **options: Any) -> TopologyDescription:
        """A number of devices, where the function makes clients of ``pjrt.host.HostClient``'s kind.

        Args:
            name: the number, such as ``8``, which the function is given as ``num_devices``; may be left out.
            options: those of ``client``.
        """
        from pjrt.host.topology import named_topology

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
