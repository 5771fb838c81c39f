"""Buffers of each element type of the header."""

from __future__ import annotations

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    ONLY_DURING_CALL,
    Array,
    address,
    expect_bytes,
    read_bytes,
    read_size,
    supported,
)
from pjrt.conformance.plugin.subject import Subject

ELEMENT_TYPES = tuple(each.name.lower() for each in ElementType if each.name not in ("INVALID", "TOKEN"))
"""The element types that have values, by the names that checks have for them."""

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)
_ROUND_TRIP = (*_FROM_HOST, "PJRT_Buffer_ToHostBuffer")


@check(
    "buffer_from_host.element_type",
    calls=_ROUND_TRIP,
    rule="type is the type of the host data and of the new buffer; the bits of each element are kept.",
    over=ELEMENT_TYPES,
)
def _element_type(subject: Subject, name: str) -> None:
    _round_trip(subject, ElementType[name.upper()], (13,), 13)


@check(
    "buffer_from_host.element_type_scalar",
    calls=_ROUND_TRIP,
    rule="A buffer of each element type may have no dimensions, and then has one element.",
    over=ELEMENT_TYPES,
)
def _element_type_scalar(subject: Subject, name: str) -> None:
    _round_trip(subject, ElementType[name.upper()], (), 1)


@check(
    "buffer_from_host.element_type_strided",
    calls=_ROUND_TRIP,
    rule="Strides are in bytes, whatever the size of an element is.",
    over=ELEMENT_TYPES,
)
def _element_type_strided(subject: Subject, name: str) -> None:
    kind = ElementType[name.upper()]
    size = kind.dtype.itemsize
    host = _patterns(kind, 15)
    dense = host.reshape(3, 5, size).transpose(1, 0, 2).copy()
    result = supported(
        subject, "PJRT_Client_BufferFromHostBuffer", **_fields(subject, kind, host, [5, 3], [size, 5 * size])
    )
    subject.await_event(result.done_with_host_buffer)
    _expect(subject, kind, result.buffer, dense.reshape(-1))
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.element_type",
    calls=("PJRT_Buffer_ElementType",),
    rule="PJRT_Buffer_ElementType returns the type that the buffer was made with.",
    over=ELEMENT_TYPES,
)
def _reported_element_type(subject: Subject, name: str) -> None:
    kind = ElementType[name.upper()]
    host = _patterns(kind, 6)
    result = supported(subject, "PJRT_Client_BufferFromHostBuffer", **_fields(subject, kind, host, [2, 3]))
    subject.await_event(result.done_with_host_buffer)
    number = subject.call("PJRT_Buffer_ElementType", buffer=result.buffer).type
    subject.expect(number == int(kind), f"{int(kind)} ({kind.name})", number)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.special_floats",
    calls=_ROUND_TRIP,
    rule="Infinities, NaNs with their payloads, negative zeros and subnormal numbers are kept bit by bit.",
    over=("f16", "bf16", "f32", "f64", "c64", "c128"),
)
def _special_floats(subject: Subject, name: str) -> None:
    kind = ElementType[name.upper()]
    part = {"c64": np.float32, "c128": np.float64}.get(name, kind.dtype)
    bits = np.dtype(f"u{np.dtype(part).itemsize}")
    mantissa = {2: 7 if name == "bf16" else 10, 4: 23, 8: 52}[bits.itemsize]
    sign = 1 << (8 * bits.itemsize - 1)
    infinity = (sign - 1) ^ ((1 << mantissa) - 1)
    values = [0, sign, 1, sign | 1, infinity, sign | infinity, infinity | (1 << (mantissa - 1)), infinity | 1]
    host = np.array(values, bits).view(np.uint8)
    count = host.size // kind.dtype.itemsize
    result = supported(subject, "PJRT_Client_BufferFromHostBuffer", **_fields(subject, kind, host, [count]))
    subject.await_event(result.done_with_host_buffer)
    _expect(subject, kind, result.buffer, host)
    subject.destroy_buffers(result.buffer)


def _round_trip(subject: Subject, kind: ElementType, dims: tuple[int, ...], count: int) -> None:
    host = _patterns(kind, count)
    result = supported(subject, "PJRT_Client_BufferFromHostBuffer", **_fields(subject, kind, host, list(dims)))
    subject.await_event(result.done_with_host_buffer)
    _expect(subject, kind, result.buffer, host)
    subject.destroy_buffers(result.buffer)


def _fields(
    subject: Subject, kind: ElementType, host: Array, dims: list[int], byte_strides: list[int] | None = None
) -> dict[str, object]:
    return {
        "client": subject.client,
        "data": address(host),
        "type": int(kind),
        "dims": dims,
        "byte_strides": byte_strides,
        "host_buffer_semantics": ONLY_DURING_CALL,
        "device": subject.device,
    }


def _patterns(kind: ElementType, count: int) -> Array:
    """Return the host bytes of some elements; an element of less than a byte takes the low bits of one."""
    size = kind.dtype.itemsize
    data = (np.arange(count * size, dtype=np.uint32) * 37 + 11).astype(np.uint8)
    if kind is ElementType.PRED:
        return data & 1
    if kind.bits < 8:
        return data & ((1 << kind.bits) - 1)
    return data


def _expect(subject: Subject, kind: ElementType, buffer: int, host: Array) -> None:
    """Expect the elements, in one of the two forms that types of less than a byte have on the host.

    The header does not say how many bytes the host data has for them. XLA's plugins take and give one byte for each
    element, and count only its low bits; a plugin that packs takes and gives full bytes.
    """
    if kind.bits >= 8:
        expect_bytes(subject, read_bytes(subject, buffer), host)
        return
    size, packed = read_size(subject, buffer), -(-host.size * kind.bits // 8)
    subject.expect(size in (host.size, packed), f"{host.size} bytes, or {packed} if packed", f"{size} bytes")
    data = read_bytes(subject, buffer)
    if size == host.size:
        mask = (1 << kind.bits) - 1
        expect_bytes(subject, data & mask, host)
    else:
        expect_bytes(subject, data, host[:packed])
