"""Checks of callbacks on events: each runs exactly once, before or after the event is set."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from pjrt.api.errors import StatusCode
from pjrt.capi.raw import Error
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_CALLS = ("PJRT_Event_OnReady", "PJRT_Event_Set")
_MANY = 100
_THREADS = 16
_PATIENCE = 10.0
"""The seconds to wait for a callback before it counts as missing."""
_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class Settable:
    """An event that the check makes and sets."""

    def __init__(self, subject: Subject) -> None:
        subject.require("PJRT_Event_Create")
        subject.require("PJRT_Event_Set")
        self._subject = subject
        self.handle = subject.call("PJRT_Event_Create").event

    @property
    def is_ready(self) -> bool:
        """Whether the event is ready, as the plugin answers."""
        return bool(self._subject.call("PJRT_Event_IsReady", event=self.handle).is_ready)

    def set(self, code: StatusCode = StatusCode.OK, message: bytes = b"") -> None:
        """Set the event."""
        self._subject.call("PJRT_Event_Set", event=self.handle, error_code=code, error_message=message)

    def error(self, call: str = "PJRT_Event_Error") -> Error | None:
        """Return the error that ``PJRT_Event_Error`` or ``PJRT_Event_Await`` gives back."""
        return self._subject.attempt(call, event=self.handle).error

    def destroy(self) -> None:
        """Destroy the event."""
        self._subject.call("PJRT_Event_Destroy", event=self.handle)


class CallbackRecord:
    """A callback for events that records its calls.

    Attributes:
        calls: the error and the user data of each call, in order.
    """

    def __init__(self, subject: Subject, then: Callable[[], None] | None = None) -> None:
        self._subject = subject
        self._then = then
        self._changed = threading.Condition()
        self.calls: list[tuple[Error | None, int]] = []
        self._function = _Function(self._called)

    def register(self, event: int, user_arg: int = 0) -> None:
        """Register the callback on an event."""
        self._subject.call(
            "PJRT_Event_OnReady",
            event=event,
            callback=ctypes.cast(self._function, ctypes.c_void_p).value,
            user_arg=user_arg,
        )

    def wait(self, count: int) -> None:
        """Wait until the callback was called that often, and fail the check where it was not."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.calls) >= count, _PATIENCE)
        self._subject.expect(
            len(self.calls) == count, f"{count} calls of the callback", f"{len(self.calls)} calls in {_PATIENCE:g} s"
        )

    def _called(self, error: int | None, user_arg: int | None) -> None:
        taken = self._subject.plugin.take_error(error) if error else None
        if self._then is not None:
            self._then()
        with self._changed:
            self.calls.append((taken, user_arg or 0))
            self._changed.notify_all()


@check(
    "event.on_ready.before_set",
    calls=_CALLS,
    rule="A callback runs once, when its event is ready, and not before.",
)
def _before(subject: Subject) -> None:
    event, record = Settable(subject), CallbackRecord(subject)
    record.register(event.handle, 7)
    subject.expect(not record.calls, "no call before the event is set", f"{len(record.calls)} calls")
    event.set()
    record.wait(1)
    subject.expect(record.calls == [(None, 7)], "one call with no error and the user data 7", str(record.calls))


@check(
    "event.on_ready.after_set",
    calls=_CALLS,
    rule="A callback that is registered on a ready event runs too, exactly once.",
)
def _after(subject: Subject) -> None:
    event, record = Settable(subject), CallbackRecord(subject)
    event.set()
    record.register(event.handle, 9)
    record.wait(1)
    subject.expect(record.calls == [(None, 9)], "one call with no error and the user data 9", str(record.calls))


@check(
    "event.on_ready.error",
    calls=_CALLS,
    over={"before": True, "after": False},
    rule="A callback gets the error of its event, and owns it.",
)
def _error(subject: Subject, before: bool) -> None:
    event, record = Settable(subject), CallbackRecord(subject)
    if before:
        record.register(event.handle)
    event.set(StatusCode.DATA_LOSS, b"lost")
    if not before:
        record.register(event.handle)
    record.wait(1)
    error = record.calls[0][0]
    subject.expect(
        error is not None and error.code == StatusCode.DATA_LOSS and "lost" in error.message,
        "DATA_LOSS: lost",
        str(error),
    )


