"""Buffers from host arrays: the four host buffer semantics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.api.layout import Layout
from pjrt.host.buffer import HostBuffer
from pjrt.host.copying import INLINE_BYTES
from pjrt.host.foreign import ForeignMemory
from pjrt.host.layout import array_dtype, is_laid_out, order_of, tiled
from pjrt.host.queue import Call
from pjrt.host.storage import READY, Array, Storage, copied, freeze

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace

_log = logging.getLogger("pjrt")

_ZERO_COPY = (HostBufferSemantics.IMMUTABLE_ZERO_COPY, HostBufferSemantics.MUTABLE_ZERO_COPY)


def place(
    array: Any,
    device: HostDevice,
    space: HostMemorySpace,
    layout: Layout | None,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> HostBuffer:
    """The buffer for a host array, with copies only where they are due."""
    source: Array = np.asarray(array)
    element_type = ElementType.of(source.dtype)
    shape = source.shape
    order = None if layout is None else order_of(layout, shape, element_type)
    made_layout = None if order is None else tiled(order)
    if made_layout is None:
        order = None
    if semantics in _ZERO_COPY and _fits(source, order, device, semantics):
        storage = _share(source, semantics, on_done)
        storage.charge(space.account, source.nbytes)
    else:
        storage = _copy(source, element_type, order, device, space, semantics, on_done)
    return HostBuffer(device, space, shape, element_type, storage, made_layout)


def _fits(source: Array, order: tuple[int, ...] | None, device: HostDevice, semantics: HostBufferSemantics) -> bool:
    """Whether the device can use the array where it lies."""
    if not is_laid_out(source, order) or not source.size:
        return False
    if semantics is HostBufferSemantics.MUTABLE_ZERO_COPY and not source.flags.writeable:
        raise InvalidArgumentError(
            "MUTABLE_ZERO_COPY lets the device write to the array, but the array is read-only; use IMMUTABLE_ZERO_COPY"
        )
    return source.ctypes.data % device.client.alignment == 0


def _share(source: Array, semantics: HostBufferSemantics, on_done: Callable[[], object] | None) -> Storage:
    mutable = semantics is HostBufferSemantics.MUTABLE_ZERO_COPY
    if on_done is None:
        view = source.view() if type(source) is np.ndarray else source.view(np.ndarray)
    else:
        view = ForeignMemory.over(source, on_done)
    view.setflags(write=False)
    return Storage(READY, view, mutable=mutable)


def _copy(
    source: Array,
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
        storage.array = freeze(copied(source, dtype, order))
        if on_done is not None:
            tell(on_done)
        return storage

    def copy() -> None:
        try:
            made = copied(source, dtype, order)
        finally:
            if on_done is not None:
                tell(on_done)
        storage.array = freeze(made)

    call = Call(copy)
    storage.definition = call.future
    device.transfers.put(call)
    return storage


def tell(on_done: Callable[[], object]) -> None:
    """Calls a release callback; what it raises is logged."""
    try:
        on_done()
    except Exception:
        _log.exception("the callback that says a host array is not used any more raised; the exception goes no further")


def ready_buffer(device: HostDevice, space: HostMemorySpace, array: Array, element_type: ElementType) -> HostBuffer:
    """A buffer that takes an array over as its value."""
    storage = Storage(READY, array)
    storage.charge(space.account, array.nbytes)
    freeze(array)
    return HostBuffer(device, space, array.shape, element_type, storage)
