"""Transfers to a host device in pieces."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.checks import expect_all
from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.buffer import HostBuffer
from pjrt.host.copies import INLINE_BYTES, may_wait_here
from pjrt.host.device_errors import without_traceback
from pjrt.host.fork_safety import runtime_lock
from pjrt.host.storage import Storage
from pjrt.host.work_queue import Call
from pjrt.host_memory.array import HostArray, aligned_empty, array_dtype, order_and_layout, source_bytes
from pjrt.host_memory.external import memory_of
from pjrt.host_memory.transfer_manager import TransferManager

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace


class HostTransferManager(TransferManager["_Filling"]):
    """Fills new host buffers in pieces."""

    __slots__ = ("device",)

    device: HostDevice

    def __init__(self, device: HostDevice, space: HostMemorySpace, specs: Sequence[ShapeSpec]) -> None:
        self.device = device
        super().__init__([_Filling(device, space, spec) for spec in expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec")])

    def buffer_size(self, index: int) -> int:
        return self.filling(index).size

    def retrieve_buffer(self, index: int) -> HostBuffer:
        return self.filling(index).retrieve()

    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        filling = self.filling(index)
        source = source_bytes(data, offset, filling.size)

        def copy(_: HostArray, memory: HostArray) -> None:
            memory[offset : offset + source.nbytes] = source

        return filling.transfer(copy, source.nbytes, is_last_transfer)

    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        source = self.literal(index, array)

        def copy(target: HostArray, _: HostArray) -> None:
            np.copyto(target, source)

        return self.filling(index).transfer(copy, source.nbytes, True)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        if hasattr(self, "_fillings") and not is_finalizing():
            self.close()


class _Filling:
    """One buffer that is being filled.

    Attributes:
        spec: its type.
        size: its number of bytes.
    """

    __slots__ = (
        "_array",
        "_buffer",
        "_bytes",
        "_definition",
        "_device",
        "_ended",
        "_space",
        "_storage",
        "_under_way",
        "size",
        "spec",
    )

    def __init__(self, device: HostDevice, space: HostMemorySpace, spec: ShapeSpec) -> None:
        order, layout = order_and_layout(spec.layout, spec.shape, spec.element_type)
        self.spec = spec
        self.size = spec.size_in_bytes
        self._device = device
        self._space = space
        self._definition: Future[None] = Future()
        storage = Storage(self._definition)
        storage.charge(space.account, space.size_of(spec))
        # Dropped when the value is there, so that the buffer alone has the memory then.
        self._storage: Storage | None = storage
        self._array: HostArray | None = aligned_empty(spec.shape, array_dtype(spec.element_type), order)
        self._bytes: HostArray | None = memory_of(self._array)
        self._under_way = 0
        self._ended = False
        self._buffer: HostBuffer | None = device.client.buffer_type(
            device, space, spec.shape, spec.element_type, storage, layout
        )

    def retrieve(self) -> HostBuffer:
        """Return the buffer, once."""
        with runtime_lock:
            buffer, self._buffer = self._buffer, None
        if buffer is None:
            raise FailedPreconditionError("the buffer was retrieved already; each buffer can be retrieved once")
        return buffer

    def transfer(self, copy: Callable[[HostArray, HostArray], object], size: int, is_last: bool) -> Future[None]:
        """Copy, at once or on the thread for transfers; the value is there after the last copy and all before it.

        Args:
            copy: a function of the array and its bytes.
            size: the number of bytes that it copies.
            is_last: whether this is the last copy.
        """
        with runtime_lock:
            array, memory = self._array, self._bytes
            if self._ended or array is None or memory is None:
                raise FailedPreconditionError(
                    "the buffer takes no more data: its last transfer was begun, it failed, or the manager was closed"
                )
            self._under_way += 1
            self._ended = is_last
        work = functools.partial(self._work, copy, array, memory)
        del array, memory
        call = Call(work)
        del work
        if size <= INLINE_BYTES and may_wait_here(self._device):
            call.run()
        else:
            self._device.transfers.put(call)
        return call.future

    def fail(self, error: PjrtError) -> None:
        """Fail the buffer with this error."""
        with runtime_lock:
            self._ended = True
        if not self._definition._complete(None, error):
            raise FailedPreconditionError("the buffer has its value or an error already")

    def abandon(self, error: PjrtError) -> None:
        """Fail the buffer unless its last transfer has begun: no more data will come."""
        with runtime_lock:
            if self._ended:
                return
            self._ended = True
        self._definition._complete(None, error)

    def _work(self, copy: Callable[[HostArray, HostArray], object], array: HostArray, memory: HostArray) -> None:
        try:
            copy(array, memory)
        except BaseException as error:
            self._definition._complete(None, without_traceback(error))
            raise
        finally:
            del array, memory
            self._one_done()

    def _one_done(self) -> None:
        with runtime_lock:
            self._under_way -= 1
            if not self._ended or self._under_way:
                return
            storage, array = self._storage, self._array
            self._storage = self._array = self._bytes = None
        error = None
        if storage is not None and array is not None and not self._definition._done:
            try:
                storage.array = self._device.stored(array, self.spec, self._space)
            except BaseException as raised:  # the author's, of a device with memory of its own
                error = without_traceback(raised)
        self._definition._complete(None, error)
