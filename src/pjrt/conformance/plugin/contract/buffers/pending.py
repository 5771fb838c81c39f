"""Buffers whose value comes later, or never: alias buffers, error buffers, donations, and the events of readiness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.calls import (
    MISUSE,
    default_memory,
    expect_bytes,
    expect_same_error,
    from_host,
    is_ready,
    memories_of,
    other_device,
    other_memory,
    outcome_of_copy,
    ramp,
    read_error,
    ready_error,
    tiled,
)
from pjrt.conformance.plugin.contract.buffers.properties import deleted_buffer
from pjrt.conformance.plugin.contract.buffers.raw_memory import raw_error
from pjrt.conformance.plugin.contract.events import call_back, error_fields, on_ready
from pjrt.conformance.plugin.subject import Subject

# Alias buffers: they stand for another buffer, which the caller names later.

CREATE_ALIAS, FULFILL = "PJRT_Client_CreateAliasBuffer", "PJRT_Client_FulfillAliasBuffer"
_ALIAS_CALLS = (CREATE_ALIAS, FULFILL)
_REASON = "there is no buffer, on purpose"


def make_alias(subject: Subject, dims: Sequence[int], element_type: int = 11) -> tuple[int, int]:
    """Return an alias buffer in the default memory of the first device, and the handle to fulfill it."""
    subject.require(*_ALIAS_CALLS)
    result = subject.call(
        CREATE_ALIAS,
        client=subject.client,
        memory=default_memory(subject, subject.device),
        shape_dims=list(dims),
        shape_element_type=element_type,
        shape_layout=tiled(range(len(dims))[::-1]),
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
    "alias_buffer.value", calls=_ALIAS_CALLS, over={"rank_0": (), "rank_1": (5,), "rank_3": (2, 3, 4), "empty": (0, 3)}
)
def _value(subject: Subject, dims: tuple[int, ...]) -> None:
    """After PJRT_Client_FulfillAliasBuffer the alias has the value of the buffer."""
    array = ramp(*dims)
    alias, handle = make_alias(subject, dims)
    buffer = subject.buffer(array)
    fulfill(subject, handle, buffer)
    subject.expect_contents(alias, array)
    subject.expect_contents(buffer, array)


@check("alias_buffer.without_layout", calls=_ALIAS_CALLS)
def _without_layout(subject: Subject) -> None:
    """The header does not say that shape_layout may be null: then the alias is row-major, or it is an error."""
    subject.require(*_ALIAS_CALLS)
    place = default_memory(subject, subject.device)
    shape = {"shape_dims": [3, 5], "shape_element_type": 11}
    result = subject.attempt(CREATE_ALIAS, client=subject.client, memory=place, **shape)
    if result.error is None:
        fulfill(subject, int(result.fulfill_alias_buffer_cb), subject.buffer(ramp(3, 5)))
        subject.expect_contents(int(result.alias_buffer), ramp(3, 5))


@check("alias_buffer.waits", calls=_ALIAS_CALLS)
def _alias_buffer_waits(subject: Subject) -> None:
    """An alias is not ready before it is fulfilled."""
    alias, handle = make_alias(subject, [4])
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=alias).event
    subject.expect(not is_ready(subject, event), "an alias that is not ready", "that it is ready")
    buffer = subject.buffer(ramp(4))
    fulfill(subject, handle, buffer)
    subject.await_event(event)


@check(
    "alias_buffer.properties",
    calls=(
        *_ALIAS_CALLS,
        "PJRT_Buffer_Dimensions",
        "PJRT_Buffer_ElementType",
        "PJRT_Buffer_Memory",
        "PJRT_Buffer_Device",
    ),
)
def _alias_buffer_properties(subject: Subject) -> None:
    """An alias has its type, dimensions and place from the beginning, before there is a buffer."""
    alias, handle = make_alias(subject, [2, 3])
    subject.expect(subject.shape(alias) == (2, 3), "the dimensions (2, 3)", str(subject.shape(alias)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=alias).type
    subject.expect(number == 11, "the type F32", f"{number}")
    device = subject.call("PJRT_Buffer_Device", buffer=alias).device
    subject.expect(device == subject.device, "the first device", "another device")
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=alias).is_deleted
    subject.expect(not deleted, "an alias that is not deleted", "that it is")
    fail(subject, handle, StatusCode.ABORTED, _REASON)


@check("alias_buffer.read_before_it_is_fulfilled", calls=(*_ALIAS_CALLS, "PJRT_Buffer_ToHostBuffer"))
def _read_before_it_is_fulfilled(subject: Subject) -> None:
    """A read of an alias waits until it is fulfilled."""
    array, data = ramp(4), np.zeros(4, np.float32)
    alias, handle = make_alias(subject, [4])
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=alias, dst=data)
    subject.expect(not is_ready(subject, read.event), "a read that waits", "that it is done")
    buffer = subject.buffer(array)
    fulfill(subject, handle, buffer)
    subject.await_event(read.event)
    expect_bytes(subject, data.view(np.uint8), array.view(np.uint8))


@check("alias_buffer.error", calls=_ALIAS_CALLS, over=("CANCELLED", "NOT_FOUND", "RESOURCE_EXHAUSTED", "INTERNAL"))
def _error_of_alias(subject: Subject, code: str) -> None:
    """With a status code the alias fails with this code and message, wherever it is used."""
    alias, handle = make_alias(subject, [4])
    fail(subject, handle, StatusCode[code], _REASON)
    expect_same_error(subject, ready_error(subject, alias), StatusCode[code], _REASON)
    expect_same_error(subject, read_error(subject, alias), StatusCode[code], _REASON)


@check("alias_buffer.error_of_a_pending_read", calls=(*_ALIAS_CALLS, "PJRT_Buffer_ToHostBuffer"))
def _error_of_a_pending_read(subject: Subject) -> None:
    """A read that waits for an alias ends with the error of the alias."""
    alias, handle = make_alias(subject, [4])
    data = np.zeros(4, np.float32)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=alias, dst=data)
    fail(subject, handle, StatusCode.DATA_LOSS, _REASON)
    expect_same_error(subject, subject.event_error(read.event), StatusCode.DATA_LOSS, _REASON)


@check("alias_buffer.of_an_error", calls=(*_ALIAS_CALLS, "PJRT_Client_CreateErrorBuffer"))
def _of_an_error(subject: Subject) -> None:
    """An alias of a buffer with an error has this error."""
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


@check("alias_buffer.buffer_destroyed", calls=(*_ALIAS_CALLS, "PJRT_Buffer_Destroy"))
def _buffer_destroyed(subject: Subject) -> None:
    """An alias keeps its value when the buffer that it stands for is destroyed."""
    array = ramp(4096)
    alias, handle = make_alias(subject, [4096])
    buffer = subject.buffer(array)
    fulfill(subject, handle, buffer)
    subject.destroy_buffers(buffer)
    other = subject.buffer(array + 1)
    subject.expect_contents(alias, array)
    subject.destroy_buffers(alias, other)


@check("alias_buffer.alias_destroyed", calls=(*_ALIAS_CALLS, "PJRT_Buffer_Destroy"), over=("value", "error"))
def _alias_destroyed(subject: Subject, kind: str) -> None:
    """An alias may be destroyed before it is fulfilled; fulfilling it then harms nothing."""
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


@check("alias_buffer.of_an_alias", calls=_ALIAS_CALLS, over=("inner_first", "outer_first"))
def _of_an_alias(subject: Subject, order: str) -> None:
    """An alias may stand for another alias, in any order of fulfilling them."""
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


@check("alias_buffer.executed_before_it_is_fulfilled", calls=(*_ALIAS_CALLS, "PJRT_LoadedExecutable_Execute"))
def _executed_before_it_is_fulfilled(subject: Subject) -> None:
    """An execution may take an alias before it is fulfilled; its results wait for the value."""
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


@check("alias_buffer.nothing_to_stand_for", calls=_ALIAS_CALLS)
def _nothing_to_stand_for(subject: Subject) -> None:
    """Without a buffer and without an error the call is an error."""
    _, handle = make_alias(subject, [4])
    subject.fails(FULFILL, MISUSE, client=subject.client, buffer=0, status_code=0, fulfill_alias_buffer_cb=handle)


@check("alias_buffer.null_handle", calls=(FULFILL,))
def _null_handle(subject: Subject) -> None:
    """A null pointer in place of the handle is an error."""
    subject.require(*_ALIAS_CALLS)
    buffer = subject.buffer(ramp(4))
    subject.fails(FULFILL, MISUSE, client=subject.client, buffer=buffer, status_code=0, fulfill_alias_buffer_cb=0)
    subject.expect_contents(buffer, ramp(4))


# Error buffers: buffers that carry an error in place of a value.

CREATE_ERROR = "PJRT_Client_CreateErrorBuffer"
_ERROR_CALLS = (CREATE_ERROR,)
_CODES = tuple(each.name for each in StatusCode if each != StatusCode.OK)
_MESSAGE = "no value, on purpose"


def error_buffer(
    subject: Subject, code: StatusCode = StatusCode.DATA_LOSS, message: str = _MESSAGE, **fields: Any
) -> int:
    """Return a buffer of four floats with an error, in the default memory of the first device."""
    subject.require(CREATE_ERROR)
    result = subject.call(
        CREATE_ERROR,
        **{
            "client": subject.client,
            "error_code": int(code),
            "error_message": message,
            "shape_dims": [4],
            "shape_element_type": 11,
            "memory": default_memory(subject, subject.device),
            **fields,
        },
    )
    subject.expect(result.buffer, "a buffer", "a null pointer")
    return int(result.buffer)


@check("error_buffer.code", calls=(*_ERROR_CALLS, "PJRT_Buffer_ReadyEvent"), over=_CODES)
def _code(subject: Subject, name: str) -> None:
    """The ready event of an error buffer has the code and the message that the buffer was made with."""
    buffer = error_buffer(subject, StatusCode[name])
    expect_same_error(subject, ready_error(subject, buffer), StatusCode[name], _MESSAGE)


_MESSAGES = {
    "short": "x",
    "lines": "one line\nand another\ttab",
    "unicode": "größer als 2³ – ошибка",
    "long": "a long story " * 1000,
}


@check("error_buffer.message", calls=(*_ERROR_CALLS, "PJRT_Buffer_ReadyEvent"), over=tuple(_MESSAGES))
def _message(subject: Subject, name: str) -> None:
    """The message is kept whole; error_message_size is its length."""
    buffer = error_buffer(subject, message=_MESSAGES[name])
    expect_same_error(subject, ready_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGES[name])


@check("error_buffer.message_size", calls=(*_ERROR_CALLS, "PJRT_Buffer_ReadyEvent"))
def _message_size(subject: Subject) -> None:
    """The message ends where error_message_size says, without a zero at its end."""
    buffer = error_buffer(subject, message=b"the message|not the message", error_message_size=11)  # type: ignore[arg-type]
    error = ready_error(subject, buffer)
    expect_same_error(subject, error, StatusCode.DATA_LOSS, "the message")
    subject.expect(error is not None and "not the" not in error.message, "the message alone", str(error))


@check("error_buffer.event_is_ready", calls=(*_ERROR_CALLS, "PJRT_Event_IsReady"))
def _event_is_ready(subject: Subject) -> None:
    """Its ready event is triggered: an error has occurred."""
    buffer = error_buffer(subject)
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=buffer).event
    calls = on_ready(subject, event)
    error = subject.attempt("PJRT_Event_Await", event=event).error
    subject.expect(is_ready(subject, event), "a ready event", "that it is not ready")
    again = subject.attempt("PJRT_Event_Error", event=event).error
    subject.expect(again == error, str(error), str(again))
    calls.expect_once(error)


@check(
    "error_buffer.read",
    calls=(*_ERROR_CALLS, "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_CopyRawToHost"),
    over=("PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_CopyRawToHost", "PJRT_Buffer_CopyRawToHostFuture"),
)
def _read(subject: Subject, name: str) -> None:
    """A read of an error buffer ends with its error, of the call or of its event."""
    subject.require(name)
    buffer = error_buffer(subject)
    error = read_error(subject, buffer) if name == "PJRT_Buffer_ToHostBuffer" else raw_error(subject, name, buffer)
    expect_same_error(subject, error, StatusCode.DATA_LOSS, _MESSAGE)


@check(
    "error_buffer.copy",
    calls=(*_ERROR_CALLS, "PJRT_Buffer_CopyToDevice", "PJRT_Buffer_CopyToMemory"),
    over=("PJRT_Buffer_CopyToDevice", "PJRT_Buffer_CopyToMemory"),
)
def _copy(subject: Subject, name: str) -> None:
    """A copy of an error buffer has its error, with the code and the message."""
    subject.require(name)
    to_device = name == "PJRT_Buffer_CopyToDevice"
    place = {"dst_device": other_device(subject)} if to_device else {"dst_memory": other_memory(subject)}
    buffer = error_buffer(subject)
    error = outcome_of_copy(subject, name, "dst_buffer", buffer=buffer, **place)
    expect_same_error(subject, error, StatusCode.DATA_LOSS, _MESSAGE)


@check("error_buffer.execute", calls=(*_ERROR_CALLS, "PJRT_LoadedExecutable_Execute"), over=_CODES)
def _error_of_execution(subject: Subject, name: str) -> None:
    """An execution with an error buffer fails with its code and message, and so do executions with the results."""
    executable = subject.compile("add")
    buffer, other = error_buffer(subject, StatusCode[name]), subject.buffer(ramp(4))
    errors, outputs = _execute(subject, executable, [buffer, other])
    for error in errors:
        expect_same_error(subject, error, StatusCode[name], _MESSAGE)
    if outputs:
        errors, more = _execute(subject, executable, [other, outputs[0]])
        for error in errors:
            expect_same_error(subject, error, StatusCode[name], _MESSAGE)
        subject.destroy_buffers(*outputs, *more)
    subject.expect_contents(other, ramp(4))


@check(
    "error_buffer.properties",
    calls=(
        *_ERROR_CALLS,
        "PJRT_Buffer_Dimensions",
        "PJRT_Buffer_ElementType",
        "PJRT_Buffer_IsDeleted",
        "PJRT_Buffer_Device",
    ),
)
def _error_buffer_properties(subject: Subject) -> None:
    """An error buffer has the type and the dimensions that it was made with, and is not deleted."""
    buffer = error_buffer(subject, shape_dims=[2, 3], shape_element_type=4)
    subject.expect(subject.shape(buffer) == (2, 3), "the dimensions (2, 3)", str(subject.shape(buffer)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=buffer).type
    subject.expect(number == 4, "the type S32", f"{number}")
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted
    subject.expect(not deleted, "a buffer that is not deleted", "that it is")
    device = subject.call("PJRT_Buffer_Device", buffer=buffer).device
    subject.expect(device == subject.device, "the first device", "another device")
    subject.call("PJRT_Buffer_Delete", buffer=buffer)


@check("error_buffer.in_each_memory", calls=(*_ERROR_CALLS, "PJRT_Buffer_Memory"))
def _in_each_memory(subject: Subject) -> None:
    """An error buffer is in the memory of the argument."""
    subject.require(CREATE_ERROR)
    for device in subject.devices:
        for memory in memories_of(subject, device):
            buffer = error_buffer(subject, memory=memory)
            found = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
            subject.expect(found == memory, "the memory of the argument", "another memory")
            expect_same_error(subject, ready_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGE)
            subject.destroy_buffers(buffer)


@check("error_buffer.needs_no_memory", calls=_ERROR_CALLS)
def _needs_no_memory(subject: Subject) -> None:
    """An error buffer allocates no memory on the device, whatever its shape is."""
    buffers = [error_buffer(subject, shape_dims=[1 << 40]) for _ in range(8)]
    for buffer in buffers:
        expect_same_error(subject, ready_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGE)


@check("error_buffer.repeated", calls=_ERROR_CALLS)
def _repeated(subject: Subject) -> None:
    """The error is there as often as it is asked for."""
    buffer = error_buffer(subject)
    for _ in range(20):
        expect_same_error(subject, ready_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGE)
        expect_same_error(subject, read_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGE)


def _execute(subject: Subject, executable: int, row: list[int]) -> tuple[list[raw.Error | None], list[int]]:
    """Execute a program; return the errors of the call, or of each result, and the results."""
    result = subject.attempt_execute(executable, [row])
    if result.error is not None:
        return [result.error], []
    for event in result.device_complete_events:
        subject.event_error(event)
    outputs = [int(each) for each in result.output_lists[0]]
    return [ready_error(subject, output) for output in outputs], outputs


# Donations of a buffer to another one that waits for the caller.

DONATE = "PJRT_Buffer_DonateWithControlDependency"
_DONATE_CALLS = (DONATE,)


def donate(subject: Subject, buffer: int) -> raw.Result:
    """Donate a buffer to one that waits; return the result, with ``out_buffer``."""
    subject.require(DONATE)
    result = subject.call(DONATE, buffer=buffer)
    subject.expect(result.out_buffer, "a buffer", "a null pointer")
    subject.expect(result.dependency_ready_callback, "a function to call", "a null pointer")
    return result


def release(subject: Subject, donation: raw.Result) -> None:
    """Let the new buffer of a donation go on."""
    call_back(subject, donation, "dependency_ready_callback")


@check("donate_with_control_dependency.waits", calls=_DONATE_CALLS)
def _donate_with_control_dependency_waits(subject: Subject) -> None:
    """The new buffer has the value of the old one, and is not ready before the dependency is."""
    array = ramp(3, 5)
    buffer = subject.buffer(array)
    donation = donate(subject, buffer)
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=donation.out_buffer).event
    subject.expect(not is_ready(subject, event), "a buffer that is not ready", "that it is ready")
    release(subject, donation)
    subject.await_event(event)
    subject.expect_contents(donation.out_buffer, array)


@check("donate_with_control_dependency.source_is_gone", calls=_DONATE_CALLS)
def _source_is_gone(subject: Subject) -> None:
    """The old buffer was donated: its contents cannot be used any more."""
    buffer = subject.buffer(ramp(4))
    donation = donate(subject, buffer)
    error = read_error(subject, buffer)
    subject.expect(error is not None, "an error of the read of the old buffer", "that it succeeded")
    again = subject.attempt(DONATE, buffer=buffer)
    subject.expect(again.error is not None, "an error of a second donation", "that it succeeded")
    error = ready_error(subject, buffer)
    subject.expect(error is not None, "a ready event with an error", "no error")
    release(subject, donation)
    subject.expect_contents(donation.out_buffer, ramp(4))


@check("donate_with_control_dependency.source_destroyed", calls=(*_DONATE_CALLS, "PJRT_Buffer_Destroy"))
def _source_destroyed(subject: Subject) -> None:
    """The old buffer may be destroyed at once; the memory belongs to the new one."""
    array = ramp(4096)
    buffer = subject.buffer(array)
    donation = donate(subject, buffer)
    subject.destroy_buffers(buffer)
    other = subject.buffer(array + 1)
    release(subject, donation)
    subject.expect_contents(donation.out_buffer, array)
    subject.destroy_buffers(donation.out_buffer, other)


@check("donate_with_control_dependency.error", calls=_DONATE_CALLS, over=("CANCELLED", "ABORTED", "INTERNAL"))
def _error_of_dependency(subject: Subject, code: str) -> None:
    """If the dependency fails, the new buffer has its error, with the code and the message."""
    buffer = subject.buffer(ramp(4))
    donation = donate(subject, buffer)
    fields = error_fields(StatusCode[code], "the dependency failed on purpose")
    call_back(subject, donation, "dependency_ready_callback", **fields)
    error = ready_error(subject, donation.out_buffer)
    expect_same_error(subject, error, StatusCode[code], "the dependency failed on purpose")
    error = read_error(subject, donation.out_buffer)
    expect_same_error(subject, error, StatusCode[code], "the dependency failed on purpose")


@check("donate_with_control_dependency.destroyed_before_the_dependency", calls=(*_DONATE_CALLS, "PJRT_Buffer_Destroy"))
def _destroyed_before_the_dependency(subject: Subject) -> None:
    """The new buffer may be destroyed before the dependency is ready; the callback may still be called."""
    buffer = subject.buffer(ramp(4))
    donation = donate(subject, buffer)
    subject.destroy_buffers(buffer, donation.out_buffer)
    release(subject, donation)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))


@check("donate_with_control_dependency.before_ready", calls=(*_DONATE_CALLS, "PJRT_Client_BufferFromHostBuffer"))
def _before_ready(subject: Subject) -> None:
    """A buffer may be donated before it is ready: the new one waits for the data and for the dependency."""
    array = ramp(1 << 20)
    result = from_host(subject, array, 1)
    donation = donate(subject, result.buffer)
    release(subject, donation)
    subject.expect_contents(donation.out_buffer, array)
    subject.await_event(result.done_with_host_buffer)


@check("donate_with_control_dependency.used_before_the_dependency", calls=(*_DONATE_CALLS, "PJRT_Buffer_CopyToDevice"))
def _used_before_the_dependency(subject: Subject) -> None:
    """Copies of the new buffer wait for the dependency as the buffer does."""
    subject.require("PJRT_Buffer_CopyToDevice")
    target = other_device(subject)
    buffer = subject.buffer(ramp(4))
    donation = donate(subject, buffer)
    copy = subject.call("PJRT_Buffer_CopyToDevice", buffer=donation.out_buffer, dst_device=target).dst_buffer
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=copy).event
    subject.expect(not is_ready(subject, event), "a copy that is not ready", "that it is ready")
    release(subject, donation)
    subject.await_event(event)
    subject.expect_contents(copy, ramp(4))


@check("donate_with_control_dependency.chain", calls=_DONATE_CALLS)
def _chain(subject: Subject) -> None:
    """The new buffer may be donated again before it is ready; the last one waits for all dependencies."""
    buffer = subject.buffer(ramp(4))
    first = donate(subject, buffer)
    second = donate(subject, first.out_buffer)
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=second.out_buffer).event
    release(subject, second)
    subject.expect(not is_ready(subject, event), "a buffer that waits for the first dependency", "that it is ready")
    release(subject, first)
    subject.await_event(event)
    subject.expect_contents(second.out_buffer, ramp(4))


@check(
    "donate_with_control_dependency.properties",
    calls=(*_DONATE_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_Memory"),
)
def _donate_with_control_dependency_properties(subject: Subject) -> None:
    """The new buffer has the type, the dimensions and the place of the old one."""
    buffer = subject.buffer(ramp(2, 3))
    place = subject.call("PJRT_Buffer_Device", buffer=buffer).device
    donation = donate(subject, buffer)
    out = donation.out_buffer
    subject.expect(subject.shape(out) == (2, 3), "the dimensions (2, 3)", str(subject.shape(out)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=out).type
    subject.expect(number == 11, "the type F32", f"{number}")
    subject.expect(subject.call("PJRT_Buffer_Device", buffer=out).device == place, "the same device", "another one")
    release(subject, donation)


# The events that tell when a buffer is ready.

_READY = ("PJRT_Buffer_ReadyEvent",)


@check("buffer.ready_event", calls=(*_READY, "PJRT_Event_Await", "PJRT_Event_IsReady", "PJRT_Event_Error"))
def _ready_event(subject: Subject) -> None:
    """The event is triggered when the data is ready, and then has no error."""
    array = ramp(1 << 18)
    result = from_host(subject, array, 1)
    event = subject.call(_READY[0], buffer=result.buffer).event
    subject.expect(event, "an event", "a null pointer")
    subject.call("PJRT_Event_Await", event=event)
    subject.expect(is_ready(subject, event), "a ready event after the wait", "that it is not ready")
    subject.call("PJRT_Event_Error", event=event)
    subject.call("PJRT_Event_Destroy", event=event)
    subject.await_event(result.done_with_host_buffer)


@check("buffer.ready_events_are_independent", calls=_READY)
def _ready_events_are_independent(subject: Subject) -> None:
    """Each call returns an event of the caller's own, which is destroyed by itself."""
    buffer = subject.buffer(ramp(4))
    events = [subject.call(_READY[0], buffer=buffer).event for _ in range(5)]
    subject.expect(len(set(events)) == 5, "5 different events", f"{len(set(events))}")
    for event in events[::2]:
        subject.call("PJRT_Event_Destroy", event=event)
    for event in events[1::2]:
        subject.await_event(event)
    subject.destroy_buffers(buffer)


