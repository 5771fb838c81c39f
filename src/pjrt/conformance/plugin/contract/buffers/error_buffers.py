"""Error buffers: buffers that carry an error in place of a value."""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    expect_same_error,
    is_ready,
    outcome_of_copy,
    ramp,
    read_error,
    ready_error,
)
from pjrt.conformance.plugin.contract.buffers.buffer_placement import (
    default_memory,
    memories_of,
    other_device,
    other_memory,
)
from pjrt.conformance.plugin.contract.events.event_calls import on_ready
from pjrt.conformance.plugin.contract.transfers.raw_reads import raw_error
from pjrt.conformance.plugin.subject import Subject

CREATE = "PJRT_Client_CreateErrorBuffer"
_CALLS = (CREATE,)
_CODES = tuple(each.name for each in StatusCode if each != StatusCode.OK)
_MESSAGE = "no value, on purpose"


def error_buffer(
    subject: Subject, code: StatusCode = StatusCode.DATA_LOSS, message: str = _MESSAGE, **fields: Any
) -> int:
    """Return a buffer of four floats with an error, in the default memory of the first device."""
    subject.require(CREATE)
    result = subject.call(
        CREATE,
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


@check(
    "error_buffer.code",
    calls=(*_CALLS, "PJRT_Buffer_ReadyEvent"),
    rule="The ready event of an error buffer has the code and the message that the buffer was made with.",
    over=_CODES,
)
def _code(subject: Subject, name: str) -> None:
    buffer = error_buffer(subject, StatusCode[name])
    expect_same_error(subject, ready_error(subject, buffer), StatusCode[name], _MESSAGE)
    subject.destroy_buffers(buffer)


_MESSAGES = {
    "short": "x",
    "lines": "one line\nand another\ttab",
    "unicode": "größer als 2³ – ошибка",
    "long": "a long story " * 1000,
}


@check(
    "error_buffer.message",
    calls=(*_CALLS, "PJRT_Buffer_ReadyEvent"),
    rule="The message is kept whole; error_message_size is its length.",
    over=tuple(_MESSAGES),
)
def _message(subject: Subject, name: str) -> None:
    buffer = error_buffer(subject, message=_MESSAGES[name])
    expect_same_error(subject, ready_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGES[name])
    subject.destroy_buffers(buffer)


@check(
    "error_buffer.message_size",
    calls=(*_CALLS, "PJRT_Buffer_ReadyEvent"),
    rule="The message ends where error_message_size says, without a zero at its end.",
)
def _message_size(subject: Subject) -> None:
    buffer = error_buffer(subject, message=b"the message|not the message", error_message_size=11)  # type: ignore[arg-type]
    error = ready_error(subject, buffer)
    expect_same_error(subject, error, StatusCode.DATA_LOSS, "the message")
    subject.expect(error is not None and "not the" not in error.message, "the message alone", str(error))
    subject.destroy_buffers(buffer)


@check(
    "error_buffer.event_is_ready",
    calls=(*_CALLS, "PJRT_Event_IsReady"),
    rule="Its ready event is triggered: an error has occurred.",
)
def _event_is_ready(subject: Subject) -> None:
    buffer = error_buffer(subject)
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=buffer).event
    calls = on_ready(subject, event)
    error = subject.attempt("PJRT_Event_Await", event=event).error
    subject.expect(is_ready(subject, event), "a ready event", "that it is not ready")
    again = subject.attempt("PJRT_Event_Error", event=event).error
    subject.expect(again == error, str(error), str(again))
    calls.expect_once(error)
    subject.call("PJRT_Event_Destroy", event=event)
    subject.destroy_buffers(buffer)


@check(
    "error_buffer.read",
    calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_CopyRawToHost"),
    rule="A read of an error buffer ends with its error, of the call or of its event.",
    over=("PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_CopyRawToHost", "PJRT_Buffer_CopyRawToHostFuture"),
)
def _read(subject: Subject, name: str) -> None:
    subject.require(name)
    buffer = error_buffer(subject)
    error = read_error(subject, buffer) if name == "PJRT_Buffer_ToHostBuffer" else raw_error(subject, name, buffer)
    expect_same_error(subject, error, StatusCode.DATA_LOSS, _MESSAGE)
    subject.destroy_buffers(buffer)


