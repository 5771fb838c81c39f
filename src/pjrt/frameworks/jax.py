"""JAX on devices of this package: ``platform = register("reference")``, then ``jax.devices(platform)``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, NotFoundError, UnimplementedError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.capi.export import ExportedPlugin, export, exported_at
from pjrt.capi.layer.environment import capsule_with_layers
from pjrt.frameworks import _jax_lowering
from pjrt.frameworks._served import JAX, Served
from pjrt.plugins import registry
from pjrt.plugins.declaration import ProcessOptions

_RESERVED = frozenset({"cpu", "cuda", "gpu", "rocm", "tpu", "METAL", "neuron"})
"""Names that JAX reserves; a device of such a name is registered as ``pjrt_`` and the name."""

_XLA_CPU = "cpu"

_BEHIND_ALL = -100
"""A priority below that of JAX's own CPU backend: a registered device changes no default."""

_BEFORE_ALL = 1000

_registered: set[str] = set()


def register(
    device: str | os.PathLike[str] | ExportedPlugin,
    *,
    platform: str | None = None,
    make_default: bool | None = None,
    wrap: bool | None = None,
    **options: Any,
) -> str:
    """Register a device with JAX, as a PJRT plugin.

    Call it before JAX is first used. JAX loads a vendor's library itself; a device in Python, or a library with
    ``wrap``, goes through this package. The defaults of the arguments are the settings ``frameworks.jax`` of the
    plugin's manifest: ``platform``, ``priority``, ``make_default`` and ``wrap``.

    Args:
        device: one of ``pjrt.plugins.names()``, the path of a plugin's library, or a plugin from ``pjrt.export``.
        platform: the device's name in JAX; by default its own name, after ``pjrt_`` if JAX reserves that name.
        make_default: whether JAX uses the device by default.
        wrap: whether JAX gets a library through this package.
        options: the client's options, such as ``num_devices``. They come before those of the environment and of the
            plugin's declaration.

    Returns:
        The device's name in JAX: ``jax.devices(platform)``.

    Raises:
        FailedPreconditionError: JAX has made its backends already, or the plugin cannot be used.
        NotFoundError: JAX is not installed, or there is no such device.
    """
    bridge = _xla_bridge()
    if isinstance(device, ExportedPlugin):
        platform = platform or _unreserved(device.name)
        _register_table(bridge, device, platform, _priority({}, make_default), options)
        return platform
    served = Served(device, JAX, options, wrap=wrap)
    settings = served.settings
    platform = platform or str(settings.get("platform", "")) or _unreserved(served.name)
    priority = _priority(settings, make_default)
    if served.is_wrapped:
        # XLA's CPU keeps the platform name "cpu": JAX's rules for that name (DLPack, linear algebra) apply to it.
        is_cpu = served.device == _XLA_CPU
        exported = export(_maker(served), name=platform, platform_name=None if is_cpu else platform)
        _register_table(bridge, exported, platform, priority, options)
        if is_cpu:
            _stand_in_for_cpu(bridge, platform)
    else:
        _check_not_too_late(bridge, platform)
        path = str(served.library())
        layered = capsule_with_layers(path)
        place = {"library_path": path} if layered is None else {"c_api": layered}
        table = bridge.register_plugin(platform, **place, options=served.own_options, priority=priority)
        exported_plugin = exported_at(table)
        if exported_plugin is not None:
            _prepare(bridge, exported_plugin, platform)
    _registered.add(served.device)
    return platform


def _register_table(
    bridge: Any, exported: ExportedPlugin, platform: str, priority: int, options: dict[str, Any]
) -> None:
    _check_not_too_late(bridge, platform)
    bridge.register_plugin(platform, c_api=exported.capsule, options=options or None, priority=priority)
    _prepare(bridge, exported, platform)


def _prepare(bridge: Any, exported: ExportedPlugin, platform: str) -> None:
    """Have JAX lower programs for a plugin of ours as for CPUs, and have the plugin's clients run Python callbacks."""
    for target in _jax_lowering.TARGETS:
        # A device that cannot call Python functions raises the error when a program calls one.
        with contextlib.suppress(UnimplementedError):
            exported.register_ffi_handler(target, _jax_lowering.call_back)
    _jax_lowering.add_platform(platform)
    _jax_lowering.add_cpu_rules(platform)
    registration = bridge._backend_factories[platform]
    make = registration.factory

    def make_and_add_rules() -> Any:
        client = make()
        _jax_lowering.add_cpu_rules(client.platform)  # the client may have another platform name than the plugin
        return client

    registration.factory = make_and_add_rules


def _stand_in_for_cpu(bridge: Any, platform: str) -> None:
    """Have JAX find our XLA CPU as ``cpu`` if its configuration excludes a CPU backend of its own."""
    chosen = bridge.config.jax_platforms.value
    if chosen and _XLA_CPU not in chosen.split(","):
        bridge._alias_to_platforms.setdefault(_XLA_CPU, [platform])


def is_registered(device: str) -> bool:
    """Whether a plugin was registered with JAX, under any name."""
    return device in _registered


def let_fail(platform: str) -> None:
    """Have JAX go on if a platform's client cannot be made; by default JAX does not start then."""
    _xla_bridge()._backend_factories[platform].fail_quietly = True


def _unreserved(name: str) -> str:
    return f"pjrt_{name}" if name in _RESERVED else name


def _priority(settings: Mapping[str, Any], make_default: bool | None) -> int:
    if make_default is None:
        make_default = bool(settings.get("make_default", False))
        if "priority" in settings and not make_default:
            return int(settings["priority"])
    return _BEFORE_ALL if make_default else _BEHIND_ALL


def _check_not_too_late(bridge: Any, platform: str) -> None:
    if platform in bridge._backend_factories:
        raise FailedPreconditionError(f"JAX has a platform {platform!r} already; give another name with platform=")
    if bridge.backends_are_initialized():
        raise FailedPreconditionError(
            f"JAX has made its backends already, and would not see {platform!r}; register it before JAX is first used, "
            "or call jax.extend.backend.clear_backends() in between"
        )


def _maker(served: Served) -> Callable[..., Client]:
    """Return the function that makes clients of an exported device for JAX."""

    def make(
        key_value_store: KeyValueStore | None = None,
        node_id: int | None = None,
        num_nodes: int | None = None,
        partition_index: int | None = None,
        **options: Any,
    ) -> Client:
        declaration = served.declaration
        place = {"node_id": node_id, "num_nodes": num_nodes, "partition_index": partition_index}
        options |= _place_options(
            {name: value for name, value in place.items() if value is not None},
            declaration.processes,
            is_library=declaration.library is not None,
        )
        if declaration.library is not None and key_value_store is not None:
            options["key_value_store"] = key_value_store
        return registry.client(served.device, **options)

    return make


def _place_options(place: Mapping[str, int], names: ProcessOptions | None, *, is_library: bool) -> dict[str, Any]:
    """Return the place of the process in the job as options of a client.

    ``jax.distributed`` gives it under the option names of XLA's GPU clients; the device's declaration may name its own.
    A device in Python that declares none does not get the place: each of its processes knows its own devices only.
    """
    if names is None:
        return dict(place) if is_library else {}
    own_names = {"node_id": names.index, "num_nodes": names.total}
    return {own_names.get(name) or name: value for name, value in place.items() if is_library or own_names.get(name)}


def _xla_bridge() -> Any:
    try:
        from jax._src import xla_bridge
    except ImportError as error:
        raise NotFoundError("JAX is not installed: pip install jax") from error
    return xla_bridge
