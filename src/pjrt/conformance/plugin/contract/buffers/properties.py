"""The properties of a buffer, and its end: deleted, destroyed, and used afterwards."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.calls import (
    address_in,
    expect_bytes,
    expect_value,
    from_host,
    memories_of,
    other_device,
    other_memory,
    outcome,
    outcome_of_copy,
    ramp,
    supported_from_host,
)
from pjrt.conformance.plugin.contract.buffers.creation import EMPTY, SHAPES
from pjrt.conformance.plugin.contract.events import call_back
from pjrt.conformance.plugin.subject import Subject

# The properties of a buffer.

_ALL_SHAPES = {**{name: dims for name, dims in SHAPES.items() if "l" not in name}, **EMPTY}

GETTERS = {
    "PJRT_Buffer_ElementType": "type",
    "PJRT_Buffer_Dimensions": "dims",
    "PJRT_Buffer_UnpaddedDimensions": "unpadded_dims",
    "PJRT_Buffer_DynamicDimensionIndices": "dynamic_dim_indices",
    "PJRT_Buffer_GetMemoryLayout": "layout",
    "PJRT_Buffer_OnDeviceSizeInBytes": "on_device_size_in_bytes",
    "PJRT_Buffer_Device": "device",
    "PJRT_Buffer_Memory": "memory",
    "PJRT_Buffer_IsOnCpu": "is_on_cpu",
    "PJRT_Buffer_IsDeleted": "is_deleted",
}
"""The functions that return a property of a buffer, with the field that has it."""


def properties(subject: Subject, buffer: int) -> dict[str, Any]:
    """Return all properties of a buffer that the plugin reports, by the functions that return them."""
    values = {}
    for name, field in GETTERS.items():
        if subject.plugin.has(name):
            value = getattr(subject.call(name, buffer=buffer), field)
            values[name] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    fields = getattr(value, "fields", None)
    if fields is not None:
        return {name: _plain(each) for name, each in fields.items() if name != "extension_start"}
    return tuple(value) if isinstance(value, (list, tuple)) else value


@check("buffer.dimensions", calls=("PJRT_Buffer_Dimensions",), over=tuple(_ALL_SHAPES))
def _dimensions(subject: Subject, name: str) -> None:
    """PJRT_Buffer_Dimensions returns the size of each dimension."""
    dims = _ALL_SHAPES[name]
    buffer = subject.buffer(np.zeros(dims, np.float32))
    result = subject.call("PJRT_Buffer_Dimensions", buffer=buffer)
    subject.expect(result.num_dims == len(dims), f"{len(dims)} dimensions", result.num_dims)
    subject.expect(tuple(result.dims or ()) == dims, str(dims), result.dims)


@check("buffer.unpadded_dimensions", calls=("PJRT_Buffer_UnpaddedDimensions",), over=tuple(_ALL_SHAPES))
def _unpadded_dimensions(subject: Subject, name: str) -> None:
    """Without dynamic dimensions, PJRT_Buffer_UnpaddedDimensions returns the same as PJRT_Buffer_Dimensions."""
    dims = _ALL_SHAPES[name]
    buffer = subject.buffer(np.zeros(dims, np.float32))
    result = subject.call("PJRT_Buffer_UnpaddedDimensions", buffer=buffer)
    subject.expect(result.num_dims == len(dims), f"{len(dims)} dimensions", result.num_dims)
    subject.expect(tuple(result.unpadded_dims or ()) == dims, str(dims), result.unpadded_dims)


@check("buffer.dynamic_dimensions", calls=("PJRT_Buffer_DynamicDimensionIndices",), over=("rank_0", "rank_1", "rank_3"))
def _dynamic_dimensions(subject: Subject, name: str) -> None:
    """A buffer of host data has no dynamic dimensions: the list is empty."""
    buffer = subject.buffer(ramp(*SHAPES[name]))
    result = subject.call("PJRT_Buffer_DynamicDimensionIndices", buffer=buffer)
    subject.expect(result.num_dynamic_dims == 0, "no dynamic dimension", result.num_dynamic_dims)


@check(
    "buffer.on_device_size",
    calls=("PJRT_Buffer_OnDeviceSizeInBytes",),
    over=("pred", "u16", "f32", "c128", "scalar", "empty", "large"),
)
def _on_device_size(subject: Subject, kind: str) -> None:
    """The storage of a buffer on its device has room for all of its elements."""
    array = {
        "pred": np.zeros(77, np.bool_),
        "u16": ramp(77, dtype=np.uint16),
        "f32": ramp(7, 11),
        "c128": ramp(9, dtype=np.complex128),
        "scalar": np.array(1.0, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "large": ramp(1 << 20),
    }[kind]
    buffer = subject.buffer(array)
    size = subject.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=buffer).on_device_size_in_bytes
    subject.expect(size >= array.nbytes, f"{array.nbytes} bytes or more", size)
    most = 64 * array.nbytes + (1 << 20)  # generous: tiles of 8 × 128 words around a scalar are 4 KiB
    subject.expect(size <= most, f"at most {most} bytes", size)


@check("buffer.device_and_memory", calls=("PJRT_Buffer_Device", "PJRT_Buffer_Memory"))
def _device_and_memory(subject: Subject) -> None:
    """The device and the memory of a buffer are those of the client, and belong together."""
    buffer = subject.buffer(ramp(3))
    device = subject.call("PJRT_Buffer_Device", buffer=buffer).device
    subject.expect(device in subject.devices, "a device of the client", hex(device))
    subject.require("PJRT_Buffer_Memory")
    memory = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
    subject.expect(memory in memories_of(subject, device), "a memory of the device", hex(memory))


@check("buffer.is_on_cpu", calls=("PJRT_Buffer_IsOnCpu",))
def _is_on_cpu(subject: Subject) -> None:
    """Whether a buffer is on the CPU depends on its memory: two buffers in one memory agree."""
    subject.require("PJRT_Buffer_IsOnCpu")
    for memory in memories_of(subject, subject.device):
        answers = set()
        for array in (ramp(3), ramp(1000, dtype=np.uint8)):
            result = supported_from_host(subject, array, device=0, memory=memory)
            subject.await_event(result.done_with_host_buffer)
            answers.add(bool(subject.call("PJRT_Buffer_IsOnCpu", buffer=result.buffer).is_on_cpu))
            subject.destroy_buffers(result.buffer)
        subject.expect(len(answers) == 1, "the same answer for both", answers)


@check("buffer.not_deleted", calls=("PJRT_Buffer_IsDeleted",))
def _not_deleted(subject: Subject) -> None:
    """A new buffer is not deleted."""
    array = ramp(3)
    result = from_host(subject, array, 1)
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=result.buffer).is_deleted
    subject.expect(not deleted, "a buffer that is not deleted", "that it is")
    subject.await_event(result.done_with_host_buffer)
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=result.buffer).is_deleted
    subject.expect(not deleted, "a buffer that is not deleted", "that it is")


@check("buffer.properties_before_ready", calls=tuple(GETTERS))
def _properties_before_ready(subject: Subject) -> None:
    """The properties of a buffer are the same before and after it is ready."""
    array = ramp(1 << 18, 4)
    result = from_host(subject, array, 1)
    before = properties(subject, result.buffer)
    subject.await_event(result.done_with_host_buffer)
    after = properties(subject, result.buffer)
    for name in before:
        subject.expect(before[name] == after[name], f"{name}: {before[name]}", after[name])


@check("buffer.properties_repeated", calls=tuple(GETTERS))
def _properties_repeated(subject: Subject) -> None:
    """A property has the same value each time, whatever happens to other buffers."""
    buffer = subject.buffer(ramp(3, 4, 5))
    first = properties(subject, buffer)
    others = [subject.buffer(ramp(size, 2)) for size in range(1, 20)]
    for other in others:
        properties(subject, other)
    subject.destroy_buffers(*others)
    again = properties(subject, buffer)
    for name in first:
        subject.expect(first[name] == again[name], f"{name}: {first[name]}", again[name])


@check(
    "buffer.lifetime_of_dimensions",
    calls=("PJRT_Buffer_Dimensions", "PJRT_Buffer_UnpaddedDimensions"),
    over=("PJRT_Buffer_Dimensions", "PJRT_Buffer_UnpaddedDimensions"),
)
def _lifetime_of_dimensions(subject: Subject, name: str) -> None:
    """The memory of the dimensions lives as long as the buffer."""
    dims = (2, 3, 4, 5)
    buffer = subject.buffer(ramp(*dims))
    pointer = address_in(subject.call(name, buffer=buffer), GETTERS[name])
    for size in range(1, 200):
        other = subject.buffer(ramp(size, 1, 1, 1))
        subject.call(name, buffer=other)
        subject.call(name, buffer=buffer)
        subject.destroy_buffers(other)
    found = tuple((ctypes.c_int64 * 4).from_address(pointer))
    subject.expect(found == dims, str(dims), found)


@check("buffer.lifetime_of_layout", calls=("PJRT_Buffer_GetMemoryLayout",))
def _lifetime_of_layout(subject: Subject) -> None:
    """The data of a layout is owned by the buffer, and lives as long."""
    name = "PJRT_Buffer_GetMemoryLayout"
    subject.require(name)
    buffer = subject.buffer(ramp(2, 3, 4))
    result = subject.call(name, buffer=buffer)
    layout = result.layout.fields
    if layout["type"] != 0:
        subject.destroy_buffers(buffer)
        return
    # minor_to_major is the third word of the tiled layout, which is behind the two first words of the layout.
    begin = 24 + 16 + 16
    pointer = int.from_bytes(result.struct_bytes[begin : begin + 8], "little")
    for size in range(1, 200):
        other = subject.buffer(ramp(size, 1, 1))
        subject.call(name, buffer=other)
        subject.destroy_buffers(other)
    found = list((ctypes.c_int64 * 3).from_address(pointer))
    subject.expect(found == list(layout["minor_to_major"]), layout["minor_to_major"], found)


# The end of buffers: deleted, destroyed, and used afterwards.

_DELETE = ("PJRT_Buffer_Delete", "PJRT_Buffer_IsDeleted")
_DESTROY = ("PJRT_Buffer_Destroy",)


def deleted_buffer(subject: Subject) -> int:
    """Return a buffer of four floats that was deleted."""
    buffer = subject.buffer(ramp(4))
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    return buffer


@check("buffer.is_deleted", calls=_DELETE)
def _deleted_is_reported(subject: Subject) -> None:
    """PJRT_Buffer_IsDeleted is true if PJRT_Buffer_Delete has been called."""
    buffer, other = subject.buffer(ramp(4)), subject.buffer(ramp(4))
    subject.expect(not _is_deleted(subject, buffer), "a new buffer that is not deleted", "that it is")
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    subject.expect(_is_deleted(subject, buffer), "a deleted buffer", "that it is not")
    subject.expect(_is_deleted(subject, buffer), "a deleted buffer, when asked again", "that it is not")
    subject.expect(not _is_deleted(subject, other), "the other buffer not to be deleted", "that it is")
    expect_value(subject, other, ramp(4))


@check(
    "buffer.delete_before_ready",
    calls=_DELETE,
    over=("immutable_only_during_call", "immutable_until_transfer_completes", "immutable_zero_copy"),
)
def _delete_before_ready(subject: Subject, semantics: str) -> None:
    """A buffer may be deleted before it is ready; its host memory is released all the same."""
    number = ("immutable_only_during_call", "immutable_until_transfer_completes", "immutable_zero_copy").index(
        semantics
    )
    array = ramp(1 << 20)
    result = from_host(subject, array, number)
    subject.call("PJRT_Buffer_Delete", buffer=result.buffer)
    subject.expect(_is_deleted(subject, result.buffer), "a deleted buffer", "that it is not")
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check("buffer.destroy_null", calls=_DESTROY)
def _destroy_null(subject: Subject) -> None:
    """PJRT_Buffer_Destroy takes a null pointer, and does nothing."""
    subject.destroy_buffers(0)
    expect_value(subject, subject.buffer(ramp(4)), ramp(4))


@check("buffer.destroy_without_delete", calls=_DESTROY)
def _destroy_without_delete(subject: Subject) -> None:
    """PJRT_Buffer_Destroy deletes the buffer as PJRT_Buffer_Delete does, and frees it."""
    for size in range(50):
        subject.destroy_buffers(subject.buffer(ramp(size + 1)))


@check("buffer.destroy_after_delete", calls=_DESTROY)
def _destroy_after_delete(subject: Subject) -> None:
    """A deleted buffer is still destroyed by its owner."""
    for _ in range(50):
        subject.destroy_buffers(deleted_buffer(subject))


@check("buffer.destroyed_in_any_order", calls=_DESTROY)
def _destroyed_in_any_order(subject: Subject) -> None:
    """Buffers are independent: they are destroyed in any order."""
    for order in itertools.permutations(range(4)):
        arrays = [ramp(100 + number) for number in range(4)]
        buffers = [subject.buffer(array) for array in arrays]
        alive = set(range(4))
        for number in order:
            subject.destroy_buffers(buffers[number])
            alive.remove(number)
            for other in alive:
                expect_value(subject, buffers[other], arrays[other])


@check("buffer.destroyed_before_its_events", calls=(*_DESTROY, "PJRT_Event_Destroy"))
def _destroyed_before_its_events(subject: Subject) -> None:
    """Events of a buffer outlive it: they are awaited, asked and destroyed after it."""
    array = ramp(1 << 18)
    result = from_host(subject, array, 1)
    data = np.zeros_like(array)
    ready = subject.call("PJRT_Buffer_ReadyEvent", buffer=result.buffer).event
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=result.buffer, dst=data)
    subject.destroy_buffers(result.buffer)
    subject.await_event(read.event)
    subject.await_event(ready)
    subject.await_event(result.done_with_host_buffer)
    expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))


@check(
    "buffer.getter_after_delete",
    calls=tuple(GETTERS),
    over=tuple(name for name in GETTERS if name != "PJRT_Buffer_IsDeleted"),
)
def _getter_after_delete(subject: Subject, name: str) -> None:
    """A deleted buffer is asked IsDeleted; any other getter returns an error or the old value, and harms nothing."""
    subject.require(name)
    buffer = subject.buffer(ramp(2, 3))
    before = getattr(subject.call(name, buffer=buffer), GETTERS[name])
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    result = subject.attempt(name, buffer=buffer)
    if result.error is None and name not in ("PJRT_Buffer_OnDeviceSizeInBytes", "PJRT_Buffer_GetMemoryLayout"):
        after = getattr(result, GETTERS[name])
        subject.expect(after == before, f"an error or {before}", str(after))
    subject.destroy_buffers(buffer)
    _expect_alive(subject)


_USES: dict[str, tuple[str, dict[str, Any]]] = {
    "PJRT_Buffer_ToHostBuffer": ("src", {"dst": np.zeros(64, np.uint8)}),
    "PJRT_Buffer_CopyRawToHost": ("buffer", {"dst": np.zeros(64, np.uint8), "offset": 0, "transfer_size": 16}),
}


@check("buffer.use_after_delete", calls=tuple(_USES), over=tuple(_USES))
def _use_after_delete(subject: Subject, name: str) -> None:
    """The contents of a deleted buffer are gone: a use of them is an error, of the call or of its event."""
    subject.require(name)
    field, others = _USES[name]
    buffer = deleted_buffer(subject)
    error = outcome(subject, name, **{**others, field: buffer})
    subject.expect(error is not None, "an error", "that it succeeded")
    subject.destroy_buffers(buffer)
    _expect_alive(subject)


@check(
    "buffer.copy_after_delete",
    calls=("PJRT_Buffer_CopyToDevice", "PJRT_Buffer_CopyToMemory"),
    over=("PJRT_Buffer_CopyToDevice", "PJRT_Buffer_CopyToMemory"),
)
def _copy_after_delete(subject: Subject, name: str) -> None:
    """The contents of a deleted buffer are gone: a copy is an error, of the call or of the new buffer."""
    subject.require(name)
    to_device = name == "PJRT_Buffer_CopyToDevice"
    place = {"dst_device": other_device(subject)} if to_device else {"dst_memory": other_memory(subject)}
    buffer = deleted_buffer(subject)
    error = outcome_of_copy(subject, name, "dst_buffer", buffer=buffer, **place)
    subject.expect(error is not None, "an error", "that it succeeded")
    subject.destroy_buffers(buffer)
    _expect_alive(subject)


@check(
    "buffer.change_after_delete",
    calls=("PJRT_Buffer_Bitcast", "PJRT_Buffer_DonateWithControlDependency"),
    over=("PJRT_Buffer_Bitcast", "PJRT_Buffer_DonateWithControlDependency"),
)
def _change_after_delete(subject: Subject, name: str) -> None:
    """The contents of a deleted buffer are gone: no new buffer can be made of them."""
    subject.require(name)
    buffer = deleted_buffer(subject)
    fields = {"element_type": 4, "dims": [4]} if name == "PJRT_Buffer_Bitcast" else {}
    result = subject.attempt(name, buffer=buffer, **fields)
    if result.error is None:
        if name == "PJRT_Buffer_DonateWithControlDependency":
            call_back(subject, result, "dependency_ready_callback")
        error = subject.event_error(subject.call("PJRT_Buffer_ReadyEvent", buffer=result.out_buffer).event)
        subject.expect(error is not None, "an error", "a buffer that becomes ready")
        subject.destroy_buffers(result.out_buffer)
    subject.destroy_buffers(buffer)
    _expect_alive(subject)


@check("buffer.raw_copy_later_after_delete", calls=("PJRT_Buffer_CopyRawToHostFuture",))
def _raw_copy_later_after_delete(subject: Subject) -> None:
    """The contents of a deleted buffer are gone: a raw copy is an error, of the call or of its event."""
    name = "PJRT_Buffer_CopyRawToHostFuture"
    subject.require(name)
    buffer = deleted_buffer(subject)
    result = subject.attempt(name, buffer=buffer, offset=0, transfer_size=16)
    if result.error is None:
        data = np.zeros(16, np.uint8)
        call_back(subject, result, "future_ready_callback", dst=data)
        error = subject.event_error(result.event)
        subject.expect(error is not None, "an error", "that it succeeded")
    subject.destroy_buffers(buffer)
    _expect_alive(subject)


@check(
    "buffer.pointer_after_delete",
    calls=("PJRT_Buffer_UnsafePointer", "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"),
    over=(
        "PJRT_Buffer_UnsafePointer",
        "PJRT_Buffer_OpaqueDeviceMemoryDataPointer",
        "PJRT_Buffer_IncreaseExternalReferenceCount",
    ),
)
def _pointer_after_delete(subject: Subject, name: str) -> None:
    """The memory of a deleted buffer is gone: there is no pointer to it."""
    subject.require(name)
    before = subject.buffer(ramp(4))
    subject.call(name, buffer=before)
    if name == "PJRT_Buffer_IncreaseExternalReferenceCount":
        subject.call("PJRT_Buffer_DecreaseExternalReferenceCount", buffer=before)
    buffer = deleted_buffer(subject)
    result = subject.attempt(name, buffer=buffer)
    subject.expect(result.error is not None, "an error", "that it succeeded")
    subject.destroy_buffers(buffer, before)
    _expect_alive(subject)


@check("buffer.delete_twice", calls=_DELETE)
def _delete_twice(subject: Subject) -> None:
    """After PJRT_Buffer_Delete only IsDeleted and Destroy are promised; a second Delete harms nothing."""
    buffer = deleted_buffer(subject)
    subject.attempt("PJRT_Buffer_Delete", buffer=buffer)
    subject.expect(_is_deleted(subject, buffer), "a deleted buffer", "that it is not")
    subject.destroy_buffers(buffer)
    _expect_alive(subject)


@check("buffer.execute_after_delete", calls=("PJRT_LoadedExecutable_Execute",))
def _execute_after_delete(subject: Subject) -> None:
    """A deleted buffer cannot be an argument: the execution is an error, of the call or of its results."""
    executable = subject.compile("identity")
    buffer = deleted_buffer(subject)
    result = subject.attempt_execute(executable, [[buffer]])
    if result.error is None:
        errors = [subject.event_error(event) for event in result.device_complete_events if event]
        for output in result.output_lists[0]:
            errors.append(subject.event_error(subject.call("PJRT_Buffer_ReadyEvent", buffer=output).event))
            subject.destroy_buffers(output)
        subject.expect(any(errors), "an error", "that it succeeded")
    subject.destroy_buffers(buffer)
    _expect_alive(subject)


def _is_deleted(subject: Subject, buffer: int) -> bool:
    return bool(subject.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted)


def _expect_alive(subject: Subject) -> None:
    """Expect that the client makes and reads buffers."""
    array = ramp(5)
    buffer = subject.buffer(array)
    expect_value(subject, buffer, array)
    subject.destroy_buffers(buffer)
