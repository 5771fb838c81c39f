"""Transfers in pieces: the pieces fill memory of the host, which becomes a buffer without another copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.api.attributes import Attributes
from pjrt.api.checks import expect, expect_array, expect_int
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    PjrtError,
    unimplemented,
)
from pjrt.api.future import Future, Promise
from pjrt.api.layout import TiledLayout
from pjrt.api.shape_spec import ShapeSpec, expect_spec
from pjrt.api.transfer import AsyncHostToDeviceTransferManager
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import converted
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import PendingBuffer
from pjrt.devices.xla.device import XlaDevice
from pjrt.devices.xla.memory_space import XlaMemorySpace
from pjrt.devices.xla.shards import Source
from pjrt.host_memory.aligned import aligned_empty
from pjrt.host_memory.byte_range import source_bytes


class XlaTransferManager(AsyncHostToDeviceTransferManager):
    """A transfer that fills new buffers piece by piece; each piece is copied before the call returns."""

    __slots__ = ("_device", "_fillings")

    def __init__(self, specs: Sequence[ShapeSpec], space: XlaMemorySpace) -> None:
        self._device = space.device
        self._fillings = [_Filling(type_of_spec(spec, space)) for spec in specs]

    @property
    def device(self) -> XlaDevice:
        return self._device

    @property
    def buffer_count(self) -> int:
        return len(self._fillings)

    def buffer_size(self, index: int) -> int:
        return self._filling(index).memory.nbytes

    def retrieve_buffer(self, index: int) -> PendingBuffer:
        return self._filling(index).retrieve()

    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        filling = self._filling(index)
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
        filling = self._filling(index)
        literal = expect_array(array)
        if literal.shape != filling.type.shape or ElementType.of(literal.dtype) is not filling.type.element_type:
            raise InvalidArgumentError(
                f"expected an array of {filling.type}, found {literal.dtype}{list(literal.shape)}"
            )
        filling.transfer(lambda: np.copyto(filling.memory, literal), True)
        return Future.completed(None)

    def set_buffer_error(self, index: int, error: PjrtError) -> None:
        self._filling(index).fail(expect(error, PjrtError, "an error as pjrt.PjrtError"))

    def add_metadata(self, metadata: Attributes) -> None:
        """Check the metadata and ignore it: jaxlib has no trace of transfers to add it to."""
        expect(metadata, Mapping, "metadata as a mapping of values by name")

    def close(self) -> None:
        for index, filling in enumerate(self._fillings):
            filling.abandon(CancelledError(f"the transfer was closed before buffer {index} had its last piece"))

    def _filling(self, index: int) -> _Filling:
        if not 0 <= expect_int(index, "the number of a buffer") < len(self._fillings):
            raise OutOfRangeError(f"the transfer has {len(self._fillings)} buffers, found the index {index}")
        return self._fillings[index]


class _Filling:
    """One buffer of a transfer: its memory, and the promise of its array."""

    def __init__(self, array_type: ArrayType) -> None:
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
