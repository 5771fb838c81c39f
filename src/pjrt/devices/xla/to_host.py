"""Copies from a buffer to the host: with a layout, into the caller's memory, of raw bytes, by DLPack."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.checks import expect, expect_out
from pjrt.api.errors import InvalidArgumentError, unimplemented
from pjrt.api.future import Future
from pjrt.api.shape_spec import Layout
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.future import flattened
from pjrt.host_memory.array import HostArray, aligned_empty, order_of, target_bytes
from pjrt.host_memory.external import ExternalMemory, check_dlpack_device

if TYPE_CHECKING:
    from pjrt.devices.xla.buffer import XlaBuffer


def copy_array(buffer: XlaBuffer, out: HostArray | None, layout: Layout | None) -> Future[HostArray]:
    """Copy a buffer's value into the caller's array, or into a new array with a layout."""
    if out is not None:
        target = expect_out(out, buffer.shape, buffer.dtype)
    else:
        if layout is None:
            raise InvalidArgumentError("expected an array to copy to or a layout for a new one, found neither")
        target = aligned_empty(buffer.shape, buffer.dtype, order_of(layout, buffer.shape, buffer.element_type))

    def copy(array: _jaxlib.Array) -> HostArray:
        np.copyto(target, _jaxlib.view(array))
        return target

    return carried_out(buffer, copy)


def copy_raw(buffer: XlaBuffer, out: Any, offset: int, size: int | None) -> Future[None]:
    """Copy bytes in the order in which they lie in the buffer's memory."""
    target = target_bytes(out, offset, size, buffer.on_device_size)

    def copy(array: _jaxlib.Array) -> None:
        target[:] = raw_bytes(array)[offset : offset + target.nbytes]

    return carried_out(buffer, copy)


def copy_raw_later(buffer: XlaBuffer, out: Future[Any], offset: int, size: int | None) -> Future[None]:
    """Copy as ``copy_raw`` does, into memory that comes later."""
    expect(out, Future, "a future of the memory to copy to")
    held = buffer.hold()
    return flattened(out, lambda memory: copy_raw(held, memory, offset, size))


def raw_bytes(array: _jaxlib.Array) -> HostArray:
    """Return the memory of an array that is ready, as bytes that keep it alive."""
    size = _jaxlib.size_on_device(array)
    if not size:
        return np.empty(0, np.uint8)
    return ExternalMemory(_jaxlib.pointer(array), size, (array, _jaxlib.view(array))).bytes()


def dlpack(dl_device: Any, copy: bool | None) -> Callable[[_jaxlib.Array], Any]:
    """Return the function that makes a DLPack capsule of an array.

    Raises:
        BufferError: the consumer wants the memory on another device; DLPack's protocol demands this exception.
        UnimplementedError: the consumer wants a copy.
    """
    check_dlpack_device(dl_device)
    if copy:
        raise unimplemented("cpu", "Buffer.__dlpack__ with copy=True", "copy with numpy.array(buffer)")
    return _jaxlib.capsule


def carried_out(buffer: XlaBuffer, copy: Callable[[_jaxlib.Array], Any]) -> Future[Any]:
    """Return the future of a copy that is made even if no caller waits for it."""
    future = buffer.when_there(copy)
    # A future with a callback is watched, and the watcher makes the copy.
    future.add_done_callback(lambda _: None)
    return future
