"""JAX on devices of this package: ``platform = register("reference")``, then ``jax.devices(platform)``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import pjrt
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, NotFoundError, UnimplementedError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.capi.export import ExportedPlugin, export, exported_at
from pjrt.frameworks import _jax_lowering
from pjrt.frameworks._served import JAX, Served
from pjrt.plugins.declaration import ProcessOptions

_TAKEN = frozenset({"cpu", "cuda", "gpu", "rocm", "tpu", "METAL", "neuron"})
"""Names that JAX keeps for itself; a device of such a name is registered as ``pjrt_`` and the name."""

_XLA_CPU = "cpu"

_BEHIND_ALL = -100
"""A priority below that of JAX's own CPU backend: what is registered is there for who asks, and changes no default."""

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
    """Makes a device known to JAX, as a PJRT plugin.

    Call it before JAX is first used. A vendor's library is opened by JAX itself, as it is; a device in Python, or a
    library with ``wrap``, comes through this package. What a plugin's manifest says under ``frameworks.jax``
    (``platform``, ``priority``, ``make_default``, ``wrap``) holds where the arguments say nothing.

    Args:
        device: one of ``pjrt.plugins.names()``, the path of a plugin's library, or what ``pjrt.export`` gave.
        platform: the name that JAX is to know it by; the device's own if not said, with ``pjrt_`` in front where JAX
            keeps that name for itself.
        make_default: whether JAX is to use it where no other is asked for.
        wrap: whether JAX is to get a library through this package.
        options: the client's options, such as ``num_devices``. They come before those of the environment and of the
            plugin's declaration.

    Returns:
        The name that JAX knows it by: ``jax.devices(platform)``.

    Raises:
        FailedPreconditionError: JAX has made its backends already, or the plugin cannot be used.
        NotFoundError: JAX is not installed, or there is no such device.
    """
    bridge = _xla_bridge()
    if isinstance(device, ExportedPlugin):
        known_as = platform or _free(device.name)
        _register_table(bridge, device, known_as, _priority({}, make_default), options)
        return known_as
    served = Served(device, JAX, options, wrap=wrap)
    facts = served.facts
    known_as = platform or str(facts.get("platform", "")) or _free(served.name)
    priority = _priority(facts, make_default)
    if served.is_wrapped:
        # XLA's CPU stays "cpu" to JAX, whose rules for it (DLPack, linear algebra) go by that name and hold for it.
        is_cpu = served.device == _XLA_CPU
        exported = export(_maker(served), name=known_as, platform_name=None if is_cpu else known_as)
        _register_table(bridge, exported, known_as, priority, options)
        if is_cpu:
            _stand_in_for_cpu(bridge, known_as)
    else:
        _check_not_too_late(bridge, known_as)
        path = str(served.library())
        table = bridge.register_plugin(known_as, library_path=path, options=served.own_options, priority=priority)
        written = exported_at(table)
        if written is not None:
            _prepare(bridge, written, known_as)
    _registered.add(served.device)
    return known_as


def _register_table(
    bridge: Any, exported: ExportedPlugin, platform: str, priority: int, options: dict[str, Any]
) -> None:
    _check_not_too_late(bridge, platform)
    bridge.register_plugin(platform, c_api=exported.capsule, options=options or None, priority=priority)
    _prepare(bridge, exported, platform)


def _prepare(bridge: Any, exported: ExportedPlugin, platform: str) -> None:
    """Have JAX lower programs for a plugin of ours as for CPUs, and the plugin's clients call back into Python."""
    for target in _jax_lowering.TARGETS:
        # A device that cannot call Python functions says so when a program tries to.
        with contextlib.suppress(UnimplementedError):
            exported.register_ffi_handler(target, _jax_lowering.call_back)
    _jax_lowering.teach(platform)
    _jax_lowering.teach_rules(platform)
    registration = bridge._backend_factories[platform]
    make = registration.factory

    def make_and_teach() -> Any:
        client = make()
        _jax_lowering.teach_rules(client.platform)  # the client may say another name, which is known only now
        return client

    registration.factory = make_and_teach


def _stand_in_for_cpu(bridge: Any, platform: str) -> None:
    """Have JAX find XLA's CPU of ours as ``cpu`` where it was told to make no CPU backend of its own."""
    chosen = bridge.config.jax_platforms.value
    if chosen and _XLA_CPU not in chosen.split(","):
        bridge._alias_to_platforms.setdefault(_XLA_CPU, [platform])


def is_registered(device: str) -> bool:
    """Whether JAX knows a plugin through ``register``, under whichever name."""
    return device in _registered


def let_fail(platform: str) -> None:
    """Has JAX go on without a platform whose client cannot be made; as a rule it does not start then."""
    _xla_bridge()._backend_factories[platform].fail_quietly = True


def _free(name: str) -> str:
    return f"pjrt_{name}" if name in _TAKEN else name


def _priority(facts: Mapping[str, Any], make_default: bool | None) -> int:
    if make_default is None:
        make_default = bool(facts.get("make_default", False))
        if "priority" in facts and not make_default:
            return int(facts["priority"])
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
    """What makes the clients that JAX asks an exported device for."""

    def make(
        key_value_store: KeyValueStore | None = None,
        node_id: int | None = None,
        num_nodes: int | None = None,
        partition_index: int | None = None,
        **options: Any,
    ) -> Client:
        declaration = served.declaration
        place = {"node_id": node_id, "num_nodes": num_nodes, "partition_index": partition_index}
        options |= _in_the_devices_words(
            {name: value for name, value in place.items() if value is not None},
            declaration.processes,
            is_library=declaration.library is not None,
        )
        if declaration.library is not None and key_value_store is not None:
            options["key_value_store"] = key_value_store
        return pjrt.client(served.device, **options)

    return make


def _in_the_devices_words(
    place: Mapping[str, int], names: ProcessOptions | None, *, is_library: bool
) -> dict[str, Any]:
    """The place of the process in the job as options of a client, which ``jax.distributed`` says in the words of XLA's
    clients of GPUs. A device in Python that declares no words of its own is not told: its processes know only their own
    devices.
    """
    if names is None:
        return dict(place) if is_library else {}
    words = {"node_id": names.index, "num_nodes": names.total}
    return {words.get(name) or name: value for name, value in place.items() if is_library or words.get(name)}


def _xla_bridge() -> Any:
    try:
        from jax._src import xla_bridge
    except ImportError as error:
        raise NotFoundError("JAX is not installed: pip install jax") from error
    return xla_bridge
