"""Alias buffers: they stand for another buffer, which the caller names later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    MISUSE,
    expect_bytes,
    expect_same_error,
    is_ready,
    ramp,
    read_error,
    ready_error,
)
from pjrt.conformance.plugin.contract.buffers.buffer_placement import default_memory
from pjrt.conformance.plugin.contract.events.event_calls import error_fields
from pjrt.conformance.plugin.subject import Subject

CREATE, FULFILL = "PJRT_Client_CreateAliasBuffer", "PJRT_Client_FulfillAliasBuffer"
_CALLS = (CREATE, FULFILL)
_REASON = "there is no buffer, on purpose"


def make_alias(subject: Subject, dims: Sequence[int], element_type: int = 11) -> tuple[int, int]:
    """Return an alias buffer in the default memory of the first device, and the handle to fulfill it."""
    subject.require(*_CALLS)
    result = subject.call(
        CREATE,
        client=subject.client,
        memory=default_memory(subject, subject.device),
        shape_dims=list(dims),
        shape_element_type=element_type,
    )
    subject.expect(result.alias_buffer, "a buffer", "a null pointer")
    subject.expect(result.fulfill_alias_buffer_cb, "a handle to fulfill it", "a null pointer")
    return int(result.alias_buffer), int(result.fulfill_alias_buffer_cb)


def fulfill(subject: Subject, handle: int, buffer: int) -> None:
    """Name the buffer that an alias stands for."""
    subject.call(FULFILL, client=subject.client, buffer=buffer, status_code=0, fulfill_alias_buffer_cb=handle)


def fail(subject: Subject, handle: int, code: StatusCode, message: str) -> None:
    """Name the error of an alias, for which there is no buffer."""
    subject.call(
        FULFILL,
        client=subject.client,
        status_code=int(code),
        error_message=message,
        fulfill_alias_buffer_cb=handle,
    )


@check(
    "alias_buffer.value",
    calls=_CALLS,
    rule="After PJRT_Client_FulfillAliasBuffer the alias has the value of the buffer.",
    over={"rank_0": (), "rank_1": (5,), "rank_3": (2, 3, 4), "empty": (0, 3)},
)
def _value(subject: Subject, dims: tuple[int, ...]) -> None:
    array = ramp(*dims)
    alias, handle = make_alias(subject, dims)
    buffer = subject.buffer(array)
    fulfill(subject, handle, buffer)
    subject.expect_contents(alias, array)
    subject.expect_contents(buffer, array)
    subject.destroy_buffers(alias, buffer)


@check(
    "alias_buffer.waits",
    calls=_CALLS,
    rule="An alias is not ready before it is fulfilled.",
)
def _waits(subject: Subject) -> None:
    alias, handle = make_alias(subject, [4])
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=alias).event
    subject.expect(not is_ready(subject, event), "an alias that is not ready", "that it is ready")
    buffer = subject.buffer(ramp(4))
    fulfill(subject, handle, buffer)
    subject.await_event(event)
    subject.destroy_buffers(alias, buffer)


@check(
    "alias_buffer.properties",
    calls=(*_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_Memory", "PJRT_Buffer_Device"),
    rule="An alias has its type, dimensions and place from the beginning, before there is a buffer.",
)
def _properties(subject: Subject) -> None:
    alias, handle = make_alias(subject, [2, 3])
    subject.expect(subject.shape(alias) == (2, 3), "the dimensions (2, 3)", str(subject.shape(alias)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=alias).type
    subject.expect(number == 11, "the type F32", f"{number}")
    device = subject.call("PJRT_Buffer_Device", buffer=alias).device
    subject.expect(device == subject.device, "the first device", "another device")
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=alias).is_deleted
    subject.expect(not deleted, "an alias that is not deleted", "that it is")
    fail(subject, handle, StatusCode.ABORTED, _REASON)
    subject.destroy_buffers(alias)


@check(
    "alias_buffer.read_before_it_is_fulfilled",
    calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer"),
    rule="A read of an alias waits until it is fulfilled.",
)
def _read_before_it_is_fulfilled(subject: Subject) -> None:
    array, data = ramp(4), np.zeros(4, np.float32)
    alias, handle = make_alias(subject, [4])
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=alias, dst=data)
    subject.expect(not is_ready(subject, read.event), "a read that waits", "that it is done")
    buffer = subject.buffer(array)
    fulfill(subject, handle, buffer)
    subject.await_event(read.event)
    expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))
    subject.destroy_buffers(alias, buffer)


@check(
    "alias_buffer.error",
    calls=_CALLS,
    rule="With a status code the alias fails with this code and message, wherever it is used.",
    over=("CANCELLED", "NOT_FOUND", "RESOURCE_EXHAUSTED", "INTERNAL"),
)
def _error_of_alias(subject: Subject, code: str) -> None:
    alias, handle = make_alias(subject, [4])
    fail(subject, handle, StatusCode[code], _REASON)
    expect_same_error(subject, ready_error(subject, alias), StatusCode[code], _REASON)
    expect_same_error(subject, read_error(subject, alias), StatusCode[code], _REASON)
    subject.destroy_buffers(alias)


@check(
    "alias_buffer.error_of_a_pending_read",
    calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer"),
    rule="A read that waits for an alias ends with the error of the alias.",
)
def _error_of_a_pending_read(subject: Subject) -> None:
    alias, handle = make_alias(subject, [4])
    data = np.zeros(4, np.float32)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=alias, dst=data)
    fail(subject, handle, StatusCode.DATA_LOSS, _REASON)
    expect_same_error(subject, subject.event_error(read.event), StatusCode.DATA_LOSS, _REASON)
    subject.destroy_buffers(alias)


@check(
    "alias_buffer.of_an_error",
    calls=(*_CALLS, "PJRT_Client_CreateErrorBuffer"),
    rule="An alias of a buffer with an error has this error.",
)
def _of_an_error(subject: Subject) -> None:
    subject.require("PJRT_Client_CreateErrorBuffer")
    alias, handle = make_alias(subject, [4])
    fields: dict[str, Any] = error_fields(StatusCode.UNAVAILABLE, _REASON)
    buffer = subject.call(
        "PJRT_Client_CreateErrorBuffer",
        client=subject.client,
        shape_dims=[4],
        shape_element_type=11,
        memory=default_memory(subject, subject.device),
        **fields,
    ).buffer
    fulfill(subject, handle, buffer)
    expect_same_error(subject, ready_error(subject, alias), StatusCode.UNAVAILABLE, _REASON)
    subject.destroy_buffers(alias, buffer)


@check(
    "alias_buffer.buffer_destroyed",
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    rule="An alias keeps its value when the buffer that it stands for is destroyed.",
)
def _buffer_destroyed(subject: Subject) -> None:
    array = ramp(4096)
    alias, handle = make_alias(subject, [4096])
    buffer = subject.buffer(array)
    fulfill(subject, handle, buffer)
    subject.destroy_buffers(buffer)
    other = subject.buffer(array + 1)
    subject.expect_contents(alias, array)
    subject.destroy_buffers(alias, other)


@check(
    "alias_buffer.alias_destroyed",
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    rule="An alias may be destroyed before it is fulfilled; fulfilling it then harms nothing.",
    over=("value", "error"),
)
def _alias_destroyed(subject: Subject, kind: str) -> None:
    alias, handle = make_alias(subject, [4])
    subject.destroy_buffers(alias)
    buffer = subject.buffer(ramp(4))
    if kind == "value":
        subject.attempt(FULFILL, client=subject.client, buffer=buffer, status_code=0, fulfill_alias_buffer_cb=handle)
    else:
        subject.attempt(
            FULFILL,
            client=subject.client,
            status_code=int(StatusCode.CANCELLED),
            error_message=_REASON,
            fulfill_alias_buffer_cb=handle,
        )
    subject.expect_contents(buffer, ramp(4))
    subject.destroy_buffers(buffer)


@check(
    "alias_buffer.of_an_alias",
    calls=_CALLS,
    rule="An alias may stand for another alias, in any order of fulfilling them.",
    over=("inner_first", "outer_first"),
)
def _of_an_alias(subject: Subject, order: str) -> None:
    array = ramp(4)
    outer, outer_handle = make_alias(subject, [4])
    inner, inner_handle = make_alias(subject, [4])
    buffer = subject.buffer(array)
    if order == "inner_first":
        fulfill(subject, inner_handle, buffer)
        fulfill(subject, outer_handle, inner)
    else:
        fulfill(subject, outer_handle, inner)
        fulfill(subject, inner_handle, buffer)
    subject.expect_contents(outer, array)
    subject.destroy_buffers(outer, inner, buffer)


@check(
    "alias_buffer.executed_before_it_is_fulfilled",
    calls=(*_CALLS, "PJRT_LoadedExecutable_Execute"),
    rule="An execution may take an alias before it is fulfilled; its results wait for the value.",
)
def _executed_before_it_is_fulfilled(subject: Subject) -> None:
    executable = subject.compile("identity")
    alias, handle = make_alias(subject, [4])
    result = subject.attempt_execute(executable, [[alias]])
    subject.expect(result.error is None, "PJRT_LoadedExecutable_Execute to succeed", str(result.error))
    output = result.output_lists[0][0]
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=output).event
    subject.expect(not is_ready(subject, event), "a result that is not ready", "that it is ready")
    buffer = subject.buffer(ramp(4))
    fulfill(subject, handle, buffer)
    subject.await_event(event)
    for each in result.device_complete_events:
        subject.await_event(each)
    subject.expect_contents(output, ramp(4))
    subject.destroy_buffers(output, alias, buffer)


@check(
    "alias_buffer.nothing_to_stand_for",
    calls=_CALLS,
    rule="Without a buffer and without an error the call is an error.",
)
def _nothing_to_stand_for(subject: Subject) -> None:
    alias, handle = make_alias(subject, [4])
    subject.fails(FULFILL, MISUSE, client=subject.client, buffer=0, status_code=0, fulfill_alias_buffer_cb=handle)
    subject.destroy_buffers(alias)


@check("alias_buffer.null_handle", calls=(FULFILL,), rule="A null pointer in place of the handle is an error.")
def _null_handle(subject: Subject) -> None:
    subject.require(*_CALLS)
    buffer = subject.buffer(ramp(4))
    subject.fails(FULFILL, MISUSE, client=subject.client, buffer=buffer, status_code=0, fulfill_alias_buffer_cb=0)
    subject.expect_contents(buffer, ramp(4))
    subject.destroy_buffers(buffer)
