"""Plugins made of Python: from a function that makes clients to a plugin that frameworks load."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pjrt.api.client import Client
from pjrt.api.device import Attributes, NamedValue
from pjrt.api.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
    unimplemented,
)
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.plugin import Profiler
from pjrt.api.topology import TopologyDescription
from pjrt.capi import capsule_of
from pjrt.capi.client_factories import ClientFactory, make_client, named_topology, takes
from pjrt.capi.environment import with_layers
from pjrt.capi.import_spec import find_attribute
from pjrt.native.here import Here
from pjrt.native.library import write_library


class ExportedPlugin:
    """A plugin made of Python; ``export`` makes it.

    Its table lives as long as the process, as the C API wants of tables. A framework's request makes a client, or is
    given the one client that was exported.
    """

    def __init__(
        self,
        factory: ClientFactory | Client,
        name: str,
        attributes: Mapping[str, NamedValue],
        profiler: Callable[[bytes], Profiler] | None,
        platform_name: str | None,
    ) -> None:
        self._shared_client = factory if isinstance(factory, Client) else None
        self._kept_open: weakref.WeakSet[Client] = weakref.WeakSet([factory] if isinstance(factory, Client) else [])
        if isinstance(factory, Client):
            factory = self._share
        if not callable(factory):
            raise InvalidArgumentError(
                f"expected a client, or a function that makes clients, found {type(factory).__name__}"
            )
        if not name:
            raise InvalidArgumentError("an exported plugin needs a name, such as 'mydevice'; found an empty one")
        self._factory = factory
        self._name = name
        self._attributes = dict(attributes)
        self._client_attributes: dict[str, NamedValue] = {}
        self._profiler = profiler
        self._platform_name = platform_name
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        self._handlers: dict[str, tuple[Callable[..., Any] | int, int]] = {}
        self._lock = threading.Lock()
        self._made = Here(self.make_for_framework, self.release, self._attributes, platform_name or "", profiler)

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self._name

    @property
    def platform_name(self) -> str | None:
        """The platform's name that frameworks see; ``None`` for the client's own."""
        return self._platform_name

    @property
    def client(self) -> Client | None:
        """The client that was exported itself; ``None`` for a function that makes clients."""
        return self._shared_client

    @property
    def attributes(self) -> Attributes:
        """The plugin's attributes (``PJRT_Plugin_Attributes``).

        Attributes given to ``export`` come first, then those of the client that was made last, then the versions of
        StableHLO that this package reads.
        """
        return {**_default_attributes(), **self._client_attributes, **self._attributes}

    @property
    def capsule(self) -> object:
        """The ``PJRT_Api`` as a capsule named ``pjrt_c_api``, for JAX's ``register_plugin(c_api=…)``."""
        return capsule_of(self.address)

    @property
    def address(self) -> int:
        """The address of the ``PJRT_Api``, with the layers of ``PJRT_LAYERS``."""
        return with_layers(self._made.address, self._name)

    def write_library(self, path: str | os.PathLike[str], *, shared: bool = False) -> Path:
        """Write a shared library with ``GetPjrtApi``, for programs that load a plugin by its path; needs no compiler.

        Each client of the library has a Python process of its own, which imports the factory by its module and name. So
        the factory must be a function (or class) at the top of a module or script, not a lambda or a local function.

        Args:
            path: the file to write.
            shared: whether all processes of a user have one client and one Python process instead, for a device that
                only one process can open.

        Raises:
            InvalidArgumentError: the factory or the profiler cannot be found by name, or the file cannot be written.
            NotFoundError: the folder does not exist.
            UnimplementedError: the system is not Linux.
        """
        if self._shared_client is not None:
            raise InvalidArgumentError(
                f"a library makes its clients in the process that loads it, and {self._shared_client!r} belongs to "
                "this one; export a function that makes such a client"
            )
        return self._write(
            path,
            _place(self._factory, "factory"),
            _place(self._profiler, "profiler") if self._profiler else "",
            shared=shared,
        )

    def _write(
        self,
        path: str | os.PathLike[str],
        spec: str,
        profiler: str,
        name: str = "",
        python: str | os.PathLike[str] = "",
        shared: bool = False,
    ) -> Path:
        return write_library(
            path,
            spec,
            driver="worker",
            name=name or self._platform_name or "",
            python=python,
            attributes=self._attributes,
            profiler=profiler,
            shared=shared,
        )

    def topology(self, name: str, **options: Any) -> TopologyDescription:
        """Return the topology of a client of the factory, or the topology of a name.

        A name is passed to the factory's ``named_topology``, or else to the factory as the option ``topology``.

        Raises:
            UnimplementedError: the name is not empty, and the factory has neither.
        """
        if name and (named := named_topology(self._factory, name, options)) is not None:
            return named
        if name:
            if self._shared_client is not None or not takes(self._factory, "topology"):
                raise unimplemented(self._name, f"the topology {name!r}", "its one topology has no name")
            options["topology"] = name
        with self._client_for_now(options) as client:
            return client.topology

    def deserialize_topology(self, serialized: bytes) -> TopologyDescription:
        """Return the topology of bytes from ``TopologyDescription.serialize``, read by a client made without options.

        Raises:
            InvalidArgumentError: the bytes are no topology of this platform.
            UnimplementedError: the clients' topologies cannot be deserialized.
        """
        with self._client_for_now({}) as client:
            return client.topology.deserialize(serialized)

    @property
    def has_profiler(self) -> bool:
        """Whether the plugin has a profiler, and so the Profiler extension."""
        return self._profiler is not None

    def profiler(self, options: bytes = b"") -> Profiler:
        """Return a new profiling session (``PLUGIN_Profiler_Create``)."""
        if self._profiler is None:
            raise unimplemented(self._name, "Plugin.profiler")
        return self._profiler(options)

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, traits: int = 0) -> None:
        """Register a handler, a Python function or an address, with all clients of the plugin, also with later ones.

        Raises:
            UnimplementedError: a client that exists already takes no handlers.
        """
        with self._lock:
            self._handlers[name] = (handler, traits)
            clients = [client for client in self._clients if not client.is_closed]
        for client in clients:
            client.register_ffi_handler(name, handler, traits=traits)

    def client_for_framework(self, options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client:
        """Return a new client for a framework, with the plugin's FFI handlers if the client takes any."""
        client = self._make(options, store)
        with self._lock:
            self._clients.add(client)
            self._client_attributes = dict(client.attributes)
            handlers = dict(self._handlers)
        for name, (handler, traits) in handlers.items():
            # A client that takes no handlers raises the error when a program calls one.
            with contextlib.suppress(UnimplementedError):
                client.register_ffi_handler(name, handler, traits=traits)
        return client

    def make_for_framework(
        self, options: Mapping[str, NamedValue], store: KeyValueStore | None
    ) -> Client | TopologyDescription:
        """Return a new client for a framework, or the topology of the name that is among the options."""
        name = options.get("topology")
        if isinstance(name, str) and name:
            return self.topology(name, **{key: value for key, value in options.items() if key != "topology"})
        return self.client_for_framework(options, store)

    def replace_client(self, client: Client) -> None:
        """Have frameworks that ask for a client from now on use another one than the client that was exported.

        Raises:
            FailedPreconditionError: the plugin makes its clients, or the platform's name differs.
        """
        if self._shared_client is None:
            raise FailedPreconditionError(f"expected a plugin of a client, found {self!r}, which makes its clients")
        if client.platform_name != self._shared_client.platform_name:
            raise FailedPreconditionError(
                f"expected a client of the platform {self._shared_client.platform_name!r}, as the one before, found "
                f"{client.platform_name!r}"
            )
        self._shared_client = client
        self._kept_open.add(client)

    def release(self, client: Client) -> None:
        """Close a client that a framework does not need any more; a client that was exported itself stays open."""
        if client not in self._kept_open:
            client.close()

    @contextlib.contextmanager
    def _client_for_now(self, options: Mapping[str, NamedValue]) -> Iterator[Client]:
        client = self._make(options, None)
        try:
            yield client
        finally:
            self.release(client)

    def _share(self, **options: NamedValue) -> Client:
        """Return the client that was exported itself: the factory of its plugin."""
        client = self._shared_client
        assert client is not None
        check_no_options(client, options)
        if client.is_closed:
            raise FailedPreconditionError(f"{client!r} was closed; export or register an open client")
        return client

    def _make(self, options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client:
        return make_client(self._factory, options, store, f"the exported plugin '{self._name}'")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


def export(
    factory: ClientFactory | Client,
    *,
    name: str,
    attributes: Mapping[str, NamedValue] | None = None,
    profiler: Callable[[bytes], Profiler] | None = None,
    platform_name: str | None = None,
) -> ExportedPlugin:
    """Make a PJRT plugin of clients of this package.

    Args:
        factory: a function that makes a client; it is called with the framework's create options as keyword arguments,
            each time the framework wants a client. Or a client: the framework uses this one and does not close it, and
            the caller keeps it open as long as the framework uses it.
        name: the plugin's name.
        attributes: the plugin's attributes; they come before those of its clients (``Client.attributes``) and before
            the versions of StableHLO that this package reads. Frameworks send programs at
            ``stablehlo_current_version``.
        profiler: a function that makes a profiling session from serialized ``tensorflow.ProfileOptions``, if the device
            has a profiler.
        platform_name: the platform's name that frameworks see instead of the client's own.

    Raises:
        InvalidArgumentError: the arguments are no such function or client, or have an empty name.
        UnimplementedError: the system is not Linux.

    Returns:
        The exported plugin: ``capsule`` for JAX, ``write_library`` for programs that load a plugin by its path.
    """
    if sys.platform != "linux":
        raise UnimplementedError(f"exported devices need Linux, and this system is {sys.platform}")
    return ExportedPlugin(factory, name, attributes or {}, profiler, platform_name)


def _place(function: Any, what: str) -> str:
    """Return the place of a function: a worker finds it there."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not module or not name or "<" in name:
        raise InvalidArgumentError(
            f"to write a library, the {what} must be a function at the top of a module, found {function!r}; give it a "
            "name with def, outside of any function"
        )
    if module != "__main__":
        return f"{module}:{name}"
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        raise InvalidArgumentError(f"to write a library, {name} must be in a file, found one defined at a prompt")
    return f"{Path(script).resolve()}:{name}"


def check_no_options(client: Client, options: Mapping[str, Any]) -> None:
    """Raise ``InvalidArgumentError`` if a client that exists already is given options."""
    if options:
        raise InvalidArgumentError(
            f"{client!r} exists already, found options for a new client: {', '.join(options)}; give options where the "
            "client is made"
        )


def _default_attributes() -> dict[str, NamedValue]:
    from pjrt import stablehlo

    current, minimum = stablehlo.current_version(), stablehlo.minimum_version()
    return {
        "xla_version": 2,
        "stablehlo_current_version": (current.major, current.minor, current.patch),
        "stablehlo_minimum_version": (minimum.major, minimum.minor, minimum.patch),
    }


def write_exported(
    path: str | os.PathLike[str],
    spec: str,
    *,
    name: str = "",
    python: str | os.PathLike[str] = "",
    shared: bool = False,
) -> Path:
    """Write the shared library of a device that a spec names, as ``ExportedPlugin.write_library`` does.

    Args:
        path: the file to write.
        spec: ``package.module:attribute`` or ``/path/of/file.py:attribute``; the attribute is an ``ExportedPlugin``, or
            a function or class that makes clients.
        name: the platform's name that frameworks see; by default the device's own.
        python: the Python that runs the device, by default this one.
        shared: as ``ExportedPlugin.write_library`` takes it.

    Raises:
        NotFoundError: there is no such module, file or attribute, or no folder for the library.
        FailedPreconditionError: the module raised an exception during its import, which is the error's cause.
        InvalidArgumentError: the spec is of neither form, or names something else; or the file cannot be written.
        UnimplementedError: the system is not Linux.
    """
    value = find_attribute(spec)
    if isinstance(value, ExportedPlugin):
        return value._write(path, spec, spec if value.has_profiler else "", name, python, shared)
    if not callable(value):
        raise InvalidArgumentError(
            f"{spec!r}: expected a function that makes clients, or what pjrt.export returns, "
            f"found {type(value).__name__}"
        )
    return write_library(path, spec, driver="worker", name=name, python=python, shared=shared)