@check("buffer.ready_callback_once", calls=(*_READY, "PJRT_Event_OnReady"))
def _ready_callback_once(subject: Subject) -> None:
    """A callback on the event is called once, before or after the buffer is ready."""
    array = ramp(1 << 18)
    result = from_host(subject, array, 1)
    event = subject.call(_READY[0], buffer=result.buffer).event
    early = on_ready(subject, event)
    subject.call("PJRT_Event_Await", event=event)
    late = on_ready(subject, event)
    late.expect_once(None)
    early.expect_once(None)
    subject.call("PJRT_Event_Destroy", event=event)
    subject.await_event(result.done_with_host_buffer)


@check("buffer.ready_event_destroyed_in_its_callback", calls=(*_READY, "PJRT_Event_OnReady", "PJRT_Event_Destroy"))
def _ready_event_destroyed_after_registration(subject: Subject) -> None:
    """An event may be destroyed right after a callback was registered on it; the callback is still called once."""
    array = ramp(1 << 18)
    result = from_host(subject, array, 1)
    event = subject.call(_READY[0], buffer=result.buffer).event
    calls = on_ready(subject, event)
    subject.call("PJRT_Event_Destroy", event=event)
    calls.expect_once(None)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.ready_event_outlives_delete", calls=(*_READY, "PJRT_Buffer_Delete"), over=("ready_before", "pending_before")
)
def _ready_event_outlives_delete(subject: Subject, kind: str) -> None:
    """An event that was made before PJRT_Buffer_Delete does not become an error by it."""
    array = ramp(1 << 18)
    result = from_host(subject, array, 1)
    event = subject.call(_READY[0], buffer=result.buffer).event
    if kind == "ready_before":
        subject.call("PJRT_Event_Await", event=event)
    subject.call("PJRT_Buffer_Delete", buffer=result.buffer)
    subject.await_event(event)
    subject.await_event(result.done_with_host_buffer)


