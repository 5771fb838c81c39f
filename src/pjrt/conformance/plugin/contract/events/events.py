"""Checks of events that the caller makes, sets and reads."""

from __future__ import annotations

import ctypes
import threading

from pjrt.api.errors import StatusCode
from pjrt.capi.raw import Error
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.events.event_callbacks import Settable
from pjrt.conformance.plugin.subject import Subject

_CODES = tuple(code for code in StatusCode if code is not StatusCode.OK)
_MESSAGE = b"the wheel came off"
_THREADS = 16


@check(
    "event.create.is_not_ready",
    calls=("PJRT_Event_Create", "PJRT_Event_IsReady"),
    rule="An event of PJRT_Event_Create becomes ready when PJRT_Event_Set is called, and not before.",
)
def _create(subject: Subject) -> None:
    event = Settable(subject)
    subject.expect(not event.is_ready, "an event that is not ready", "a new event that is ready")
    event.set()


@check(
    "event.create.each_is_new",
    calls=("PJRT_Event_Create", "PJRT_Event_Set", "PJRT_Event_IsReady"),
    rule="Each call of PJRT_Event_Create makes a new event; setting one leaves the others as they are.",
)
def _each_is_new(subject: Subject) -> None:
    events = [Settable(subject) for _ in range(4)]
    handles = {event.handle for event in events}
    subject.expect(len(handles) == 4, "4 handles", f"{len(handles)} different handles")
    events[1].set()
    ready = [event.is_ready for event in events]
    subject.expect(ready == [False, True, False, False], "only the second event ready", str(ready))
    for event in (events[0], *events[2:]):
        event.set()


@check(
    "event.set.success",
    calls=("PJRT_Event_Set", "PJRT_Event_IsReady", "PJRT_Event_Error", "PJRT_Event_Await"),
    rule="An event that is set with the code OK is ready, and its error is null.",
)
def _success(subject: Subject) -> None:
    event = Settable(subject)
    event.set()
    subject.expect(event.is_ready, "a ready event", "an event that is set and not ready")
    for call in ("PJRT_Event_Error", "PJRT_Event_Await"):
        error = event.error(call)
        subject.expect(error is None, f"no error from {call}", str(error))


@check(
    "event.set.error",
    calls=("PJRT_Event_Set", "PJRT_Event_IsReady", "PJRT_Event_Error", "PJRT_Event_Await"),
    over={code.name: code for code in _CODES},
    rule="An event that is set with an error is ready, and gives back the code and the message.",
)
def _error(subject: Subject, code: StatusCode) -> None:
    event = Settable(subject)
    event.set(code, _MESSAGE)
    subject.expect(event.is_ready, "a ready event", "an event that is set and not ready")
    for call in ("PJRT_Event_Error", "PJRT_Event_Await"):
        _expect_error(subject, event.error(call), code, _MESSAGE.decode(), call)


def _expect_error(subject: Subject, error: Error | None, code: StatusCode, message: str, call: str) -> None:
    if error is None:
        subject.expect(False, f"{code.name} from {call}", "no error")
        return
    subject.expect(error.code == code, f"{code.name} from {call}", str(error))
    subject.expect(message in error.message, f"a message with {message!r} from {call}", repr(error.message))


@check(
    "event.set.message_is_copied",
    calls=("PJRT_Event_Set", "PJRT_Event_Error"),
    rule="The message may be freed when PJRT_Event_Set has returned.",
)
def _message_is_copied(subject: Subject) -> None:
    event = Settable(subject)
    memory = ctypes.create_string_buffer(_MESSAGE, len(_MESSAGE))
    subject.call(
        "PJRT_Event_Set",
        event=event.handle,
        error_code=StatusCode.ABORTED,
        error_message=ctypes.addressof(memory),
        error_message_size=len(_MESSAGE),
    )
    ctypes.memset(memory, ord("x"), len(_MESSAGE))
    _expect_error(subject, event.error(), StatusCode.ABORTED, _MESSAGE.decode(), "PJRT_Event_Error")


@check(
    "event.set.message_is_not_terminated",
    calls=("PJRT_Event_Set", "PJRT_Event_Error"),
    rule="error_message_size is the size of the message; no zero follows it.",
)
def _message_size(subject: Subject) -> None:
    event = Settable(subject)
    memory = ctypes.create_string_buffer(b"lost and never found", 20)
    subject.call(
        "PJRT_Event_Set",
        event=event.handle,
        error_code=StatusCode.DATA_LOSS,
        error_message=ctypes.addressof(memory),
        error_message_size=4,
    )
    error = event.error()
    _expect_error(subject, error, StatusCode.DATA_LOSS, "lost", "PJRT_Event_Error")
    subject.expect("never" not in getattr(error, "message", ""), "the message 'lost'", str(error))


@check(
    "event.set.empty_message",
    calls=("PJRT_Event_Set", "PJRT_Event_Error"),
    rule="A message of size 0 is a message; the error keeps its code.",
)
def _empty_message(subject: Subject) -> None:
    event = Settable(subject)
    event.set(StatusCode.UNAVAILABLE, b"")
    _expect_error(subject, event.error(), StatusCode.UNAVAILABLE, "", "PJRT_Event_Error")


