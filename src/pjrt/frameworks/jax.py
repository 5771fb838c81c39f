"""JAX on devices of this package: ``platform = register("reference")``, then ``jax.devices(platform)``.

``connect("grpc://…")`` does the same for the devices of a server.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from pjrt import native
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, NotFoundError, UnimplementedError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.capi import load_plugin
from pjrt.capi.environment import library_capsule
from pjrt.frameworks import _jax_changes, _jax_remote
from pjrt.frameworks._served import JAX, Served
from pjrt.native.exported import ExportedPlugin, check_no_options, export
from pjrt.native.library import heed_interrupts
from pjrt.plugins import builtin, factories, registry

_RESERVED = frozenset({"cpu", "cuda", "gpu", "rocm", "tpu", "METAL", "neuron"})
"""Names that JAX reserves; a device of such a name is registered as ``pjrt_`` and the name."""

_XLA_CPU = "cpu"

_LIKE_CPU = 0
"""The priority of JAX's own CPU backend."""

_BEHIND_ALL = -100
"""A priority below that of JAX's own CPU backend: a registered device changes no default."""

_BEFORE_ALL = 1000

_log = logging.getLogger("pjrt")
_registered: dict[str | Client | ExportedPlugin, str] = {}  # the platforms of devices
_asked: dict[str, tuple[Any, ...]] = {}  # the arguments of the registrations, by platform
_exported_clients: dict[str, ExportedPlugin] = {}  # the plugins of clients, by platform


def register(
    device: str | os.PathLike[str] | Client | ExportedPlugin,
    *,
    platform: str | None = None,
    make_default: bool | None = None,
    wrap: bool | None = None,
    worker: bool | None = None,
    experimental: bool | None = None,
    **options: Any,
) -> str:
    """Register a device with JAX, as a PJRT plugin.

    Call it before JAX is first used; the same call again does nothing. JAX loads a vendor's library itself; a device in
    Python, or a library with ``wrap``, goes through this package. A device in Python that is named runs in a process of
    its own, and a client in this one. The defaults of the arguments are the settings
    ``frameworks.jax`` of the plugin's manifest: ``platform``, ``priority``, ``make_default``, ``wrap`` and
    ``experimental``.

    Args:
        device: one of ``pjrt.plugins.names()``, the path of a plugin's library, a client, or a plugin from
            ``pjrt.export``. JAX uses a client as it is and does not close it: keep it open as long as JAX uses it.
            Without one that was closed JAX goes on, unless ``JAX_PLATFORMS`` names it.
            After ``jax.extend.backend.clear_backends()`` another client can take the place of one.
        platform: the device's name in JAX; by default its own name, after ``pjrt_`` if JAX reserves that name. With
            ``"cpu"`` the device takes the place of JAX's CPU, for libraries that know no other names.
        make_default: whether JAX uses the device by default.
        wrap: whether JAX gets a library through this package.
        worker: whether the device runs in a process of its own; by default a device in Python that another process can
            import, on Linux, but ``cpu``. In this process a debugger sees its functions.
        experimental: whether JAX warns that the platform is experimental; by default not for built-in devices, and as
            JAX decides for others.
        options: the client's options, such as ``num_devices``. They come before those of the environment and of the
            plugin's declaration. A client has been given its own.

    Returns:
        The device's name in JAX: ``jax.devices(platform)``.

    Raises:
        FailedPreconditionError: JAX has made its backends already, or has the platform with other options, or the
            plugin cannot be used.
        NotFoundError: JAX is not installed, or there is no such device.
    """
    bridge = _xla_bridge()
    if isinstance(device, Client):
        return _register_client(bridge, device, platform, make_default, experimental, options)
    if isinstance(device, ExportedPlugin):
        platform = platform or _unreserved(device.name)
        _register_table(bridge, device, platform, _priority({}, make_default, platform), options or None)
        _set_experimental(bridge, platform, experimental)
        _registered[device] = platform
        return platform
    if isinstance(device, str) and device.startswith(registry.WORKER):
        device, worker = device.removeprefix(registry.WORKER), True
    served = Served(device, JAX, options, wrap=wrap)
    settings = served.settings
    platform = platform or str(settings.get("platform", "")) or _unreserved(served.name)
    asked = (served.device, make_default, wrap, worker, experimental, options)
    if platform in bridge._backend_factories and _asked.get(platform) == asked:
        return platform  # such as a cell of a notebook that runs again
    priority = _priority(settings, make_default, platform)
    # XLA's CPU keeps the platform name "cpu": JAX's rules for that name (DLPack, linear algebra) apply to it.
    name = "" if served.device == _XLA_CPU else platform
    if worker is None:  # XLA's CPU runs programs without Python: a process of its own would make it slower
        worker = served.can_be_worker and served.device != _XLA_CPU
    if worker:
        library = registry.worker_library(served.device, name)
        _register_table(bridge, _Library(library, platform), platform, priority, _worker_options(served, platform))
    elif served.is_wrapped:
        exported = export(_maker(served, platform), name=platform, platform_name=name or None)
        _register_table(bridge, exported, platform, priority, options or None)
    elif platform == _XLA_CPU:
        raise FailedPreconditionError(
            f"JAX would load the library of {served.name!r} itself, which cannot take the place of its CPU; let it go "
            "through this package, with wrap=True"
        )
    else:
        _check_not_too_late(bridge, platform)
        path = str(served.library())
        place = {"c_api": library_capsule(path)} if os.environ.get("PJRT_LAYERS") else {"library_path": path}
        bridge.register_plugin(platform, **place, options=served.own_options, priority=priority)
        if native.is_library(path):
            _prepare(bridge, _Library(path, platform), platform)
    if experimental is None:
        is_builtin = served.declaration.origin == builtin.ORIGIN
        experimental = bool(settings["experimental"]) if "experimental" in settings else False if is_builtin else None
    _set_experimental(bridge, platform, experimental)
    _registered[served.device] = platform
    _asked[platform] = asked
    return platform


