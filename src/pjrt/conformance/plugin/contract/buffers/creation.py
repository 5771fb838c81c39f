"""Creation of buffers: of each shape and element type, without a value, and with arguments that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.calls import (
    MISUSE,
    ONLY_DURING_CALL,
    SEMANTICS,
    Array,
    address,
    default_memory,
    expect_bytes,
    expect_value,
    from_host,
    host_fields,
    memories_of,
    outcome,
    ramp,
    read_bytes,
    read_size,
    ready_error,
    strided,
    supported,
    tiled,
)
from pjrt.conformance.plugin.subject import Subject

# Buffers of each rank, and of sizes from none to large.

_ROUND_TRIP = ("PJRT_Client_BufferFromHostBuffer", "PJRT_Buffer_ToHostBuffer")

SHAPES: dict[str, tuple[int, ...]] = {
    "rank_0": (),
    "rank_1": (5,),
    "rank_2": (3, 5),
    "rank_3": (3, 1, 5),
    "rank_4": (2, 3, 2, 3),
    "rank_5": (2, 1, 3, 2, 2),
    "rank_6": (2, 2, 1, 2, 3, 2),
    "rank_7": (1, 2, 2, 2, 1, 2, 3),
    "rank_8": (2, 1, 2, 2, 1, 2, 2, 3),
    "one": (1,),
    "only_ones": (1, 1, 1),
    "prime": (1009,),
    "odd_large": (1_000_003,),
    "long_row": (1, 70_001),
    "long_column": (70_001, 1),
}
"""Shapes with elements, by the names that checks have for them."""

EMPTY = {
    "zero": (0,),
    "zero_rows": (0, 4),
    "zero_columns": (4, 0),
    "zero_inside": (3, 0, 2),
    "only_zeros": (0, 0, 0),
}
"""Shapes without elements."""


@check("buffer_from_host.shape", calls=_ROUND_TRIP, over=tuple(SHAPES))
def _shape(subject: Subject, name: str) -> None:
    """A buffer has any number of dimensions, each of any size."""
    array = ramp(*SHAPES[name], dtype=np.int32)
    result = from_host(subject, array)
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)
    _expect_dims(subject, result.buffer, SHAPES[name])


@check("buffer_from_host.empty", calls=_ROUND_TRIP, over=tuple(EMPTY))
def _empty(subject: Subject, name: str) -> None:
    """A dimension may be zero: the buffer has no elements, becomes ready, and its read ends at once."""
    array = np.zeros(EMPTY[name], np.float32)
    result = from_host(subject, array)
    subject.await_event(result.done_with_host_buffer)
    subject.await_buffers([result.buffer])
    _expect_dims(subject, result.buffer, EMPTY[name])
    size = read_size(subject, result.buffer)
    subject.expect(size == 0, "0 bytes to read", size)
    around = np.full(8, 0xAB, np.uint8)
    error = outcome(subject, "PJRT_Buffer_ToHostBuffer", src=result.buffer, dst=address(around), dst_size=8)
    subject.expect(error is None, "a read without an error", error)
    subject.expect(bool((around == 0xAB).all()), "no byte to be written", list(around))


@check("buffer_from_host.empty_null_data", calls=_ROUND_TRIP, over=tuple(SEMANTICS))
def _empty_null_data(subject: Subject, semantics: str) -> None:
    """Without elements there is no host data to point to."""
    array = np.zeros((0, 4), np.float32)
    result = from_host(subject, array, SEMANTICS[semantics], data=0)
    subject.await_buffers([result.buffer])
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.large", calls=_ROUND_TRIP, over=tuple(SEMANTICS))
def _large(subject: Subject, semantics: str) -> None:
    """A buffer of 64 MiB has its whole value."""
    array = ramp(1 << 24, dtype=np.int32)
    result = from_host(subject, array, SEMANTICS[semantics])
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


def _expect_dims(subject: Subject, buffer: int, dims: tuple[int, ...]) -> None:
    result = subject.call("PJRT_Buffer_Dimensions", buffer=buffer)
    subject.expect(tuple(result.dims or ()) == dims, str(dims), result.dims)


# Buffers of each element type of the header.

ELEMENT_TYPES = tuple(each.name.lower() for each in ElementType if each.name not in ("INVALID", "TOKEN"))
"""The element types that have values, by the names that checks have for them."""

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)


@check("buffer_from_host.element_type", calls=_ROUND_TRIP, over=ELEMENT_TYPES)
def _element_type(subject: Subject, name: str) -> None:
    """type is the type of the host data and of the new buffer; the bits of each element are kept."""
    _round_trip(subject, ElementType[name.upper()], (13,), 13)


@check("buffer_from_host.element_type_scalar", calls=_ROUND_TRIP, over=ELEMENT_TYPES)
def _element_type_scalar(subject: Subject, name: str) -> None:
    """A buffer of each element type may have no dimensions, and then has one element."""
    _round_trip(subject, ElementType[name.upper()], (), 1)


@check("buffer_from_host.element_type_strided", calls=_ROUND_TRIP, over=ELEMENT_TYPES)
def _element_type_strided(subject: Subject, name: str) -> None:
    """Strides are in bytes, whatever the size of an element is."""
    kind = ElementType[name.upper()]
    size = _size_on_host(kind)
    host = _patterns(kind, 15)
    dense = host.reshape(3, 5, size).transpose(1, 0, 2).copy()
    result = supported(
        subject, "PJRT_Client_BufferFromHostBuffer", **_fields(subject, kind, host, [5, 3], [size, 5 * size])
    )
    subject.await_event(result.done_with_host_buffer)
    _expect(subject, kind, result.buffer, dense.reshape(-1))


@check("buffer.element_type", calls=("PJRT_Buffer_ElementType",), over=ELEMENT_TYPES)
def _reported_element_type(subject: Subject, name: str) -> None:
    """PJRT_Buffer_ElementType returns the type that the buffer was made with."""
    kind = ElementType[name.upper()]
    host = _patterns(kind, 6)
    result = supported(subject, "PJRT_Client_BufferFromHostBuffer", **_fields(subject, kind, host, [2, 3]))
    subject.await_event(result.done_with_host_buffer)
    number = subject.call("PJRT_Buffer_ElementType", buffer=result.buffer).type
    subject.expect(number == int(kind), f"{int(kind)} ({kind.name})", number)


@check("buffer_from_host.special_floats", calls=_ROUND_TRIP, over=("f16", "bf16", "f32", "f64", "c64", "c128"))
def _special_floats(subject: Subject, name: str) -> None:
    """Infinities, NaNs with their payloads, negative zeros and subnormal numbers are kept bit by bit."""
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


def _size_on_host(kind: ElementType) -> int:
    """Return the bytes of an element on the host, also of a type that this version of ml_dtypes lacks."""
    return max(1, kind.bits // 8)


def _patterns(kind: ElementType, count: int) -> Array:
    """Return the host bytes of some elements; an element of less than a byte takes the low bits of one."""
    size = _size_on_host(kind)
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


# Buffers that have memory and no value yet.

CREATE_UNINITIALIZED = "PJRT_Client_CreateUninitializedBuffer"
_CALLS = (CREATE_UNINITIALIZED,)


def _make_uninitialized(subject: Subject, **fields: Any) -> int:
    result = supported(
        subject,
        CREATE_UNINITIALIZED,
        **{
            "client": subject.client,
            "shape_dims": [3, 5],
            "shape_element_type": 11,
            "device": subject.device,
            **fields,
        },
    )
    subject.expect(result.buffer, "a buffer", "a null pointer")
    return int(result.buffer)


@check(
    "uninitialized_buffer.read",
    calls=_CALLS,
    over={"rank_0": [], "rank_1": [7], "rank_2": [3, 5], "empty": [0, 3], "large": [1 << 20]},
)
def _read(subject: Subject, dims: list[int]) -> None:
    """The buffer becomes ready, and has as many bytes as its shape needs; the bytes may be any."""
    buffer = _make_uninitialized(subject, shape_dims=dims)
    subject.await_buffers([buffer])
    expected = 4 * int(np.prod(dims))
    size = read_size(subject, buffer)
    subject.expect(size == expected, f"{expected} bytes", f"{size}")
    read_bytes(subject, buffer)


@check(
    "uninitialized_buffer.properties",
    calls=(*_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_IsDeleted"),
    over=("pred", "u8", "f32", "f64", "c64"),
)
def _properties(subject: Subject, name: str) -> None:
    """The buffer has the type and the dimensions of the arguments."""
    number = {"pred": 1, "u8": 6, "f32": 11, "f64": 12, "c64": 14}[name]
    buffer = _make_uninitialized(subject, shape_element_type=number, shape_dims=[2, 3])
    subject.expect(subject.shape(buffer) == (2, 3), "the dimensions (2, 3)", str(subject.shape(buffer)))
    found = subject.call("PJRT_Buffer_ElementType", buffer=buffer).type
    subject.expect(found == number, f"the type {number}", f"{found}")
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted
    subject.expect(not deleted, "a buffer that is not deleted", "that it is")


@check("uninitialized_buffer.in_each_memory", calls=(*_CALLS, "PJRT_Buffer_Memory"))
def _in_each_memory(subject: Subject) -> None:
    """With device null the buffer is in the memory of the argument."""
    subject.require(CREATE_UNINITIALIZED)
    for device in subject.devices:
        for memory in memories_of(subject, device):
            buffer = _make_uninitialized(subject, device=0, memory=memory)
            found = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
            subject.expect(found == memory, "the memory of the argument", "another memory")
            read_bytes(subject, buffer)
            subject.destroy_buffers(buffer)


@check("uninitialized_buffer.on_each_device", calls=(*_CALLS, "PJRT_Buffer_Device", "PJRT_Buffer_Memory"))
def _on_each_device(subject: Subject) -> None:
    """With memory null the buffer is in the default memory of the device of the argument."""
    subject.require(CREATE_UNINITIALIZED)
    for device in subject.devices:
        buffer = _make_uninitialized(subject, device=device)
        found = subject.call("PJRT_Buffer_Device", buffer=buffer).device
        subject.expect(found == device, "the device of the argument", "another device")
        memory = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
        subject.expect(memory == default_memory(subject, device), "its default memory", "another memory")
        subject.destroy_buffers(buffer)


@check("uninitialized_buffer.own_memory", calls=_CALLS)
def _own_memory(subject: Subject) -> None:
    """The buffer has memory of its own, which no other buffer uses."""
    values = [subject.buffer(ramp(100) + number) for number in range(10)]
    empty = [_make_uninitialized(subject, shape_dims=[100]) for _ in range(10)]
    for each in empty:
        read_bytes(subject, each)
    subject.destroy_buffers(*empty)
    for number, each in enumerate(values):
        subject.expect_contents(each, ramp(100) + number)


@check("uninitialized_buffer.released", calls=(*_CALLS, "PJRT_Buffer_Delete", "PJRT_Buffer_Destroy"))
def _released(subject: Subject) -> None:
    """The buffer is deleted and destroyed as any other, also before it is ready."""
    for kind in ("delete", "destroy", "ready"):
        buffer = _make_uninitialized(subject)
        if kind == "delete":
            subject.call("PJRT_Buffer_Delete", buffer=buffer)
        if kind == "ready":
            subject.await_buffers([buffer])
        subject.destroy_buffers(buffer)


@check("uninitialized_buffer.no_place", calls=_CALLS)
def _no_place(subject: Subject) -> None:
    """Without a device and a memory there is no place: an error."""
    subject.destroy_buffers(_make_uninitialized(subject))
    subject.fails(CREATE_UNINITIALIZED, MISUSE, client=subject.client, shape_dims=[3], shape_element_type=11)


@check("uninitialized_buffer.too_large", calls=_CALLS)
def _uninitialized_buffer_too_large(subject: Subject) -> None:
    """A buffer for which there is no memory is an error, of the call or of its ready event."""
    subject.destroy_buffers(_make_uninitialized(subject))
    result = subject.attempt(
        CREATE_UNINITIALIZED, client=subject.client, shape_dims=[1 << 54], shape_element_type=11, device=subject.device
    )
    if result.error is None:
        error = subject.event_error(subject.call("PJRT_Buffer_ReadyEvent", buffer=result.buffer).event)
        subject.expect(error is not None, "an error: there are no 64 PiB of memory", "a ready buffer")
        subject.destroy_buffers(result.buffer)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))


# Arguments of which no buffer can be made.

WRONG_ARGUMENTS: dict[str, dict[str, Any]] = {
    "null_data": {"data": 0},
    "negative_dimension": {"dims": [-3, 4]},
    "negative_last_dimension": {"dims": [3, -4]},
    "two_negative_dimensions": {"dims": [-3, -4]},
    "invalid_type": {"type": 0},
    "unknown_type": {"type": 4711},
    "negative_type": {"type": -1},
    "unknown_semantics": {"host_buffer_semantics": 17},
    "negative_semantics": {"host_buffer_semantics": -1},
    "overflow_of_elements": {"dims": [1 << 62, 8]},
    "overflow_of_bytes": {"dims": [(1 << 62) - 1, 1]},
    "overflow_to_zero": {"dims": [1 << 32, 1 << 32]},
    "no_place": {"device": 0, "memory": 0},
    "layout_too_short": {"device_layout": tiled([0])},
    "layout_too_long": {"device_layout": tiled([2, 1, 0])},
    "layout_repeats_a_dimension": {"device_layout": tiled([0, 0])},
    "layout_out_of_range": {"device_layout": tiled([0, 2])},
    "layout_negative": {"device_layout": tiled([-1, 0])},
    "layout_of_too_few_strides": {"device_layout": strided([16])},
}
"""Changes to a right call that make it wrong."""


@check("buffer_from_host.wrong_argument", calls=_FROM_HOST, over=tuple(WRONG_ARGUMENTS))
def _wrong_argument(subject: Subject, kind: str) -> None:
    """Arguments that describe no buffer are an error of the call, and the client goes on working."""
    array = ramp(3, 4)
    fields = {**host_fields(subject, array), **WRONG_ARGUMENTS[kind]}
    subject.fails("PJRT_Client_BufferFromHostBuffer", MISUSE, **fields)
    result = from_host(subject, array)
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.too_large",
    calls=_FROM_HOST,
    over=("immutable_only_during_call", "immutable_until_transfer_completes"),
)
def _buffer_from_host_too_large(subject: Subject, semantics: str) -> None:
    """A buffer for which there is no memory is an error, of the call or of its ready event."""
    # All elements are the one element that the host memory has, so the plugin may read them before it fails.
    array = ramp(4)
    fields = host_fields(subject, array, SEMANTICS[semantics])
    fields |= {"dims": [1 << 44, 1 << 10], "byte_strides": [0, 0]}
    result = subject.attempt("PJRT_Client_BufferFromHostBuffer", **fields)
    if result.error is None:
        error = ready_error(subject, result.buffer)
        subject.expect(error is not None, "an error: there are no 64 PiB of memory", "a ready buffer")
        subject.event_error(result.done_with_host_buffer)
        subject.destroy_buffers(result.buffer)
    result = from_host(subject, array)
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)


_SHAPES: dict[str, dict[str, Any]] = {
    "negative_dimension": {"shape_dims": [4, -1]},
    "invalid_type": {"shape_element_type": 0},
    "unknown_type": {"shape_element_type": 4711},
    "overflow_of_elements": {"shape_dims": [1 << 62, 8]},
    "overflow_to_zero": {"shape_dims": [1 << 32, 1 << 32]},
    "layout_too_short": {"shape_layout": tiled([0])},
    "layout_repeats_a_dimension": {"shape_layout": tiled([1, 1])},
}
"""Changes to the shape of a right call that make it wrong."""

_MAKERS: dict[str, dict[str, Any]] = {
    "PJRT_Client_CreateUninitializedBuffer": {},
    "PJRT_Client_CreateErrorBuffer": {"error_code": 10, "error_message": "on purpose"},
    "PJRT_Client_CreateAliasBuffer": {},
}


@check(
    "new_buffer.wrong_shape",
    calls=tuple(_MAKERS),
    over=tuple(f"{name.removeprefix('PJRT_Client_')}-{kind}" for name in _MAKERS for kind in _SHAPES),
)
def _wrong_shape(subject: Subject, case: str) -> None:
    """A shape that no array has is an error of the call that makes a buffer of it."""
    maker, kind = case.split("-")
    name = f"PJRT_Client_{maker}"
    subject.require(name)
    fields: dict[str, Any] = {
        "client": subject.client,
        "shape_dims": [2, 3],
        "shape_element_type": 11,
        "memory": default_memory(subject, subject.device),
    }
    subject.fails(name, MISUSE, **{**fields, **_MAKERS[name], **_SHAPES[kind]})


@check(
    "async_transfer.wrong_shape",
    calls=("PJRT_Client_CreateBuffersForAsyncHostToDevice",),
    over=("negative_dimension", "unknown_type", "overflow_of_elements", "second_of_two"),
)
def _wrong_shape_of_transfer(subject: Subject, kind: str) -> None:
    """A shape that no array has is an error of the call that makes buffers for transfers."""
    from pjrt.capi import raw

    name = "PJRT_Client_CreateBuffersForAsyncHostToDevice"
    subject.require(name)
    wrong = {
        "negative_dimension": ([4, -1], 11),
        "unknown_type": ([4], 4711),
        "overflow_of_elements": ([1 << 62, 8], 11),
        "second_of_two": ([-2], 11),
    }[kind]
    specs = [([4], 11), wrong] if kind == "second_of_two" else [wrong]
    subject.fails(
        name,
        MISUSE,
        client=subject.client,
        shape_specs=[raw.Struct("PJRT_ShapeSpec", dims=dims, element_type=number) for dims, number in specs],
        memory=default_memory(subject, subject.device),
    )


@check("buffer_from_host.dims_copied", calls=(*_FROM_HOST, "PJRT_Buffer_Dimensions"))
def _dims_copied(subject: Subject) -> None:
    """The plugin uses dims, byte_strides and the layout during the call only."""
    array, dims = ramp(3, 4), np.array([3, 4], np.int64)
    strides = np.array([16, 4], np.int64)
    result = from_host(
        subject, array, dims=dims.ctypes.data, num_dims=2, byte_strides=strides.ctypes.data, num_byte_strides=2
    )
    dims.fill(-1)
    strides.fill(1 << 40)
    expect_value(subject, result.buffer, array)
    found = subject.call("PJRT_Buffer_Dimensions", buffer=result.buffer).dims
    subject.expect(list(found) == [3, 4], "[3, 4]", found)
    subject.await_event(result.done_with_host_buffer)
