"""The properties of a buffer."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    address_in,
    from_host,
    ramp,
    supported_from_host,
)
from pjrt.conformance.plugin.contract.buffers.buffer_placement import memories_of
from pjrt.conformance.plugin.contract.buffers.buffer_shapes import EMPTY, SHAPES
from pjrt.conformance.plugin.subject import Subject

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


@check(
    "buffer.dimensions",
    calls=("PJRT_Buffer_Dimensions",),
    rule="PJRT_Buffer_Dimensions returns the size of each dimension.",
    over=tuple(_ALL_SHAPES),
)
def _dimensions(subject: Subject, name: str) -> None:
    dims = _ALL_SHAPES[name]
    buffer = subject.buffer(np.zeros(dims, np.float32))
    result = subject.call("PJRT_Buffer_Dimensions", buffer=buffer)
    subject.expect(result.num_dims == len(dims), f"{len(dims)} dimensions", result.num_dims)
    subject.expect(tuple(result.dims or ()) == dims, str(dims), result.dims)
    subject.destroy_buffers(buffer)


@check(
    "buffer.unpadded_dimensions",
    calls=("PJRT_Buffer_UnpaddedDimensions",),
    rule="Without dynamic dimensions, PJRT_Buffer_UnpaddedDimensions returns the same as PJRT_Buffer_Dimensions.",
    over=tuple(_ALL_SHAPES),
)
def _unpadded_dimensions(subject: Subject, name: str) -> None:
    dims = _ALL_SHAPES[name]
    buffer = subject.buffer(np.zeros(dims, np.float32))
    result = subject.call("PJRT_Buffer_UnpaddedDimensions", buffer=buffer)
    subject.expect(result.num_dims == len(dims), f"{len(dims)} dimensions", result.num_dims)
    subject.expect(tuple(result.unpadded_dims or ()) == dims, str(dims), result.unpadded_dims)
    subject.destroy_buffers(buffer)


@check(
    "buffer.dynamic_dimensions",
    calls=("PJRT_Buffer_DynamicDimensionIndices",),
    rule="A buffer of host data has no dynamic dimensions: the list is empty.",
    over=("rank_0", "rank_1", "rank_3"),
)
def _dynamic_dimensions(subject: Subject, name: str) -> None:
    buffer = subject.buffer(ramp(*SHAPES[name]))
    result = subject.call("PJRT_Buffer_DynamicDimensionIndices", buffer=buffer)
    subject.expect(result.num_dynamic_dims == 0, "no dynamic dimension", result.num_dynamic_dims)
    subject.destroy_buffers(buffer)


@check(
    "buffer.on_device_size",
    calls=("PJRT_Buffer_OnDeviceSizeInBytes",),
    rule="The storage of a buffer on its device has room for all of its elements.",
    over=("pred", "u16", "f32", "c128", "scalar", "empty", "large"),
)
def _on_device_size(subject: Subject, kind: str) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "buffer.device_and_memory",
    calls=("PJRT_Buffer_Device", "PJRT_Buffer_Memory"),
    rule="The device and the memory of a buffer are those of the client, and belong together.",
)
def _device_and_memory(subject: Subject) -> None:
    buffer = subject.buffer(ramp(3))
    device = subject.call("PJRT_Buffer_Device", buffer=buffer).device
    subject.expect(device in subject.devices, "a device of the client", hex(device))
    subject.require("PJRT_Buffer_Memory")
    memory = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
    subject.expect(memory in memories_of(subject, device), "a memory of the device", hex(memory))
    subject.destroy_buffers(buffer)


@check(
    "buffer.is_on_cpu",
    calls=("PJRT_Buffer_IsOnCpu",),
    rule="Whether a buffer is on the CPU depends on its memory: two buffers in one memory agree.",
)
def _is_on_cpu(subject: Subject) -> None:
    subject.require("PJRT_Buffer_IsOnCpu")
    for memory in memories_of(subject, subject.device):
        answers = set()
        for array in (ramp(3), ramp(1000, dtype=np.uint8)):
            result = supported_from_host(subject, array, device=0, memory=memory)
            subject.await_event(result.done_with_host_buffer)
            answers.add(bool(subject.call("PJRT_Buffer_IsOnCpu", buffer=result.buffer).is_on_cpu))
            subject.destroy_buffers(result.buffer)
        subject.expect(len(answers) == 1, "the same answer for both", answers)


@check("buffer.not_deleted", calls=("PJRT_Buffer_IsDeleted",), rule="A new buffer is not deleted.")
def _not_deleted(subject: Subject) -> None:
    array = ramp(3)
    result = from_host(subject, array, 1)
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=result.buffer).is_deleted
    subject.expect(not deleted, "a buffer that is not deleted", "that it is")
    subject.await_event(result.done_with_host_buffer)
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=result.buffer).is_deleted
    subject.expect(not deleted, "a buffer that is not deleted", "that it is")
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.properties_before_ready",
    calls=tuple(GETTERS),
    rule="The properties of a buffer are the same before and after it is ready.",
)
def _properties_before_ready(subject: Subject) -> None:
    array = ramp(1 << 18, 4)
    result = from_host(subject, array, 1)
    before = properties(subject, result.buffer)
    subject.await_event(result.done_with_host_buffer)
    after = properties(subject, result.buffer)
    for name in before:
        subject.expect(before[name] == after[name], f"{name}: {before[name]}", after[name])
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.properties_repeated",
    calls=tuple(GETTERS),
    rule="A property has the same value each time, whatever happens to other buffers.",
)
def _properties_repeated(subject: Subject) -> None:
    buffer = subject.buffer(ramp(3, 4, 5))
    first = properties(subject, buffer)
    others = [subject.buffer(ramp(size, 2)) for size in range(1, 20)]
    for other in others:
        properties(subject, other)
    subject.destroy_buffers(*others)
    again = properties(subject, buffer)
    for name in first:
        subject.expect(first[name] == again[name], f"{name}: {first[name]}", again[name])
    subject.destroy_buffers(buffer)


@check(
    "buffer.lifetime_of_dimensions",
    calls=("PJRT_Buffer_Dimensions", "PJRT_Buffer_UnpaddedDimensions"),
    rule="The memory of the dimensions lives as long as the buffer.",
    over=("PJRT_Buffer_Dimensions", "PJRT_Buffer_UnpaddedDimensions"),
)
def _lifetime_of_dimensions(subject: Subject, name: str) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "buffer.lifetime_of_layout",
    calls=("PJRT_Buffer_GetMemoryLayout",),
    rule="The data of a layout is owned by the buffer, and lives as long.",
)
def _lifetime_of_layout(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)
