"""Layouts that the caller chooses for a read to the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    MISUSE,
    REFUSAL,
    Array,
    address,
    expect_bytes,
    ramp,
    strided,
    tiled,
)
from pjrt.conformance.plugin.subject import Subject

_READ = ("PJRT_Buffer_ToHostBuffer",)

_ORDERS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "row_major": ((3, 5), (1, 0)),
    "column_major": ((3, 5), (0, 1)),
    "rank_0": ((), ()),
    "rank_1": ((7,), (0,)),
    "rank_3_reversed": ((2, 3, 4), (0, 1, 2)),
    "rank_3_mixed": ((2, 3, 4), (1, 2, 0)),
    "empty": ((3, 0), (0, 1)),
}


@check(
    "to_host.host_layout",
    calls=_READ,
    rule="host_layout is the order of the elements in dst.",
    over=tuple(_ORDERS),
)
def _host_layout(subject: Subject, name: str) -> None:
    dims, order = _ORDERS[name]
    array = ramp(*dims)
    buffer = subject.buffer(array)
    data = _read(subject, buffer, tiled(order))
    expected = array.transpose(tuple(reversed(order))).reshape(-1).copy()
    expect_bytes(subject, data, expected.view(np.uint8))
    subject.destroy_buffers(buffer)


@check(
    "to_host.host_layout_of_each_size",
    calls=_READ,
    rule="host_layout moves whole elements, whatever their size is.",
    over=("u8", "u16", "u32", "u64", "c128"),
)
def _host_layout_of_each_size(subject: Subject, name: str) -> None:
    dtype = np.dtype(np.complex128 if name == "c128" else f"u{int(name[1:]) // 8}")
    array = ramp(4, 7, dtype=dtype)
    buffer = subject.buffer(array)
    data = _read(subject, buffer, tiled((0, 1)))
    expect_bytes(subject, data, np.asfortranarray(array).T.reshape(-1).view(np.uint8))
    subject.destroy_buffers(buffer)


@check(
    "to_host.strided_host_layout",
    calls=_READ,
    rule="host_layout may be byte strides: each element is written to its place.",
    over=("row_major", "column_major", "padded"),
)
def _strided_host_layout(subject: Subject, kind: str) -> None:
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
    subject.destroy_buffers(buffer)


@check(
    "to_host.strided_too_small",
    calls=_READ,
    rule="dst has room for the last element of host_layout; less is an error, and nothing is written behind dst.",
)
def _strided_too_small(subject: Subject) -> None:
    buffer = subject.buffer(ramp(3, 5))
    memory = np.full(128, 0xAB, np.uint8)
    fields: dict[str, Any] = {"src": buffer, "dst": memory, "host_layout": strided((32, 4))}
    _raise_if_refused(subject.attempt("PJRT_Buffer_ToHostBuffer", **{**fields, "dst": 0}))
    subject.fails("PJRT_Buffer_ToHostBuffer", MISUSE, **fields, dst_size=60)
    subject.expect(bool((memory == 0xAB).all()), "no byte to be written", "changed bytes")
    subject.destroy_buffers(buffer)


@check(
    "to_host.host_layout_used_during_the_call",
    calls=_READ,
    rule="The caller keeps the data of host_layout alive during the call, and no longer.",
)
def _host_layout_used_during_the_call(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)


_WRONG: dict[str, raw.Struct] = {
    "too_short": tiled((0,)),
    "too_long": tiled((2, 1, 0)),
    "repeated": tiled((1, 1)),
    "out_of_range": tiled((0, 7)),
    "negative": tiled((-1, 0)),
    "too_few_strides": strided((20,)),
    "unknown_kind": raw.Struct("PJRT_Buffer_MemoryLayout", type=9),
}


@check(
    "to_host.wrong_host_layout",
    calls=_READ,
    rule="A layout has each dimension of the buffer once; any other one is an error.",
    over=tuple(_WRONG),
)
def _wrong_host_layout(subject: Subject, kind: str) -> None:
    buffer = subject.buffer(ramp(3, 5))
    data = np.zeros(1024, np.uint8)
    fields: dict[str, Any] = {"src": buffer, "dst": address(data), "dst_size": data.nbytes}
    subject.fails("PJRT_Buffer_ToHostBuffer", MISUSE, host_layout=_WRONG[kind], **fields)
    subject.destroy_buffers(buffer)


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