def connect(
    address: str,
    *,
    platform: str = "remote",
    make_default: bool = True,
    timeout: float = 10.0,
    on_disconnect: Callable[[str], object] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    certificate_file: str | os.PathLike[str] | None = None,
    key_file: str | os.PathLike[str] | None = None,
    token_file: str | os.PathLike[str] | None = None,
    server_name: str = "",
) -> str:
    """Register the devices of a server with JAX, through jaxlib's own client of the IFRT proxy protocol.

    Call it before JAX is first used. The connection is made at once, so a wrong address is an error here. jaxlib has no
    TLS: a connection with TLS goes through a tunnel, a subprocess that ends with this process.

    Args:
        address: the server's address, as ``pjrt serve`` prints it: ``grpc://HOST:PORT``, or ``grpcs://HOST:PORT`` with
            TLS.
        platform: the devices' name in JAX.
        make_default: whether JAX uses the devices by default.
        timeout: the seconds after which a connection that is not there fails.
        on_disconnect: called once with the reason, on a thread of jaxlib's, when the connection is lost. Calls that
            wait for the server, and later ones, fail.
        ca_file: the file of the CA certificates that the server's certificate may come from, in PEM; the default is
            that of the system. Environment variables name the files that are not given: ``PJRT_REMOTE_CA_FILE``,
            ``PJRT_REMOTE_CERTIFICATE_FILE``, ``PJRT_REMOTE_KEY_FILE`` and ``PJRT_REMOTE_TOKEN_FILE``.
        certificate_file: the file of the client's certificate, where the server asks for one.
        key_file: the file of the certificate's private key.
        token_file: the file of the access token, where the server asks for one.
        server_name: the name in the server's certificate, if it differs from the host in the address.

    Returns:
        The devices' name in JAX: ``jax.devices(platform)``.

    Raises:
        InvalidArgumentError: the address is not one of a server, or a file does not fit to it.
        PermissionDeniedError: the connection would leave this machine in the clear; or a file with a secret is not
            protected from other users.
        UnavailableError: there is no server at the address.
        UnauthenticatedError: the server asks for an access token, or for another one.
        FailedPreconditionError: JAX has made its backends already, or ``JAX_PLATFORMS`` leaves the platform out.
        NotFoundError: JAX is not installed, or jaxlib has no such client.
    """
    bridge = _xla_bridge()
    files = {"ca_file": ca_file, "certificate_file": certificate_file, "key_file": key_file, "token_file": token_file}
    place = _jax_remote.Place(address, {**files, "server_name": server_name})
    _check_not_too_late(bridge, platform)
    platforms = bridge.config.jax_platforms.value
    if platforms and platform not in platforms.split(","):
        raise FailedPreconditionError(
            f"JAX_PLATFORMS is {platforms!r}, so JAX would not see {platform!r}; add the name, or leave the variable "
            "unset"
        )
    connections = [_jax_remote.make_client(place, timeout, on_disconnect)]

    def make() -> Any:
        # JAX makes its backends again after clear_backends.
        client = connections.pop() if connections else _jax_remote.make_client(place, timeout, on_disconnect)
        _jax_changes.add_cpu_rules(client.platform)
        return client

    priority = _BEFORE_ALL if make_default else _BEHIND_ALL
    bridge.register_backend_factory(platform, make, priority=priority, fail_quietly=False)
    return platform


