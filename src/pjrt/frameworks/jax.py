"""JAX on devices of this package: ``platform = register("reference")``, then ``jax.devices(platform)``."""

from __future__ import annotations

import contextlib
from typing import Any

import pjrt
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, NotFoundError, UnimplementedError
from pjrt.capi.export import Exported, export
from pjrt.frameworks import _jax_lowering

_TAKEN = frozenset({"cpu", "cuda", "gpu", "rocm", "tpu", "METAL", "neuron"})
"""Names that JAX keeps for itself; a device of such a name is registered as ``pjrt_`` and the name."""

_XLA_CPU = "cpu"

_BEHIND_ALL = -100
"""A priority below that of JAX's own CPU backend: what is registered is there for who asks, and changes no default."""


def register(device: str | Exported, *, platform: str | None = None, make_default: bool = False, **options: Any) -> str:
    """Makes a device of this package known to JAX, as a PJRT plugin.

    Call it before JAX is first used.

    Args:
        device: one of ``pjrt.plugins.names()``, the path of a plugin's library, or what ``pjrt.export`` gave.
        platform: the name that JAX is to know it by; the device's own if not said, with ``pjrt_`` in front where JAX
            keeps that name for itself.
        make_default: whether JAX is to use it where no other is asked for.
        options: the client's options, such as ``num_devices``.

    Returns:
        The name that JAX knows it by: ``jax.devices(platform)``.

    Raises:
        FailedPreconditionError: JAX has made its backends already.
        NotFoundError: JAX is not installed.
    """
    bridge = _xla_bridge()
    name = device.name if isinstance(device, Exported) else device
    known_as = platform or (f"pjrt_{name}" if name in _TAKEN else name)
    if known_as in bridge._backend_factories:
        raise FailedPreconditionError(f"JAX has a platform {known_as!r} already; give another name with platform=")
    if bridge.backends_are_initialized():
        raise FailedPreconditionError(
            f"JAX has made its backends already, and would not see {known_as!r}; register it before JAX is first used, "
            "or call jax.extend.backend.clear_backends() in between"
        )
    exported = device if isinstance(device, Exported) else _export(device, known_as)
    priority = 1000 if make_default else _BEHIND_ALL
    bridge.register_plugin(known_as, c_api=exported.capsule, options=options or None, priority=priority)
    _jax_lowering.teach(known_as, own_name=device != _XLA_CPU)
    return known_as


def _export(device: str, platform: str) -> Exported:
    def make(**options: Any) -> Client:
        client = pjrt.client(device, **options)
        # A device that cannot call Python functions says so when a program tries to.
        with contextlib.suppress(UnimplementedError):
            client.register_ffi_handler(_jax_lowering.CALLBACK_TARGET, _jax_lowering.call_back)
        return client

    # XLA's CPU stays "cpu" to JAX, whose rules for it (DLPack, linear algebra) go by that name and hold for it.
    return export(make, name=platform, platform_name=None if device == _XLA_CPU else platform)


def _xla_bridge() -> Any:
    try:
        from jax._src import xla_bridge
    except ImportError as error:
        raise NotFoundError("JAX is not installed: pip install jax") from error
    return xla_bridge
