"""Buffers in the memory of a device's own, from host arrays and from other libraries, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import Buffer, ExternalReference, HostBufferSemantics
from pjrt.api.checks import expect_array, expect_callable, expect_out, unexpected
from pjrt.api.device import Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, PjrtError, UnimplementedError
from pjrt.api.future import Future
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout, expect_spec
from pjrt.host.buffer import ZERO_COPY, HostBuffer, HostRawBuffer, check_address, expect_mutable
from pjrt.host.device_memory import Allocation, Memory, enqueuing, is_in_rows, kept_spec
from pjrt.host.executable import without_traceback
from pjrt.host.fences import Completion, checked_fences
from pjrt.host.storage import READY, TOKEN, Storage
from pjrt.host.work_queue import INLINE_BYTES, Call, may_wait_here, schedule
from pjrt.host_memory.array import (
    HostArray,
    aligned_copy,
    array_dtype,
    is_laid_out,
    order_of,
    source_bytes,
    target_bytes,
)
from pjrt.host_memory.external import ExternalMemory, notify_owner

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice, HostMemorySpace


class DeviceBuffer(HostBuffer):
    """An array in the memory of a device's own. The storage's ``array`` is an ``Allocation``."""

    __slots__ = ()

    @property
    def on_device_size(self) -> int:
        return self.memory_space.size_of(self._spec)

    @property
    def is_on_cpu(self) -> bool:
        return self._layout is None and memory_of(self.device).is_on_host

    @property
    def _spec(self) -> ShapeSpec:
        return ShapeSpec(self.shape, self.element_type, self._layout)

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

        return schedule(self.device, storage, read, self._spec.size_in_bytes)

    def _copy_bytes(self, storage: Storage, out: Any, offset: int, size: int | None) -> Future[None]:
        return copy_bytes_out(self.device, storage, self._bytes_in_rows(), out, offset, size)

    def _bytes_in_rows(self) -> int:
        """Return the number of bytes of an array whose elements lie in rows.

        Raises:
            UnimplementedError: they lie in tiles, or in another order.
        """
        if self._layout is not None:
            raise UnimplementedError(
                f"expected an array in rows, whose bytes can be read and written, found {self.described} in the layout "
                f"{self._layout}; copy it with to_host and buffer_from_host"
            )
        return self._spec.size_in_bytes

    # Copies elsewhere, and other uses of its memory.

    def copy_to(self, destination: Device | MemorySpace) -> Buffer:
        source = self.use()
        device, space = self._destination(destination)
        memory = memory_of(self.device)
        if getattr(device.client, "memory", None) is not memory:
            # Another kind of memory: copy by way of the host, and wait for that.
            return device.client.buffer_from_host(self.to_host().result(), device=device, memory_space=space)
        home: HostDevice = space.devices[0]  # type: ignore[assignment]  # its client has this memory
        home.client.check_open()
        there: HostMemorySpace = space  # type: ignore[assignment]  # of the same memory
        is_peer = home is not self.device and home.client is self.client and _has_peer_copies(memory)
        target = Storage(Future() if is_peer else source.definition)
        order = None if is_in_rows(self._layout) else TiledLayout(self.layout.minor_to_major)
        spec = ShapeSpec(self.shape, self.element_type, order)
        layout = there.layout(spec)
        target.charge(there.account, there.size_of(spec))
        if is_peer:
            PeerCopy(source, self.device, target, there, spec).begin()
            return DeviceBuffer(home, there, self.shape, self.element_type, target, layout)

        def copy(value: Any) -> None:
            copied: Any = value if value is TOKEN else value.copied(there, spec)
            target.array = copied

        target.definition = schedule(home, source, copy, spec.size_in_bytes)
        return DeviceBuffer(home, there, self.shape, self.element_type, target, layout)

    def bitcast(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None = None) -> HostBuffer:
        source = self.use()
        spec = self._bitcast_spec(element_type, shape, layout)
        target_layout = self.memory_space.layout(spec)
        target = Storage(source.definition)
        target.charge(self.memory_space.account, self.memory_space.size_of(spec))

        def copy(value: Any) -> None:
            array = value.view().reshape(-1).view(np.uint8).view(array_dtype(spec.element_type)).reshape(spec.shape)
            copied: Any = Allocation.of_array(value.memory, array, spec, self.memory_space)
            target.array = copied

        target.definition = schedule(self.device, source, copy, spec.size_in_bytes)
        self.delete()
        return DeviceBuffer(self.device, self.memory_space, spec.shape, spec.element_type, target, target_layout)

    def external_reference(self) -> DeviceExternalReference:
        return DeviceExternalReference(self._allocation(), self.use())

    def unsafe_pointer(self) -> int:
        allocation = self._allocation()
        return allocation.memory.pointer(allocation.handle)

    def raw(self) -> DeviceRawBuffer:
        return DeviceRawBuffer(self.device, self.memory_space, self.use(), self._bytes_in_rows())

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
        memory = memory_of(self._device)
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


# Copies from one device of a client to another one in the queues of both, by a method of the memory.


class PeerCopy:
    """A copy that a memory's method does. It is a task of the source's device: it comes behind what makes the value.

    What the method does not take goes through ``Memory.copy``, once the value is there.

    Args:
        source: the value.
        device: the device that has it.
        target: a storage of another device, which gets a copy of it; its definition is completed here.
        space: the memory of the target.
        spec: the type of the target.
    """

    __slots__ = ("_device", "_source", "_space", "_spec", "_target")

    def __init__(
        self, source: Storage, device: HostDevice, target: Storage, space: HostMemorySpace, spec: ShapeSpec
    ) -> None:
        self._source: Storage | None = source
        self._target: Storage | None = target
        self._device = device
        self._space = space
        self._spec = spec
        target.placed = Future()
        target.placed.need(source.definition)
        target.definition.need(source.definition)

    def begin(self) -> None:
        """Copy as soon as what makes the value is in the queue of its device; do not wait for that."""
        source = self._source
        assert source is not None
        placed = source.placed
        if source.definition._done:
            self.run()
        elif source.queue is self._device.compute:
            try:
                source.queue.put(self)
            except PjrtError as error:
                self.fail(error)
        elif placed is not None and not placed._done:
            placed.add_done_callback(lambda _: self.begin())
        else:
            self.run()

    def run(self) -> None:
        """Copy now, or when the value is there."""
        source, target = self._source, self._target
        self._source = self._target = None
        assert source is not None
        assert target is not None
        value: Any = source.array
        try:
            if not isinstance(value, Allocation) or not self._enqueue(source, value, target):
                del value
                self._copy_later(source, target)
        except BaseException as error:
            _end_copy(target, without_traceback(error))

    def fail(self, error: PjrtError) -> None:
        """Fail the copy."""
        target, self._source, self._target = self._target, None, None
        if target is not None:
            _end_copy(target, error)

    def ask_to_end(self, error: PjrtError) -> None:
        """Do nothing: it does not take long."""

    def _enqueue(self, source: Storage, value: Allocation, target: Storage) -> bool:
        """Have the author's method copy; return whether it does."""
        memory = value.memory
        home = self._space.devices[0]
        try:
            copied = Allocation.new(memory, self._spec, self._space)
            with enqueuing:
                fences = memory.copy_from_peer(value.handle, copied.handle, value.spec)
        except MemoryError:  # where the value is waited for, so is memory
            return False
        if fences is NotImplemented:
            return False
        name = f"{type(memory).__name__}.copy_from_peer"
        read = Completion(Future(), [], 0, name)
        written = Completion(target.definition, [], 0, name, before=[source.definition, read.definition])
        if fences is not None:
            here, there = checked_fences(fences, name, 2)
            value.used_by(read)
            copied.busy_until(written)
        array: Any = copied
        target.array = array
        if fences is None:
            read.end(None)
            written.end(None)
        else:
            target.queue = home.compute  # what is put there from now on comes behind the copy
            self._device.fences.add(here, read)
            home.fences.add(there, written)
        assert target.placed is not None
        target.placed._complete(None)
        return True

    def _copy_later(self, source: Storage, target: Storage) -> None:
        space, spec = self._space, self._spec
        home = space.devices[0]

        def copy(value: Any) -> Any:
            return value.copied(space, spec) if isinstance(value, Allocation) else value

        def give(copied: Future[Any]) -> None:
            if copied._error is None:
                target.array = copied._value
            _end_copy(target, copied._error)

        future = schedule(home, source, copy, spec.size_in_bytes)
        target.definition.need(future)
        future.add_done_callback(give)


