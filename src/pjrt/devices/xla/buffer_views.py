"""Other views of a buffer's memory: raw bytes, other types over the same bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pjrt.api.checks import expect
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, unimplemented
from pjrt.api.future import Future
from pjrt.api.layout import Layout, TiledLayout, expect_layout
from pjrt.api.raw_buffer import RawBuffer
from pjrt.devices.xla import _jaxlib, to_host
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.future import flattened
from pjrt.host_memory.byte_range import source_bytes

if TYPE_CHECKING:
    from pjrt.devices.xla.buffer import XlaBuffer
    from pjrt.devices.xla.memory_space import XlaMemorySpace


class XlaRawBuffer(RawBuffer):
    """The bytes of a buffer, read and written in place when its value is there."""

    __slots__ = ("_buffer", "_size", "_space")

    def __init__(self, buffer: XlaBuffer) -> None:
        self._space = buffer.memory_space
        self._size = buffer.on_device_size
        self._buffer: XlaBuffer | None = buffer.hold()

    @property
    def memory_space(self) -> XlaMemorySpace:
        return self._space

    @property
    def on_device_size(self) -> int:
        return self._size

    def host_pointer(self) -> int:
        return self._held().unsafe_pointer()

    def copy_from_host(self, source: Any, offset: int = 0) -> Future[None]:
        data = source_bytes(source, offset, self._size)

        def write(array: _jaxlib.Array) -> None:
            to_host.raw_bytes(array)[offset : offset + data.nbytes] = data

        future = self._held().when_there(write)
        future.add_done_callback(lambda _: None)
        return future

    def copy_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return self._held().copy_raw_to_host(out, offset, size)

    def release(self) -> None:
        self._buffer = None

    def _held(self) -> XlaBuffer:
        if self._buffer is None:
            raise FailedPreconditionError("the raw buffer was released; take a new one with buffer.raw()")
        return self._buffer


def bitcast(buffer: XlaBuffer, element_type: ElementType, shape: tuple[int, ...], layout: Layout | None) -> XlaBuffer:
    """A buffer of another type over the same bytes, which it takes over."""
    from pjrt.devices.xla.pending_buffer import PendingBuffer

    target = buffer.client.array_type(shape, ElementType.of(element_type), buffer.memory_space)
    if target.is_packed or buffer.type.is_packed:
        raise unimplemented("cpu", "Buffer.bitcast of elements of less than a byte", "copy by way of the host")
    if layout is not None and expect_layout(layout) != TiledLayout.row_major(len(shape)):
        raise unimplemented("cpu", "Buffer.bitcast to a layout that is not row-major")
    size, wanted = buffer.on_device_size, math.prod(shape) * target.element_type.dtype.itemsize
    if size != wanted:
        raise InvalidArgumentError(f"{buffer.type} has {size} bytes, {target} needs {wanted}: expected the same number")
    held = buffer.hold()
    buffer.consume()
    return PendingBuffer(held.when_there(lambda array: _over(to_host.raw_bytes(array), target)), target)


def _over(memory: Any, target: ArrayType) -> _jaxlib.Array:
    return _jaxlib.put(
        memory.view(target.aval.dtype).reshape(target.shape), target.aval, target.memory_space, _jaxlib.ZERO_COPY
    )


def depend(buffer: XlaBuffer, dependency: Future[Any]) -> XlaBuffer:
    """A buffer with the memory of another, which is gone, that has its value when the dependency is done too."""
    from pjrt.devices.xla.pending_buffer import PendingBuffer

    expect(dependency, Future, "a future to wait for")
    source = buffer.consume()
    after = dependency.then(lambda _: source)
    if isinstance(source, Future):
        after = flattened(dependency, lambda _: source)
    return PendingBuffer(after, buffer.type)
