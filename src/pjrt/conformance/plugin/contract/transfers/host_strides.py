"""Host buffers with byte strides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    MISUSE,
    SEMANTICS,
    Array,
    expect_value,
    from_host,
    host_fields,
    ramp,
)
from pjrt.conformance.plugin.subject import Subject

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)


def _broadcast() -> Array:
    return np.broadcast_to(ramp(5), (3, 5))


def _overlapping() -> Array:
    return np.lib.stride_tricks.sliding_window_view(ramp(9), 4)


ARRAYS: dict[str, Callable[[], Array]] = {
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


@check(
    "buffer_from_host.strides",
    calls=_FROM_HOST,
    rule="byte_strides hold the bytes from element to element along each dimension; they may be zero or negative.",
    over=tuple(ARRAYS),
)
def _strides(subject: Subject, name: str) -> None:
    array = ARRAYS[name]()
    result = from_host(subject, array, byte_strides=list(array.strides))
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.strides_and_semantics",
    calls=_FROM_HOST,
    rule="Strides mean the same with each host buffer semantics.",
    over=tuple(SEMANTICS),
)
def _strides_and_semantics(subject: Subject, semantics: str) -> None:
    for name in ("transposed", "padded_rows", "negative", "broadcast"):
        array = ARRAYS[name]()
        result = from_host(subject, array, SEMANTICS[semantics], byte_strides=list(array.strides))
        expect_value(subject, result.buffer, array)
        subject.destroy_buffers(result.buffer)
        subject.await_event(result.done_with_host_buffer)


@check(
    "buffer_from_host.dense_strides",
    calls=_FROM_HOST,
    rule="Strides of a dense array in row-major order mean the same as none.",
)
def _dense_strides(subject: Subject) -> None:
    array = ramp(3, 4, 5)
    result = from_host(subject, array, byte_strides=list(array.strides))
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.empty_strides",
    calls=_FROM_HOST,
    rule="byte_strides has the size of dims or is empty; if it is empty the array is dense and in row-major order.",
)
def _empty_strides(subject: Subject) -> None:
    array = ramp(3, 4)
    result = from_host(subject, array, byte_strides=[], num_byte_strides=0)
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.strides_of_single_elements",
    calls=_FROM_HOST,
    rule="The stride of a dimension of one element is never used, so it has any value.",
)
def _strides_of_single_elements(subject: Subject) -> None:
    array = ramp(1, 6, 1)
    result = from_host(subject, array, byte_strides=[12345, 4, -777])
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.strides_of_a_scalar",
    calls=_FROM_HOST,
    rule="A scalar has no dimensions and no strides.",
)
def _strides_of_a_scalar(subject: Subject) -> None:
    array = np.array(3.5, np.float32)
    result = from_host(subject, array, byte_strides=[], num_byte_strides=0)
    expect_value(subject, result.buffer, array.reshape(1))
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.wrong_number_of_strides",
    calls=_FROM_HOST,
    rule="byte_strides has the size of dims or is empty; any other number is an error.",
    over=("too_few", "too_many"),
)
def _wrong_number_of_strides(subject: Subject, kind: str) -> None:
    array = ramp(3, 4)
    fields = host_fields(subject, array)
    fields["byte_strides"] = [16] if kind == "too_few" else [16, 4, 4]
    subject.fails("PJRT_Client_BufferFromHostBuffer", MISUSE, **fields)
