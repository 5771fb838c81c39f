"""Buffers of each rank, and of sizes from none to large."""

from __future__ import annotations

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    SEMANTICS,
    address,
    expect_value,
    from_host,
    outcome,
    ramp,
    read_size,
)
from pjrt.conformance.plugin.subject import Subject

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


@check(
    "buffer_from_host.shape",
    calls=_ROUND_TRIP,
    rule="A buffer has any number of dimensions, each of any size.",
    over=tuple(SHAPES),
)
def _shape(subject: Subject, name: str) -> None:
    array = ramp(*SHAPES[name], dtype=np.int32)
    result = from_host(subject, array)
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)
    _expect_dims(subject, result.buffer, SHAPES[name])
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.empty",
    calls=_ROUND_TRIP,
    rule="A dimension may be zero: the buffer has no elements, becomes ready, and its read ends at once.",
    over=tuple(EMPTY),
)
def _empty(subject: Subject, name: str) -> None:
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
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.empty_null_data",
    calls=_ROUND_TRIP,
    rule="Without elements there is no host data to point to.",
    over=tuple(SEMANTICS),
)
def _empty_null_data(subject: Subject, semantics: str) -> None:
    array = np.zeros((0, 4), np.float32)
    result = from_host(subject, array, SEMANTICS[semantics], data=0)
    subject.await_buffers([result.buffer])
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.large",
    calls=_ROUND_TRIP,
    rule="A buffer of 64 MiB has its whole value.",
    over=tuple(SEMANTICS),
)
def _large(subject: Subject, semantics: str) -> None:
    array = ramp(1 << 24, dtype=np.int32)
    result = from_host(subject, array, SEMANTICS[semantics])
    expect_value(subject, result.buffer, array)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)


def _expect_dims(subject: Subject, buffer: int, dims: tuple[int, ...]) -> None:
    result = subject.call("PJRT_Buffer_Dimensions", buffer=buffer)
    subject.expect(tuple(result.dims or ()) == dims, str(dims), result.dims)
