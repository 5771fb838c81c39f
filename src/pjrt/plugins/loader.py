"""From a declaration to a plugin: its module is imported or its library opened, once, when it is first asked for."""

from __future__ import annotations

import importlib
import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pjrt.api.api_version import API_VERSION
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, PjrtError, unimplemented
from pjrt.api.plugin import Plugin
from pjrt.plugins.env_vars import set_environment
from pjrt.system import FileStamp, file_stamp

if TYPE_CHECKING:
    from pjrt.api.device import Attributes
    from pjrt.api.topology import TopologyDescription
    from pjrt.plugins.declaration import Declaration


class Loader:
    """The loaded plugins. Each is loaded once, whichever thread asks first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, str], Slot] = {}

    def load(self, declaration: Declaration) -> Plugin:
        """Return the plugin of a declaration, loaded if it is not yet. Other plugins can be loaded meanwhile.

        Raises:
            FailedPreconditionError: the declaration has a problem, whether the plugin is loaded or not.
            PjrtError: the plugin cannot be loaded. The next call tries again.
        """
        declaration.check_usable()
        slot = self.slot(declaration)
        with slot.lock:
            return slot.plugin or slot.fill(open_plugin)

    def slot(self, declaration: Declaration) -> Slot:
        """Return the slot of a plugin, loaded or not."""
        with self._lock:
            return self._slots.setdefault(_key(declaration), Slot(declaration))

    def loaded(self) -> dict[str, Plugin]:
        """Return the loaded plugins by name."""
        with self._lock:
            slots = tuple(self._slots.values())
        return {slot.declaration.name: slot.plugin for slot in slots if slot.plugin}

    def forget(self, declaration: Declaration) -> None:
        """Have a plugin loaded anew when it is next asked for."""
        with self._lock:
            self._slots.pop(_key(declaration), None)


class Slot:
    """The place of one plugin, loaded or not.

    Attributes:
        declaration: its declaration.
        plugin: the plugin, if it is loaded.
        files: the files that it was loaded from, with their stamps after that.
        loaded_at: when its loading began, in nanoseconds since the epoch.
        lock: held while it is loaded. The thread that loads it may take it again: a plugin may ask for itself.
    """

    __slots__ = ("declaration", "files", "loaded_at", "lock", "plugin")

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.plugin: Plugin | None = None
        self.files: dict[Path, FileStamp | None] = {}
        self.loaded_at = 0
        self.lock = threading.RLock()

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
    """Load the library or import the factory of a declaration, and return the plugin.

    Raises:
        FailedPreconditionError: the factory cannot be imported, or is neither a function nor a plugin.
        PjrtError: the library cannot be loaded, or is no PJRT plugin of a supported version.
    """
    set_environment(declaration)
    if declaration.library is not None:
        from pjrt import capi  # here, because a built-in device does without the C API

        return capi.load_plugin(declaration.library)
    return _from_factory(declaration)


def _stamps(declaration: Declaration) -> dict[Path, FileStamp | None]:
    """Return the files of a loaded plugin with their stamps; none for a built-in device."""
    if declaration.library is not None:
        return {declaration.library: file_stamp(declaration.library)}
    if str(declaration.factory).startswith("pjrt."):
        return {}
    from pjrt.plugins.module_files import ModuleFiles, place_of

    place = place_of(declaration)
    return ModuleFiles.of(place).stamps() if place else {}


def _from_factory(declaration: Declaration) -> Plugin:
    factory: Any = declaration.factory
    try:
        if isinstance(factory, str):
            factory = import_place(factory)
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


def import_place(place: str) -> Any:
    """Import and return the object at ``module:attribute`` or ``/path/of/file.py:attribute``."""
    if ".py:" in place:
        from pjrt.capi.export.import_spec import find_attribute

        return find_attribute(place)
    module, _, attributes = place.partition(":")
    value: Any = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        value = getattr(value, attribute)
    return value


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
        """Return the topology of a number of devices, where the function makes clients of ``pjrt.host.HostClient``.

        Args:
            name: the number, such as ``8``, which the function gets as ``num_devices``; may be left out.
            options: those of ``client``.
        """
        from pjrt.host.topology import named_topology

        if name and not _accepts(self._factory, "num_devices"):
            raise unimplemented(self._name, f"the topology {name!r}", "what makes its clients takes no num_devices")
        return named_topology(self._name, self.client, name, options)


def _accepts(function: Callable[..., Any], option: str) -> bool:
    """Whether a function accepts an option of that name; true for a function without a signature."""
    try:
        inspect.signature(function).bind_partial(**{option: None})
    except TypeError:
        return False
    except ValueError:  # a compiled function without a signature
        return True
    return True
