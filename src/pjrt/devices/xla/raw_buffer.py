"""Raw buffers of the ``cpu`` device: the bytes of a buffer, for reading and writing in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import RawBuffer
from pjrt.api.errors import FailedPreconditionError
from pjrt.api.future import Future
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.to_host import carried_out, raw_bytes
from pjrt.host_memory.array import source_bytes

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
            raw_bytes(array)[offset : offset + data.nbytes] = data

        return carried_out(self._held(), write)

    def copy_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return self._held().copy_raw_to_host(out, offset, size)

    def release(self) -> None:
        self._buffer = None

    def _held(self) -> XlaBuffer:
        if self._buffer is None:
            raise FailedPreconditionError("the raw buffer was released; make a new one with buffer.raw()")
        return self._buffer
