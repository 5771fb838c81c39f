"""The requirements of events: made, set, read and waited for, and their callbacks."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from pjrt.abi.schema import CALLBACKS, FUNCTIONS, STRUCTS
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.raw import Error
from pjrt.capi.raw.struct import StructWriter
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

# Callbacks of the caller, and calls of functions that a plugin returns.

_CALL_PATIENCE = 30.0
"""The seconds after which a callback that was not called counts as lost."""


class Calls:
    """A callback that counts its calls, and keeps what it was called with.

    Attributes:
        arguments: the arguments of each call.
        kept: what must live until the callback is called.
    """

    def __init__(self, subject: Subject) -> None:
        self.arguments: list[Any] = []
        self.kept: list[Any] = []
        self._subject = subject
        self._called = threading.Event()

    def add(self, argument: Any) -> None:
        """Count a call."""
        self.arguments.append(argument)
        self._called.set()

    def wait(self) -> Any:
        """Wait for the first call, and return its argument."""
        self._subject.expect(self._called.wait(_CALL_PATIENCE), "a call of the callback", "no call")
        return self.arguments[0]

    def expect_once(self, argument: Any) -> None:
        """Expect exactly one call, with an argument."""
        found = self.wait()
        self._subject.expect(found == argument, f"a call with {argument}", f"a call with {found}")
        self._subject.expect(len(self.arguments) == 1, "one call", f"{len(self.arguments)} calls")

    def expect_none(self) -> None:
        """Expect that there was no call yet."""
        self._subject.expect(not self.arguments, "no call yet", f"{len(self.arguments)} calls")


def on_ready(subject: Subject, event: int) -> Calls:
    """Register a callback on an event; it keeps the event's error, or ``None``."""
    calls = Calls(subject)

    def called(error: int, user_arg: int) -> None:
        calls.add(subject.plugin.take_error(error) if error else None)

    calls.kept.append(subject.call("PJRT_Event_OnReady", event=event, callback=called))
    return calls


def call_back(subject: Subject, result: raw.Result, field: str, **fields: Any) -> None:
    """Call the function that a call returned for the caller, with the ``callback_data`` that it returned.

    Args:
        subject: the plugin.
        result: the call's result.
        field: the field that has the function.
        fields: the further fields of its arguments.
    """
    pointer = getattr(result, field)
    subject.expect(pointer, "a function to call", "a null pointer")
    kind = STRUCTS[FUNCTIONS[result.function].args].fields[field].type
    writer = StructWriter()
    address = writer.build(CALLBACKS[kind].args, {"callback_data": result.callback_data, **fields})
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(pointer)(address)


def error_fields(code: StatusCode, message: str) -> dict[str, Any]:
    """Return the fields of an error in a struct of a callback, or in arguments."""
    return {"error_code": int(code), "error_message": message}


# Callbacks on events: each runs exactly once, before or after the event is set.

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


@check("event.on_ready.before_set", calls=_CALLS)
def _before(subject: Subject) -> None:
    """A callback runs once, when its event is ready, and not before."""
    event, record = Settable(subject), CallbackRecord(subject)
    record.register(event.handle, 7)
    subject.expect(not record.calls, "no call before the event is set", f"{len(record.calls)} calls")
    event.set()
    record.wait(1)
    subject.expect(record.calls == [(None, 7)], "one call with no error and the user data 7", str(record.calls))


@check("event.on_ready.after_set", calls=_CALLS)
def _after(subject: Subject) -> None:
    """A callback that is registered on a ready event runs too, exactly once."""
    event, record = Settable(subject), CallbackRecord(subject)
    event.set()
    record.register(event.handle, 9)
    record.wait(1)
    subject.expect(record.calls == [(None, 9)], "one call with no error and the user data 9", str(record.calls))


@check("event.on_ready.error", calls=_CALLS, over={"before": True, "after": False})
def _event_on_ready_error(subject: Subject, before: bool) -> None:
    """A callback gets the error of its event, and owns it."""
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


@check("event.on_ready.user_data", calls=_CALLS, over={"null": 0, "small": 1, "all_bits": (1 << 64) - 1})
def _user_data(subject: Subject, value: int) -> None:
    """user_arg is passed to the callback unchanged; the plugin does not look into it."""
    event, record = Settable(subject), CallbackRecord(subject)
    record.register(event.handle, value)
    event.set()
    record.wait(1)
    subject.expect(record.calls[0][1] == value, hex(value), hex(record.calls[0][1]))


@check("event.on_ready.many", calls=_CALLS)
def _many(subject: Subject) -> None:
    """Any number of callbacks may be registered on one event; each runs exactly once, with its own user data."""
    event, record = Settable(subject), CallbackRecord(subject)
    for number in range(_MANY):
        record.register(event.handle, number)
    event.set()
    record.wait(_MANY)
    numbers = sorted(user_arg for _, user_arg in record.calls)
    subject.expect(numbers == list(range(_MANY)), f"the user data 0 to {_MANY - 1}, each once", str(numbers))


