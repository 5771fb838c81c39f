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
from pjrt.capi.export import Exported, export
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
    device: str | os.PathLike[str] | Exported,
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
    if isinstance(device, Exported):
        return _register_table(bridge, device, platform or _free(device.name), _priority({}, make_default), options)
    served = Served(device, JAX, options, wrap=wrap)
    facts = served.facts
    known_as = platform or str(facts.get("platform", "")) or _free(served.name)
    priority = _priority(facts, make_default)
    if served.is_wrapped:
        own_name = served.device != _XLA_CPU
        exported = export(_maker(served), name=known_as, platform_name=known_as if own_name else None)
        _register_table(bridge, exported, known_as, priority, options, own_name=own_name)
    else:
        _check_not_too_late(bridge, known_as)
        path = str(served.library())
        bridge.register_plugin(known_as, library_path=path, options=served.own_options, priority=priority)
    _registered.add(served.device)
    return known_as


def _register_table(
    bridge: Any, exported: Exported, platform: str, priority: int, options: dict[str, Any], *, own_name: bool = True
) -> str:
    _check_not_too_late(bridge, platform)
    bridge.register_plugin(platform, c_api=exported.capsule, options=options or None, priority=priority)
    # XLA's CPU stays "cpu" to JAX, whose rules for it (DLPack, linear algebra) go by that name and hold for it.
    _jax_lowering.teach(platform, own_name=own_name)
    return platform


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

    def make(key_value_store: KeyValueStore | None = None, **options: Any) -> Client:
        declaration = served.declaration
        given = _in_the_devices_words(options, declaration.processes)
        if declaration.library is not None and key_value_store is not None:
            given["key_value_store"] = key_value_store
        client = pjrt.client(served.device, **given)
        # A device that cannot call Python functions says so when a program tries to.
        with contextlib.suppress(UnimplementedError):
            client.register_ffi_handler(_jax_lowering.CALLBACK_TARGET, _jax_lowering.call_back)
        return client

    return make


def _in_the_devices_words(options: Mapping[str, Any], names: ProcessOptions | None) -> dict[str, Any]:
    """The options of a client with the place of the process in the job, which ``jax.distributed`` says in the words of
    XLA's clients of GPUs.
    """
    words = {} if names is None else {"node_id": names.index, "num_nodes": names.total}
    return {words.get(name) or name: value for name, value in options.items()}


def _xla_bridge() -> Any:
    try:
        from jax._src import xla_bridge
    except ImportError as error:
        raise NotFoundError("JAX is not installed: pip install jax") from error
    return xla_bridge
