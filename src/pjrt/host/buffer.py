"""The buffers of the host runtime: their bytes in place, aliases, arrays of the host and transfers in pieces."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import AliasFulfillment, Buffer, ExternalReference, HostBufferSemantics, RawBuffer
from pjrt.api.checks import expect, expect_all, expect_array, expect_callable, expect_int, expect_out, unexpected
from pjrt.api.device import Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
    UnimplementedError,
)
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import Layout, ShapeSpec, StridedLayout, TiledLayout, expect_shape, expect_spec
from pjrt.host.device import HostDevice, HostMemorySpace
from pjrt.host.executable import without_traceback
from pjrt.host.shutdown import runtime_lock
from pjrt.host.storage import READY, TOKEN, Storage, depend, follow, freeze, reinterpret
from pjrt.host.work_queue import INLINE_BYTES, Call, copy_between, may_wait_here, schedule
from pjrt.host_memory import external
from pjrt.host_memory.array import (
    HostArray,
    aligned_copy,
    aligned_empty,
    array_dtype,
    bytes_of,
    is_laid_out,
    order_and_layout,
    order_of,
    source_bytes,
    target_bytes,
    tiled,
)
from pjrt.host_memory.external import ExternalMemory, HostExternalReference, memory_of, notify_owner
from pjrt.host_memory.transfer_manager import TransferManager

if TYPE_CHECKING:
    from pjrt.host.client import HostClient


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


# The buffers of the host runtime.


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
        own = ShapeSpec(self.shape, self.element_type).size_in_bytes
        if spec.size_in_bytes != own:
            raise InvalidArgumentError(
                f"a bitcast keeps the number of bytes: {self.described} has {own}, {spec} has {spec.size_in_bytes}"
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


# Alias buffers: buffers that become an alias of another buffer later.


class HostAliasFulfillment(AliasFulfillment):
    """Names, once, the buffer that an alias buffer is an alias of; dropping it before that fails the alias."""

    __slots__ = ("_space", "_spec", "_storage")

    def __init__(self, space: HostMemorySpace, spec: ShapeSpec, storage: Storage) -> None:
        self._space = space
        self._spec = spec
        # ``None`` when the alias has its buffer or its error.
        self._storage: Storage | None = storage

    def fulfill(self, buffer: Buffer) -> None:
        if not isinstance(buffer, HostBuffer) or buffer.memory_space is not self._space:
            raise InvalidArgumentError(f"an alias in {self._space} cannot stand for {buffer!r}: not the same memory")
        spec = self._spec
        if (buffer.shape, buffer.element_type) != (spec.shape, spec.element_type):
            raise InvalidArgumentError(f"the alias is a {spec}, the buffer a {buffer.described}")
        if (spec.layout or TiledLayout.row_major(len(spec.shape))) != buffer.layout:
            raise InvalidArgumentError(f"the alias has the layout {spec.layout}, the buffer {buffer.layout}")
        source = buffer.use()
        if source is self._storage:
            raise InvalidArgumentError("an alias cannot stand for itself")
        follow(self._take_storage(), source)

    def fail(self, error: PjrtError) -> None:
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        self._take_storage().definition._complete(None, error)

    def abandon(self, error: PjrtError) -> None:
        """Fail the alias if it has no buffer yet."""
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.definition._complete(None, error)

    def _take_storage(self) -> Storage:
        storage, self._storage = self._storage, None
        if storage is None:
            raise FailedPreconditionError("the alias has its buffer or its error already, or its client was closed")
        return storage

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        if getattr(self, "_storage", None) is not None and not is_finalizing():
            self.abandon(InternalError("the alias buffer got no buffer: its fulfillment was dropped"))


def alias_buffer(
    device: HostDevice, space: HostMemorySpace, spec: ShapeSpec
) -> tuple[HostBuffer, HostAliasFulfillment]:
    """Return a buffer that becomes an alias of another, and the fulfillment that names that buffer."""
    expect_spec(spec)
    storage = Storage(Future())
    _, layout = space.place(spec)
    plain = ShapeSpec(spec.shape, spec.element_type, layout)
    buffer = device.client.buffer_type(device, space, spec.shape, spec.element_type, storage, layout)
    return buffer, HostAliasFulfillment(space, plain, storage)


# Buffers from host arrays: the four host buffer semantics.

ZERO_COPY = (HostBufferSemantics.IMMUTABLE_ZERO_COPY, HostBufferSemantics.MUTABLE_ZERO_COPY)


def buffer_from_host(
    array: Any,
    device: HostDevice,
    space: HostMemorySpace,
    layout: Layout | None,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> HostBuffer:
    """Return the buffer of a host array; copy only if that is necessary."""
    source: HostArray = array if type(array) is np.ndarray else expect_array(array)
    if type(semantics) is not HostBufferSemantics:
        raise unexpected(semantics, "one of pjrt.HostBufferSemantics as semantics")
    if on_done is not None:
        expect_callable(on_done, "a function, or None, as on_done_with_host_buffer")
    element_type = ElementType.of(source.dtype)
    shape = source.shape
    order, tiled_layout = order_and_layout(layout, shape, element_type)
    if semantics is HostBufferSemantics.MUTABLE_ZERO_COPY and not source.flags.writeable:
        raise InvalidArgumentError(
            "MUTABLE_ZERO_COPY lets the device write to the array, but the array is read-only; use IMMUTABLE_ZERO_COPY"
        )
    if semantics in ZERO_COPY and _fits(source, order, device):
        storage = Storage(READY, mutable=semantics is HostBufferSemantics.MUTABLE_ZERO_COPY)
        storage.charge(space.account, source.nbytes)
        storage.array = ExternalMemory.over(source, on_done)
        storage.array.setflags(write=False)
    else:
        storage = _copy(source, element_type, order, device, space, semantics, on_done)
    return HostBuffer(device, space, shape, element_type, storage, tiled_layout)


def _fits(source: HostArray, order: tuple[int, ...] | None, device: HostDevice) -> bool:
    """Whether the device can use the array in place."""
    if not source.size or not is_laid_out(source, order):
        return False
    return source.ctypes.data % device.client.alignment == 0


def _copy(
    source: HostArray,
    element_type: ElementType,
    order: tuple[int, ...] | None,
    device: HostDevice,
    space: HostMemorySpace,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> Storage:
    dtype = array_dtype(element_type)
    storage = Storage(READY)
    storage.charge(space.account, source.size * dtype.itemsize)
    if semantics is HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL or source.nbytes <= INLINE_BYTES:
        storage.array = freeze(aligned_copy(source, dtype, order))
        if on_done is not None:
            notify_owner(on_done)
        return storage

    def copy() -> None:
        try:
            array = aligned_copy(source, dtype, order)
        finally:
            if on_done is not None:
                notify_owner(on_done)
        storage.array = freeze(array)

    call = Call(copy)
    storage.definition = call.future
    device.transfers.put(call)
    return storage


def zero_copy(
    array: HostArray, device: HostDevice, space: HostMemorySpace, on_done: Callable[[], object] | None
) -> HostBuffer:
    """Return a buffer that uses an array in place, in its own layout.

    Raises:
        InvalidArgumentError: the array has gaps or overlaps, or is not aligned as the device needs it.
    """
    element_type = ElementType.of(array.dtype)
    try:
        order = order_of(StridedLayout(array.strides), array.shape, element_type)
    except UnimplementedError as error:
        raise InvalidArgumentError(f"the array cannot be shared without a copy: {error.message}") from error
    if array.size and not _fits(array, order, device):
        raise InvalidArgumentError(
            f"the array cannot be shared without a copy: its memory is not aligned to {device.client.alignment} bytes "
            "or its byte order is foreign; use buffer_from_host"
        )
    storage = Storage(READY, mutable=False)
    storage.charge(space.account, array.nbytes)
    storage.array = ExternalMemory.over(array, on_done)
    storage.array.setflags(write=False)
    return HostBuffer(device, space, array.shape, element_type, storage, tiled(order))


def view(
    pointer: int, spec: ShapeSpec, device: HostDevice, space: HostMemorySpace, on_delete: Callable[[], object] | None
) -> HostBuffer:
    """Return a buffer over memory at an address."""
    check_address(pointer, spec, device, on_delete)
    order, layout = order_and_layout(spec.layout, spec.shape, spec.element_type)
    dtype = array_dtype(spec.element_type)
    storage = Storage(READY, mutable=False)
    storage.charge(space.account, spec.size_in_bytes)
    memory = ExternalMemory(pointer, spec.size_in_bytes, None, on_delete)
    shape = spec.shape if order is None else tuple(spec.shape[d] for d in order)
    array = memory.array(shape, dtype)
    storage.array = array if order is None else array.transpose(np.argsort(order))
    storage.array.setflags(write=False)
    return HostBuffer(device, space, spec.shape, spec.element_type, storage, layout)


def check_address(pointer: int, spec: ShapeSpec, device: HostDevice, on_delete: Callable[[], object] | None) -> None:
    """Check the arguments for a buffer over memory at an address.

    Raises:
        InvalidArgumentError: an argument has another type, or the address does not fit the array or the device.
    """
    expect_int(pointer, "the address of memory as a whole number")
    expect_spec(spec)
    if on_delete is not None:
        expect_callable(on_delete, "a function, or None, as on_delete")
    if not pointer and spec.size_in_bytes:
        raise InvalidArgumentError(f"a {spec} cannot lie at address 0")
    if pointer % device.client.alignment:
        raise InvalidArgumentError(
            f"the address {pointer:#x} is not aligned to the {device.client.alignment} bytes that the device needs"
        )


def uninitialized(spec: ShapeSpec, device: HostDevice, space: HostMemorySpace) -> HostBuffer:
    """Return a buffer with memory and no particular value."""
    expect_spec(spec)
    order, layout = order_and_layout(spec.layout, spec.shape, spec.element_type)
    storage = Storage(READY)
    storage.charge(space.account, spec.size_in_bytes)
    if spec.element_type is ElementType.TOKEN:
        storage.array = TOKEN
    else:
        storage.array = freeze(aligned_empty(spec.shape, array_dtype(spec.element_type), order))
    return HostBuffer(device, space, spec.shape, spec.element_type, storage, layout)


# Transfers to a host device in pieces.


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
        order, layout = space.place(spec)
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


# DMA mappings: host memory that was mapped for direct transfers. A host device needs no mapping, so it keeps a list.


class DmaMappings:
    """The mapped memory, kept alive until it is unmapped."""

    __slots__ = ("_by_address",)

    def __init__(self) -> None:
        self._by_address: dict[int, Any] = {}

    def add(self, memory: Any) -> None:
        """Map an object with the buffer protocol.

        Raises:
            AlreadyExistsError: the memory is mapped already.
        """
        view = bytes_of(memory)
        address = int(view.ctypes.data)
        if self._by_address.setdefault(address, view) is not view:
            raise AlreadyExistsError(f"the memory at {address:#x} is mapped already; unmap it first")

    def remove(self, memory: Any) -> None:
        """Unmap an object that was mapped.

        Raises:
            NotFoundError: the memory is not mapped.
        """
        address = int(bytes_of(memory).ctypes.data)
        if self._by_address.pop(address, None) is None:
            raise NotFoundError(f"the memory at {address:#x} is not mapped")
