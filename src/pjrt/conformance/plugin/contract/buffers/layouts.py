"""Layouts and strides: of host memory to write from and to read to, of buffers on a device, and as handles."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.calls import (
    MISUSE,
    REFUSAL,
    SEMANTICS,
    Array,
    address,
    expect_bytes,
    expect_value,
    from_host,
    host_fields,
    ramp,
    read_bytes,
    strided,
    supported,
    supported_from_host,
    tiled,
)
from pjrt.conformance.plugin.subject import Subject

# Host buffers with byte strides.

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)


def _broadcast() -> Array:
    return np.broadcast_to(ramp(5), (3, 5))


def _overlapping() -> Array:
    return np.lib.stride_tricks.sliding_window_view(ramp(9), 4)


STRIDED: dict[str, Callable[[], Array]] = {
    "transposed": lambda: ramp(3, 5).T,
    "permuted": lambda: ramp(2, 3, 4).transpose(1, 2, 0),
    "padded_rows": lambda: ramp(4, 8)[:, :5],
    "every_second": lambda: ramp(20)[::2],
    "inner_block": lambda: ramp(6, 7)[2:5, 1:4],
    "column": lambda: ramp(6, 4)[:, 2:3],
    "negative": lambda: ramp(11)[::-1],
    "negative_rows": lambda: ramp(4, 5)[::-1],
    "negative_both": lambda: ramp(4, 5)[::-1, ::-1],
    "negative_step": lambda: ramp(16)[::-3],
    "broadcast": _broadcast,
    "overlapping": _overlapping,
    "rank_8": lambda: ramp(2, 1, 3, 2, 1, 2, 2, 3).transpose(7, 1, 0, 3, 2, 6, 5, 4),
    "empty": lambda: ramp(4, 6)[::2, 3:3],
    "bytes": lambda: ramp(9, 9, dtype=np.uint8).T[::2],
    "wide": lambda: ramp(4, 6, dtype=np.complex128).T,
}
"""Arrays whose elements are not in row-major order, one after the other."""


@check("buffer_from_host.strides", calls=_FROM_HOST, over=tuple(STRIDED))
def _buffer_from_host_strides(subject: Subject, name: str) -> None:
    """byte_strides hold the bytes from element to element along each dimension; they may be zero or negative."""
    array = STRIDED[name]()
    result = from_host(subject, array, byte_strides=list(array.strides))
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.strides_and_semantics", calls=_FROM_HOST, over=tuple(SEMANTICS))
def _strides_and_semantics(subject: Subject, semantics: str) -> None:
    """Strides mean the same with each host buffer semantics."""
    for name in ("transposed", "padded_rows", "negative", "broadcast"):
        array = STRIDED[name]()
        result = from_host(subject, array, SEMANTICS[semantics], byte_strides=list(array.strides))
        expect_value(subject, result.buffer, array)
        subject.destroy_buffers(result.buffer)
        subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.dense_strides", calls=_FROM_HOST)
def _dense_strides(subject: Subject) -> None:
    """Strides of a dense array in row-major order mean the same as none."""
    array = ramp(3, 4, 5)
    result = from_host(subject, array, byte_strides=list(array.strides))
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.empty_strides", calls=_FROM_HOST)
def _empty_strides(subject: Subject) -> None:
    """byte_strides has the size of dims or is empty; if it is empty the array is dense and in row-major order."""
    array = ramp(3, 4)
    result = from_host(subject, array, byte_strides=[], num_byte_strides=0)
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.strides_of_single_elements", calls=_FROM_HOST)
def _strides_of_single_elements(subject: Subject) -> None:
    """The stride of a dimension of one element is never used, so it has any value."""
    array = ramp(1, 6, 1)
    result = from_host(subject, array, byte_strides=[12345, 4, -777])
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.strides_of_a_scalar", calls=_FROM_HOST)
def _strides_of_a_scalar(subject: Subject) -> None:
    """A scalar has no dimensions and no strides."""
    array = np.array(3.5, np.float32)
    result = from_host(subject, array, byte_strides=[], num_byte_strides=0)
    expect_value(subject, result.buffer, array.reshape(1))
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.wrong_number_of_strides", calls=_FROM_HOST, over=("too_few", "too_many"))
def _wrong_number_of_strides(subject: Subject, kind: str) -> None:
    """byte_strides has the size of dims or is empty; any other number is an error."""
    array = ramp(3, 4)
    fields = host_fields(subject, array)
    fields["byte_strides"] = [16] if kind == "too_few" else [16, 4, 4]
    subject.fails("PJRT_Client_BufferFromHostBuffer", MISUSE, **fields)


# Layouts that the caller chooses for a read to the host.

_READ = ("PJRT_Buffer_ToHostBuffer",)

_HOST_ORDERS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "row_major": ((3, 5), (1, 0)),
    "column_major": ((3, 5), (0, 1)),
    "rank_0": ((), ()),
    "rank_1": ((7,), (0,)),
    "rank_3_reversed": ((2, 3, 4), (0, 1, 2)),
    "rank_3_mixed": ((2, 3, 4), (1, 2, 0)),
    "empty": ((3, 0), (0, 1)),
}


@check("to_host.host_layout", calls=_READ, over=tuple(_HOST_ORDERS))
def _host_layout(subject: Subject, name: str) -> None:
    """host_layout is the order of the elements in dst."""
    dims, order = _HOST_ORDERS[name]
    array = ramp(*dims)
    buffer = subject.buffer(array)
    data = _read(subject, buffer, tiled(order))
    expected = array.transpose(tuple(reversed(order))).reshape(-1).copy()
    expect_bytes(subject, data, expected.view(np.uint8))


@check("to_host.host_layout_of_each_size", calls=_READ, over=("u8", "u16", "u32", "u64", "c128"))
def _host_layout_of_each_size(subject: Subject, name: str) -> None:
    """host_layout moves whole elements, whatever their size is."""
    dtype = np.dtype(np.complex128 if name == "c128" else f"u{int(name[1:]) // 8}")
    array = ramp(4, 7, dtype=dtype)
    buffer = subject.buffer(array)
    data = _read(subject, buffer, tiled((0, 1)))
    expect_bytes(subject, data, np.asfortranarray(array).T.reshape(-1).view(np.uint8))


@check("to_host.strided_host_layout", calls=_READ, over=("row_major", "column_major", "padded"))
def _strided_host_layout(subject: Subject, kind: str) -> None:
    """host_layout may be byte strides: each element is written to its place."""
    array = ramp(3, 5)
    buffer = subject.buffer(array)
    strides = {"row_major": (20, 4), "column_major": (4, 12), "padded": (32, 4)}[kind]
    memory = np.full(128, 0xAB, np.uint8)
    expected = memory.copy()
    np.ndarray((3, 5), np.float32, expected, 0, strides)[...] = array
    span = 2 * strides[0] + 4 * strides[1] + 4
    result = subject.plugin.call(
        "PJRT_Buffer_ToHostBuffer", src=buffer, dst=address(memory), dst_size=128, host_layout=strided(strides)
    )
    _raise_if_refused(result)
    subject.expect(result.error is None, "success", result.error)
    error = subject.event_error(result.event)
    subject.expect(error is None, "a read without an error", error)
    if kind == "padded":  # The bytes between the rows belong to the span, and need not be kept.
        written = np.ndarray((3, 5), np.float32, memory, 0, strides)
        expect_bytes(subject, written.copy().reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8))
        expect_bytes(subject, memory[span:], expected[span:])
    else:
        expect_bytes(subject, memory, expected)


@check("to_host.strided_too_small", calls=_READ)
def _strided_too_small(subject: Subject) -> None:
    """dst has room for the last element of host_layout; less is an error, and nothing is written behind dst."""
    buffer = subject.buffer(ramp(3, 5))
    memory = np.full(128, 0xAB, np.uint8)
    fields: dict[str, Any] = {"src": buffer, "dst": memory, "host_layout": strided((32, 4))}
    _raise_if_refused(subject.attempt("PJRT_Buffer_ToHostBuffer", **{**fields, "dst": 0}))
    subject.fails("PJRT_Buffer_ToHostBuffer", MISUSE, **fields, dst_size=60)
    subject.expect(bool((memory == 0xAB).all()), "no byte to be written", "changed bytes")


@check("to_host.host_layout_used_during_the_call", calls=_READ)
def _host_layout_used_during_the_call(subject: Subject) -> None:
    """The caller keeps the data of host_layout alive during the call, and no longer."""
    array = ramp(512, 300)
    buffer = subject.buffer(array)
    order = np.array([0, 1], np.int64)
    layout = raw.Struct(
        "PJRT_Buffer_MemoryLayout", type=0, tiled={"minor_to_major": order.ctypes.data, "minor_to_major_size": 2}
    )
    data = np.zeros(array.nbytes, np.uint8)
    result = subject.plugin.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=data, host_layout=layout)
    order.fill(77)
    _raise_if_refused(result)
    subject.expect(result.error is None, "success", result.error)
    error = subject.event_error(result.event)
    subject.expect(error is None, "a read without an error", error)
    expect_bytes(subject, data, array.T.copy().reshape(-1).view(np.uint8))


_WRONG_LAYOUTS: dict[str, raw.Struct] = {
    "too_short": tiled((0,)),
    "too_long": tiled((2, 1, 0)),
    "repeated": tiled((1, 1)),
    "out_of_range": tiled((0, 7)),
    "negative": tiled((-1, 0)),
    "too_few_strides": strided((20,)),
    "unknown_kind": raw.Struct("PJRT_Buffer_MemoryLayout", type=9),
}


@check("to_host.wrong_host_layout", calls=_READ, over=tuple(_WRONG_LAYOUTS))
def _wrong_host_layout(subject: Subject, kind: str) -> None:
    """A layout has each dimension of the buffer once; any other one is an error."""
    buffer = subject.buffer(ramp(3, 5))
    data = np.zeros(1024, np.uint8)
    fields: dict[str, Any] = {"src": buffer, "dst": address(data), "dst_size": data.nbytes}
    subject.fails("PJRT_Buffer_ToHostBuffer", MISUSE, host_layout=_WRONG_LAYOUTS[kind], **fields)


def _read(subject: Subject, buffer: int, layout: raw.Struct) -> Array:
    result = subject.plugin.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=0, host_layout=layout)
    _raise_if_refused(result)
    subject.expect(result.error is None, "the needed size", result.error)
    data = np.zeros(max(result.dst_size, 1), np.uint8)
    size = result.dst_size
    result = subject.plugin.call(
        "PJRT_Buffer_ToHostBuffer", src=buffer, dst=address(data), dst_size=size, host_layout=layout
    )
    _raise_if_refused(result)
    subject.expect(result.error is None, "success", result.error)
    error = subject.event_error(result.event)
    subject.expect(error is None, "a read without an error", error)
    return data[:size]


def _raise_if_refused(result: raw.Result) -> None:
    if result.error is not None and result.error.code in REFUSAL:
        raise Unsupported(f"PJRT_Buffer_ToHostBuffer: {result.error.message}")


# Layouts that the caller chooses for a buffer on its device.

_LAYOUT = (*_FROM_HOST, "PJRT_Buffer_GetMemoryLayout")

DEVICE_ORDERS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "row_major": ((3, 5), (1, 0)),
    "column_major": ((3, 5), (0, 1)),
    "rank_0": ((), ()),
    "rank_1": ((7,), (0,)),
    "rank_3_row_major": ((2, 3, 4), (2, 1, 0)),
    "rank_3_reversed": ((2, 3, 4), (0, 1, 2)),
    "rank_3_mixed": ((2, 3, 4), (1, 2, 0)),
    "rank_4_mixed": ((2, 3, 4, 5), (0, 3, 1, 2)),
}
"""Shapes with an order of their dimensions, from minor to major."""


@check("buffer_from_host.device_layout", calls=_FROM_HOST, over=tuple(DEVICE_ORDERS))
def _device_layout(subject: Subject, name: str) -> None:
    """device_layout is the order of the elements on the device, and changes no element."""
    dims, order = DEVICE_ORDERS[name]
    array = ramp(*dims)
    result = supported_from_host(subject, array, device_layout=tiled(order))
    subject.await_event(result.done_with_host_buffer)
    _expect_row_major(subject, result.buffer, array)


@check("buffer.memory_layout", calls=_LAYOUT, over=tuple(DEVICE_ORDERS))
def _memory_layout(subject: Subject, name: str) -> None:
    """PJRT_Buffer_GetMemoryLayout returns the layout that the buffer was made with."""
    subject.require("PJRT_Buffer_GetMemoryLayout")
    dims, order = DEVICE_ORDERS[name]
    array = ramp(*dims)
    result = supported_from_host(subject, array, device_layout=tiled(order))
    subject.await_event(result.done_with_host_buffer)
    layout = subject.call("PJRT_Buffer_GetMemoryLayout", buffer=result.buffer).layout.fields
    if layout["type"] == 0:
        found = tuple(layout["minor_to_major"] or ())
        subject.expect(found == order, f"the order {order}", f"the order {found}")
    else:
        expected = _strides(dims, order)
        subject.expect(tuple(layout["byte_strides"] or ()) == expected, str(expected), layout["byte_strides"])


@check("buffer.default_memory_layout", calls=_LAYOUT, over=("rank_0", "rank_1", "row_major", "rank_3_row_major"))
def _default_memory_layout(subject: Subject, name: str) -> None:
    """Without device_layout a buffer is dense, with its dimensions in major-to-minor order."""
    subject.require("PJRT_Buffer_GetMemoryLayout")
    dims, order = DEVICE_ORDERS[name]
    array = ramp(*dims)
    result = supported_from_host(subject, array)
    subject.await_event(result.done_with_host_buffer)
    layout = subject.call("PJRT_Buffer_GetMemoryLayout", buffer=result.buffer).layout.fields
    if layout["type"] == 0:
        subject.expect(tuple(layout["minor_to_major"] or ()) == order, str(order), layout["minor_to_major"])
    else:
        expected = _strides(dims, order)
        subject.expect(tuple(layout["byte_strides"] or ()) == expected, str(expected), layout["byte_strides"])


@check(
    "buffer_from_host.read_in_device_layout",
    calls=(*_FROM_HOST, "PJRT_Buffer_ToHostBuffer"),
    over=("column_major", "rank_3_reversed", "rank_3_mixed", "rank_4_mixed"),
)
def _read_in_device_layout(subject: Subject, name: str) -> None:
    """With host_layout null, a read uses the layout of the buffer."""
    dims, order = DEVICE_ORDERS[name]
    array = ramp(*dims)
    result = supported_from_host(subject, array, device_layout=tiled(order))
    subject.await_event(result.done_with_host_buffer)
    expected = array.transpose(tuple(reversed(order))).reshape(-1).copy()
    expect_bytes(subject, read_bytes(subject, result.buffer), expected.view(np.uint8))


@check("buffer_from_host.strided_device_layout", calls=_FROM_HOST, over=("row_major", "column_major", "rank_3_mixed"))
def _strided_device_layout(subject: Subject, name: str) -> None:
    """A layout may be written as byte strides."""
    dims, order = DEVICE_ORDERS[name]
    array = ramp(*dims)
    result = supported_from_host(subject, array, device_layout=strided(_strides(dims, order)))
    subject.await_event(result.done_with_host_buffer)
    _expect_row_major(subject, result.buffer, array)


@check("buffer_from_host.tiled_device_layout", calls=_FROM_HOST, over=("one_tile", "two_tiles"))
def _tiled_device_layout(subject: Subject, kind: str) -> None:
    """A layout may have tiles; the plugin pads the buffer to whole tiles and keeps each element."""
    tiles = [[8, 128]] if kind == "one_tile" else [[8, 128], [2, 1]]
    array = ramp(9, 130)
    result = supported_from_host(subject, array, device_layout=tiled((1, 0), tiles))
    subject.await_event(result.done_with_host_buffer)
    _expect_row_major(subject, result.buffer, array)


@check("buffer_from_host.layout_and_semantics", calls=_FROM_HOST, over=tuple(SEMANTICS))
def _layout_and_semantics(subject: Subject, semantics: str) -> None:
    """A layout of the device means the same with each host buffer semantics, also where zero copy is impossible."""
    array = ramp(64, 32)
    result = supported_from_host(subject, array, SEMANTICS[semantics], device_layout=tiled((0, 1)))
    _expect_row_major(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check("buffer_from_host.layout_and_strides", calls=_FROM_HOST, over=("same_order", "opposite_order"))
def _layout_and_strides(subject: Subject, kind: str) -> None:
    """byte_strides describe the host memory and device_layout the device's; one does not change the other."""
    array = ramp(5, 3).T
    order = (0, 1) if kind == "same_order" else (1, 0)
    result = supported_from_host(subject, array, byte_strides=list(array.strides), device_layout=tiled(order))
    subject.await_event(result.done_with_host_buffer)
    _expect_row_major(subject, result.buffer, array)


