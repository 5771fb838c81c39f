"""Copies between devices, memory spaces and the host that wait for the value without holding up anyone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pjrt.api.element_type import AnyDType
from pjrt.api.future import Future
from pjrt.host.device_errors import without_traceback
from pjrt.host.storage import TOKEN, Storage, freeze
from pjrt.host.work_queue import Call
from pjrt.host_memory.aligned import HostArray, aligned_copy

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace

T = TypeVar("T")

INLINE_BYTES = 64 * 1024
"""Copies up to this size are made at once where they stand; handing them to a thread would take longer."""


def schedule(device: HostDevice, storage: Storage, function: Callable[[HostArray], T], size: int) -> Future[T]:
    """A future of ``function(array)``, called when the storage has its array.

    Args:
        device: whose thread for transfers makes large copies.
        storage: where the array is to come from; if it fails, so does the future.
        function: the work.
        size: how many bytes it moves.
    """

    copy = Copy(device, storage, function, size)
    copy.future.need(storage.definition)
    storage.definition.add_done_callback(copy)
    return copy.future


class Copy(Call):
    """A copy of a storage's value; the callback of the storage's definition event that begins it.

    Attributes:
        source: the storage, to which a copy has one reference until it is begun; then ``None``.
    """

    __slots__ = ("_device", "_size", "source")

    def __init__(self, device: HostDevice, source: Storage, function: Callable[[HostArray], T], size: int) -> None:
        self._device = device
        self._size = size
        self.source: Storage | None = source

        def work() -> T:
            # Let go before the future is done: whoever waits for it may donate the memory next.
            begun, self.source = self.source, None
            assert begun is not None
            assert begun.array is not None
            return function(begun.array)

        super().__init__(work)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody can still see what becomes of it: has its future, or is to be called back."""
        # One reference is the attribute's, one the call's.
        return bool(self.future._callbacks) or sys.getrefcount(self.future) > 2

    def __call__(self, definition: Future[None]) -> None:
        """Begin, now that the value is there or has failed."""
        if definition._error is not None:
            self.fail(definition._error)
        elif self._size <= INLINE_BYTES:
            self.run()
        else:
            try:
                self.future.need(self._device.transfers.server)
                self._device.transfers.put(self)
            except Exception as refused:
                self.fail(without_traceback(refused))


def copy_between(
    source: Storage,
    device: HostDevice,
    space: HostMemorySpace,
    dtype: AnyDType,
    order: tuple[int, ...],
    size: int,
) -> Storage:
    """A storage in another memory that will hold a copy.

    Args:
        source: what is copied, when it is there.
        device: whose thread copies.
        space: the memory to copy to.
        dtype: the dtype of the elements.
        order: the dimensions from the slowest to the fastest varying; kept.
        size: the number of bytes.

    Raises:
        ResourceExhaustedError: the memory has no room for it.
    """
    made = Storage(source.definition)
    made.charge(space.account, size)

    def copy(array: HostArray) -> None:
        made.array = TOKEN if array is TOKEN else freeze(aligned_copy(array, dtype, order))

    made.definition = schedule(device, source, copy, size)
    return made