@check("event.on_ready.errors_are_independent", calls=(*_CALLS, "PJRT_Error_Destroy"))
def _errors_are_independent(subject: Subject) -> None:
    """Each callback owns the error that it is given; destroying one leaves the others."""
    event, record = Settable(subject), CallbackRecord(subject)
    for number in range(8):
        record.register(event.handle, number)
    event.set(StatusCode.ABORTED, b"stopped")
    record.wait(8)
    for error, _ in record.calls:
        subject.expect(error is not None and error.code == StatusCode.ABORTED, "ABORTED in each callback", str(error))
    error = event.error()
    subject.expect(error is not None and "stopped" in error.message, "the error afterwards too", str(error))


@check("event.on_ready.after_await", calls=(*_CALLS, "PJRT_Event_Await"))
def _after_await(subject: Subject) -> None:
    """A callback may be registered when the event was awaited and read already."""
    event, record = Settable(subject), CallbackRecord(subject)
    event.set(StatusCode.ABORTED, b"stopped")
    event.error("PJRT_Event_Await")
    record.register(event.handle)
    record.wait(1)
    error = record.calls[0][0]
    subject.expect(error is not None and error.code == StatusCode.ABORTED, "ABORTED", str(error))


@check("event.on_ready.registers_another", calls=_CALLS)
def _registers_another(subject: Subject) -> None:
    """A callback may call the plugin: it may register another callback on the event."""
    event = Settable(subject)
    second = CallbackRecord(subject)
    first = CallbackRecord(subject, then=lambda: second.register(event.handle, 2))
    first.register(event.handle, 1)
    event.set()
    first.wait(1)
    second.wait(1)


@check("event.on_ready.destroys_the_event", calls=(*_CALLS, "PJRT_Event_Destroy"))
def _destroys_event(subject: Subject) -> None:
    """The caller may free an event at any time, also in its callback, as frameworks do."""
    event = Settable(subject)
    record = CallbackRecord(subject, then=event.destroy)
    event.set(StatusCode.ABORTED, b"stopped")
    record.register(event.handle)
    record.wait(1)


@check("event.on_ready.sets_another_event", calls=_CALLS)
def _sets_another(subject: Subject) -> None:
    """A callback may call the plugin: it may set another event, whose callbacks run too."""
    first, second = Settable(subject), Settable(subject)
    last = CallbackRecord(subject)
    last.register(second.handle, 5)
    middle = CallbackRecord(subject, then=second.set)
    middle.register(first.handle)
    first.set()
    last.wait(1)
    middle.wait(1)


@check("event.on_ready.while_it_is_set", calls=_CALLS)
def _race(subject: Subject) -> None:
    """A callback that is registered while another thread sets the event runs exactly once."""
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


# Events that the caller makes, sets and reads.

_CODES = tuple(code for code in StatusCode if code is not StatusCode.OK)
_MESSAGE = b"the wheel came off"


@check("event.create.is_not_ready", calls=("PJRT_Event_Create", "PJRT_Event_IsReady"))
def _create(subject: Subject) -> None:
    """An event of PJRT_Event_Create becomes ready when PJRT_Event_Set is called, and not before."""
    event = Settable(subject)
    subject.expect(not event.is_ready, "an event that is not ready", "a new event that is ready")
    event.set()


@check("event.create.each_is_new", calls=("PJRT_Event_Create", "PJRT_Event_Set", "PJRT_Event_IsReady"))
def _each_is_new(subject: Subject) -> None:
    """Each call of PJRT_Event_Create makes a new event; setting one leaves the others as they are."""
    events = [Settable(subject) for _ in range(4)]
    handles = {event.handle for event in events}
    subject.expect(len(handles) == 4, "4 handles", f"{len(handles)} different handles")
    events[1].set()
    ready = [event.is_ready for event in events]
    subject.expect(ready == [False, True, False, False], "only the second event ready", str(ready))
    for event in (events[0], *events[2:]):
        event.set()


@check("event.set.success", calls=("PJRT_Event_Set", "PJRT_Event_IsReady", "PJRT_Event_Error", "PJRT_Event_Await"))
def _success(subject: Subject) -> None:
    """An event that is set with the code OK is ready, and its error is null."""
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
)
def _event_set_error(subject: Subject, code: StatusCode) -> None:
    """An event that is set with an error is ready, and gives back the code and the message."""
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


@check("event.set.message_is_copied", calls=("PJRT_Event_Set", "PJRT_Event_Error"))
def _message_is_copied(subject: Subject) -> None:
    """The message may be freed when PJRT_Event_Set has returned."""
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


