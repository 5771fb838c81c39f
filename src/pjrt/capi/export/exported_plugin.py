"""Exporting: from a function that makes clients to a plugin that frameworks load."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pjrt.api.attributes import Attributes, NamedValue
from pjrt.api.client import Client
from pjrt.api.errors import InternalError, InvalidArgumentError, UnimplementedError, unimplemented
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.profiler import Profiler
from pjrt.api.topology import TopologyDescription
from pjrt.capi.export._interrupt import watch_for_interrupts
from pjrt.capi.export._table import Table

ClientFactory = Callable[..., Client]
"""Makes a client from create options. It may also name ``key_value_store``, the framework's store or ``None``, and the
place of the process in the framework's job: ``node_id``, ``num_nodes``, ``partition_index``. What it does not name of
these it is not given.
"""

_PLACE_OPTIONS = frozenset({"node_id", "num_nodes", "partition_index"})
"""The options that place a process in a job: JAX gives them to every plugin, whether the plugin knows them or not."""


class ExportedPlugin:
    """A plugin that is made of Python: what ``export`` gives.

    Its table lives as long as the process, as the C API says of tables; clients are made only when a framework asks.
    """

    def __init__(
        self,
        factory: ClientFactory,
        name: str,
        attributes: Mapping[str, NamedValue],
        profiler: Callable[[bytes], Profiler] | None,
        platform_name: str | None,
        abi_versions: bool,
    ) -> None:
        if not callable(factory):
            raise InvalidArgumentError(f"expected a function that makes clients, found {type(factory).__name__}")
        if not name:
            raise InvalidArgumentError("an exported plugin needs a name, such as 'mydevice'; found an empty one")
        self._factory = factory
        self._name = name
        self._attributes = dict(attributes)
        self._of_client: dict[str, NamedValue] = {}
        self._profiler = profiler
        self._platform_name = platform_name
        self._abi_versions = abi_versions
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        self._handlers: dict[str, tuple[Callable[..., Any] | int, int]] = {}
        self._lock = threading.Lock()
        self._table = Table(self)

    @property
    def name(self) -> str:
        """The name it is exported under."""
        return self._name

    @property
    def platform_name(self) -> str | None:
        """The platform's name that frameworks see; ``None`` leaves the client's own."""
        return self._platform_name

    @property
    def attributes(self) -> Attributes:
        """What the plugin says of itself (``PJRT_Plugin_Attributes``): what ``export`` was given, then what the client
        that was made last says of itself, then the versions of StableHLO that are read here.
        """
        return {**_default_attributes(), **self._of_client, **self._attributes}

    @property
    def capsule(self) -> object:
        """The ``PJRT_Api`` as a capsule named ``pjrt_c_api``, as JAX's ``register_plugin(c_api=…)`` takes it."""
        return self._table.capsule()

    @property
    def address(self) -> int:
        """The address of the ``PJRT_Api``."""
        return self._table.address

    def write_library(self, path: str | os.PathLike[str]) -> Path:
        """Writes a shared library with ``GetPjrtApi`` for whoever loads a path; needs no compiler.

        The process that loads it imports the factory by its module and name, so the factory must be a function (or
        class) at the top of a module or script, not a lambda or a local function.

        Raises:
            InvalidArgumentError: the factory cannot be found by name, or the file cannot be written.
            NotFoundError: the folder does not exist.
        """
        from pjrt.capi.export.shared_library import write_library

        return write_library(path, self._spec(), self._name)

    def _spec(self) -> str:
        module, name = getattr(self._factory, "__module__", ""), getattr(self._factory, "__qualname__", "")
        if not module or not name or "<" in name:
            raise InvalidArgumentError(
                f"to write a library, the factory must be a function at the top of a module, found {self._factory!r}; "
                "give it a name with def, outside of any function"
            )
        if module != "__main__":
            return f"{module}:{name}"
        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is None:
            raise InvalidArgumentError(f"to write a library, {name} must be in a file; it was typed at a prompt")
        return f"{Path(script).resolve()}:{name}"

    def topology(self, name: str, **options: Any) -> TopologyDescription:
        """The topology that the factory's client describes; a name is passed on as the option ``topology``.

        Raises:
            UnimplementedError: there is a name, and the factory takes no such option.
        """
        if name:
            if not self._takes("topology"):
                raise unimplemented(self._name, f"the topology {name!r}", "the one that it has goes without a name")
            options["topology"] = name
        with self._make(options, None) as client:
            return client.topology

    def deserialize_topology(self, serialized: bytes) -> TopologyDescription:
        """The topology that ``TopologyDescription.serialize`` gave, by a client that the factory makes without options.

        Raises:
            InvalidArgumentError: the bytes are no topology of this platform.
            UnimplementedError: the clients' topologies cannot be read again.
        """
        with self._make({}, None) as client:
            return client.topology.deserialize(serialized)

    @property
    def has_profiler(self) -> bool:
        """Whether the plugin has a profiler, and so the Profiler extension."""
        return self._profiler is not None

    @property
    def has_abi_versions(self) -> bool:
        """Whether the plugin has the AbiVersion extension."""
        return self._abi_versions

    def profiler(self, options: bytes = b"") -> Profiler:
        """A new profiling session (``PLUGIN_Profiler_Create``)."""
        if self._profiler is None:
            raise unimplemented(self._name, "Plugin.profiler")
        return self._profiler(options)

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, traits: int = 0) -> None:
        """Register a handler, a Python function or an address, with all clients of the plugin, those to come included.

        Raises:
            UnimplementedError: a client that is there already takes none.
        """
        with self._lock:
            self._handlers[name] = (handler, traits)
            clients = [client for client in self._clients if not client.is_closed]
        for client in clients:
            client.register_ffi_handler(name, handler, traits=traits)

    def client_for_framework(self, options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client:
        """A client for a framework that asks for one, with the FFI handlers that it can take."""
        client = self._make(options, store)
        watch_for_interrupts()
        with self._lock:
            self._clients.add(client)
            self._of_client = dict(client.attributes)
            handlers = dict(self._handlers)
        for name, (handler, traits) in handlers.items():
            # One that takes none says so when a program calls the handler.
            with contextlib.suppress(UnimplementedError):
                client.register_ffi_handler(name, handler, traits=traits)
        return client

    def _takes(self, option: str) -> bool:
        """Whether the factory takes an option, by its name or whatever its name."""
        known = inspect.signature(self._factory).parameters
        return option in known or any(one.kind is one.VAR_KEYWORD for one in known.values())

    def _make(self, options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client:
        named = inspect.signature(self._factory).parameters
        given: dict[str, Any] = {
            name: value for name, value in options.items() if name not in _PLACE_OPTIONS or name in named
        }
        if "key_value_store" in named:
            given["key_value_store"] = store
        client = self._factory(**given)
        if not isinstance(client, Client):
            raise InternalError(
                f"the factory of the exported plugin '{self._name}' must return a pjrt.Client, "
                f"found {type(client).__name__}"
            )
        return client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


def export(
    factory: ClientFactory,
    *,
    name: str,
    attributes: Mapping[str, NamedValue] | None = None,
    profiler: Callable[[bytes], Profiler] | None = None,
    platform_name: str | None = None,
    abi_versions: bool = False,
) -> ExportedPlugin:
    """Shows clients of this package to the world as a PJRT plugin.

    Args:
        factory: called with the framework's create options as keyword arguments, each time it wants a client.
        name: the plugin's name.
        attributes: what the plugin says of itself, before what its clients say (``Client.attributes``) and the versions
            of StableHLO that are read here. Frameworks send programs at ``stablehlo_current_version``.
        profiler: makes a profiling session from serialized ``tensorflow.ProfileOptions``, where the device has one.
        platform_name: the platform's name that frameworks see instead of the client's own.
        abi_versions: whether the clients have ABI versions. Where the extension is there, XLA asks for them when an
            executable is kept, and takes no ``UNIMPLEMENTED`` for an answer.

    Returns:
        The exported plugin: ``capsule`` for JAX, ``write_library`` for whoever loads a path.
    """
    return ExportedPlugin(factory, name, attributes or {}, profiler, platform_name, abi_versions)


def _default_attributes() -> dict[str, NamedValue]:
    from pjrt import stablehlo

    found: dict[str, NamedValue] = {"xla_version": 2}
    current, minimum = stablehlo.current_version(), stablehlo.minimum_version()
    found["stablehlo_current_version"] = (current.major, current.minor, current.patch)
    found["stablehlo_minimum_version"] = (minimum.major, minimum.minor, minimum.patch)
    return found
