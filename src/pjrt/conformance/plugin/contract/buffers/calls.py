"""Calls of buffers with which many checks begin or end, and checks of contents and places: there, and back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.abi.schema import FUNCTIONS, STRUCTS
from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.subject import Subject

# Calls of buffers and events with which many checks begin or end.

Array = np.ndarray[Any, Any]

ONLY_DURING_CALL, UNTIL_TRANSFER_COMPLETES, IMMUTABLE_ZERO_COPY, MUTABLE_ZERO_COPY = range(4)

SEMANTICS = {
    "immutable_only_during_call": ONLY_DURING_CALL,
    "immutable_until_transfer_completes": UNTIL_TRANSFER_COMPLETES,
    "immutable_zero_copy": IMMUTABLE_ZERO_COPY,
    "mutable_zero_copy": MUTABLE_ZERO_COPY,
}
"""The host buffer semantics by the names that checks have for them."""

REFUSAL = (StatusCode.UNIMPLEMENTED, StatusCode.INVALID_ARGUMENT)
"""The codes with which plugins refuse an optional feature. XLA's own answer layouts that it lacks with the second."""

MISUSE = (
    StatusCode.INVALID_ARGUMENT,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.OUT_OF_RANGE,
    StatusCode.NOT_FOUND,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.UNIMPLEMENTED,
)
"""The codes that blame the arguments of a call, or the state that it was made in."""


def ramp(*shape: int, dtype: Any = np.float32) -> Array:
    """Return an array whose elements all differ, as far as the type has that many values."""
    return np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)


def tiled(minor_to_major: Sequence[int], tiles: Sequence[Sequence[int]] = ()) -> raw.Struct:
    """Return a memory layout by the order of dimensions, from minor to major, and by tiles."""
    return raw.Struct(
        "PJRT_Buffer_MemoryLayout",
        type=0,
        minor_to_major=list(minor_to_major),
        tile_dims=[size for tile in tiles for size in tile],
        tile_dim_sizes=[len(tile) for tile in tiles],
    )


def strided(byte_strides: Sequence[int]) -> raw.Struct:
    """Return a memory layout by byte strides."""
    return raw.Struct("PJRT_Buffer_MemoryLayout", type=1, byte_strides=list(byte_strides))


def host_fields(subject: Subject, array: Array, semantics: int = ONLY_DURING_CALL) -> dict[str, Any]:
    """Return the arguments of ``PJRT_Client_BufferFromHostBuffer`` for an array of any strides, on the first device."""
    return {
        "client": subject.client,
        "data": array,
        "type": int(ElementType.of(array.dtype)),
        "dims": list(array.shape),
        "byte_strides": None if array.flags.c_contiguous else list(array.strides),
        "host_buffer_semantics": semantics,
        "device": subject.device,
    }


def from_host(subject: Subject, array: Array, semantics: int = ONLY_DURING_CALL, **fields: Any) -> raw.Result:
    """Make a buffer of an array; return the call's result, with ``buffer`` and ``done_with_host_buffer``.

    The array must live for as long as the semantics require.
    """
    result = subject.call("PJRT_Client_BufferFromHostBuffer", **{**host_fields(subject, array, semantics), **fields})
    subject.expect(result.buffer, "a buffer", "a null pointer")
    return result


def supported_from_host(subject: Subject, array: Array, semantics: int = ONLY_DURING_CALL, **fields: Any) -> raw.Result:
    """Make a buffer with an optional feature, such as a layout or a rare element type.

    Raises:
        Unsupported: the plugin refuses the feature.
    """
    arguments = {**host_fields(subject, array, semantics), **fields}
    return supported(subject, "PJRT_Client_BufferFromHostBuffer", **arguments)


def supported(subject: Subject, name: str, **fields: Any) -> raw.Result:
    """Call an optional function, or a function with an optional feature.

    Raises:
        Unsupported: the plugin lacks or refuses it.
    """
    subject.require(name)
    result = subject.attempt(name, **fields)
    if result.error is not None and result.error.code in REFUSAL:
        raise Unsupported(f"{name}: {result.error.message}")
    subject.expect(result.error is None, f"{name} to succeed", str(result.error))
    return result