@check(
    "event.set.long_message",
    calls=("PJRT_Event_Set", "PJRT_Event_Error"),
    rule="A message may have any size.",
)
def _long_message(subject: Subject) -> None:
    event = Settable(subject)
    message = "".join(f"line {number}\n" for number in range(10_000))
    event.set(StatusCode.INTERNAL, message.encode())
    _expect_error(subject, event.error(), StatusCode.INTERNAL, message, "PJRT_Event_Error")


@check(
    "event.set.message_of_any_language",
    calls=("PJRT_Event_Set", "PJRT_Event_Error"),
    rule="A message is bytes of UTF-8, and comes back unchanged.",
)
def _language(subject: Subject) -> None:
    event = Settable(subject)
    message = "Gerät weg 🛞 — 装置がない"
    event.set(StatusCode.NOT_FOUND, message.encode())
    _expect_error(subject, event.error(), StatusCode.NOT_FOUND, message, "PJRT_Event_Error")


@check(
    "event.error.reads_are_independent",
    calls=("PJRT_Event_Error", "PJRT_Error_Destroy"),
    rule="Each error of an event is independent of the others, and each is destroyed on its own.",
)
def _reads_are_independent(subject: Subject) -> None:
    event = Settable(subject)
    event.set(StatusCode.ABORTED, _MESSAGE)
    for call in ("PJRT_Event_Error", "PJRT_Event_Await", "PJRT_Event_Error", "PJRT_Event_Await") * 4:
        _expect_error(subject, event.error(call), StatusCode.ABORTED, _MESSAGE.decode(), call)


@check(
    "event.error.outlives_the_event",
    calls=("PJRT_Event_Error", "PJRT_Event_Destroy", "PJRT_Error_Message"),
    rule="The caller owns the error of an event, and frees it with PJRT_Error_Destroy.",
)
def _error_outlives_event(subject: Subject) -> None:
    event = Settable(subject)
    event.set(StatusCode.ABORTED, _MESSAGE)
    error = subject.plugin.error_address("PJRT_Event_Error", event=event.handle)
    subject.expect(bool(error), "an error", "no error")
    event.destroy()
    _expect_error(subject, subject.plugin.take_error(error), StatusCode.ABORTED, _MESSAGE.decode(), "PJRT_Event_Error")


@check(
    "event.await.twice",
    calls=("PJRT_Event_Await",),
    rule="PJRT_Event_Await returns at once when the event is ready, as often as it is called.",
)
def _await_twice(subject: Subject) -> None:
    event = Settable(subject)
    event.set()
    for _ in range(3):
        error = event.error("PJRT_Event_Await")
        subject.expect(error is None, "no error", str(error))


@check(
    "event.await.waits",
    calls=("PJRT_Event_Await", "PJRT_Event_Set"),
    rule="PJRT_Event_Await blocks the calling thread until the event is ready.",
)
def _await_waits(subject: Subject) -> None:
    event = Settable(subject)
    returned = threading.Event()

    def wait() -> None:
        event.error("PJRT_Event_Await")
        returned.set()

    thread = threading.Thread(target=wait)
    thread.start()
    early = returned.wait(0.05)
    event.set()
    thread.join()
    subject.expect(not early, "a call that waits for the event", "PJRT_Event_Await returned before the event was set")


@check(
    "event.await.many_threads",
    calls=("PJRT_Event_Await", "PJRT_Event_Set"),
    rule="Any number of threads may wait for one event; each gets the error.",
)
def _await_in_threads(subject: Subject) -> None:
    event = Settable(subject)
    errors: list[Error | None] = []
    threads = [threading.Thread(target=lambda: errors.append(event.error("PJRT_Event_Await"))) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    event.set(StatusCode.CANCELLED, _MESSAGE)
    for thread in threads:
        thread.join()
    subject.expect(len(errors) == _THREADS, f"{_THREADS} answers", str(len(errors)))
    for error in errors:
        _expect_error(subject, error, StatusCode.CANCELLED, _MESSAGE.decode(), "PJRT_Event_Await")


@check(
    "event.is_ready.repeated",
    calls=("PJRT_Event_IsReady",),
    rule="PJRT_Event_IsReady asks for the state of the event and does not change it.",
)
def _is_ready_is_no_change(subject: Subject) -> None:
    event = Settable(subject)
    before = [event.is_ready for _ in range(3)]
    event.set(StatusCode.ABORTED, _MESSAGE)
    after = [event.is_ready for _ in range(3)]
    subject.expect(
        before == [False] * 3 and after == [True] * 3, "false until the event is set, then true", f"{before}, {after}"
    )


@check(
    "event.destroy.null",
    calls=("PJRT_Event_Destroy",),
    rule="The event of PJRT_Event_Destroy may be null.",
)
def _destroy_null(subject: Subject) -> None:
    subject.call("PJRT_Event_Destroy", event=0)


@check(
    "event.destroy.many",
    calls=("PJRT_Event_Create", "PJRT_Event_Set", "PJRT_Event_Destroy"),
    rule="The caller frees each event with PJRT_Event_Destroy, in any order.",
)
def _destroy_many(subject: Subject) -> None:
    events = [Settable(subject) for _ in range(256)]
    for event in events:
        event.set()
    for event in [*events[::2], *events[1::2]]:
        event.destroy()
