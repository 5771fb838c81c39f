"""The bytes behind buffers: raw copies, raw buffers, views of device memory, and bitcasts."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.calls import (
    MISUSE,
    Array,
    address,
    default_memory,
    expect_bytes,
    expect_same_error,
    is_ready,
    memory_at,
    outcome,
    ramp,
    supported,
)
from pjrt.conformance.plugin.contract.buffers.memory import DECREASE, referenced_buffer
from pjrt.conformance.plugin.contract.events import Calls, call_back, error_fields
from pjrt.conformance.plugin.subject import Subject

# Copies of the raw bytes of a buffer to the host.

_RAW = ("PJRT_Buffer_CopyRawToHost",)
_FUTURE = ("PJRT_Buffer_CopyRawToHostFuture",)
_FUNCTIONS = ("copy_raw_to_host", "copy_raw_to_host_future")

PIECES = {
    "begin": (0, 16),
    "middle": (20, 24),
    "end": (104, 24),
    "one_byte": (37, 1),
    "odd": (3, 77),
    "none": (8, 0),
    "none_at_the_end": (128, 0),
}
"""Offsets and sizes inside of a buffer of 128 bytes."""

OUTSIDE = {
    "one_byte_beyond": (0, 129),
    "offset_at_the_end": (128, 1),
    "offset_beyond": (129, 0),
    "across_the_end": (120, 16),
    "negative_offset": (-4, 8),
    "negative_size": (8, -8),
    "overflow": (64, (1 << 63) - 1),
}
"""Offsets and sizes that are not inside of a buffer of 128 bytes."""


@check("copy_raw_to_host.whole", calls=_RAW)
def _whole(subject: Subject) -> None:
    """The copy has the bytes that the buffer has on its device."""
    subject.require(_RAW[0])
    array = ramp(1000, dtype=np.uint8)
    buffer = subject.buffer(array)
    data = raw_bytes(subject, buffer)
    subject.expect(data.size >= array.nbytes, f"{array.nbytes} bytes or more on the device", data.size)
    if data.size == array.nbytes:  # Otherwise the buffer has padding, at places that only the plugin knows.
        expect_bytes(subject, data, array)


@check(
    "copy_raw_to_host.piece",
    calls=(*_RAW, *_FUTURE),
    over=tuple(f"{function}-{name}" for function in _FUNCTIONS for name in PIECES),
)
def _piece(subject: Subject, case: str) -> None:
    """offset and transfer_size select bytes of the buffer; no byte outside of the destination is written."""
    function, name = case.split("-")
    subject.require(_name(function))
    offset, size = PIECES[name]
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    everything = raw_bytes(subject, buffer)
    data = np.full(size + 32, 0xAB, np.uint8)
    expected = data.copy()
    expected[16 : 16 + size] = everything[offset : offset + size]
    error = _copy(subject, function, buffer, data, 16, offset, size)
    subject.expect(error is None, "a copy without an error", error)
    expect_bytes(subject, data, expected)


@check(
    "copy_raw_to_host.outside",
    calls=(*_RAW, *_FUTURE),
    over=tuple(f"{function}-{name}" for function in _FUNCTIONS for name in OUTSIDE),
)
def _copy_raw_to_host_outside(subject: Subject, case: str) -> None:
    """Bytes that the buffer does not have are an error, of the call or of its event, and nothing is written."""
    function, name = case.split("-")
    subject.require(_name(function))
    offset, size = OUTSIDE[name]
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    if raw_size(subject, buffer) != 128:
        offset += raw_size(subject, buffer) - 128 if offset >= 0 else 0
    data = np.full(4096, 0xAB, np.uint8)
    error = _copy(subject, function, buffer, data, 0, offset, size)
    subject.expect(error is not None, "an error", "a copy without an error")
    subject.expect(bool((data == 0xAB).all()), "no byte to be written", "changed bytes")


@check(
    "copy_raw_to_host.released_during_the_copy",
    calls=(*_RAW, *_FUTURE, "PJRT_Buffer_Destroy"),
    over=("delete", "destroy"),
)
def _released_during_the_copy(subject: Subject, kind: str) -> None:
    """The memory of a buffer is freed when all operations that use it have completed: a raw copy goes on."""
    subject.require(_RAW[0])
    array = ramp(1 << 20)
    buffer = subject.buffer(array)
    size = raw_size(subject, buffer)
    expected = raw_bytes(subject, buffer)
    data = np.zeros(size, np.uint8)
    copy = subject.call(_RAW[0], buffer=buffer, dst=address(data), offset=0, transfer_size=size)
    if kind == "delete":
        subject.call("PJRT_Buffer_Delete", buffer=buffer)
    else:
        subject.destroy_buffers(buffer)
    subject.await_event(copy.event)
    expect_bytes(subject, data, expected)
    if kind == "delete":
        subject.destroy_buffers(buffer)


@check("copy_raw_to_host.several_at_once", calls=_RAW)
def _several_at_once(subject: Subject) -> None:
    """Several raw copies of a buffer may be under way at once."""
    subject.require(_RAW[0])
    buffer = subject.buffer(ramp(4096, dtype=np.uint8))
    everything = raw_bytes(subject, buffer)
    data = np.zeros(4096, np.uint8)
    copies = [
        subject.call(_RAW[0], buffer=buffer, dst=address(data) + at, offset=at, transfer_size=256)
        for at in range(0, 4096, 256)
    ]
    for copy in reversed(copies):
        subject.await_event(copy.event)
    expect_bytes(subject, data, everything[:4096])


@check("copy_raw_to_host_future.waits", calls=_FUTURE)
def _waits(subject: Subject) -> None:
    """The transfer does not happen until future_ready_callback is called."""
    subject.require(_FUTURE[0])
    buffer = subject.buffer(ramp(32))
    expected = raw_bytes(subject, buffer)
    copy = subject.call(_FUTURE[0], buffer=buffer, offset=0, transfer_size=128)
    subject.expect(copy.event != 0, "an event", "a null pointer")
    subject.expect(not is_ready(subject, copy.event), "an event that is not ready", "a ready event")
    data = np.zeros(128, np.uint8)
    call_back(subject, copy, "future_ready_callback", dst=address(data))
    subject.await_event(copy.event)
    expect_bytes(subject, data, expected[:128])


@check("copy_raw_to_host_future.error", calls=_FUTURE, over=("CANCELLED", "RESOURCE_EXHAUSTED", "INTERNAL"))
def _error_in_place_of_destination(subject: Subject, code: str) -> None:
    """An error that the caller gives in place of the destination is that of the event: code and message."""
    subject.require(_FUTURE[0])
    buffer = subject.buffer(ramp(32))
    copy = subject.call(_FUTURE[0], buffer=buffer, offset=0, transfer_size=128)
    fields = error_fields(StatusCode[code], "no destination, on purpose")
    call_back(subject, copy, "future_ready_callback", **fields)
    error = subject.event_error(copy.event)
    expect_same_error(subject, error, StatusCode[code], "no destination, on purpose")


@check(
    "copy_raw_to_host_future.released_before_the_destination",
    calls=(*_FUTURE, "PJRT_Buffer_Destroy"),
    over=("delete", "destroy"),
)
def _released_before_the_destination(subject: Subject, kind: str) -> None:
    """The memory of a buffer is freed when all operations that use it have completed, also one that waits."""
    subject.require(_FUTURE[0])
    buffer = subject.buffer(ramp(32))
    expected = raw_bytes(subject, buffer)
    copy = subject.call(_FUTURE[0], buffer=buffer, offset=0, transfer_size=128)
    if kind == "delete":
        subject.call("PJRT_Buffer_Delete", buffer=buffer)
    else:
        subject.destroy_buffers(buffer)
    data = np.zeros(128, np.uint8)
    call_back(subject, copy, "future_ready_callback", dst=address(data))
    if subject.event_error(copy.event) is None:
        expect_bytes(subject, data, expected[:128])
    if kind == "delete":
        subject.destroy_buffers(buffer)


def raw_size(subject: Subject, buffer: int) -> int:
    """Return the bytes of a buffer on its device."""
    return int(subject.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=buffer).on_device_size_in_bytes)


def raw_bytes(subject: Subject, buffer: int) -> Array:
    """Return all bytes of a buffer as they are on its device."""
    subject.require("PJRT_Buffer_CopyRawToHost")
    size = raw_size(subject, buffer)
    data = np.zeros(max(size, 1), np.uint8)
    error = outcome(
        subject, "PJRT_Buffer_CopyRawToHost", buffer=buffer, dst=address(data), offset=0, transfer_size=size
    )
    subject.expect(error is None, "a copy without an error", error)
    return data[:size]


def _name(function: str) -> str:
    return _RAW[0] if function == "copy_raw_to_host" else _FUTURE[0]


def _copy(
    subject: Subject, function: str, buffer: int, data: Array, at: int, offset: int, size: int
) -> raw.Error | None:
    """Copy raw bytes to a place in an array, with one of the two functions; return the error."""
    place = address(data) + at
    if function == "copy_raw_to_host":
        return outcome(subject, _RAW[0], buffer=buffer, dst=place, offset=offset, transfer_size=size)
    result = subject.plugin.call(_FUTURE[0], buffer=buffer, offset=offset, transfer_size=size)
    if result.error is not None:
        return result.error
    if result.future_ready_callback:
        call_back(subject, result, "future_ready_callback", dst=place)
    return subject.event_error(result.event)


def raw_error(subject: Subject, name: str, buffer: int) -> raw.Error | None:
    """Return the error of a copy of four raw bytes, with the function of that name."""
    function = "copy_raw_to_host" if name == _RAW[0] else "copy_raw_to_host_future"
    return _copy(subject, function, buffer, np.zeros(16, np.uint8), 0, 0, 4)


# Raw buffers: the bytes behind a buffer, without type and shape (the extension RawBuffer).

CREATE_RAW, DESTROY_RAW = "PJRT_RawBuffer_CreateRawAliasOfBuffer", "PJRT_RawBuffer_Destroy"
READ_RAW, WRITE_RAW = "PJRT_RawBuffer_CopyRawDeviceToHost", "PJRT_RawBuffer_CopyRawHostToDevice"
_RAW_BUFFER_CALLS = (CREATE_RAW, DESTROY_RAW)


def _raw(subject: Subject, buffer: int) -> int:
    subject.require_extension("RawBuffer")
    result = supported(subject, CREATE_RAW, buffer=buffer)
    subject.expect(result.raw_buffer, "a raw buffer", "a null pointer")
    return int(result.raw_buffer)


def _end(subject: Subject, raw_buffer: int, *buffers: int) -> None:
    subject.call(DESTROY_RAW, buffer=raw_buffer)
    subject.destroy_buffers(*buffers)


@check(
    "raw_buffer.properties",
    calls=(*_RAW_BUFFER_CALLS, "PJRT_RawBuffer_GetOnDeviceSizeInBytes", "PJRT_RawBuffer_GetMemorySpace"),
)
def _raw_buffer_properties(subject: Subject) -> None:
    """A raw buffer has the size and the memory of the buffer that it is an alias of."""
    buffer = subject.buffer(ramp(32))
    alias = _raw(subject, buffer)
    size = subject.call("PJRT_RawBuffer_GetOnDeviceSizeInBytes", buffer=alias).on_device_size_in_bytes
    subject.expect(size == raw_size(subject, buffer), f"{raw_size(subject, buffer)} bytes", f"{size}")
    memory = subject.call("PJRT_RawBuffer_GetMemorySpace", buffer=alias).memory_space
    home = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
    subject.expect(memory == home, "the memory of the buffer", "another memory")
    _end(subject, alias, buffer)


BUFFER_PIECES = {"whole": (0, 128), "begin": (0, 7), "middle": (33, 50), "end": (100, 28), "none": (64, 0)}


@check("raw_buffer.read", calls=(*_RAW_BUFFER_CALLS, READ_RAW), over=BUFFER_PIECES)
def _read(subject: Subject, piece: tuple[int, int]) -> None:
    """A read copies the bytes from offset on, and no others."""
    offset, size = piece
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    alias = _raw(subject, buffer)
    everything = raw_bytes(subject, buffer)
    data = np.full(size + 16, 0xAB, np.uint8)
    expected = data.copy()
    expected[8 : 8 + size] = everything[offset : offset + size]
    error = outcome(subject, READ_RAW, buffer=alias, dst=address(data) + 8, offset=offset, transfer_size=size)
    subject.expect(error is None, "a read without an error", str(error))
    expect_bytes(subject, data, expected)
    _end(subject, alias, buffer)


@check("raw_buffer.write", calls=(*_RAW_BUFFER_CALLS, WRITE_RAW), over=BUFFER_PIECES)
def _write(subject: Subject, piece: tuple[int, int]) -> None:
    """A write changes the bytes of the buffer from offset on, and no others."""
    offset, size = piece
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    alias = _raw(subject, buffer)
    expected = raw_bytes(subject, buffer)
    data = np.full(max(size, 1), 0xCD, np.uint8)
    expected[offset : offset + size] = 0xCD
    error = outcome(subject, WRITE_RAW, buffer=alias, src=data, offset=offset, transfer_size=size)
    subject.expect(error is None, "a write without an error", str(error))
    expect_bytes(subject, raw_bytes(subject, buffer), expected)
    _end(subject, alias, buffer)


@check(
    "raw_buffer.outside",
    calls=(*_RAW_BUFFER_CALLS, READ_RAW, WRITE_RAW),
    over=tuple(
        f"{kind}-{case}"
        for kind in ("read", "write")
        for case in ("one_byte_beyond", "offset_beyond", "negative_offset", "negative_size")
    ),
)
def _raw_buffer_outside(subject: Subject, case: str) -> None:
    """Bytes that the buffer does not have are an error, of the call or of its event."""
    kind, place = case.split("-")
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    alias = _raw(subject, buffer)
    size = raw_size(subject, buffer)
    offset, count = {
        "one_byte_beyond": (0, size + 1),
        "offset_beyond": (size + 1, 1),
        "negative_offset": (-1, 2),
        "negative_size": (0, -1),
    }[place]
    data = np.zeros(size + 4096, np.uint8)
    field, name = ("dst", READ_RAW) if kind == "read" else ("src", WRITE_RAW)
    fields: dict[str, Any] = {"buffer": alias, "offset": offset, "transfer_size": count, field: data}
    error = outcome(subject, name, **fields)
    subject.expect(error is not None, "an error", "that it succeeded")
    _end(subject, alias, buffer)


@check("raw_buffer.host_pointer", calls=(*_RAW_BUFFER_CALLS, "PJRT_RawBuffer_GetHostPointer"))
def _host_pointer(subject: Subject) -> None:
    """If the memory is visible to the host, the pointer points to the bytes of the buffer."""
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    alias = _raw(subject, buffer)
    pointer = supported(subject, "PJRT_RawBuffer_GetHostPointer", buffer=alias).host_pointer
    if not pointer:
        raise Unsupported("raw buffers that the host can see")
    expected: Array = raw_bytes(subject, buffer)
    expect_bytes(subject, memory_at(pointer, expected.size), expected)
    _end(subject, alias, buffer)


@check(
    "raw_buffer.destroyed_in_any_order",
    calls=(*_RAW_BUFFER_CALLS, "PJRT_Buffer_Destroy"),
    over=("buffer_first", "raw_buffer_first", "two_raw_buffers"),
)
def _destroyed_in_any_order(subject: Subject, order: str) -> None:
    """The raw buffer and the buffer are destroyed in any order."""
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    alias = _raw(subject, buffer)
    if order == "two_raw_buffers":
        subject.call(DESTROY_RAW, buffer=_raw(subject, buffer))
    if order == "buffer_first":
        subject.destroy_buffers(buffer)
        subject.call(DESTROY_RAW, buffer=alias)
    else:
        subject.call(DESTROY_RAW, buffer=alias)
        subject.expect_contents(buffer, ramp(128, dtype=np.uint8))
        subject.destroy_buffers(buffer)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))


# Views of device memory that the plugin does not own.

VIEW = "PJRT_Client_CreateViewOfDeviceBuffer"
_VIEW_CALLS = (VIEW,)
_USER_ARG = 0x1234


class View:
    """A view of the memory of another buffer, which the plugin must not free.

    Attributes:
        buffer: the view.
        owner: the buffer whose memory it is.
        pointer: the address of the memory.
        deletions: the calls of the callback for the end of the view.
    """

    def __init__(self, subject: Subject, array: np.ndarray, owner: int = 0, pointer: int = 0, **place: int) -> None:
        subject.require(VIEW)
        self._subject = subject
        self.owner, self.pointer = (owner, pointer) if owner else referenced_buffer(subject, array)
        self.deletions = Calls(subject)
        self._result = supported(
            subject,
            VIEW,
            client=subject.client,
            device_buffer_ptr=self.pointer,
            dims=list(array.shape),
            element_type=11,
            **(place or {"device": subject.device}),
            on_delete_callback=lambda pointer, user_arg: self.deletions.add((pointer, user_arg)),
            on_delete_callback_arg=_USER_ARG,
        )
        subject.expect(self._result.buffer, "a buffer", "a null pointer")
        self.buffer = int(self._result.buffer)

    def expect_deleted_once(self) -> None:
        """Expect one call of the callback, with the pointer and the argument of the caller."""
        self.deletions.expect_once((self.pointer, _USER_ARG))

    def end(self) -> None:
        """Release the memory of the owner."""
        self._subject.call(DECREASE, buffer=self.owner)
        self._subject.destroy_buffers(self.owner)


@check("device_view.value", calls=_VIEW_CALLS)
def _device_view_value(subject: Subject) -> None:
    """The view has the value that is in the device memory."""
    array = ramp(16)
    view = View(subject, array)
    subject.expect_contents(view.buffer, array)
    subject.destroy_buffers(view.buffer)
    view.end()


@check("device_view.on_delete", calls=_VIEW_CALLS, over=("destroy", "delete_and_destroy"))
def _on_delete(subject: Subject, end: str) -> None:
    """on_delete_callback is called once, with pointer and argument, when the buffer is done with the memory."""
    view = View(subject, ramp(16))
    subject.expect_contents(view.buffer, ramp(16))
    view.deletions.expect_none()
    if end == "delete_and_destroy":
        subject.call("PJRT_Buffer_Delete", buffer=view.buffer)
    subject.destroy_buffers(view.buffer)
    view.expect_deleted_once()
    view.end()


@check("device_view.memory_is_not_freed", calls=_VIEW_CALLS)
def _memory_is_not_freed(subject: Subject) -> None:
    """The view does not own the memory: its owner keeps the value when the view is gone."""
    array = ramp(4096)
    view = View(subject, array)
    subject.destroy_buffers(view.buffer)
    others = [subject.buffer(array + 1) for _ in range(8)]
    subject.expect_contents(view.owner, array)
    subject.destroy_buffers(*others)
    view.end()


@check("device_view.several", calls=_VIEW_CALLS)
def _several(subject: Subject) -> None:
    """Several views of one memory end one by one, each with a call of its own callback."""
    first = View(subject, ramp(16))
    second = View(subject, ramp(16), first.owner, first.pointer)
    subject.destroy_buffers(first.buffer)
    first.expect_deleted_once()
    second.deletions.expect_none()
    subject.expect_contents(second.buffer, ramp(16))
    subject.destroy_buffers(second.buffer)
    second.expect_deleted_once()
    first.end()


@check("device_view.read_under_way", calls=(*_VIEW_CALLS, "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_Destroy"))
def _read_under_way(subject: Subject) -> None:
    """The callback comes after the operations that use the memory, and not before."""
    array = ramp(1 << 20)
    view = View(subject, array)
    data = np.zeros_like(array)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=view.buffer, dst=data)
    subject.destroy_buffers(view.buffer)
    subject.await_event(read.event)
    subject.expect(bool((data == array).all()), "the whole value", "another one")
    view.expect_deleted_once()
    view.end()


@check("device_view.without_callback", calls=_VIEW_CALLS)
def _without_callback(subject: Subject) -> None:
    """on_delete_callback is optional."""
    array = ramp(16)
    owner, pointer = referenced_buffer(subject, array)
    buffer = _make_view(subject, pointer, device=subject.device)
    subject.expect_contents(buffer, array)
    subject.destroy_buffers(buffer)
    subject.call(DECREASE, buffer=owner)
    subject.destroy_buffers(owner)
    subject.call("PJRT_Client_Destroy", client=subject.client)  # whatever still held the view has let go of it then


@check("device_view.memory", calls=(*_VIEW_CALLS, "PJRT_Buffer_Memory"), over=("memory", "memory_and_device"))
def _memory(subject: Subject, kind: str) -> None:
    """With memory set the view is in that memory, and device is ignored."""
    array = ramp(16)
    place = default_memory(subject, subject.device)
    device = subject.devices[-1] if kind == "memory_and_device" else 0
    view = View(subject, array, memory=place, device=device)
    found = subject.call("PJRT_Buffer_Memory", buffer=view.buffer).memory
    subject.expect(found == place, "the memory of the argument", "another memory")
    subject.expect_contents(view.buffer, array)
    subject.destroy_buffers(view.buffer)
    view.end()


@check(
    "device_view.properties",
    calls=(*_VIEW_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_Device"),
)
def _device_view_properties(subject: Subject) -> None:
    """The view has the type, the dimensions and the device of the arguments, and is ready."""
    array = ramp(4, 4)
    view = View(subject, array)
    subject.expect(subject.shape(view.buffer) == (4, 4), "the dimensions (4, 4)", str(subject.shape(view.buffer)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=view.buffer).type
    subject.expect(number == 11, "the type F32", f"{number}")
    device = subject.call("PJRT_Buffer_Device", buffer=view.buffer).device
    subject.expect(device == subject.device, "the device of the argument", "another device")
    subject.await_buffers([view.buffer])
    subject.destroy_buffers(view.buffer)
    view.end()


@check(
    "device_view.wrong",
    calls=_VIEW_CALLS,
    over={
        "null_pointer": {"device_buffer_ptr": 0},
        "no_place": {"device": 0},
        "negative_dimension": {"dims": [-4]},
        "unknown_type": {"element_type": 4711},
    },
)
def _device_view_wrong(subject: Subject, change: dict[str, object]) -> None:
    """Arguments that describe no memory are an error, and no callback is called."""
    view = View(subject, ramp(16))
    calls = Calls(subject)
    fields = {
        "client": subject.client,
        "device_buffer_ptr": view.pointer,
        "dims": [16],
        "element_type": 11,
        "device": subject.device,
        "on_delete_callback": lambda pointer, user_arg: calls.add(pointer),
    }
    subject.fails(VIEW, MISUSE, **{**fields, **change})
    calls.expect_none()
    subject.destroy_buffers(view.buffer)
    view.end()


def _make_view(subject: Subject, pointer: int, **place: int) -> int:
    result = supported(
        subject, VIEW, client=subject.client, device_buffer_ptr=pointer, dims=[16], element_type=11, **place
    )
    return int(result.buffer)


# Buffers that read the bytes of another one as another type or shape.

BITCAST = "PJRT_Buffer_Bitcast"
_BITCAST_CALLS = (BITCAST,)

_BITCASTS: dict[str, tuple[tuple[int, ...], Any, tuple[int, ...], Any]] = {
    "f32_to_s32": ((6,), np.float32, (6,), np.int32),
    "f32_to_u32": ((2, 3), np.float32, (2, 3), np.uint32),
    "same_type": ((6,), np.float32, (6,), np.float32),
    "reshaped": ((2, 6), np.float32, (3, 4), np.float32),
    "u16_to_s16": ((5,), np.uint16, (5,), np.int16),
    "f64_to_s64": ((3,), np.float64, (3,), np.int64),
    "s8_to_u8": ((7,), np.int8, (7,), np.uint8),
    "scalar": ((), np.float32, (), np.int32),
    "flattened": ((2, 3, 4), np.int32, (24,), np.int32),
    "empty": ((0, 4), np.float32, (4, 0), np.int32),
}


@check("bitcast.value", calls=_BITCAST_CALLS, over=tuple(_BITCASTS))
def _bitcast_value(subject: Subject, name: str) -> None:
    """The new buffer has the same bytes, with the type and the dimensions of the arguments."""
    dims, dtype, new_dims, new_dtype = _BITCASTS[name]
    array = ramp(*dims, dtype=dtype)
    buffer = subject.buffer(array)
    cast = _bitcast(subject, buffer, new_dims, new_dtype)
    found = subject.read(cast)
    subject.expect(found.shape == new_dims, f"the dimensions {new_dims}", str(found.shape))
    subject.expect(found.dtype == np.dtype(new_dtype), f"the type {np.dtype(new_dtype)}", str(found.dtype))
    expect_bytes(subject, found.reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8))


@check("bitcast.source_destroyed", calls=(*_BITCAST_CALLS, "PJRT_Buffer_Destroy"))
def _source_destroyed(subject: Subject) -> None:
    """The new buffer keeps the memory, also when the old one is destroyed."""
    array = ramp(4096)
    buffer = subject.buffer(array)
    cast = _bitcast(subject, buffer, (4096,), np.int32)
    subject.destroy_buffers(buffer)
    other = subject.buffer(array + 1)
    subject.expect_contents(cast, array.view(np.int32))
    subject.destroy_buffers(cast, other)


@check(
    "bitcast.wrong",
    calls=_BITCAST_CALLS,
    over={
        "more_elements": (11, [7]),
        "fewer_elements": (11, [5]),
        "wider_type": (12, [6]),
        "narrower_type": (7, [6]),
        "negative_dimension": (11, [-6]),
        "unknown_type": (4711, [6]),
    },
)
def _bitcast_wrong(subject: Subject, case: tuple[int, list[int]]) -> None:
    """A type and dimensions that need another number of bytes are an error, and the old buffer stays."""
    number, dims = case
    buffer = subject.buffer(ramp(6))
    probe = subject.buffer(ramp(6))
    subject.destroy_buffers(probe, _bitcast(subject, probe, (6,), np.int32))  # unsupported where it cannot be done
    subject.fails(BITCAST, MISUSE, buffer=buffer, element_type=number, dims=dims)
    subject.expect_contents(buffer, ramp(6))


def _bitcast(subject: Subject, buffer: int, dims: tuple[int, ...], dtype: Any) -> int:
    from pjrt.api.element_type import ElementType

    number = int(ElementType.of(dtype))
    result = supported(subject, BITCAST, buffer=buffer, element_type=number, dims=list(dims))
    subject.expect(result.out_buffer, "a buffer", "a null pointer")
    return int(result.out_buffer)
