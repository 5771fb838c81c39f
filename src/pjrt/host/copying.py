"""Copies between devices, memory spaces and the host that wait for the value without holding up anyone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pjrt.api.buffer import Buffer
from pjrt.api.device import Device
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.future import Future
from pjrt.api.memory_space import MemorySpace
from pjrt.host.layout import array_dtype, order_of
from pjrt.host.queue import Call, clean
from pjrt.host.storage import Array, Storage, copied, freeze

if TYPE_CHECKING:
    from pjrt.host.buffer import HostBuffer
    from pjrt.host.device import HostDevice

T = TypeVar("T")

INLINE_BYTES = 64 * 1024
"""Copies up to this size are made at once where they stand; handing them to a thread would take longer."""


def schedule(device: HostDevice, storage: Storage, function: Callable[[Array], T]) -> Future[T]:
    """A future of ``function(array)``, called when the storage has its array; large arrays on the device's thread for
    transfers. An error of the storage is the future's.
    """

    def work() -> T:
        error = storage.definition.exception()
        if error is not None:
            raise error
        assert storage.array is not None
        return function(storage.array)

    call = Call(work)

    def begin(_: Future[None]) -> None:
        if storage.array is None or storage.array.nbytes <= INLINE_BYTES:
            call.run()
            return
        try:
            device.transfers.put(call)
        except Exception as error:
            call.fail(clean(error))

    storage.definition.add_done_callback(begin)
    return call.future


def copy_buffer(buffer: HostBuffer, destination: Device | MemorySpace) -> Buffer:
    """The copy that ``Buffer.copy_to`` gives.

    To a device of another kind of client the value goes by way of the host, and is waited for.
    """
    from pjrt.host.buffer import HostBuffer
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace

    source = buffer.use()
    space = destination.default_memory_space if isinstance(destination, Device) else destination
    if not isinstance(space, HostMemorySpace):
        device = destination if isinstance(destination, Device) else destination.devices[0]
        return device.client.buffer_from_host(buffer.to_host().result(), device=device, memory_space=space)
    device = space.devices[0]
    if not isinstance(device, HostDevice) or not device.is_addressable:
        raise InvalidArgumentError(f"{device} belongs to process {device.process_index}; copy to an addressable device")
    device.client.check_open()
    order = order_of(buffer.layout, buffer.shape, buffer.element_type)
    dtype = array_dtype(buffer.element_type)
    made = Storage(Future())
    made.charge(space.account, buffer.on_device_size)

    def copy(array: Array) -> None:
        made.array = freeze(copied(array, dtype, order))

    made.definition = schedule(device, source, copy)
    return HostBuffer(device, space, buffer.shape, buffer.element_type, made, buffer._layout)
