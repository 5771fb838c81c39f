"""Raw buffers: the bytes of host buffers, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import RawBuffer
from pjrt.api.errors import FailedPreconditionError
from pjrt.api.future import Future
from pjrt.host.copies import schedule
from pjrt.host.storage import Storage
from pjrt.host_memory.array import HostArray, source_bytes, target_bytes
from pjrt.host_memory.external import memory_of

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace


class HostRawBuffer(RawBuffer):
    """The bytes behind a host buffer; keeps them alive until it is released."""

    __slots__ = ("_device", "_storage", "memory_space", "on_device_size")

    memory_space: HostMemorySpace
    on_device_size: int

    def __init__(self, device: HostDevice, space: HostMemorySpace, storage: Storage, size: int) -> None:
        self._device = device
        self.memory_space = space
        self._storage: Storage | None = storage
        self.on_device_size = size

    def host_pointer(self) -> int:
        return int(self._use().value().ctypes.data)

    def copy_from_host(self, source: Any, offset: int = 0) -> Future[None]:
        storage = self._use()
        data = source_bytes(source, offset, self.on_device_size)
        expect_mutable(storage)

        def copy(array: HostArray) -> None:
            memory_of(array)[offset : offset + data.nbytes] = data

        return schedule(self._device, storage, copy, data.nbytes)

    def copy_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return copy_raw(self._device, self._use(), self.on_device_size, out, offset, size)

    def release(self) -> None:
        self._storage = None

    def _use(self) -> Storage:
        if self._storage is None:
            raise FailedPreconditionError("the raw buffer was released; take a new one with buffer.raw()")
        return self._storage


def expect_mutable(storage: Storage) -> None:
    """Check that memory may be written to.

    Raises:
        FailedPreconditionError: the memory has an owner who was promised that it stays unchanged.
    """
    if not storage.mutable:
        raise FailedPreconditionError(
            "the memory of this buffer belongs to an owner who was promised that it stays unchanged "
            "(IMMUTABLE_ZERO_COPY or a view); copy the buffer first"
        )


def copy_raw(
    device: HostDevice, storage: Storage, available: int, out: Any, offset: int, size: int | None
) -> Future[None]:
    """Copy bytes of a storage, in the order of their addresses, into a writable object with the buffer protocol."""
    target = target_bytes(out, offset, size, available)

    def copy(array: HostArray) -> None:
        target[:] = memory_of(array)[offset : offset + target.nbytes]

    return schedule(device, storage, copy, target.nbytes)
