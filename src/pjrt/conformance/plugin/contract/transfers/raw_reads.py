"""Copies of the raw bytes of a buffer to the host."""

from __future__ import annotations

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    Array,
    address,
    expect_bytes,
    expect_same_error,
    is_ready,
    outcome,
    ramp,
)
from pjrt.conformance.plugin.contract.events.event_calls import call_back, error_fields
from pjrt.conformance.plugin.subject import Subject

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


@check(
    "copy_raw_to_host.whole",
    calls=_RAW,
    rule="The copy has the bytes that the buffer has on its device.",
)
def _whole(subject: Subject) -> None:
    subject.require(_RAW[0])
    array = ramp(1000, dtype=np.uint8)
    buffer = subject.buffer(array)
    data = raw_bytes(subject, buffer)
    subject.expect(data.size >= array.nbytes, f"{array.nbytes} bytes or more on the device", data.size)
    if data.size == array.nbytes:  # Otherwise the buffer has padding, at places that only the plugin knows.
        expect_bytes(subject, data, array)
    subject.destroy_buffers(buffer)


@check(
    "copy_raw_to_host.piece",
    calls=(*_RAW, *_FUTURE),
    rule="offset and transfer_size select bytes of the buffer; no byte outside of the destination is written.",
    over=tuple(f"{function}-{name}" for function in _FUNCTIONS for name in PIECES),
)
def _piece(subject: Subject, case: str) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "copy_raw_to_host.outside",
    calls=(*_RAW, *_FUTURE),
    rule="Bytes that the buffer does not have are an error, of the call or of its event, and nothing is written.",
    over=tuple(f"{function}-{name}" for function in _FUNCTIONS for name in OUTSIDE),
)
def _outside(subject: Subject, case: str) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "copy_raw_to_host.released_during_the_copy",
    calls=(*_RAW, *_FUTURE, "PJRT_Buffer_Destroy"),
    rule="The memory of a buffer is freed when all operations that use it have completed: a raw copy goes on.",
    over=("delete", "destroy"),
)
def _released_during_the_copy(subject: Subject, kind: str) -> None:
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


@check("copy_raw_to_host.several_at_once", calls=_RAW, rule="Several raw copies of a buffer may be under way at once.")
def _several_at_once(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "copy_raw_to_host_future.waits",
    calls=_FUTURE,
    rule="The transfer does not happen until future_ready_callback is called.",
)
def _waits(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "copy_raw_to_host_future.error",
    calls=_FUTURE,
    rule="An error that the caller gives in place of the destination is that of the event: code and message.",
    over=("CANCELLED", "RESOURCE_EXHAUSTED", "INTERNAL"),
)
def _error_in_place_of_destination(subject: Subject, code: str) -> None:
    subject.require(_FUTURE[0])
    buffer = subject.buffer(ramp(32))
    copy = subject.call(_FUTURE[0], buffer=buffer, offset=0, transfer_size=128)
    fields = error_fields(StatusCode[code], "no destination, on purpose")
    call_back(subject, copy, "future_ready_callback", **fields)
    error = subject.event_error(copy.event)
    expect_same_error(subject, error, StatusCode[code], "no destination, on purpose")
    subject.destroy_buffers(buffer)


@check(
    "copy_raw_to_host_future.released_before_the_destination",
    calls=(*_FUTURE, "PJRT_Buffer_Destroy"),
    rule="The memory of a buffer is freed when all operations that use it have completed, also one that waits.",
    over=("delete", "destroy"),
)
def _released_before_the_destination(subject: Subject, kind: str) -> None:
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