def is_ready(subject: Subject, event: int) -> bool:
    """Return whether an event is ready."""
    return bool(subject.call("PJRT_Event_IsReady", event=event).is_ready)


def outcome(subject: Subject, name: str, event: str = "event", **fields: Any) -> raw.Error | None:
    """Make an asynchronous call, and return its error: of the call itself, or of its event."""
    result = subject.attempt(name, **fields)
    return result.error if result.error is not None else subject.event_error(getattr(result, event))


def outcome_of_copy(subject: Subject, name: str, out: str, **fields: Any) -> raw.Error | None:
    """Make a call that makes a buffer, and return its error: of the call itself, or of the buffer."""
    result = subject.attempt(name, **fields)
    if result.error is not None:
        return result.error
    buffer = getattr(result, out)
    error = ready_error(subject, buffer)
    subject.destroy_buffers(buffer)
    return error


def ready_error(subject: Subject, buffer: int) -> raw.Error | None:
    """Wait for a buffer, and return its error."""
    return subject.event_error(subject.call("PJRT_Buffer_ReadyEvent", buffer=buffer).event)


def read_size(subject: Subject, buffer: int, **fields: Any) -> int:
    """Return the bytes that a read of a buffer needs."""
    return int(subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=0, dst_size=0, **fields).dst_size)


def read_bytes(subject: Subject, buffer: int, **fields: Any) -> Array:
    """Return the bytes of a buffer as the plugin copies them to the host."""
    size = read_size(subject, buffer, **fields)
    data = np.zeros(max(size, 1), np.uint8)
    error = outcome(subject, "PJRT_Buffer_ToHostBuffer", src=buffer, dst=data, dst_size=size, **fields)
    subject.expect(error is None, "the value of the buffer", str(error))
    return data[:size]


def read_error(subject: Subject, buffer: int, size: int = 4096) -> raw.Error | None:
    """Return the error with which a read of a buffer ends."""
    data = np.zeros(size, np.uint8)
    return outcome(subject, "PJRT_Buffer_ToHostBuffer", src=buffer, dst=data)


def expect_value(subject: Subject, buffer: int, array: Array) -> None:
    """Expect that a buffer of the default layout has the value of an array, bit by bit."""
    expected = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    expect_bytes(subject, read_bytes(subject, buffer), expected)


def expect_bytes(subject: Subject, data: Array, expected: Array) -> None:
    """Expect some bytes; a difference is described by its first place."""
    subject.expect(data.size == expected.size, f"{expected.size} bytes", f"{data.size} bytes")
    different = np.flatnonzero(data != expected)
    if different.size:
        first = int(different[0])
        subject.expect(
            False,
            f"byte {first} to be 0x{int(expected[first]):02x}",
            f"0x{int(data[first]):02x}; {different.size} of {data.size} bytes differ",
        )


def address(array: Array) -> int:
    """Return the address of an array's first element; never null, also without elements."""
    return int(array.ctypes.data)


