"""Copies of arrays: each shard on another device, or in another kind of memory."""

from __future__ import annotations

from pjrt.api.buffer import Buffer
from pjrt.api.errors import UnimplementedError
from pjrt.ifrt.array import Array, ArrayCopySemantics
from pjrt.ifrt.sharding import Sharding


def copied(array: Array, target: Sharding, semantics: ArrayCopySemantics) -> list[Buffer]:
    """Return the buffers of an array in a sharding that cuts it into the same parts.

    Args:
        array: the array.
        target: the sharding, with as many devices.
        semantics: the rule for the memory of the array; a shard that is in its place already is copied only with
            ``ALWAYS_COPY``.

    Raises:
        UnimplementedError: a shard would move to another process.
    """
    for source, device in zip(array.sharding.devices, target.devices, strict=True):
        if source.process_index != device.process_index:
            raise UnimplementedError(
                f"expected a device of process {source.process_index} for the shard of {array.spec} on {source}, found "
                f"{device} of process {device.process_index}: shards are copied within a process only"
            )
    buffers = [
        buffer
        if buffer.memory_space is space and semantics is not ArrayCopySemantics.ALWAYS_COPY
        else buffer.copy_to(space)
        for buffer, space in zip(array.buffers, target.memory_spaces, strict=True)
    ]
    if semantics is ArrayCopySemantics.DONATE_INPUT:
        array._donate(buffers)
    return buffers
