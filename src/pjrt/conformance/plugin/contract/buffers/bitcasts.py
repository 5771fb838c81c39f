"""Buffers that read the bytes of another one as another type or shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import MISUSE, expect_bytes, ramp, supported
from pjrt.conformance.plugin.subject import Subject

BITCAST = "PJRT_Buffer_Bitcast"
_CALLS = (BITCAST,)

_CASES: dict[str, tuple[tuple[int, ...], Any, tuple[int, ...], Any]] = {
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


@check(
    "bitcast.value",
    calls=_CALLS,
    rule="The new buffer has the same bytes, with the type and the dimensions of the arguments.",
    over=tuple(_CASES),
)
def _value(subject: Subject, name: str) -> None:
    dims, dtype, new_dims, new_dtype = _CASES[name]
    array = ramp(*dims, dtype=dtype)
    buffer = subject.buffer(array)
    cast = _bitcast(subject, buffer, new_dims, new_dtype)
    found = subject.read(cast)
    subject.expect(found.shape == new_dims, f"the dimensions {new_dims}", str(found.shape))
    subject.expect(found.dtype == np.dtype(new_dtype), f"the type {np.dtype(new_dtype)}", str(found.dtype))
    expect_bytes(subject, found.reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8))
    subject.destroy_buffers(buffer, cast)


@check(
    "bitcast.source_destroyed",
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    rule="The new buffer keeps the memory, also when the old one is destroyed.",
)
def _source_destroyed(subject: Subject) -> None:
    array = ramp(4096)
    buffer = subject.buffer(array)
    cast = _bitcast(subject, buffer, (4096,), np.int32)
    subject.destroy_buffers(buffer)
    other = subject.buffer(array + 1)
    subject.expect_contents(cast, array.view(np.int32))
    subject.destroy_buffers(cast, other)


@check(
    "bitcast.wrong",
    calls=_CALLS,
    rule="A type and dimensions that need another number of bytes are an error, and the old buffer stays.",
    over={
        "more_elements": (11, [7]),
        "fewer_elements": (11, [5]),
        "wider_type": (12, [6]),
        "narrower_type": (7, [6]),
        "negative_dimension": (11, [-6]),
        "unknown_type": (4711, [6]),
    },
)
def _wrong(subject: Subject, case: tuple[int, list[int]]) -> None:
    number, dims = case
    buffer = subject.buffer(ramp(6))
    probe = subject.buffer(ramp(6))
    subject.destroy_buffers(probe, _bitcast(subject, probe, (6,), np.int32))  # unsupported where it cannot be done
    subject.fails(BITCAST, MISUSE, buffer=buffer, element_type=number, dims=dims)
    subject.expect_contents(buffer, ramp(6))
    subject.destroy_buffers(buffer)


def _bitcast(subject: Subject, buffer: int, dims: tuple[int, ...], dtype: Any) -> int:
    from pjrt.api.element_type import ElementType

    number = int(ElementType.of(dtype))
    result = supported(subject, BITCAST, buffer=buffer, element_type=number, dims=list(dims))
    subject.expect(result.out_buffer, "a buffer", "a null pointer")
    return int(result.out_buffer)