@check("event.set.message_is_not_terminated", calls=("PJRT_Event_Set", "PJRT_Event_Error"))
def _message_size(subject: Subject) -> None:
    """error_message_size is the size of the message; no zero follows it."""
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


@check("event.set.empty_message", calls=("PJRT_Event_Set", "PJRT_Event_Error"))
def _empty_message(subject: Subject) -> None:
    """A message of size 0 is a message; the error keeps its code."""
    event = Settable(subject)
    event.set(StatusCode.UNAVAILABLE, b"")
    _expect_error(subject, event.error(), StatusCode.UNAVAILABLE, "", "PJRT_Event_Error")


@check("event.set.long_message", calls=("PJRT_Event_Set", "PJRT_Event_Error"))
def _long_message(subject: Subject) -> None:
    """A message may have any size."""
    event = Settable(subject)
    message = "".join(f"line {number}\n" for number in range(10_000))
    event.set(StatusCode.INTERNAL, message.encode())
    _expect_error(subject, event.error(), StatusCode.INTERNAL, message, "PJRT_Event_Error")


@check("event.set.message_of_any_language", calls=("PJRT_Event_Set", "PJRT_Event_Error"))
def _language(subject: Subject) -> None:
    """A message is bytes of UTF-8, and comes back unchanged."""
    event = Settable(subject)
    message = "Gerät weg 🛞 — 装置がない"
    event.set(StatusCode.NOT_FOUND, message.encode())
    _expect_error(subject, event.error(), StatusCode.NOT_FOUND, message, "PJRT_Event_Error")


@check("event.error.reads_are_independent", calls=("PJRT_Event_Error", "PJRT_Error_Destroy"))
def _reads_are_independent(subject: Subject) -> None:
    """Each error of an event is independent of the others, and each is destroyed on its own."""
    event = Settable(subject)
    event.set(StatusCode.ABORTED, _MESSAGE)
    for call in ("PJRT_Event_Error", "PJRT_Event_Await", "PJRT_Event_Error", "PJRT_Event_Await") * 4:
        _expect_error(subject, event.error(call), StatusCode.ABORTED, _MESSAGE.decode(), call)


@check("event.error.outlives_the_event", calls=("PJRT_Event_Error", "PJRT_Event_Destroy", "PJRT_Error_Message"))
def _error_outlives_event(subject: Subject) -> None:
    """The caller owns the error of an event, and frees it with PJRT_Error_Destroy."""
    event = Settable(subject)
    event.set(StatusCode.ABORTED, _MESSAGE)
    error = subject.plugin.error_address("PJRT_Event_Error", event=event.handle)
    subject.expect(bool(error), "an error", "no error")
    event.destroy()
    _expect_error(subject, subject.plugin.take_error(error), StatusCode.ABORTED, _MESSAGE.decode(), "PJRT_Event_Error")


@check("event.await.twice", calls=("PJRT_Event_Await",))
def _await_twice(subject: Subject) -> None:
    """PJRT_Event_Await returns at once when the event is ready, as often as it is called."""
    event = Settable(subject)
    event.set()
    for _ in range(3):
        error = event.error("PJRT_Event_Await")
        subject.expect(error is None, "no error", str(error))


@check("event.await.waits", calls=("PJRT_Event_Await", "PJRT_Event_Set"))
def _await_waits(subject: Subject) -> None:
    """PJRT_Event_Await blocks the calling thread until the event is ready."""
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


@check("event.await.many_threads", calls=("PJRT_Event_Await", "PJRT_Event_Set"))
def _await_in_threads(subject: Subject) -> None:
    """Any number of threads may wait for one event; each gets the error."""
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


@check("event.is_ready.repeated", calls=("PJRT_Event_IsReady",))
def _is_ready_is_no_change(subject: Subject) -> None:
    """PJRT_Event_IsReady asks for the state of the event and does not change it."""
    event = Settable(subject)
    before = [event.is_ready for _ in range(3)]
    event.set(StatusCode.ABORTED, _MESSAGE)
    after = [event.is_ready for _ in range(3)]
    subject.expect(
        before == [False] * 3 and after == [True] * 3, "false until the event is set, then true", f"{before}, {after}"
    )


@check("event.destroy.null", calls=("PJRT_Event_Destroy",))
def _destroy_null(subject: Subject) -> None:
    """The event of PJRT_Event_Destroy may be null."""
    subject.call("PJRT_Event_Destroy", event=0)


@check("event.destroy.many", calls=("PJRT_Event_Create", "PJRT_Event_Set", "PJRT_Event_Destroy"))
def _destroy_many(subject: Subject) -> None:
    """The caller frees each event with PJRT_Event_Destroy, in any order."""
    events = [Settable(subject) for _ in range(256)]
    for event in events:
        event.set()
    for event in [*events[::2], *events[1::2]]:
        event.destroy()
