"""Arguments of which no buffer can be made."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    MISUSE,
    SEMANTICS,
    expect_value,
    from_host,
    host_fields,
    ramp,
    ready_error,
    strided,
    tiled,
)
from pjrt.conformance.plugin.contract.buffers.buffer_placement import default_memory
from pjrt.conformance.plugin.subject import Subject

_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer",)

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


@check(
    "buffer_from_host.wrong_argument",
    calls=_FROM_HOST,
    rule="Arguments that describe no buffer are an error of the call, and the client goes on working.",
    over=tuple(WRONG_ARGUMENTS),
)
def _wrong_argument(subject: Subject, kind: str) -> None:
    array = ramp(3, 4)
    fields = {**host_fields(subject, array), **WRONG_ARGUMENTS[kind]}
    subject.fails("PJRT_Client_BufferFromHostBuffer", MISUSE, **fields)
    result = from_host(subject, array)
    expect_value(subject, result.buffer, array)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer_from_host.too_large",
    calls=_FROM_HOST,
    rule="A buffer for which there is no memory is an error, of the call or of its ready event.",
    over=("immutable_only_during_call", "immutable_until_transfer_completes"),
)
def _too_large(subject: Subject, semantics: str) -> None:
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
    subject.destroy_buffers(result.buffer)


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
    rule="A shape that no array has is an error of the call that makes a buffer of it.",
    over=tuple(f"{name.removeprefix('PJRT_Client_')}-{kind}" for name in _MAKERS for kind in _SHAPES),
)
def _wrong_shape(subject: Subject, case: str) -> None:
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
    rule="A shape that no array has is an error of the call that makes buffers for transfers.",
    over=("negative_dimension", "unknown_type", "overflow_of_elements", "second_of_two"),
)
def _wrong_shape_of_transfer(subject: Subject, kind: str) -> None:
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


@check(
    "buffer_from_host.dims_copied",
    calls=(*_FROM_HOST, "PJRT_Buffer_Dimensions"),
    rule="The plugin uses dims, byte_strides and the layout during the call only.",
)
def _dims_copied(subject: Subject) -> None:
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
    subject.destroy_buffers(result.buffer)