def _register_client(
    bridge: Any,
    client: Client,
    platform: str | None,
    make_default: bool | None,
    experimental: bool | None,
    options: dict[str, Any],
) -> str:
    check_no_options(client, options)
    is_cpu = client.platform_name == _XLA_CPU
    platform = platform or _unreserved(client.platform_name)
    before = _exported_clients.get(platform)
    if before is not None:  # jaxlib cannot load a plugin of this name again
        _check_no_backends(bridge, platform)
        assert before.client is not None
        _registered.pop(before.client, None)
        before.replace_client(client)
        _registered[client] = platform
        bridge._backend_factories[platform].priority = _priority({}, make_default, platform)
        return platform
    exported = export(client, name=platform, platform_name=None if is_cpu else platform)
    _register_table(bridge, exported, platform, _priority({}, make_default, platform), None)
    _exported_clients[platform] = exported
    _registered[client] = platform
    _set_experimental(bridge, platform, bool(experimental))
    return platform


def _register_table(
    bridge: Any,
    exported: ExportedPlugin | _Library,
    platform: str,
    priority: int,
    options: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None,
) -> None:
    _check_not_too_late(bridge, platform)
    plugin = _jax_changes.CPU_PLUGIN if platform == _XLA_CPU else platform
    bridge.register_plugin(plugin, c_api=exported.capsule, options=options, priority=priority)
    if platform == _XLA_CPU:
        _jax_changes.take_cpu_place(bridge)
    _prepare(bridge, exported, platform)
    if exported.client is not None:  # it may be closed when JAX makes its backends
        let_fail(platform)


class _Library:
    """A library with the runtime in C, in the place of an exported plugin."""

    client = None

    def __init__(self, path: str | os.PathLike[str], platform: str) -> None:
        self._path = path
        self._plugin = load_plugin(path)
        self._platform = platform
        heed_interrupts(path)

    @property
    def capsule(self) -> object:
        """Its table, with the layers of ``PJRT_LAYERS``."""
        return library_capsule(self._path)

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, traits: int = 0) -> None:
        """Register a handler with all clients of the library."""
        self._plugin.register_ffi_handler(name, handler, platform=self._platform, traits=traits)


def _prepare(bridge: Any, exported: ExportedPlugin | _Library, platform: str) -> None:
    """Have JAX lower programs for a plugin of ours as for CPUs, and have the plugin's clients run Python callbacks."""
    for target in _jax_changes.TARGETS:
        # A device that cannot call Python functions raises the error when a program calls one.
        with contextlib.suppress(UnimplementedError):
            exported.register_ffi_handler(target, _jax_changes.call_back)
    _jax_changes.add_platform(platform)
    _jax_changes.add_cpu_rules(platform)
    _jax_changes.give_ffi_handlers(exported, platform)
    _jax_changes.give_inspections(exported.capsule)

    def check() -> None:
        if exported.client is not None and exported.client.is_closed:
            _log.warning("the device %r is unavailable to JAX: its client was closed", platform)

    def add_rules(client: Any) -> None:
        if client.platform != platform:  # its own name, by which JAX lowers
            _jax_changes.add_cpu_rules(client.platform)
            _jax_changes.give_ffi_handlers(exported, client.platform)
        if client.platform == _XLA_CPU:
            _stand_in_for_cpu(bridge, platform)

    _on_client(bridge, platform, add_rules, check)


def _on_client(
    bridge: Any, platform: str, function: Callable[[Any], None], before: Callable[[], None] = lambda: None
) -> None:
    """Have JAX call a function with each client of a platform that it makes, and another one before."""
    registration = bridge._backend_factories[platform]
    make = registration.factory

    def make_and_call() -> Any:
        before()
        client = make()
        function(client)
        return client

    registration.factory = make_and_call


def _set_experimental(bridge: Any, platform: str, experimental: bool | None) -> None:
    """Register a platform again, as experimental or not; ``None`` leaves it as JAX decided."""
    from jax.extend import backend

    if experimental is not None:
        registration = bridge._backend_factories[platform]
        backend.register_backend_factory(
            platform,
            registration.factory,
            priority=registration.priority,
            fail_quietly=registration.fail_quietly,
            experimental=experimental,
            c_api=registration.c_api,
        )


