"""Transfers in pieces: memory of the host is filled, and becomes a buffer without another copy."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import Source
from pjrt.devices.xla.errors import converted
from pjrt.devices.xla.pending_buffer import PendingBuffer
from pjrt.host_memory.aligned import aligned_empty
from pjrt.host_memory.byte_range import source_bytes

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.device import XlaDevice
    from pjrt.devices.xla.memory_space import XlaMemorySpace


class XlaTransferManager(AsyncHostToDeviceTransferManager):
    """Fills new buffers piece by piece; each piece is copied before the call returns."""

    __slots__ = ("_device", "_fillings")

    def __init__(self, client: XlaClient, specs: Sequence[ShapeSpec], space: XlaMemorySpace) -> None:
        self._device = space.device
        self._fillings = [_Filling(spec_type(client, spec, space)) for spec in specs]

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
        if filling.kind.is_packed:
            raise unimplemented(
                "cpu", "transfer_data of elements of less than a byte", "use transfer_literal with the whole array"
            )

        def copy() -> None:
            filling.memory.reshape(-1).view(np.uint8)[offset : offset + source.nbytes] = source

        filling.transfer(copy, is_last_transfer)
        return Future.completed(None)

    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        filling = self._filling(index)
        given = expect_array(array)
        if given.shape != filling.kind.shape or ElementType.of(given.dtype) is not filling.kind.element_type:
            raise InvalidArgumentError(f"expected an array of {filling.kind}, found {given.dtype}{list(given.shape)}")
        filling.transfer(lambda: np.copyto(filling.memory, given), True)
        return Future.completed(None)

    def set_buffer_error(self, index: int, error: PjrtError) -> None:
        self._filling(index).fail(expect(error, PjrtError, "an error as pjrt.PjrtError"))

    def add_metadata(self, metadata: Attributes) -> None:
        """Takes note of nothing: jaxlib has no trace of transfers to add it to."""
        expect(metadata, Mapping, "metadata as a mapping of values by name")

    def close(self) -> None:
        for index, filling in enumerate(self._fillings):
            filling.abandon(CancelledError(f"the transfer was closed before buffer {index} had its last piece"))

    def _filling(self, index: int) -> _Filling:
        if not 0 <= expect_int(index, "the number of a buffer") < len(self._fillings):
            raise OutOfRangeError(f"the transfer has {len(self._fillings)} buffers, found the index {index}")
        return self._fillings[index]


class _Filling:
    """One buffer to be: its memory, and the promise of its array."""

    def __init__(self, kind: ArrayType) -> None:
        self.kind = kind
        self.memory = aligned_empty(kind.shape, kind.aval.dtype)
        self._promise: Promise[Source] = Promise()
        self._buffer: PendingBuffer | None = PendingBuffer(self._promise.future, kind)
        self._lock = threading.Lock()

    def retrieve(self) -> PendingBuffer:
        with self._lock:
            buffer, self._buffer = self._buffer, None
        if buffer is None:
            raise FailedPreconditionError("the buffer was retrieved already; it is handed out once")
        return buffer

    def transfer(self, copy: Any, is_last: bool) -> None:
        with self._lock:
            if self._promise.future.done():
                raise FailedPreconditionError("the buffer has had its last transfer already, or an error was set")
            copy()
            array = self._finished() if is_last else None
        if array is not None:
            self._promise.set_result(array)

    def fail(self, error: PjrtError) -> None:
        with self._lock:
            if self._promise.future.done():
                raise FailedPreconditionError("the buffer has had its last transfer already, or an error was set")
        self._promise.set_error(error)

    def abandon(self, error: PjrtError) -> None:
        if not self._promise.future.done():
            self._promise.set_error(error)

    def _finished(self) -> _jaxlib.Array:
        try:
            return _jaxlib.put(self.memory, self.kind.aval, self.kind.memory_space, _jaxlib.ZERO_COPY)
        except Exception as error:
            raise converted(error) from error


def spec_type(client: XlaClient, spec: ShapeSpec, space: XlaMemorySpace) -> ArrayType:
    """The type of a new buffer for a spec.

    Raises:
        UnimplementedError: it has a layout that new buffers cannot have.
    """
    expect_spec(spec)
    if spec.layout is not None and spec.layout != TiledLayout.row_major(len(spec.shape)):
        raise unimplemented(
            "cpu", f"new buffers with the layout {spec.layout}", "use buffer_from_host with layout=, or row-major"
        )
    return client.array_type(spec.shape, spec.element_type, space)
