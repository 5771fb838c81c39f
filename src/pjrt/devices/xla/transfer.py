"""Transfers in pieces: the pieces fill memory of the host, which becomes a buffer without another copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.errors import FailedPreconditionError, PjrtError, unimplemented
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import ShapeSpec, TiledLayout, expect_spec
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import converted
from pjrt.devices.xla.buffer import PendingBuffer
from pjrt.host_memory.array import aligned_empty, source_bytes
from pjrt.host_memory.transfer_manager import TransferManager

if TYPE_CHECKING:
    from pjrt.devices.xla.array_type import ArrayType
    from pjrt.devices.xla.device import XlaDevice
    from pjrt.devices.xla.memory_space import XlaMemorySpace
    from pjrt.devices.xla.shards import Source


class XlaTransferManager(TransferManager["_Filling"]):
    """A transfer that fills new buffers piece by piece; each piece is copied before the call returns."""

    __slots__ = ("_device",)

    def __init__(self, specs: Sequence[ShapeSpec], space: XlaMemorySpace) -> None:
        self._device = space.device
        super().__init__([_Filling(spec, type_of_spec(spec, space)) for spec in specs])

    @property
    def device(self) -> XlaDevice:
        return self._device

    def buffer_size(self, index: int) -> int:
        return self.filling(index).memory.nbytes

    def retrieve_buffer(self, index: int) -> PendingBuffer:
        return self.filling(index).retrieve()

    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        filling = self.filling(index)
        source = source_bytes(data, offset, filling.memory.nbytes)
        if filling.type.is_packed:
            raise unimplemented(
                "cpu", "transfer_data of elements of less than a byte", "use transfer_literal with the whole array"
            )

        def copy() -> None:
            filling.memory.reshape(-1).view(np.uint8)[offset : offset + source.nbytes] = source

        filling.transfer(copy, is_last_transfer)
        return Future.completed(None)

    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        literal, filling = self.literal(index, array), self.filling(index)
        filling.transfer(lambda: np.copyto(filling.memory, literal), True)
        return Future.completed(None)


class _Filling:
    """One buffer of a transfer: its memory, and the promise of its array."""

    def __init__(self, spec: ShapeSpec, array_type: ArrayType) -> None:
        self.spec = spec
        self.type = array_type
        self.memory = aligned_empty(array_type.shape, array_type.aval.dtype)
        self._promise: Promise[Source] = Promise()
        self._buffer: PendingBuffer | None = PendingBuffer(self._promise.future, array_type)
        self._lock = threading.Lock()

    def retrieve(self) -> PendingBuffer:
        with self._lock:
            buffer, self._buffer = self._buffer, None
        if buffer is None:
            raise FailedPreconditionError("the buffer was retrieved already; it can be retrieved once")
        return buffer

    def transfer(self, copy: Callable[[], None], is_last: bool) -> None:
        with self._lock:
            self._check_pending()
            copy()
            array = self._array() if is_last else None
        if array is not None:
            self._promise.set_result(array)

    def fail(self, error: PjrtError) -> None:
        with self._lock:
            self._check_pending()
        self._promise.set_error(error)

    def abandon(self, error: PjrtError) -> None:
        if not self._promise.future.done():
            self._promise.set_error(error)

    def _check_pending(self) -> None:
        if self._promise.future.done():
            raise FailedPreconditionError("the buffer has had its last transfer already, or an error was set")

    def _array(self) -> _jaxlib.Array:
        try:
            return _jaxlib.put(self.memory, self.type.aval, self.type.memory_space.placement, _jaxlib.ZERO_COPY)
        except Exception as error:
            raise converted(error) from error


def type_of_spec(spec: ShapeSpec, space: XlaMemorySpace) -> ArrayType:
    """Return the type of a new buffer for a spec.

    Raises:
        UnimplementedError: the spec has a layout that new buffers cannot have.
    """
    expect_spec(spec)
    if spec.layout is not None and spec.layout != TiledLayout.row_major(len(spec.shape)):
        raise unimplemented(
            "cpu", f"new buffers with the layout {spec.layout}", "use buffer_from_host with layout=, or row-major"
        )
    return space.device.runtime.array_type(spec.shape, spec.element_type, space)