@check("buffer.ready_event_after_delete", calls=(*_READY, "PJRT_Buffer_Delete"))
def _ready_event_after_delete(subject: Subject) -> None:
    """The event of a deleted buffer immediately indicates an error."""
    buffer = deleted_buffer(subject)
    event = subject.call(_READY[0], buffer=buffer).event
    subject.expect(event, "an event", "a null pointer")
    subject.expect(is_ready(subject, event), "an event that is ready at once", "that it is not ready")
    error = subject.attempt("PJRT_Event_Error", event=event).error
    subject.expect(error is not None, "an event with an error", "no error")
    awaited = subject.event_error(event)
    subject.expect(awaited == error, str(error), str(awaited))


@check(
    "buffer.ready_event_of_a_pending_buffer",
    calls=(*_READY, "PJRT_Client_CreateAliasBuffer", "PJRT_Client_FulfillAliasBuffer"),
)
def _ready_event_of_a_pending_buffer(subject: Subject) -> None:
    """While the data is not there, the event is not ready and its callbacks are not called."""
    alias, handle = make_alias(subject, [4])
    event = subject.call(_READY[0], buffer=alias).event
    calls = on_ready(subject, event)
    subject.expect(not is_ready(subject, event), "an event that is not ready", "that it is ready")
    calls.expect_none()
    buffer = subject.buffer(ramp(4))
    fulfill(subject, handle, buffer)
    subject.await_event(event)
    calls.expect_once(None)