def _strides(dims: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the byte strides of a dense array of floats, whose dimensions are ordered from minor to major."""
    strides, step = [0] * len(dims), 4
    for dimension in order:
        strides[dimension] = step
        step *= dims[dimension]
    return tuple(strides)


def _expect_row_major(subject: Subject, buffer: int, array: np.ndarray) -> None:
    """Expect a value, which is read in row-major order."""
    layout = tiled(tuple(reversed(range(array.ndim))))
    size = subject.plugin.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=0, host_layout=layout)
    if size.error is not None and size.error.code in REFUSAL:
        raise Unsupported(f"PJRT_Buffer_ToHostBuffer: {size.error.message}")
    expected = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    expect_bytes(subject, read_bytes(subject, buffer, host_layout=layout), expected)


# Layouts as handles (the extension Layouts).

SERIALIZE_LAYOUT, DESTROY_LAYOUT = "PJRT_Layouts_MemoryLayout_Serialize", "PJRT_Layouts_MemoryLayout_Destroy"
OF_BUFFER, DEFAULT_LAYOUT = "PJRT_Layouts_PJRT_Buffer_MemoryLayout", "PJRT_Layouts_PJRT_Client_GetDefaultLayout"
OF_TOPOLOGY = "PJRT_Layouts_PJRT_Topology_GetDefaultLayout"
_CALLS = (SERIALIZE_LAYOUT, DESTROY_LAYOUT)


def layout_text(subject: Subject, layout: int | None) -> str:
    """Return the text of a layout, such as ``{1,0}``, and free what has it; the layout stays."""
    subject.expect(layout, "a layout", "a null pointer")
    result = subject.call(SERIALIZE_LAYOUT, layout=layout)
    subject.expect(result.serialized_layout_deleter, "a deleter", "a null pointer")
    text = bytes(result.serialized_bytes or b"").decode()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.serialized_layout_deleter)(result.serialized_layout)
    return text


def _order(text: str) -> list[int]:
    """Return the dimensions of a layout's text, from minor to major."""
    match = re.match(r"\{([\d,]*)", text)
    return [] if match is None or not match[1] else [int(each) for each in match[1].split(",")]


def _default(subject: Subject, dims: list[int], number: int = 11) -> str:
    subject.require_extension("Layouts")
    layout = supported(subject, DEFAULT_LAYOUT, client=subject.client, type=number, dims=dims).layout
    text = layout_text(subject, layout)
    subject.call(DESTROY_LAYOUT, layout=layout)
    return text


@check(
    "layouts.default",
    calls=(DEFAULT_LAYOUT, *_CALLS),
    over={"rank_0": [], "rank_1": [7], "rank_2": [3, 5], "rank_4": [2, 3, 4, 5]},
)
def _default_layout(subject: Subject, dims: list[int]) -> None:
    """The default layout of a client has each dimension once."""
    text = _default(subject, dims)
    subject.expect(sorted(_order(text)) == list(range(len(dims))), f"an order of {len(dims)} dimensions", text)


@check(
    "layouts.default_of_each_type",
    calls=(DEFAULT_LAYOUT, *_CALLS),
    over={"pred": 1, "s8": 2, "u16": 7, "s64": 5, "f16": 10, "bf16": 13, "c128": 15},
)
def _default_of_each_type(subject: Subject, number: int) -> None:
    """There is a default layout for each type."""
    text = _default(subject, [3, 5], number)
    subject.expect(sorted(_order(text)) == [0, 1], "an order of 2 dimensions", text)


@check("layouts.default_of_topology", calls=(OF_TOPOLOGY, *_CALLS))
def _default_of_topology(subject: Subject) -> None:
    """The client's topology has the client's default layouts."""
    expected = _default(subject, [3, 5])
    subject.require("PJRT_Client_TopologyDescription")
    topology = subject.call("PJRT_Client_TopologyDescription", client=subject.client).topology
    layout = supported(subject, OF_TOPOLOGY, topology_description=topology, type=11, dims=[3, 5]).layout
    text = layout_text(subject, layout)
    subject.expect(text == expected, expected, text)


@check(
    "layouts.of_buffer",
    calls=(OF_BUFFER, *_CALLS),
    over={"rank_0": (), "rank_1": (7,), "rank_2": (3, 5), "rank_3": (2, 3, 4)},
)
def _of_buffer(subject: Subject, dims: tuple[int, ...]) -> None:
    """The layout of a buffer of host data is dense and in major-to-minor order, unless the caller chooses another."""
    subject.require_extension("Layouts")
    buffer = subject.buffer(ramp(*dims))
    layout = supported(subject, OF_BUFFER, buffer=buffer).layout
    text = layout_text(subject, layout)
    expected = list(range(len(dims)))[::-1]
    subject.expect(_order(text) == expected, f"the order {expected}", text)


@check(
    "layouts.of_buffer_with_a_layout",
    calls=(OF_BUFFER, *_CALLS),
    over={"column_major": ((3, 5), (0, 1)), "mixed": ((2, 3, 4), (1, 2, 0))},
)
def _of_buffer_with_a_layout(subject: Subject, case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """The layout of a buffer is the one that it was made with."""
    subject.require_extension("Layouts")
    dims, order = case
    array = ramp(*dims)
    result = supported_from_host(subject, array, device_layout=tiled(order))
    subject.await_event(result.done_with_host_buffer)
    layout = supported(subject, OF_BUFFER, buffer=result.buffer).layout
    text = layout_text(subject, layout)
    subject.expect(_order(text) == list(order), f"the order {list(order)}", text)


@check("layouts.outlives_its_buffer", calls=(OF_BUFFER, *_CALLS, "PJRT_Buffer_Destroy"))
def _outlives_its_buffer(subject: Subject) -> None:
    """A layout belongs to the caller: it lives until the caller destroys it."""
    subject.require_extension("Layouts")
    buffer = subject.buffer(ramp(2, 3, 4))
    layout = supported(subject, OF_BUFFER, buffer=buffer).layout
    before = layout_text(subject, layout)
    subject.destroy_buffers(buffer)
    for size in range(1, 30):
        subject.destroy_buffers(subject.buffer(ramp(size, 2)))
    after = layout_text(subject, layout)
    subject.expect(after == before, before, after)
    subject.call(DESTROY_LAYOUT, layout=layout)


@check("layouts.serialized_often", calls=(DEFAULT_LAYOUT, *_CALLS))
def _serialized_often(subject: Subject) -> None:
    """Each text of a layout is an object of the caller's own."""
    subject.require_extension("Layouts")
    layout = supported(subject, DEFAULT_LAYOUT, client=subject.client, type=11, dims=[3, 5]).layout
    results = [subject.call(SERIALIZE_LAYOUT, layout=layout) for _ in range(4)]
    subject.call(DESTROY_LAYOUT, layout=layout)
    texts = {bytes(each.serialized_bytes) for each in results}
    subject.expect(len(texts) == 1, "the same text each time", str(texts))
    for each in results:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(each.serialized_layout_deleter)(each.serialized_layout)


@check(
    "layouts.wrong",
    calls=(DEFAULT_LAYOUT,),
    over={"unknown_type": {"type": 4711}, "negative_dimension": {"dims": [-3]}},
)
def _wrong(subject: Subject, change: dict[str, object]) -> None:
    """There is no default layout of a shape that no array has."""
    _default(subject, [3])
    subject.fails(DEFAULT_LAYOUT, MISUSE, **{"client": subject.client, "type": 11, "dims": [3], **change})
