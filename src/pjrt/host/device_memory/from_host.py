"""Buffers in the memory of a device's own, from host arrays and from other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.checks import expect_array, expect_callable, unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError
from pjrt.api.shape_spec import Layout, ShapeSpec, expect_spec
from pjrt.host.copies import INLINE_BYTES, may_wait_here
from pjrt.host.device_memory.allocation import Allocation
from pjrt.host.device_memory.buffer import DeviceBuffer, expect_row_major
from pjrt.host.device_memory.memory import Memory
from pjrt.host.from_host import ZERO_COPY, check_address
from pjrt.host.storage import READY, TOKEN, Storage
from pjrt.host.work_queue import Call
from pjrt.host_memory.array import HostArray, array_dtype, is_laid_out
from pjrt.host_memory.external import ExternalMemory, notify_owner

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace


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
    expect_row_major(spec, device)
    memory = memory_of(device)
    if semantics in ZERO_COPY:
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
    return DeviceBuffer(device, space, spec.shape, spec.element_type, storage)


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
    expect_row_major(spec, device)
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
    return DeviceBuffer(device, space, spec.shape, spec.element_type, storage)


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
    expect_row_major(spec, device)
    storage = Storage(READY)
    storage.charge(space.account, space.size_of(spec))
    value: Any = TOKEN
    if spec.element_type is not ElementType.TOKEN:
        value = Allocation.new(memory_of(device), spec, space)
    storage.array = value
    return DeviceBuffer(device, space, spec.shape, spec.element_type, storage)


def buffer_from_dlpack(source: Any, device: HostDevice, space: HostMemorySpace) -> DeviceBuffer:
    """Return a buffer that shares the memory of an object with ``__dlpack__``.

    Raises:
        UnimplementedError: the device's memory takes none, or does not know the type of what it took.
    """
    memory = memory_of(device)
    handle = memory.from_dlpack(source, space)
    value: Any = Allocation(memory, handle, None, space)  # type: ignore[arg-type]  # frees it if it has no type
    value.is_shared = True
    spec = value.spec = memory.spec_of(handle)
    if spec is None:
        raise UnimplementedError(f"{type(memory).__name__} has from_dlpack, but no spec_of for the type of its handles")
    return _buffer(value, spec, device, space)


def memory_of(device: HostDevice) -> Memory:
    """Return the author's allocator of a device."""
    memory = device.client.memory
    assert memory is not None  # this package is for such devices
    return memory
