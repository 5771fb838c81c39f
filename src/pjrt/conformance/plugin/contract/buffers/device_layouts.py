"""Layouts that the caller chooses for a buffer on its device."""

from __future__ import annotations

import numpy as np

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    REFUSAL,
    SEMANTICS,
    expect_bytes,
    ramp,
    read_bytes,
    strided,
    supported_from_host,
    tiled,
)
from pjrt.conformance.plugin.subject import Subject

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)
_LAYOUT = (*_FROM_HOST, "PJRT_Buffer_GetMemoryLayout")

ORDERS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
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


@check(
    "buffer_from_host.device_layout",
    calls=_FROM_HOST,
    rule="device_layout is the order of the elements on the device, and changes no element.",
    over=tuple(ORDERS),
)
def _device_layout(subject: Subject, name: str) -> None:
    dims, order = ORDERS[name]
    array = ramp(*dims)
    result = supported_from_host(subject, array, device_layout=tiled(order))
    subject.await_event(result.done_with_host_buffer)
    _expect_row_major(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.memory_layout",
    calls=_LAYOUT,
    rule="PJRT_Buffer_GetMemoryLayout returns the layout that the buffer was made with.",
    over=tuple(ORDERS),
)
def _memory_layout(subject: Subject, name: str) -> None:
    subject.require("PJRT_Buffer_GetMemoryLayout")
    dims, order = ORDERS[name]
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
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.default_memory_layout",
    calls=_LAYOUT,
    rule="Without device_layout a buffer is dense, with its dimensions in major-to-minor order.",
    over=("rank_0", "rank_1", "row_major", "rank_3_row_major"),
)
def _default_memory_layout(subject: Subject, name: str) -> None:
    subject.require("PJRT_Buffer_GetMemoryLayout")
    dims, order = ORDERS[name]
    array = ramp(*dims)
    result = supported_from_host(subject, array)
    subject.await_event(result.done_with_host_buffer)
    layout = subject.call("PJRT_Buffer_GetMemoryLayout", buffer=result.buffer).layout.fields
    if layout["type"] == 0:
        subject.expect(tuple(layout["minor_to_major"] or ()) == order, str(order), layout["minor_to_major"])
    else:
        expected = _strides(dims, order)
        subject.expect(tuple(layout["byte_strides"] or ()) == expected, str(expected), layout["byte_strides"])
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.read_in_device_layout",
    calls=(*_FROM_HOST, "PJRT_Buffer_ToHostBuffer"),
    rule="With host_layout null, a read uses the layout of the buffer.",
    over=("column_major", "rank_3_reversed", "rank_3_mixed", "rank_4_mixed"),
)
def _read_in_device_layout(subject: Subject, name: str) -> None:
    dims, order = ORDERS[name]
    array = ramp(*dims)
    result = supported_from_host(subject, array, device_layout=tiled(order))
    subject.await_event(result.done_with_host_buffer)
    expected = array.transpose(tuple(reversed(order))).reshape(-1).copy()
    expect_bytes(subject, read_bytes(subject, result.buffer), expected.view(np.uint8))
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.strided_device_layout",
    calls=_FROM_HOST,
    rule="A layout may be written as byte strides.",
    over=("row_major", "column_major", "rank_3_mixed"),
)
def _strided_device_layout(subject: Subject, name: str) -> None:
    dims, order = ORDERS[name]
    array = ramp(*dims)
    result = supported_from_host(subject, array, device_layout=strided(_strides(dims, order)))
    subject.await_event(result.done_with_host_buffer)
    _expect_row_major(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.tiled_device_layout",
    calls=_FROM_HOST,
    rule="A layout may have tiles; the plugin pads the buffer to whole tiles and keeps each element.",
    over=("one_tile", "two_tiles"),
)
def _tiled_device_layout(subject: Subject, kind: str) -> None:
    tiles = [[8, 128]] if kind == "one_tile" else [[8, 128], [2, 1]]
    array = ramp(9, 130)
    result = supported_from_host(subject, array, device_layout=tiled((1, 0), tiles))
    subject.await_event(result.done_with_host_buffer)
    _expect_row_major(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.layout_and_semantics",
    calls=_FROM_HOST,
    rule="A layout of the device means the same with each host buffer semantics, also where zero copy is impossible.",
    over=tuple(SEMANTICS),
)
def _layout_and_semantics(subject: Subject, semantics: str) -> None:
    array = ramp(64, 32)
    result = supported_from_host(subject, array, SEMANTICS[semantics], device_layout=tiled((0, 1)))
    _expect_row_major(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.layout_and_strides",
    calls=_FROM_HOST,
    rule="byte_strides describe the host memory and device_layout the device's; one does not change the other.",
    over=("same_order", "opposite_order"),
)
def _layout_and_strides(subject: Subject, kind: str) -> None:
    array = ramp(5, 3).T
    order = (0, 1) if kind == "same_order" else (1, 0)
    result = supported_from_host(subject, array, byte_strides=list(array.strides), device_layout=tiled(order))
    subject.await_event(result.done_with_host_buffer)
    _expect_row_major(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)


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