def _has_peer_copies(memory: Memory) -> bool:
    """Return whether a memory has the method."""
    return type(memory).copy_from_peer is not Memory.copy_from_peer


def _end_copy(target: Storage, error: PjrtError | None) -> None:
    target.definition._complete(None, error)
    if target.placed is not None:
        target.placed._complete(None)


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


# Buffers in the memory of a device's own, from host arrays and from other libraries.


def buffer_from_host(
    array: Any,
    device: HostDevice,
    space: HostMemorySpace,
    layout: Layout | None,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> DeviceBuffer:
    """Return a buffer of a host array: with a copy of it, or in place where the semantics and the memory allow it."""
    source: HostArray = expect_array(array)
    if type(semantics) is not HostBufferSemantics:
        raise unexpected(semantics, "one of pjrt.HostBufferSemantics as semantics")
    if on_done is not None:
        expect_callable(on_done, "a function, or None, as on_done_with_host_buffer")
    spec = ShapeSpec(source.shape, ElementType.of(source.dtype), layout)
    laid_out = space.layout(spec)
    memory = memory_of(device)
    if semantics in ZERO_COPY and laid_out is None:
        buffer = _imported(source, spec, device, space, on_done)
        if buffer is not None:
            return buffer
    storage = Storage(READY)
    storage.charge(space.account, space.size_of(spec))
    only_during_call = semantics is HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
    at_once = source.nbytes <= INLINE_BYTES or (only_during_call and memory.is_on_host)
    at_once = at_once and may_wait_here(device)
    if only_during_call and not at_once:
        # The caller may write to its array when this returns; the copy into the memory takes place later.
        source = np.array(source, array_dtype(spec.element_type), order="C")
    work = _CopyIn(memory, source, spec, space, storage, on_done)
    call = Call(work.run)
    if at_once:
        call.run()
        call.future.result()
    else:
        storage.definition = call.future
        device.transfers.put(call)
    return DeviceBuffer(device, space, spec.shape, spec.element_type, storage, laid_out)


def _imported(
    source: HostArray, spec: ShapeSpec, device: HostDevice, space: HostMemorySpace, on_done: Callable[[], object] | None
) -> DeviceBuffer | None:
    """Return a buffer that uses an array in place; ``None`` if the memory takes no such array."""
    if not source.size or not is_laid_out(source, None):
        return None
    callbacks: list[Callable[[], object]] = []  # none while the memory may refuse the array: then a copy calls it
    handle = memory_of(device).import_array(
        ExternalMemory.over(source, lambda: [callback() for callback in callbacks]), spec, space
    )
    if handle is None:
        return None
    if on_done is not None:
        callbacks.append(on_done)
    return _shared(handle, spec, device, space)


def view(
    pointer: int, spec: ShapeSpec, device: HostDevice, space: HostMemorySpace, on_delete: Callable[[], object] | None
) -> DeviceBuffer:
    """Return a buffer over memory of the host at an address.

    Raises:
        UnimplementedError: the memory uses no memory at an address.
    """
    check_address(pointer, spec, device, on_delete)
    if (layout := space.layout(spec)) is not None:
        raise UnimplementedError(f"memory at an address holds arrays in rows, the device has {spec} as {layout}")
    memory = memory_of(device)
    callbacks: list[Callable[[], object]] = []  # none while the memory may refuse the array: then the caller keeps it
    array = ExternalMemory(pointer, spec.size_in_bytes, None, lambda: [callback() for callback in callbacks]).array(
        spec.shape, array_dtype(spec.element_type)
    )
    handle = memory.import_array(array, spec, space)
    if handle is None:
        raise UnimplementedError(
            f"the memory of '{device.client.platform_name}' cannot use memory at an address; use buffer_from_dlpack or "
            "buffer_from_host"
        )
    if on_delete is not None:
        callbacks.append(on_delete)
    return _shared(handle, spec, device, space)


def _shared(handle: Any, spec: ShapeSpec, device: HostDevice, space: HostMemorySpace) -> DeviceBuffer:
    """Return a buffer of memory that something else uses, too."""
    value = Allocation(memory_of(device), handle, ShapeSpec(spec.shape, spec.element_type), space)
    return _buffer(value, spec, device, space)


def _buffer(value: Any, spec: ShapeSpec, device: HostDevice, space: HostMemorySpace) -> DeviceBuffer:
    value.is_shared = True
    storage = Storage(READY, mutable=False)
    storage.charge(space.account, space.size_of(spec))
    storage.array = value
    return DeviceBuffer(device, space, spec.shape, spec.element_type, storage, space.layout(spec))


class _CopyIn:
    """The copy of a host array into a storage that is new."""

    def __init__(
        self,
        memory: Memory,
        source: HostArray,
        spec: ShapeSpec,
        space: HostMemorySpace,
        storage: Storage,
        on_done: Callable[[], object] | None,
    ) -> None:
        self._memory = memory
        self._source: HostArray | None = source
        self._spec = spec
        self._space = space
        self._storage: Storage | None = storage
        self._on_done = on_done

    def run(self) -> None:
        """Copy, and drop the array and the storage: a thread that waits for the copy may use them next."""
        source, self._source = self._source, None
        storage, self._storage = self._storage, None
        assert source is not None
        assert storage is not None
        try:
            value: Any = Allocation.of_array(self._memory, source, self._spec, self._space)
            storage.array = value
        finally:
            del source
            if self._on_done is not None:
                notify_owner(self._on_done)


def uninitialized(spec: ShapeSpec, device: HostDevice, space: HostMemorySpace) -> DeviceBuffer:
    """Return a buffer with memory and no particular value."""
    expect_spec(spec)
    layout = space.layout(spec)
    storage = Storage(READY)
    storage.charge(space.account, space.size_of(spec))
    value: Any = TOKEN
    if spec.element_type is not ElementType.TOKEN:
        value = Allocation.new(memory_of(device), spec, space)
    storage.array = value
    return DeviceBuffer(device, space, spec.shape, spec.element_type, storage, layout)


def buffer_from_dlpack(source: Any, device: HostDevice, space: HostMemorySpace) -> DeviceBuffer:
    """Return a buffer that shares the memory of an object with ``__dlpack__``.

    Raises:
        UnimplementedError: the device's memory takes none, or does not know the type of what it took.
    """
    memory = memory_of(device)
    handle = memory.from_dlpack(source, space)
    value: Any = Allocation(memory, handle, None, space)  # type: ignore[arg-type]  # frees it if it has no type
    value.is_shared = True
    spec = memory.spec_of(handle)
    if spec is None:
        raise UnimplementedError(f"{type(memory).__name__} has from_dlpack, but no spec_of for the type of its handles")
    value.spec = kept_spec(memory, spec, space)
    return _buffer(value, spec, device, space)


def memory_of(device: HostDevice) -> Memory:
    """Return the author's allocator of a device."""
    memory = device.client.memory
    assert memory is not None  # this package is for such devices
    return memory