def memory_at(pointer: int, size: int) -> Array:
    """Return the bytes at an address of this process."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))


def address_in(result: raw.Result, field: str) -> int:
    """Return the address that a call wrote into a field of its struct."""
    offset = STRUCTS[FUNCTIONS[result.function].args].fields[field].offset
    return int.from_bytes(result.struct_bytes[offset : offset + 8], "little")


def expect_same_error(subject: Subject, error: raw.Error | None, code: StatusCode, message: str) -> None:
    """Expect an error with a code, and with a message that keeps the words of another one."""
    subject.expect(
        error is not None and error.code == code and message in error.message, f"{code.name}: {message}", str(error)
    )


# The contents of buffers: from the host to the device, and back.

_TYPES = {
    each.mlir: each for each in ElementType if each not in (ElementType.INVALID, ElementType.TOKEN) and each.bits >= 8
}


@check(
    "buffer.contents.there_and_back",
    calls=("PJRT_Client_BufferFromHostBuffer", "PJRT_Buffer_ToHostBuffer"),
    over=_TYPES,
)
def _there_and_back(subject: Subject, element_type: ElementType) -> None:
    """A buffer has the elements of the host array that it was made from."""
    array = np.arange(6).reshape(2, 3).astype(element_type.dtype)
    subject.expect_contents(subject.buffer(array), array)


# The devices and memories that buffers are made in.

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)


def memories_of(subject: Subject, device: int) -> list[int]:
    """Return the memories of a device; none if the plugin does not report them."""
    subject.require("PJRT_Device_AddressableMemories")
    return list(subject.call("PJRT_Device_AddressableMemories", device=device).memories or ())


def default_memory(subject: Subject, device: int) -> int:
    """Return the default memory of a device."""
    subject.require("PJRT_Device_DefaultMemory")
    return int(subject.call("PJRT_Device_DefaultMemory", device=device).memory)


def other_device(subject: Subject) -> int:
    """Return the second device of the client.

    Raises:
        Unsupported: the client has one device.
    """
    if len(subject.devices) < 2:
        raise Unsupported("the client has one device")
    return int(subject.devices[1])


def other_memory(subject: Subject) -> int:
    """Return a memory of the first device that is not its default memory.

    Raises:
        Unsupported: the device has one memory.
    """
    usual = default_memory(subject, subject.device)
    others = [each for each in memories_of(subject, subject.device) if each != usual]
    if not others:
        raise Unsupported("the device has one memory")
    return others[0]


@check(
    "buffer_from_host.to_each_device",
    calls=(*_FROM_HOST, "PJRT_Buffer_Device", "PJRT_Buffer_Memory"),
    over=tuple(SEMANTICS),
)
def _to_each_device(subject: Subject, semantics: str) -> None:
    """With device set and memory null, the buffer is in the default memory of the device."""
    for number, device in enumerate(subject.devices):
        array = ramp(7) + number
        result = from_host(subject, array, SEMANTICS[semantics], device=device)
        found = subject.call("PJRT_Buffer_Device", buffer=result.buffer).device
        subject.expect(found == device, f"device {number}", "another device")
        if subject.plugin.has("PJRT_Buffer_Memory"):
            memory = subject.call("PJRT_Buffer_Memory", buffer=result.buffer).memory
            subject.expect(memory == default_memory(subject, device), "its default memory", "another memory")
        expect_value(subject, result.buffer, array)
        subject.destroy_buffers(result.buffer)
        subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.to_each_memory",
    calls=(*_FROM_HOST, "PJRT_Buffer_Device", "PJRT_Buffer_Memory"),
    over=tuple(SEMANTICS),
)
def _to_each_memory(subject: Subject, semantics: str) -> None:
    """With memory set, the buffer is in that memory, and on a device that the memory belongs to."""
    for device in subject.devices:
        for number, memory in enumerate(memories_of(subject, device)):
            array = ramp(7) + number
            result = supported_from_host(subject, array, SEMANTICS[semantics], device=0, memory=memory)
            found = subject.call("PJRT_Buffer_Memory", buffer=result.buffer).memory
            subject.expect(found == memory, f"memory {number}", "another memory")
            owners = subject.call("PJRT_Memory_AddressableByDevices", memory=memory).devices
            place = subject.call("PJRT_Buffer_Device", buffer=result.buffer).device
            subject.expect(place in (owners or ()), "a device of the memory", "another device")
            expect_value(subject, result.buffer, array)
            subject.destroy_buffers(result.buffer)
            subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.memory_wins", calls=(*_FROM_HOST, "PJRT_Buffer_Memory"))
def _memory_wins(subject: Subject) -> None:
    """If memory is not null, the data goes there, whatever device is."""
    memory = other_memory(subject)
    array = ramp(7)
    result = supported_from_host(subject, array, memory=memory)
    found = subject.call("PJRT_Buffer_Memory", buffer=result.buffer).memory
    subject.expect(found == memory, "the memory of the argument", "another memory")
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.memory_of_another_device_wins", calls=(*_FROM_HOST, "PJRT_Buffer_Memory", "PJRT_Buffer_Device")
)
def _memory_of_another_device_wins(subject: Subject) -> None:
    """If memory is not null, the data goes there, also if it belongs to another device than device."""
    device = other_device(subject)
    memory = default_memory(subject, device)
    array = ramp(7)
    result = supported_from_host(subject, array, memory=memory)
    found = subject.call("PJRT_Buffer_Device", buffer=result.buffer).device
    subject.expect(found == device, "the device of the memory", "another device")
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)
