"""Arrays from the host: each shard of an array is put on its device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.ifrt.array import ArraySpec, contents, padded, reduction_of
from pjrt.ifrt.hlo_sharding import HloSharding


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
