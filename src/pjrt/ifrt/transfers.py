"""Transfers of shards: from the host, between processes, and to other devices or kinds of memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.client import Client
from pjrt.api.device import Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.ifrt.array import Array, ArrayCopySemantics, ArraySpec, contents, padded, reduction_of
from pjrt.ifrt.hlo_sharding import HloSharding
from pjrt.ifrt.sharding import Sharding


def put(
    client: Client,
    spec: ArraySpec,
    parts: Sequence[np.ndarray[Any, Any]],
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> list[Buffer]:
    """Return the buffers of an array, each with its part.

    Args:
        client: the client of the devices.
        spec: the array.
        parts: the part of each addressable device, in the sharding's order.
        semantics: what the devices may assume about the parts' memory.
        on_done: called once, when no device needs any of the memory any more.
    """
    notify = None if on_done is None else _after(len(parts), on_done)
    devices, spaces = spec.sharding.devices.addressable_devices, spec.sharding.memory_spaces
    return [
        client.buffer_from_host(
            padded(part, shape),
            device=device,
            memory_space=space,
            layout=spec.layout,
            semantics=semantics,
            on_done_with_host_buffer=notify,
        )
        for part, shape, device, space in zip(parts, buffer_shapes(spec), devices, spaces, strict=True)
    ]


def parts_of_whole(spec: ArraySpec, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Return the part of a whole array for each addressable device, in the sharding's order.

    Of a sum the first term is the array, and the others are zero; of a maximum or minimum each term is the array.

    Raises:
        InvalidArgumentError: the sharding is not for arrays of this shape.
        UnimplementedError: the sharding does not know the places of its shards.
    """
    domains = spec.sharding.index_domains(spec.shape)
    parts = [array[domain.slices] for domain in domains]
    if reduction_of(spec.sharding) != "sum":
        return parts
    here = (part for part, at in zip(contents(spec), spec.sharding.devices, strict=True) if at.is_addressable)
    return [np.zeros_like(part) if of.term else part for part, of in zip(parts, here, strict=True)]


def parts_of(spec: ArraySpec, shards: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Return the shards of an array as numpy arrays.

    Raises:
        InvalidArgumentError: a shard is missing, or has another shape or element type than the spec says.
    """
    parts = [np.asarray(shard) for shard in shards]
    expected = [shape for shape, _ in spec.sharding.disassemble(spec.shape)]
    actual = [part.shape for part in parts]
    if actual != expected:
        raise InvalidArgumentError(f"expected shards of the shapes {expected} for {spec}, found {actual}")
    for part in parts:
        if ElementType.of(part.dtype) is not spec.element_type:
            raise InvalidArgumentError(f"expected shards of {spec.element_type.name} for {spec}, found {part.dtype}")
    return parts


def buffer_shapes(spec: ArraySpec) -> list[tuple[int, ...]]:
    """Return the shape of the buffer on each addressable device: that of a program's partition."""
    if isinstance(spec.sharding, HloSharding):
        return [spec.sharding.shard_shape(spec.shape)] * len(spec.sharding.devices.addressable_devices)
    return [shape for shape, _ in spec.sharding.disassemble(spec.shape)]


def _after(count: int, function: Callable[[], object]) -> Callable[[], None]:
    """Return a callback that calls a function when it was called itself a number of times."""
    lock = threading.Lock()
    left = count

    def one_done() -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last:
            function()

    if not count:  # no shard is in this process, and no device will call
        function()
    return one_done


_FIRST_KEY = 1 << 62
"""The first of the keys of these transfers; smaller ones are the callers' own."""


class ProcessTransfers:
    """The transfers of one client's shards.

    Transfers from one device to another have keys in the order in which they are made, which is the same in both
    processes.

    Args:
        client: the client below.
    """

    __slots__ = ("_client", "_counts", "_lock")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._counts: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()

    def send(self, buffer: Buffer, device: Device) -> None:
        """Send a buffer to a device of another process, which receives it. The buffer may be deleted at once.

        Raises:
            UnimplementedError: the devices have no transfers between processes.
        """
        (source,) = buffer.memory_space.devices[:1]
        self._client.cross_host_send_buffers([buffer], [device.id], [self._key(source.id, device.id)])

    def receive(self, source: Device, space: MemorySpace, shape: Sequence[int], element_type: ElementType) -> Buffer:
        """Return the buffer that the process of another device sends.

        Raises:
            UnimplementedError: the devices have no transfers between processes.
        """
        device = space.devices[0]
        key = self._key(source.id, device.id)
        spec = ShapeSpec(tuple(shape), element_type)
        (buffer,) = self._client.cross_host_receive_buffers([spec], device, [source.id], [key])
        return buffer if space is buffer.memory_space else buffer.copy_to(space)

    def _key(self, source_id: int, device_id: int) -> int:
        with self._lock:
            self._counts[source_id, device_id] += 1
            return _FIRST_KEY + self._counts[source_id, device_id]


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
