"""Transfers to a server in pieces: the array is there at once, and its bytes follow when the last piece is there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.checks import expect_all
from pjrt.api.errors import (
    FailedPreconditionError,
    PjrtError,
)
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host_memory.byte_range import source_bytes
from pjrt.host_memory.layout import array_dtype, order_of_spec
from pjrt.host_memory.transfer_manager import TransferManager
from pjrt.remote.client.buffer import RemoteBuffer
from pjrt.remote.client.from_host import new_buffer

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient
    from pjrt.remote.client.device import RemoteDevice
    from pjrt.remote.client.memory_space import RemoteMemorySpace


class RemoteTransferManager(TransferManager["_Filling"]):
    """Fills new buffers of a server in pieces."""

    __slots__ = ("device",)

    device: RemoteDevice

    def __init__(
        self, client: RemoteClient, device: RemoteDevice, space: RemoteMemorySpace, specs: Sequence[ShapeSpec]
    ) -> None:
        self.device = device
        super().__init__(
            [
                _Filling(
                    spec,
                    new_buffer(client, spec.shape, spec.element_type, device, space, spec.layout, is_in_layout=True),
                )
                for spec in expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec")
            ]
        )

    def buffer_size(self, index: int) -> int:
        return self.filling(index).spec.size_in_bytes

    def retrieve_buffer(self, index: int) -> RemoteBuffer:
        return self.filling(index).retrieve()

    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        filling = self.filling(index)
        return filling.add(source_bytes(data, offset, filling.spec.size_in_bytes), offset, is_last_transfer)

    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        source, filling = self.literal(index, array), self.filling(index)
        spec = filling.spec
        ordered = np.ascontiguousarray(source.transpose(order_of_spec(spec)), array_dtype(spec.element_type))
        return filling.add(ordered.reshape(-1).view(np.uint8), 0, True)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        if hasattr(self, "_fillings") and not is_finalizing():
            self.close()


class _Filling:
    """One buffer that is being filled.

    Attributes:
        spec: its type.
    """

    def __init__(self, spec: ShapeSpec, buffer: RemoteBuffer) -> None:
        self.spec = spec
        self._buffer = buffer
        self._is_retrieved = False
        self._is_over = False
        # Made at the first piece: a transfer of one piece needs no copy.
        self._pieces: np.ndarray[Any, Any] | None = None
        self._lock = threading.Lock()

    def retrieve(self) -> RemoteBuffer:
        """Return the buffer, once."""
        with self._lock:
            if self._is_retrieved:
                raise FailedPreconditionError("the buffer was retrieved already; each can be retrieved once")
            self._is_retrieved = True
            return self._buffer

    def add(self, data: np.ndarray[Any, Any], offset: int, is_last: bool) -> Future[None]:
        """Take a piece; after the last one, send all."""
        with self._lock:
            self._check()
            self._is_over = is_last
            if is_last and self._pieces is None and data.nbytes == self.spec.size_in_bytes:
                promise: Promise[None] = Promise()
                self._send(data, lambda: promise.set_result(None))
                return promise.future
            if self._pieces is None:
                self._pieces = np.zeros(self.spec.size_in_bytes, np.uint8)
            self._pieces[offset : offset + data.nbytes] = data
            if is_last:
                self._send(self._pieces, None)
            return Future.completed(None)

    def fail(self, error: PjrtError) -> None:
        """Fail the buffer."""
        with self._lock:
            self._check()
            self._give_up(error)

    def abandon(self, error: PjrtError) -> None:
        """Fail the buffer unless all its data has come."""
        with self._lock:
            if not self._is_over:
                self._give_up(error)

    def _give_up(self, error: PjrtError) -> None:
        self._is_over = True
        self._buffer.failure = error
        # Bytes of another number than the array's: the server fails it, and all that was computed of it.
        self._send(np.zeros(0 if self.spec.size_in_bytes else 1, np.uint8), None)

    def _check(self) -> None:
        if self._is_over:
            raise FailedPreconditionError("the buffer has had its last transfer, or has failed")

    def _send(self, data: np.ndarray[Any, Any], done: Any) -> None:
        buffer = self._buffer
        buffer.type.connection.store(buffer.handle(), data.data, done)
