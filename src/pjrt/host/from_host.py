"""Buffers from host arrays: the four host buffer semantics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.checks import expect_array, expect_callable, expect_int, unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.shape_spec import Layout, ShapeSpec, StridedLayout, expect_spec
from pjrt.host.buffer import HostBuffer
from pjrt.host.copies import INLINE_BYTES
from pjrt.host.storage import READY, TOKEN, Storage, freeze
from pjrt.host.work_queue import Call
from pjrt.host_memory.array import (
    HostArray,
    aligned_copy,
    aligned_empty,
    array_dtype,
    is_laid_out,
    order_and_layout,
    order_of,
    tiled,
)
from pjrt.host_memory.external import ExternalMemory, notify_owner

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace

ZERO_COPY = (HostBufferSemantics.IMMUTABLE_ZERO_COPY, HostBufferSemantics.MUTABLE_ZERO_COPY)


def buffer_from_host(
    array: Any,
    device: HostDevice,
    space: HostMemorySpace,
    layout: Layout | None,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> HostBuffer:
    """Return the buffer of a host array; copy only if that is necessary."""
    source: HostArray = array if type(array) is np.ndarray else expect_array(array)
    if type(semantics) is not HostBufferSemantics:
        raise unexpected(semantics, "one of pjrt.HostBufferSemantics as semantics")
    if on_done is not None:
        expect_callable(on_done, "a function, or None, as on_done_with_host_buffer")
    element_type = ElementType.of(source.dtype)
    shape = source.shape
    order, tiled_layout = order_and_layout(layout, shape, element_type)
    if semantics is HostBufferSemantics.MUTABLE_ZERO_COPY and not source.flags.writeable:
        raise InvalidArgumentError(
            "MUTABLE_ZERO_COPY lets the device write to the array, but the array is read-only; use IMMUTABLE_ZERO_COPY"
        )
    if semantics in ZERO_COPY and _fits(source, order, device):
        storage = Storage(READY, mutable=semantics is HostBufferSemantics.MUTABLE_ZERO_COPY)
        storage.charge(space.account, source.nbytes)
        storage.array = ExternalMemory.over(source, on_done)
        storage.array.setflags(write=False)
    else:
        storage = _copy(source, element_type, order, device, space, semantics, on_done)
    return HostBuffer(device, space, shape, element_type, storage, tiled_layout)


def _fits(source: HostArray, order: tuple[int, ...] | None, device: HostDevice) -> bool:
    """Whether the device can use the array in place."""
    if not source.size or not is_laid_out(source, order):
        return False
    return source.ctypes.data % device.client.alignment == 0


def _copy(
    source: HostArray,
    element_type: ElementType,
    order: tuple[int, ...] | None,
    device: HostDevice,
    space: HostMemorySpace,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> Storage:
    dtype = array_dtype(element_type)
    storage = Storage(READY)
    storage.charge(space.account, source.size * dtype.itemsize)
    if semantics is HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL or source.nbytes <= INLINE_BYTES:
        storage.array = freeze(aligned_copy(source, dtype, order))
        if on_done is not None:
            notify_owner(on_done)
        return storage

    def copy() -> None:
        try:
            array = aligned_copy(source, dtype, order)
        finally:
            if on_done is not None:
                notify_owner(on_done)
        storage.array = freeze(array)

    call = Call(copy)
    storage.definition = call.future
    device.transfers.put(call)
    return storage


def zero_copy(
    array: HostArray, device: HostDevice, space: HostMemorySpace, on_done: Callable[[], object] | None
) -> HostBuffer:
    """Return a buffer that uses an array in place, in its own layout.

    Raises:
        InvalidArgumentError: the array has gaps or overlaps, or is not aligned as the device needs it.
    """
    element_type = ElementType.of(array.dtype)
    try:
        order = order_of(StridedLayout(array.strides), array.shape, element_type)
    except UnimplementedError as error:
        raise InvalidArgumentError(f"the array cannot be shared without a copy: {error.message}") from error
    if array.size and not _fits(array, order, device):
        raise InvalidArgumentError(
            f"the array cannot be shared without a copy: its memory is not aligned to {device.client.alignment} bytes "
            "or its byte order is foreign; use buffer_from_host"
        )
    storage = Storage(READY, mutable=False)
    storage.charge(space.account, array.nbytes)
    storage.array = ExternalMemory.over(array, on_done)
    storage.array.setflags(write=False)
    return HostBuffer(device, space, array.shape, element_type, storage, tiled(order))


def view(
    pointer: int, spec: ShapeSpec, device: HostDevice, space: HostMemorySpace, on_delete: Callable[[], object] | None
) -> HostBuffer:
    """Return a buffer over memory at an address."""
    check_address(pointer, spec, device, on_delete)
    order, layout = order_and_layout(spec.layout, spec.shape, spec.element_type)
    dtype = array_dtype(spec.element_type)
    storage = Storage(READY, mutable=False)
    storage.charge(space.account, spec.size_in_bytes)
    memory = ExternalMemory(pointer, spec.size_in_bytes, None, on_delete)
    shape = spec.shape if order is None else tuple(spec.shape[d] for d in order)
    array = memory.array(shape, dtype)
    storage.array = array if order is None else array.transpose(np.argsort(order))
    storage.array.setflags(write=False)
    return HostBuffer(device, space, spec.shape, spec.element_type, storage, layout)


def check_address(pointer: int, spec: ShapeSpec, device: HostDevice, on_delete: Callable[[], object] | None) -> None:
    """Check the arguments for a buffer over memory at an address.

    Raises:
        InvalidArgumentError: an argument has another type, or the address does not fit the array or the device.
    """
    expect_int(pointer, "the address of memory as a whole number")
    expect_spec(spec)
    if on_delete is not None:
        expect_callable(on_delete, "a function, or None, as on_delete")
    if not pointer and spec.size_in_bytes:
        raise InvalidArgumentError(f"a {spec} cannot lie at address 0")
    if pointer % device.client.alignment:
        raise InvalidArgumentError(
            f"the address {pointer:#x} is not aligned to the {device.client.alignment} bytes that the device needs"
        )


def uninitialized(spec: ShapeSpec, device: HostDevice, space: HostMemorySpace) -> HostBuffer:
    """Return a buffer with memory and no particular value."""
    expect_spec(spec)
    order, layout = order_and_layout(spec.layout, spec.shape, spec.element_type)
    storage = Storage(READY)
    storage.charge(space.account, spec.size_in_bytes)
    if spec.element_type is ElementType.TOKEN:
        storage.array = TOKEN
    else:
        storage.array = freeze(aligned_empty(spec.shape, array_dtype(spec.element_type), order))
    return HostBuffer(device, space, spec.shape, spec.element_type, storage, layout)
