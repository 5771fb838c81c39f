"""A device of this package in the place of JAX's CPU, for libraries that know no names but its, ``gpu`` and ``tpu``."""

from __future__ import annotations

import functools
import os
import re
import threading
from typing import Any

PLUGIN = "pjrt_as_cpu"
"""The name by which jaxlib knows the plugin of such a device: no platform of JAX's."""

_CPU = "cpu"
_FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d+)(?!\S)")

_calls = threading.local()


def is_free(bridge: Any, platform: str) -> bool:
    """Whether a platform is JAX's own CPU, whose place a device can take."""
    return platform == _CPU and bridge._backend_factories[_CPU].factory is bridge.make_cpu_client


def take_place(bridge: Any) -> None:
    """Give the platform ``cpu`` to the plugin that was just registered as ``PLUGIN``."""
    registration = bridge._backend_factories.pop(PLUGIN)
    bridge.register_backend_factory(
        _CPU,
        registration.factory,
        priority=registration.priority,
        fail_quietly=registration.fail_quietly,
        experimental=registration.experimental,
        make_topology=bridge._topology_factories.pop(PLUGIN, None),
        c_api=registration.c_api,
    )
    # JAX asks here, and nowhere else, where the operands of a callback go, and has no setting for it.
    original = bridge.local_devices

    def local_devices(*args: Any, backend: Any = None, **kwargs: Any) -> Any:
        if backend == _CPU and getattr(_calls, "depth", 0):
            return _own_cpu().local_devices()
        return original(*args, backend=backend, **kwargs)

    bridge.local_devices = local_devices


class InCallback:
    """While a callback runs, JAX puts the operands on a CPU of its own: the device waits for the callback."""

    def __enter__(self) -> None:
        _calls.depth = getattr(_calls, "depth", 0) + 1

    def __exit__(self, *_: object) -> None:
        _calls.depth -= 1


@functools.cache
def _own_cpu() -> Any:
    from jax._src.lib import xla_client

    return xla_client.make_cpu_client(num_devices=1)


def device_count() -> int:
    """Return how many CPU devices JAX's settings ask for: ``jax_num_cpu_devices``, or XLA's flag; 0 if none does."""
    from jax._src import xla_bridge

    asked = int(xla_bridge.num_cpu_devices.value)
    forced = _FORCED.findall(os.environ.get("XLA_FLAGS", ""))
    return asked if asked >= 0 else int(forced[-1]) if forced else 0
