"""Raw buffers: the bytes behind a buffer, without type and shape (the extension RawBuffer)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    Array,
    address,
    expect_bytes,
    memory_at,
    outcome,
    ramp,
    supported,
)
from pjrt.conformance.plugin.contract.transfers.raw_reads import raw_bytes, raw_size
from pjrt.conformance.plugin.subject import Subject

CREATE, DESTROY = "PJRT_RawBuffer_CreateRawAliasOfBuffer", "PJRT_RawBuffer_Destroy"
READ, WRITE = "PJRT_RawBuffer_CopyRawDeviceToHost", "PJRT_RawBuffer_CopyRawHostToDevice"
_CALLS = (CREATE, DESTROY)


def _raw(subject: Subject, buffer: int) -> int:
    subject.require_extension("RawBuffer")
    result = supported(subject, CREATE, buffer=buffer)
    subject.expect(result.raw_buffer, "a raw buffer", "a null pointer")
    return int(result.raw_buffer)


def _end(subject: Subject, raw_buffer: int, *buffers: int) -> None:
    subject.call(DESTROY, buffer=raw_buffer)
    subject.destroy_buffers(*buffers)


@check(
    "raw_buffer.properties",
    calls=(*_CALLS, "PJRT_RawBuffer_GetOnDeviceSizeInBytes", "PJRT_RawBuffer_GetMemorySpace"),
    rule="A raw buffer has the size and the memory of the buffer that it is an alias of.",
)
def _properties(subject: Subject) -> None:
    buffer = subject.buffer(ramp(32))
    alias = _raw(subject, buffer)
    size = subject.call("PJRT_RawBuffer_GetOnDeviceSizeInBytes", buffer=alias).on_device_size_in_bytes
    subject.expect(size == raw_size(subject, buffer), f"{raw_size(subject, buffer)} bytes", f"{size}")
    memory = subject.call("PJRT_RawBuffer_GetMemorySpace", buffer=alias).memory_space
    home = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
    subject.expect(memory == home, "the memory of the buffer", "another memory")
    _end(subject, alias, buffer)


PIECES = {"whole": (0, 128), "begin": (0, 7), "middle": (33, 50), "end": (100, 28), "none": (64, 0)}


@check(
    "raw_buffer.read",
    calls=(*_CALLS, READ),
    rule="A read copies the bytes from offset on, and no others.",
    over=PIECES,
)
def _read(subject: Subject, piece: tuple[int, int]) -> None:
    offset, size = piece
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    alias = _raw(subject, buffer)
    everything = raw_bytes(subject, buffer)
    data = np.full(size + 16, 0xAB, np.uint8)
    expected = data.copy()
    expected[8 : 8 + size] = everything[offset : offset + size]
    error = outcome(subject, READ, buffer=alias, dst=address(data) + 8, offset=offset, transfer_size=size)
    subject.expect(error is None, "a read without an error", str(error))
    expect_bytes(subject, data, expected)
    _end(subject, alias, buffer)


@check(
    "raw_buffer.write",
    calls=(*_CALLS, WRITE),
    rule="A write changes the bytes of the buffer from offset on, and no others.",
    over=PIECES,
)
def _write(subject: Subject, piece: tuple[int, int]) -> None:
    offset, size = piece
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    alias = _raw(subject, buffer)
    expected = raw_bytes(subject, buffer)
    data = np.full(max(size, 1), 0xCD, np.uint8)
    expected[offset : offset + size] = 0xCD
    error = outcome(subject, WRITE, buffer=alias, src=data, offset=offset, transfer_size=size)
    subject.expect(error is None, "a write without an error", str(error))
    expect_bytes(subject, raw_bytes(subject, buffer), expected)
    _end(subject, alias, buffer)


@check(
    "raw_buffer.outside",
    calls=(*_CALLS, READ, WRITE),
    rule="Bytes that the buffer does not have are an error, of the call or of its event.",
    over=tuple(
        f"{kind}-{case}"
        for kind in ("read", "write")
        for case in ("one_byte_beyond", "offset_beyond", "negative_offset", "negative_size")
    ),
)
def _outside(subject: Subject, case: str) -> None:
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
    field, name = ("dst", READ) if kind == "read" else ("src", WRITE)
    fields: dict[str, Any] = {"buffer": alias, "offset": offset, "transfer_size": count, field: data}
    error = outcome(subject, name, **fields)
    subject.expect(error is not None, "an error", "that it succeeded")
    _end(subject, alias, buffer)


@check(
    "raw_buffer.host_pointer",
    calls=(*_CALLS, "PJRT_RawBuffer_GetHostPointer"),
    rule="If the memory is visible to the host, the pointer points to the bytes of the buffer.",
)
def _host_pointer(subject: Subject) -> None:
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
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    rule="The raw buffer and the buffer are destroyed in any order.",
    over=("buffer_first", "raw_buffer_first", "two_raw_buffers"),
)
def _destroyed_in_any_order(subject: Subject, order: str) -> None:
    buffer = subject.buffer(ramp(128, dtype=np.uint8))
    alias = _raw(subject, buffer)
    if order == "two_raw_buffers":
        subject.call(DESTROY, buffer=_raw(subject, buffer))
    if order == "buffer_first":
        subject.destroy_buffers(buffer)
        subject.call(DESTROY, buffer=alias)
    else:
        subject.call(DESTROY, buffer=alias)
        subject.expect_contents(buffer, ramp(128, dtype=np.uint8))
        subject.destroy_buffers(buffer)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))
