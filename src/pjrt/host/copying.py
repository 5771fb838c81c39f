"""Copies between devices, memory spaces and the host that wait for the value without holding up anyone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pjrt.api.element_type import AnyDType
from pjrt.api.future import Future
from pjrt.host.device_errors import clean
from pjrt.host.queue import Call
from pjrt.host.storage import TOKEN, Array, Storage, copied, freeze

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace

T = TypeVar("T")

INLINE_BYTES = 64 * 1024
"""Copies up to this size are made at once where they stand; handing them to a thread would take longer."""


def schedule(device: HostDevice, storage: Storage, function: Callable[[Array], T], size: int) -> Future[T]:
    """A future of ``function(array)``, called when the storage has its array.

    Args:
        device: whose thread for transfers makes large copies.
        storage: where the array is to come from; if it fails, so does the future.
        function: the work.
        size: how many bytes it moves.
    """

    def work() -> T:
        assert storage.array is not None
        return function(storage.array)

    call = Call(work)
    call.future.need(storage.definition)

    def begin(_: Future[None]) -> None:
        error = storage.definition._error
        if error is not None:
            call.fail(error)
            return
        if size <= INLINE_BYTES:
            call.run()
            return
        try:
            call.future.need(device.transfers.server)
            device.transfers.put(call)
        except Exception as refused:
            call.fail(clean(refused))

    storage.definition.add_done_callback(begin)
    return call.future


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

    def copy(array: Array) -> None:
        made.array = TOKEN if array is TOKEN else freeze(copied(array, dtype, order))

    made.definition = schedule(device, source, copy, size)
    return made
