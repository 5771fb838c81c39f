"""Copies between devices, memory spaces and the host. They wait for the value and block no caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pjrt.api.element_type import AnyDType
from pjrt.api.future import Future
from pjrt.api.waits import server_here
from pjrt.host.device_errors import without_traceback
from pjrt.host.storage import TOKEN, Storage, freeze
from pjrt.host.work_queue import Call
from pjrt.host_memory import references
from pjrt.host_memory.array import HostArray, aligned_copy

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace

T = TypeVar("T")

INLINE_BYTES = 64 * 1024
"""Copies up to this size are made in the calling thread; passing them to another thread would take longer."""


def may_wait_here(device: HostDevice) -> bool:
    """Whether the calling thread may wait for a copy of a device's memory.

    A copy of an author's memory may return a fence. A thread that completes fences must not wait for it: this fence may
    be its next one.
    """
    here = server_here()
    return here is None or device.client.memory is None or here is device.transfers.server


def schedule(device: HostDevice, storage: Storage, function: Callable[[HostArray], T], size: int) -> Future[T]:
    """Return a future of ``function(array)``, which is called when the storage has its array.

    Args:
        device: the device whose thread for transfers makes large copies.
        storage: the source; if it fails, so does the future.
        function: the work.
        size: the number of bytes that it moves.
    """

    copy = Copy(device, storage, function, size)
    copy.future.need(storage.definition)
    copy.caller = threading.get_ident() if may_wait_here(device) else 0
    storage.definition.add_done_callback(copy)
    copy.caller = 0
    return copy.future


class Copy(Call):
    """A copy of a storage's value; as a callback of the storage's definition event, it begins the copy.

    Attributes:
        source: the storage, to which a copy has one reference until it begins; then ``None``.
        caller: the thread that schedules the copy and may wait for it; 0 if it must not, or has gone on.
    """

    __slots__ = ("_device", "_size", "caller", "source")

    def __init__(self, device: HostDevice, source: Storage, function: Callable[[HostArray], T], size: int) -> None:
        self._device = device
        self._size = size
        self.source: Storage | None = source
        self.caller = 0

        def work() -> T:
            # Dropped before the future is done: a thread that waits for it may donate the memory next.
            begun, self.source = self.source, None
            assert begun is not None
            assert begun.array is not None
            return function(begun.array)

        super().__init__(work)

    @property
    def is_wanted(self) -> bool:
        """Whether its result can still be seen: another object holds its future, or the future has callbacks."""
        return bool(self.future._callbacks) or references.to_attribute(self, "future") > 1

    def __call__(self, definition: Future[None]) -> None:
        """Begin the copy, now that the value is there or has failed."""
        if definition._error is not None:
            self.fail(definition._error)
        elif self._size <= INLINE_BYTES and self._runs_here():
            self.run()
        else:
            try:
                self.future.need(self._device.transfers.server)
                self._device.transfers.put(self)
            except Exception as refused:
                self.fail(without_traceback(refused))

    def _runs_here(self) -> bool:
        """Whether the copy may be made on this thread: the caller's, or one that may wait for it."""
        if self._device.client.memory is None or self.caller == threading.get_ident():
            return True
        return server_here() is self._device.transfers.server


def copy_between(
    source: Storage,
    device: HostDevice,
    space: HostMemorySpace,
    dtype: AnyDType,
    order: tuple[int, ...],
    size: int,
) -> Storage:
    """Return a storage in another memory that will hold a copy.

    Args:
        source: the storage to copy.
        device: the device whose thread copies.
        space: the memory to copy to.
        dtype: the dtype of the elements.
        order: the dimensions from the slowest to the fastest varying, which the copy keeps.
        size: the number of bytes.

    Raises:
        ResourceExhaustedError: the memory has no room for the copy.
    """
    target = Storage(source.definition)
    target.charge(space.account, size)

    def copy(array: HostArray) -> None:
        target.array = TOKEN if array is TOKEN else freeze(aligned_copy(array, dtype, order))

    target.definition = schedule(device, source, copy, size)
    return target