def _stand_in_for_cpu(bridge: Any, platform: str) -> None:
    """Have JAX find our XLA CPU as ``cpu`` if its configuration excludes a CPU backend of its own."""
    platforms = bridge.config.jax_platforms.value
    if platforms and _XLA_CPU not in platforms.split(","):
        bridge._alias_to_platforms.setdefault(_XLA_CPU, [platform])


def is_registered(device: str) -> bool:
    """Whether a plugin was registered with JAX, under any name."""
    return device in _registered


def platform_of(device: str | os.PathLike[str] | Client | ExportedPlugin) -> str | None:
    """Return the name in JAX of a device that was registered; None for any other."""
    return _registered.get(os.fspath(device) if isinstance(device, os.PathLike) else device)


def let_fail(platform: str) -> None:
    """Have JAX go on if a platform's client cannot be made; by default JAX does not start then."""
    _xla_bridge()._backend_factories[platform].fail_quietly = True


def is_cpu_free() -> bool:
    """Whether no device has taken the place of JAX's CPU."""
    return _jax_changes.is_cpu_free(_xla_bridge(), _XLA_CPU)


def refuse_cpu(reason: str) -> None:
    """Have JAX fail with a reason when it makes its CPU."""

    def fail() -> Any:
        raise RuntimeError(reason)

    _xla_bridge()._backend_factories[_XLA_CPU].factory = fail


def _unreserved(name: str) -> str:
    return f"pjrt_{name}" if name in _RESERVED else name


def _priority(settings: Mapping[str, Any], make_default: bool | None, platform: str) -> int:
    if make_default is None:
        make_default = bool(settings.get("make_default", False))
        if "priority" in settings and not make_default:
            return int(settings["priority"])
    return _BEFORE_ALL if make_default else _LIKE_CPU if platform == _XLA_CPU else _BEHIND_ALL


def _check_not_too_late(bridge: Any, platform: str) -> None:
    if platform in bridge._backend_factories and not _jax_changes.is_cpu_free(bridge, platform):
        first = "call jax.extend.backend.clear_backends(), and " if bridge.backends_are_initialized() else ""
        raise FailedPreconditionError(
            f"JAX has a platform {platform!r} already, and keeps it until the process ends; for other options {first}"
            f"give another name, such as platform='{platform}_2'"
        )
    named = os.environ.get(_NAMES, "")
    if platform in (each.partition(":")[0] for each in named.split(",")):
        raise FailedPreconditionError(
            f"JAX registers {platform!r} itself, because {_NAMES} names it; give another name with platform=, or unset "
            "the variable"
        )
    _check_no_backends(bridge, platform)


_NAMES = "PJRT_NAMES_AND_LIBRARY_PATHS"
"""The environment variable of JAX's with the platforms that it loads libraries for, as ``NAME:PATH,NAME:PATH``."""


def _check_no_backends(bridge: Any, platform: str) -> None:
    if bridge.backends_are_initialized():
        raise FailedPreconditionError(
            f"JAX has made its backends already, and would not see {platform!r}; register it before JAX is first used, "
            "or call jax.extend.backend.clear_backends() in between"
        )


def _maker(served: Served, platform: str) -> Callable[..., Client]:
    """Return the function that makes clients of an exported device for JAX, in this process."""
    make = factories.factory(served.device)

    def make_client(
        key_value_store: KeyValueStore | None = None,
        node_id: int | None = None,
        num_nodes: int | None = None,
        partition_index: int | None = None,
        **options: Any,
    ) -> Client:
        place = {"node_id": node_id, "num_nodes": num_nodes, "partition_index": partition_index}
        return make(key_value_store, least_devices=_least_devices(served, platform), **place, **options)

    return make_client


def _worker_options(served: Served, platform: str) -> Callable[[], Mapping[str, Any]]:
    """Return the function that returns the options of a worker's client for JAX."""

    def make_options() -> Mapping[str, Any]:
        options, count = served.own_options(), _least_devices(served, platform)
        # A function in a file is called as it is, with the options that it knows.
        return options | {factories.LEAST_DEVICES: count} if count and served.is_named else options

    return make_options


def _least_devices(served: Served, platform: str) -> int:
    """Return how many devices JAX's settings of its CPU ask for; 0 where they do not count.

    They count for XLA's CPU, and for a device that takes the place of JAX's.
    """
    return _jax_changes.cpu_device_count() if _XLA_CPU in (served.device, platform) else 0


def _xla_bridge() -> Any:
    try:
        from jax._src import xla_bridge
    except ImportError as error:
        raise NotFoundError("JAX is not installed: pip install jax") from error
    return xla_bridge
