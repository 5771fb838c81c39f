"""The memory of a session's arrays, as its limit counts it."""

from __future__ import annotations

import math

from pjrt.api.errors import PjrtError
from pjrt.ifrt.array import Array, ArraySpec
from pjrt.remote.security.limits import SessionUsage


class ArrayMemory:
    """The count of the memory of arrays by their handles.

    Args:
        usage: the usage of the session.
    """

    def __init__(self, usage: SessionUsage) -> None:
        self._usage = usage

    def hold(self, handle: int, value: Array) -> None:
        """Count an array; raise ``ResourceExhaustedError`` if the session would use too much memory."""
        self._usage.add_array(handle, _bytes_on_devices(value.spec))

    def release(self, handle: int) -> None:
        """Count the array of a handle no more."""
        self._usage.remove_array(handle)


def _bytes_on_devices(spec: ArraySpec) -> int:
    """Return the bytes of an array on all devices of this process; each device with a copy of a part has one."""
    count = len(spec.sharding.devices.addressable_devices)
    try:
        shape = spec.sharding.shard_shape(spec.shape)
    except PjrtError:  # a sharding that does not know its parts
        shape, count = spec.shape, 1
    return math.ceil(math.prod(shape) * spec.element_type.bits / 8) * count
