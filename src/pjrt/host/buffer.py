"""The buffers of the host runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import Buffer, ExternalReference, RawBuffer
from pjrt.api.checks import expect, expect_out
from pjrt.api.device import Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout, expect_shape
from pjrt.host.copies import copy_between, schedule
from pjrt.host.memory_space import HostMemorySpace
from pjrt.host.raw_buffer import HostRawBuffer, copy_raw
from pjrt.host.storage import Storage
from pjrt.host.storage_aliases import depend, reinterpret
from pjrt.host_memory import external
from pjrt.host_memory.array import HostArray, aligned_copy, array_dtype, order_of, tiled
from pjrt.host_memory.external import ExternalMemory, HostExternalReference

if TYPE_CHECKING:
    from pjrt.host.client import HostClient
    from pjrt.host.device import HostDevice


class HostBuffer(Buffer):
    """An array in the memory of this process, whose value may come later."""

    __slots__ = ("_layout", "_storage", "device", "element_type", "memory_space", "shape")

    device: HostDevice
    element_type: ElementType
    memory_space: HostMemorySpace
    shape: tuple[int, ...]

    def __init__(
        self,
        device: HostDevice,
        space: HostMemorySpace,
        shape: tuple[int, ...],
        element_type: ElementType,
        storage: Storage,
        layout: TiledLayout | None = None,
    ) -> None:
        self.device = device
        self.memory_space = space
        self.shape = shape
        self.element_type = element_type
        self._layout = layout
        self._storage: Storage | None = storage

    # Its metadata.

    @property
    def client(self) -> HostClient:
        return self.device.client

    @property
    def layout(self) -> TiledLayout:
        return TiledLayout.row_major(len(self.shape)) if self._layout is None else self._layout

    @property
    def on_device_size(self) -> int:
        if self.element_type is ElementType.TOKEN:
            return 0
        size = array_dtype(self.element_type).itemsize
        for extent in self.shape:
            size *= extent
        return size

    @property
    def is_on_cpu(self) -> bool:
        return True

    # Its lifetime.

    @property
    def is_deleted(self) -> bool:
        return self._storage is None

    def delete(self) -> None:
        self._storage = None

    def use(self) -> Storage:
        """Return the storage, for work that is about to use the value.

        Raises:
            FailedPreconditionError: the buffer was deleted or donated, or its client is closed.
        """
        storage = self._storage
        if storage is None:
            raise FailedPreconditionError(
                f"the buffer {self.described} was deleted or donated; make a new one, or name the argument in "
                "non_donatable_input_indices to keep it"
            )
        if self.device.client._closed:
            raise FailedPreconditionError(f"the client of the buffer {self.described} was closed")
        return storage

    def ready(self) -> Future[None]:
        return self.use().definition

    # To the host.

    def to_host(self, out: HostArray | None = None, *, layout: Layout | None = None) -> Future[HostArray]:
        storage = self.use()
        order = None if layout is None else order_of(layout, self.shape, self.element_type)
        if out is not None:
            target = expect_out(out, self.shape, array_dtype(self.element_type))
            return schedule(self.device, storage, lambda array: _fill(target, array), target.nbytes)
        if order is None or order == self._order:
            definition = storage.definition
            if definition._done and definition._error is None:
                return Future.completed(_view(_value(storage)))
            return schedule(self.device, storage, _view, 0)
        dtype = array_dtype(self.element_type)
        return schedule(self.device, storage, lambda array: aligned_copy(array, dtype, order), self.on_device_size)

    def copy_raw_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return self._copy_bytes(self.use(), out, offset, size)

    def copy_raw_to_host_future(self, out: Future[Any], offset: int = 0, size: int | None = None) -> Future[None]:
        expect(out, Future, "a future of the memory to copy to")
        # Held from now on: the buffer may be deleted before there is memory to copy to.
        storage = self.use()
        promise: Promise[None] = Promise()

        def settle(done: Future[None]) -> None:
            error = done.exception()
            promise.set_result(None) if error is None else promise.set_error(error)

        def begin(place: Future[Any]) -> None:
            try:
                self._copy_bytes(storage, place.result(), offset, size).add_done_callback(settle)
            except BaseException as error:
                promise.set_error(error)

        out.add_done_callback(begin)
        return promise.future

    def _copy_bytes(self, storage: Storage, out: Any, offset: int, size: int | None) -> Future[None]:
        return copy_raw(self.device, storage, self.on_device_size, out, offset, size)

    # Copies elsewhere, and other uses of its memory.

    def copy_to(self, destination: Device | MemorySpace) -> Buffer:
        source = self.use()
        device, space = self._destination(destination)
        # A client with memory of its own has buffers of another kind.
        same_kind = getattr(device.client, "memory", self) is self.client.memory
        if not same_kind or not isinstance(space, HostMemorySpace):
            # Another kind of client: copy by way of the host, and wait for that.
            return device.client.buffer_from_host(self.to_host().result(), device=device, memory_space=space)
        home = space.devices[0]
        home.client.check_open()
        storage = copy_between(source, home, space, array_dtype(self.element_type), self._order, self.on_device_size)
        return HostBuffer(home, space, self.shape, self.element_type, storage, self._layout)

    def _destination(self, destination: Device | MemorySpace) -> tuple[Device, MemorySpace]:
        """Return the device and the memory space to copy to."""
        expect(destination, (Device, MemorySpace), "a device or memory space to copy to")
        device = destination if isinstance(destination, Device) else destination.devices[0]
        if not device.is_addressable:
            raise InvalidArgumentError(
                f"{device} belongs to process {device.process_index}; copy to an addressable device"
            )
        return device, device.default_memory_space if isinstance(destination, Device) else destination

    def bitcast(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None = None) -> HostBuffer:
        source = self.use()
        spec = self._bitcast_spec(element_type, shape, layout)
        dtype = array_dtype(spec.element_type)
        order = tuple(range(len(spec.shape))) if layout is None else order_of(layout, spec.shape, spec.element_type)
        storage = reinterpret(source, self._order, dtype, spec.shape, order)
        self.delete()
        return HostBuffer(self.device, self.memory_space, spec.shape, spec.element_type, storage, tiled(order))

    def _bitcast_spec(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None) -> ShapeSpec:
        """Return the type of a bitcast, which must have as many bytes."""
        spec = ShapeSpec(expect_shape(shape), element_type, layout)
        size = spec.size * array_dtype(spec.element_type).itemsize
        if size != self.on_device_size:
            raise InvalidArgumentError(
                f"a bitcast keeps the number of bytes: {self.described} has {self.on_device_size}, {spec} has {size}"
            )
        return spec

    def donate_with_control_dependency(self, dependency: Future[Any]) -> HostBuffer:
        storage = depend(self.use(), expect(dependency, Future, "a future to wait for"))
        self.delete()
        return type(self)(self.device, self.memory_space, self.shape, self.element_type, storage, self._layout)

    def external_reference(self) -> ExternalReference:
        storage = self.use()
        return HostExternalReference(storage.value(), storage)

    def unsafe_pointer(self) -> int:
        return int(self.use().value().ctypes.data)

    def raw(self) -> RawBuffer:
        return HostRawBuffer(self.device, self.memory_space, self.use(), self.on_device_size)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        if stream is not None:
            raise BufferError(f"memory of the host has no streams: expected stream=None, found {stream!r}")
        external.check_dlpack_device(dl_device)
        array = self.use().value()
        return external.to_capsule(array.copy(order="K") if copy else ExternalMemory.over(array))

    def __dlpack_device__(self) -> tuple[int, int]:
        return external.DLPACK_HOST_DEVICE

    @property
    def _order(self) -> tuple[int, ...]:
        """The dimensions from the slowest to the fastest varying."""
        return order_of(self.layout, self.shape, self.element_type)

    @property
    def described(self) -> str:
        """The type and shape, for messages."""
        return f"{self.element_type.name.lower()}[{','.join(map(str, self.shape))}]"


def _fill(out: HostArray, array: HostArray) -> HostArray:
    np.copyto(out, array)
    return out


def _value(storage: Storage) -> HostArray:
    assert storage.array is not None
    return storage.array


def _view(array: HostArray) -> HostArray:
    # A view and not the array itself: a view of a read-only array cannot be made writable.
    return array.view()
