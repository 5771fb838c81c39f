"""The events that tell when a buffer is ready."""

from __future__ import annotations

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.alias_buffers import fulfill, make_alias
from pjrt.conformance.plugin.contract.buffers.buffer_calls import from_host, is_ready, ramp
from pjrt.conformance.plugin.contract.buffers.buffer_deletion import deleted_buffer
from pjrt.conformance.plugin.contract.events.event_calls import on_ready
from pjrt.conformance.plugin.subject import Subject

_READY = ("PJRT_Buffer_ReadyEvent",)


@check(
    "buffer.ready_event",
    calls=(*_READY, "PJRT_Event_Await", "PJRT_Event_IsReady", "PJRT_Event_Error"),
    rule="The event is triggered when the data is ready, and then has no error.",
)
def _ready_event(subject: Subject) -> None:
    array = ramp(1 << 18)
    result = from_host(subject, array, 1)
    event = subject.call(_READY[0], buffer=result.buffer).event
    subject.expect(event, "an event", "a null pointer")
    subject.call("PJRT_Event_Await", event=event)
    subject.expect(is_ready(subject, event), "a ready event after the wait", "that it is not ready")
    subject.call("PJRT_Event_Error", event=event)
    subject.call("PJRT_Event_Destroy", event=event)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.ready_events_are_independent",
    calls=_READY,
    rule="Each call returns an event of the caller's own, which is destroyed by itself.",
)
def _ready_events_are_independent(subject: Subject) -> None:
    buffer = subject.buffer(ramp(4))
    events = [subject.call(_READY[0], buffer=buffer).event for _ in range(5)]
    subject.expect(len(set(events)) == 5, "5 different events", f"{len(set(events))}")
    for event in events[::2]:
        subject.call("PJRT_Event_Destroy", event=event)
    for event in events[1::2]:
        subject.await_event(event)
    subject.destroy_buffers(buffer)


@check(
    "buffer.ready_callback_once",
    calls=(*_READY, "PJRT_Event_OnReady"),
    rule="A callback on the event is called once, before or after the buffer is ready.",
)
def _ready_callback_once(subject: Subject) -> None:
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
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.ready_event_destroyed_in_its_callback",
    calls=(*_READY, "PJRT_Event_OnReady", "PJRT_Event_Destroy"),
    rule="An event may be destroyed right after a callback was registered on it; the callback is still called once.",
)
def _ready_event_destroyed_after_registration(subject: Subject) -> None:
    array = ramp(1 << 18)
    result = from_host(subject, array, 1)
    event = subject.call(_READY[0], buffer=result.buffer).event
    calls = on_ready(subject, event)
    subject.call("PJRT_Event_Destroy", event=event)
    calls.expect_once(None)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.ready_event_outlives_delete",
    calls=(*_READY, "PJRT_Buffer_Delete"),
    rule="An event that was made before PJRT_Buffer_Delete does not become an error by it.",
    over=("ready_before", "pending_before"),
)
def _ready_event_outlives_delete(subject: Subject, kind: str) -> None:
    array = ramp(1 << 18)
    result = from_host(subject, array, 1)
    event = subject.call(_READY[0], buffer=result.buffer).event
    if kind == "ready_before":
        subject.call("PJRT_Event_Await", event=event)
    subject.call("PJRT_Buffer_Delete", buffer=result.buffer)
    subject.await_event(event)
    subject.await_event(result.done_with_host_buffer)
    subject.destroy_buffers(result.buffer)


@check(
    "buffer.ready_event_after_delete",
    calls=(*_READY, "PJRT_Buffer_Delete"),
    rule="The event of a deleted buffer immediately indicates an error.",
)
def _ready_event_after_delete(subject: Subject) -> None:
    buffer = deleted_buffer(subject)
    event = subject.call(_READY[0], buffer=buffer).event
    subject.expect(event, "an event", "a null pointer")
    subject.expect(is_ready(subject, event), "an event that is ready at once", "that it is not ready")
    error = subject.attempt("PJRT_Event_Error", event=event).error
    subject.expect(error is not None, "an event with an error", "no error")
    awaited = subject.event_error(event)
    subject.expect(awaited == error, str(error), str(awaited))
    subject.destroy_buffers(buffer)


@check(
    "buffer.ready_event_of_a_pending_buffer",
    calls=(*_READY, "PJRT_Client_CreateAliasBuffer", "PJRT_Client_FulfillAliasBuffer"),
    rule="While the data is not there, the event is not ready and its callbacks are not called.",
)
def _ready_event_of_a_pending_buffer(subject: Subject) -> None:
    alias, handle = make_alias(subject, [4])
    event = subject.call(_READY[0], buffer=alias).event
    calls = on_ready(subject, event)
    subject.expect(not is_ready(subject, event), "an event that is not ready", "that it is ready")
    calls.expect_none()
    buffer = subject.buffer(ramp(4))
    fulfill(subject, handle, buffer)
    subject.await_event(event)
    calls.expect_once(None)
    subject.destroy_buffers(alias, buffer)