@check(
    "event.on_ready.user_data",
    calls=_CALLS,
    over={"null": 0, "small": 1, "all_bits": (1 << 64) - 1},
    rule="user_arg is passed to the callback unchanged; the plugin does not look into it.",
)
def _user_data(subject: Subject, value: int) -> None:
    event, record = Settable(subject), CallbackRecord(subject)
    record.register(event.handle, value)
    event.set()
    record.wait(1)
    subject.expect(record.calls[0][1] == value, hex(value), hex(record.calls[0][1]))


@check(
    "event.on_ready.many",
    calls=_CALLS,
    rule="Any number of callbacks may be registered on one event; each runs exactly once, with its own user data.",
)
def _many(subject: Subject) -> None:
    event, record = Settable(subject), CallbackRecord(subject)
    for number in range(_MANY):
        record.register(event.handle, number)
    event.set()
    record.wait(_MANY)
    numbers = sorted(user_arg for _, user_arg in record.calls)
    subject.expect(numbers == list(range(_MANY)), f"the user data 0 to {_MANY - 1}, each once", str(numbers))


@check(
    "event.on_ready.errors_are_independent",
    calls=(*_CALLS, "PJRT_Error_Destroy"),
    rule="Each callback owns the error that it is given; destroying one leaves the others.",
)
def _errors_are_independent(subject: Subject) -> None:
    event, record = Settable(subject), CallbackRecord(subject)
    for number in range(8):
        record.register(event.handle, number)
    event.set(StatusCode.ABORTED, b"stopped")
    record.wait(8)
    for error, _ in record.calls:
        subject.expect(error is not None and error.code == StatusCode.ABORTED, "ABORTED in each callback", str(error))
    error = event.error()
    subject.expect(error is not None and "stopped" in error.message, "the error afterwards too", str(error))


@check(
    "event.on_ready.after_await",
    calls=(*_CALLS, "PJRT_Event_Await"),
    rule="A callback may be registered when the event was awaited and read already.",
)
def _after_await(subject: Subject) -> None:
    event, record = Settable(subject), CallbackRecord(subject)
    event.set(StatusCode.ABORTED, b"stopped")
    event.error("PJRT_Event_Await")
    record.register(event.handle)
    record.wait(1)
    error = record.calls[0][0]
    subject.expect(error is not None and error.code == StatusCode.ABORTED, "ABORTED", str(error))


@check(
    "event.on_ready.registers_another",
    calls=_CALLS,
    rule="A callback may call the plugin: it may register another callback on the event.",
)
def _registers_another(subject: Subject) -> None:
    event = Settable(subject)
    second = CallbackRecord(subject)
    first = CallbackRecord(subject, then=lambda: second.register(event.handle, 2))
    first.register(event.handle, 1)
    event.set()
    first.wait(1)
    second.wait(1)


@check(
    "event.on_ready.destroys_the_event",
    calls=(*_CALLS, "PJRT_Event_Destroy"),
    rule="The caller may free an event at any time, also in its callback, as frameworks do.",
)
def _destroys_event(subject: Subject) -> None:
    event = Settable(subject)
    record = CallbackRecord(subject, then=event.destroy)
    event.set(StatusCode.ABORTED, b"stopped")
    record.register(event.handle)
    record.wait(1)


@check(
    "event.on_ready.sets_another_event",
    calls=_CALLS,
    rule="A callback may call the plugin: it may set another event, whose callbacks run too.",
)
def _sets_another(subject: Subject) -> None:
    first, second = Settable(subject), Settable(subject)
    last = CallbackRecord(subject)
    last.register(second.handle, 5)
    middle = CallbackRecord(subject, then=second.set)
    middle.register(first.handle)
    first.set()
    last.wait(1)
    middle.wait(1)


@check(
    "event.on_ready.while_it_is_set",
    calls=_CALLS,
    rule="A callback that is registered while another thread sets the event runs exactly once.",
)
def _race(subject: Subject) -> None:
    for _ in range(20):
        event, record = Settable(subject), CallbackRecord(subject)
        barrier = threading.Barrier(_THREADS + 1)

        def register(number: int, event: Settable = event, record: CallbackRecord = record) -> None:
            barrier.wait()  # noqa: B023
            record.register(event.handle, number)

        threads = [threading.Thread(target=register, args=(number,)) for number in range(_THREADS)]
        for thread in threads:
            thread.start()
        barrier.wait()
        event.set()
        for thread in threads:
            thread.join()
        record.wait(_THREADS)
        numbers = sorted(user_arg for _, user_arg in record.calls)
        subject.expect(numbers == list(range(_THREADS)), "each callback once", str(numbers))
