"""Copies of arrays: each shard on another device, or in another kind of memory."""

from __future__ import annotations

from dataclasses import replace

from pjrt.api.buffer import Buffer
from pjrt.api.errors import UnimplementedError
from pjrt.ifrt.array import Array, ArrayCopySemantics
from pjrt.ifrt.from_host import buffer_shapes
from pjrt.ifrt.process_transfers import ProcessTransfers
from pjrt.ifrt.sharding import Sharding


def copied(array: Array, target: Sharding, semantics: ArrayCopySemantics, transfers: ProcessTransfers) -> list[Buffer]:
    """Return the buffers of an array in a sharding that cuts it into the same parts.

    Args:
        array: the array.
        target: the sharding, with as many devices.
        semantics: the rule for the memory of the array; a shard that is in its place already is copied only with
            ``ALWAYS_COPY``.
        transfers: the transfers of shards to and from other processes.

    Raises:
        UnimplementedError: a shard would move to another process, and the devices have no transfers between processes.
    """
    sources = dict(zip(array.sharding.devices.addressable_devices, array.buffers, strict=True))
    shapes = buffer_shapes(replace(array.spec, sharding=target))
    places = dict(zip(target.devices.addressable_devices, zip(target.memory_spaces, shapes, strict=True), strict=True))
    buffers = []
    for source, device in zip(array.sharding.devices, target.devices, strict=True):
        if source.process_index == device.process_index:
            if not device.is_addressable:
                continue
            buffer, (space, _) = sources[source], places[device]
            stays = buffer.memory_space is space and semantics is not ArrayCopySemantics.ALWAYS_COPY
            buffers.append(buffer if stays else buffer.copy_to(space))
            continue
        try:
            if source.is_addressable:
                transfers.send(sources[source], device)
            elif device.is_addressable:
                space, shape = places[device]
                buffers.append(transfers.receive(source, space, shape, array.element_type))
        except UnimplementedError as error:
            raise UnimplementedError(
                f"expected a device of process {source.process_index} for the shard of {array.spec} on {source}, found "
                f"{device} of process {device.process_index}: shards are copied within a process only, because "
                f"{error.message}"
            ) from error
    if semantics is ArrayCopySemantics.DONATE_INPUT:
        array._donate(buffers)
    return buffers