@check(
    "error_buffer.copy",
    calls=(*_CALLS, "PJRT_Buffer_CopyToDevice", "PJRT_Buffer_CopyToMemory"),
    rule="A copy of an error buffer has its error, with the code and the message.",
    over=("PJRT_Buffer_CopyToDevice", "PJRT_Buffer_CopyToMemory"),
)
def _copy(subject: Subject, name: str) -> None:
    subject.require(name)
    to_device = name == "PJRT_Buffer_CopyToDevice"
    place = {"dst_device": other_device(subject)} if to_device else {"dst_memory": other_memory(subject)}
    buffer = error_buffer(subject)
    error = outcome_of_copy(subject, name, "dst_buffer", buffer=buffer, **place)
    expect_same_error(subject, error, StatusCode.DATA_LOSS, _MESSAGE)
    subject.destroy_buffers(buffer)


@check(
    "error_buffer.execute",
    calls=(*_CALLS, "PJRT_LoadedExecutable_Execute"),
    rule="An execution with an error buffer fails with its code and message, and so do executions with the results.",
    over=_CODES,
)
def _error_of_execution(subject: Subject, name: str) -> None:
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
    subject.destroy_buffers(buffer, other)


@check(
    "error_buffer.properties",
    calls=(*_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_IsDeleted", "PJRT_Buffer_Device"),
    rule="An error buffer has the type and the dimensions that it was made with, and is not deleted.",
)
def _properties(subject: Subject) -> None:
    buffer = error_buffer(subject, shape_dims=[2, 3], shape_element_type=4)
    subject.expect(subject.shape(buffer) == (2, 3), "the dimensions (2, 3)", str(subject.shape(buffer)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=buffer).type
    subject.expect(number == 4, "the type S32", f"{number}")
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted
    subject.expect(not deleted, "a buffer that is not deleted", "that it is")
    device = subject.call("PJRT_Buffer_Device", buffer=buffer).device
    subject.expect(device == subject.device, "the first device", "another device")
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    subject.destroy_buffers(buffer)


@check(
    "error_buffer.in_each_memory",
    calls=(*_CALLS, "PJRT_Buffer_Memory"),
    rule="An error buffer is in the memory of the argument.",
)
def _in_each_memory(subject: Subject) -> None:
    subject.require(CREATE)
    for device in subject.devices:
        for memory in memories_of(subject, device):
            buffer = error_buffer(subject, memory=memory)
            found = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
            subject.expect(found == memory, "the memory of the argument", "another memory")
            expect_same_error(subject, ready_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGE)
            subject.destroy_buffers(buffer)


@check(
    "error_buffer.needs_no_memory",
    calls=_CALLS,
    rule="An error buffer allocates no memory on the device, whatever its shape is.",
)
def _needs_no_memory(subject: Subject) -> None:
    buffers = [error_buffer(subject, shape_dims=[1 << 40]) for _ in range(8)]
    for buffer in buffers:
        expect_same_error(subject, ready_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGE)
    subject.destroy_buffers(*buffers)


@check("error_buffer.repeated", calls=_CALLS, rule="The error is there as often as it is asked for.")
def _repeated(subject: Subject) -> None:
    buffer = error_buffer(subject)
    for _ in range(20):
        expect_same_error(subject, ready_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGE)
        expect_same_error(subject, read_error(subject, buffer), StatusCode.DATA_LOSS, _MESSAGE)
    subject.destroy_buffers(buffer)


def _execute(subject: Subject, executable: int, row: list[int]) -> tuple[list[raw.Error | None], list[int]]:
    """Execute a program; return the errors of the call, or of each result, and the results."""
    result = subject.attempt_execute(executable, [row])
    if result.error is not None:
        return [result.error], []
    for event in result.device_complete_events:
        subject.event_error(event)
    outputs = [int(each) for each in result.output_lists[0]]
    return [ready_error(subject, output) for output in outputs], outputs
