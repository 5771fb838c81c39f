"""Donations of a buffer to another one that waits for the caller."""

from __future__ import annotations

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    expect_same_error,
    from_host,
    is_ready,
    ramp,
    read_error,
    ready_error,
)
from pjrt.conformance.plugin.contract.buffers.buffer_placement import other_device
from pjrt.conformance.plugin.contract.events.event_calls import call_back, error_fields
from pjrt.conformance.plugin.subject import Subject

DONATE = "PJRT_Buffer_DonateWithControlDependency"
_CALLS = (DONATE,)


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


@check(
    "donate_with_control_dependency.waits",
    calls=_CALLS,
    rule="The new buffer has the value of the old one, and is not ready before the dependency is.",
)
def _waits(subject: Subject) -> None:
    array = ramp(3, 5)
    buffer = subject.buffer(array)
    donation = donate(subject, buffer)
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=donation.out_buffer).event
    subject.expect(not is_ready(subject, event), "a buffer that is not ready", "that it is ready")
    release(subject, donation)
    subject.await_event(event)
    subject.expect_contents(donation.out_buffer, array)
    subject.destroy_buffers(buffer, donation.out_buffer)


@check(
    "donate_with_control_dependency.source_is_gone",
    calls=_CALLS,
    rule="The old buffer was donated: its contents cannot be used any more.",
)
def _source_is_gone(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer, donation.out_buffer)


@check(
    "donate_with_control_dependency.source_destroyed",
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    rule="The old buffer may be destroyed at once; the memory belongs to the new one.",
)
def _source_destroyed(subject: Subject) -> None:
    array = ramp(4096)
    buffer = subject.buffer(array)
    donation = donate(subject, buffer)
    subject.destroy_buffers(buffer)
    other = subject.buffer(array + 1)
    release(subject, donation)
    subject.expect_contents(donation.out_buffer, array)
    subject.destroy_buffers(donation.out_buffer, other)


@check(
    "donate_with_control_dependency.error",
    calls=_CALLS,
    rule="If the dependency fails, the new buffer has its error, with the code and the message.",
    over=("CANCELLED", "ABORTED", "INTERNAL"),
)
def _error_of_dependency(subject: Subject, code: str) -> None:
    buffer = subject.buffer(ramp(4))
    donation = donate(subject, buffer)
    fields = error_fields(StatusCode[code], "the dependency failed on purpose")
    call_back(subject, donation, "dependency_ready_callback", **fields)
    error = ready_error(subject, donation.out_buffer)
    expect_same_error(subject, error, StatusCode[code], "the dependency failed on purpose")
    error = read_error(subject, donation.out_buffer)
    expect_same_error(subject, error, StatusCode[code], "the dependency failed on purpose")
    subject.destroy_buffers(buffer, donation.out_buffer)


@check(
    "donate_with_control_dependency.destroyed_before_the_dependency",
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    rule="The new buffer may be destroyed before the dependency is ready; the callback may still be called.",
)
def _destroyed_before_the_dependency(subject: Subject) -> None:
    buffer = subject.buffer(ramp(4))
    donation = donate(subject, buffer)
    subject.destroy_buffers(buffer, donation.out_buffer)
    release(subject, donation)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))


@check(
    "donate_with_control_dependency.before_ready",
    calls=(*_CALLS, "PJRT_Client_BufferFromHostBuffer"),
    rule="A buffer may be donated before it is ready: the new one waits for the data and for the dependency.",
)
def _before_ready(subject: Subject) -> None:
    array = ramp(1 << 20)
    result = from_host(subject, array, 1)
    donation = donate(subject, result.buffer)
    release(subject, donation)
    subject.expect_contents(donation.out_buffer, array)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer, donation.out_buffer)


@check(
    "donate_with_control_dependency.used_before_the_dependency",
    calls=(*_CALLS, "PJRT_Buffer_CopyToDevice"),
    rule="Copies of the new buffer wait for the dependency as the buffer does.",
)
def _used_before_the_dependency(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer, donation.out_buffer, copy)


@check(
    "donate_with_control_dependency.chain",
    calls=_CALLS,
    rule="The new buffer may be donated again before it is ready; the last one waits for all dependencies.",
)
def _chain(subject: Subject) -> None:
    buffer = subject.buffer(ramp(4))
    first = donate(subject, buffer)
    second = donate(subject, first.out_buffer)
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=second.out_buffer).event
    release(subject, second)
    subject.expect(not is_ready(subject, event), "a buffer that waits for the first dependency", "that it is ready")
    release(subject, first)
    subject.await_event(event)
    subject.expect_contents(second.out_buffer, ramp(4))
    subject.destroy_buffers(buffer, first.out_buffer, second.out_buffer)


@check(
    "donate_with_control_dependency.properties",
    calls=(*_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_Memory"),
    rule="The new buffer has the type, the dimensions and the place of the old one.",
)
def _properties(subject: Subject) -> None:
    buffer = subject.buffer(ramp(2, 3))
    place = subject.call("PJRT_Buffer_Device", buffer=buffer).device
    donation = donate(subject, buffer)
    out = donation.out_buffer
    subject.expect(subject.shape(out) == (2, 3), "the dimensions (2, 3)", str(subject.shape(out)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=out).type
    subject.expect(number == 11, "the type F32", f"{number}")
    subject.expect(subject.call("PJRT_Buffer_Device", buffer=out).device == place, "the same device", "another one")
    release(subject, donation)
    subject.destroy_buffers(buffer, out)
