"""Buffers in the memory of a device's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import Buffer, ExternalReference
from pjrt.api.checks import expect_out
from pjrt.api.device import Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, UnimplementedError
from pjrt.api.future import Future
from pjrt.api.shape_spec import Layout, ShapeSpec
from pjrt.host.buffer import HostBuffer
from pjrt.host.copies import schedule
from pjrt.host.device_memory.allocation import Allocation
from pjrt.host.device_memory.memory import Memory
from pjrt.host.raw_buffer import HostRawBuffer, expect_mutable
from pjrt.host.storage import TOKEN, Storage
from pjrt.host_memory.array import HostArray, aligned_copy, array_dtype, order_of, source_bytes, target_bytes

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice


class DeviceBuffer(HostBuffer):
    """An array in the memory of a device's own. The storage's ``array`` is an ``Allocation``."""

    __slots__ = ()

    @property
    def is_on_cpu(self) -> bool:
        return _memory_of(self.device).is_on_host

    # To the host.

    def to_host(self, out: HostArray | None = None, *, layout: Layout | None = None) -> Future[HostArray]:
        storage = self.use()
        order = None if layout is None else order_of(layout, self.shape, self.element_type)
        dtype = array_dtype(self.element_type)
        target = None if out is None else expect_out(out, self.shape, dtype)
        definition = storage.definition
        if out is None and order is None and self.is_on_cpu and definition._done and definition._error is None:
            return Future.completed(_read(storage.array, None))  # a view

        def read(allocation: Any) -> HostArray:
            array = _read(allocation, target)
            return array if order is None else aligned_copy(array, dtype, order)

        return schedule(self.device, storage, read, self.on_device_size)

    def _copy_bytes(self, storage: Storage, out: Any, offset: int, size: int | None) -> Future[None]:
        return copy_bytes_out(self.device, storage, self.on_device_size, out, offset, size)

    # Copies elsewhere, and other uses of its memory.

    def copy_to(self, destination: Device | MemorySpace) -> Buffer:
        source = self.use()
        device, space = self._destination(destination)
        memory = self.device.client.memory
        if getattr(device.client, "memory", None) is not memory:
            # Another kind of memory: copy by way of the host, and wait for that.
            return device.client.buffer_from_host(self.to_host().result(), device=device, memory_space=space)
        home: HostDevice = space.devices[0]  # type: ignore[assignment]  # its client has this memory
        home.client.check_open()
        target = Storage(source.definition)
        target.charge(space.account, space.size_of(ShapeSpec(self.shape, self.element_type)))  # type: ignore[attr-defined]

        def copy(value: Any) -> None:
            copied: Any = value if value is TOKEN else value.copied(space)
            target.array = copied

        target.definition = schedule(home, source, copy, self.on_device_size)
        return DeviceBuffer(home, space, self.shape, self.element_type, target)  # type: ignore[arg-type]

    def bitcast(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None = None) -> HostBuffer:
        source = self.use()
        spec = self._bitcast_spec(element_type, shape, layout)
        target = Storage(source.definition)
        target.charge(self.memory_space.account, self.memory_space.size_of(spec))

        def copy(value: Any) -> None:
            array = value.view().reshape(-1).view(np.uint8).view(array_dtype(spec.element_type)).reshape(spec.shape)
            copied: Any = Allocation.of_array(value.memory, array, spec, self.memory_space)
            target.array = copied

        target.definition = schedule(self.device, source, copy, self.on_device_size)
        self.delete()
        return DeviceBuffer(self.device, self.memory_space, spec.shape, spec.element_type, target)

    def external_reference(self) -> DeviceExternalReference:
        return DeviceExternalReference(self._allocation(), self.use())

    def unsafe_pointer(self) -> int:
        allocation = self._allocation()
        return allocation.memory.pointer(allocation.handle)

    def raw(self) -> DeviceRawBuffer:
        return DeviceRawBuffer(self.device, self.memory_space, self.use(), self.on_device_size)

    def __dlpack__(self, **options: Any) -> Any:
        allocation = self._allocation()
        shared = allocation.memory.to_dlpack(allocation.handle)
        allocation.is_shared = True  # The consumer's use cannot be seen: a donation gets a copy from now on.
        return shared.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        allocation = self._allocation()
        place: tuple[int, int] = allocation.memory.to_dlpack(allocation.handle).__dlpack_device__()
        return place

    def _allocation(self) -> Allocation:
        value: Any = self.use().value()
        if not isinstance(value, Allocation):
            raise UnimplementedError(f"the buffer {self.described} has no memory: it is a token")
        return value


class DeviceExternalReference(ExternalReference):
    """Keeps memory of a device's own alive, and its bytes on the account, until it is released."""

    __slots__ = ("_pointer", "_storage")

    def __init__(self, allocation: Allocation, storage: Storage) -> None:
        self._pointer = allocation.memory.pointer(allocation.handle)
        self._storage: Storage | None = storage

    @property
    def pointer(self) -> int:
        if self._storage is None:
            raise FailedPreconditionError("the external reference was released; take a new one")
        return self._pointer

    def release(self) -> None:
        self._storage = None


class DeviceRawBuffer(HostRawBuffer):
    """The bytes behind a buffer in a device's memory; keeps them alive until it is released."""

    __slots__ = ()

    def host_pointer(self) -> int:
        memory = _memory_of(self._device)
        allocation: Any = self._use().value()
        return memory.pointer(allocation.handle) if memory.is_on_host and isinstance(allocation, Allocation) else 0

    def copy_from_host(self, source: Any, offset: int = 0) -> Future[None]:
        storage = self._use()
        data = source_bytes(source, offset, self.on_device_size)
        expect_mutable(storage)

        def copy(allocation: Any) -> None:
            array = allocation.read()
            bytes_of = array.reshape(-1).view(np.uint8)
            bytes_of[offset : offset + data.nbytes] = data
            allocation.write(array)

        return schedule(self._device, storage, copy, self.on_device_size)

    def copy_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return copy_bytes_out(self._device, self._use(), self.on_device_size, out, offset, size)


def _memory_of(device: HostDevice) -> Memory:
    memory = device.client.memory
    assert memory is not None  # else the buffer is another one
    return memory


def copy_bytes_out(
    device: HostDevice, storage: Storage, available: int, out: Any, offset: int, size: int | None
) -> Future[None]:
    """Copy bytes of a storage into a writable object with the buffer protocol."""
    target = target_bytes(out, offset, size, available)

    def copy(allocation: Any) -> None:
        target[:] = _read(allocation, None).reshape(-1).view(np.uint8)[offset : offset + target.nbytes]

    return schedule(device, storage, copy, available)


def _read(value: Any, out: HostArray | None) -> HostArray:
    """Return the value of a buffer; a token is an array of its own."""
    if isinstance(value, Allocation):
        return value.view() if out is None else value.read(out)
    array: HostArray = value
    if out is None:
        return array.view()
    np.copyto(out, array)
    return out


def expect_row_major(spec: ShapeSpec, device: HostDevice) -> None:
    """Check that a layout is row-major, or not stated.

    Raises:
        UnimplementedError: the layout is another one.
    """
    if spec.layout is not None and order_of(spec.layout, spec.shape, spec.element_type) != tuple(
        range(len(spec.shape))
    ):
        raise UnimplementedError(
            f"the memory of '{device.client.platform_name}' holds row-major arrays only, found the layout {spec.layout}"
        )
