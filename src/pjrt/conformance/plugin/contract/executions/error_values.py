"""Checks of errors that travel as values: buffers with errors, failed executions, and what is computed from them."""

from __future__ import annotations

import threading

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.events.event_callbacks import CallbackRecord
from pjrt.conformance.plugin.contract.executions.ffi_handlers import compiled_with_handler
from pjrt.conformance.plugin.contract.executions.launch import Launch, buffer_error
from pjrt.conformance.plugin.contract.executions.pending_buffer import PendingBuffer, error_buffer
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.samples import MANY
from pjrt.conformance.plugin.subject import Subject

_EXECUTE = "PJRT_LoadedExecutable_Execute"
_CALLS = (_EXECUTE, "PJRT_Client_CreateErrorBuffer")
_X = np.arange(4, dtype=np.float32)
_MESSAGE = b"the wheel came off"
_CODES = tuple(code for code in StatusCode if code is not StatusCode.OK)


def _failed(subject: Subject, code: StatusCode = StatusCode.DATA_LOSS) -> int:
    return error_buffer(subject, code, _MESSAGE)


@check(
    "error_value.arrives_in_results",
    calls=_CALLS,
    over={code.name: code for code in _CODES},
    rule="An execution that is given a buffer with an error fails with the code and the message of that error.",
)
def _arrives(subject: Subject, code: StatusCode) -> None:
    launch = Launch(subject, subject.compile("add"), [[subject.buffer(_X), _failed(subject, code)]])
    launch.expect_error((code,), _MESSAGE.decode())


@check(
    "error_value.arrives_in_each_result",
    calls=_CALLS,
    rule="Each result of a failed execution has the error.",
)
def _each_result(subject: Subject) -> None:
    launch = Launch(subject, subject.compile("many_results"), [[_failed(subject)]], num_results=MANY)
    launch.expect_error((StatusCode.DATA_LOSS,), _MESSAGE.decode())


@check(
    "error_value.arrives_in_the_event",
    calls=(*_CALLS, "PJRT_Event_Await", "PJRT_Event_Error"),
    rule="The event of a failed execution has the error.",
)
def _event(subject: Subject) -> None:
    rows = [[subject.buffer(_X), _failed(subject)]]
    launch = Launch(subject, subject.compile("add"), rows, with_events=True)
    if launch.error is not None:
        launch.expect_error((StatusCode.DATA_LOSS,), _MESSAGE.decode())
        return
    for name in ("PJRT_Event_Await", "PJRT_Event_Error", "PJRT_Event_Error"):
        error = subject.attempt(name, event=launch.events[0]).error
        subject.expect(error is not None and error.code == StatusCode.DATA_LOSS, f"DATA_LOSS from {name}", str(error))
    ready = subject.call("PJRT_Event_IsReady", event=launch.events[0]).is_ready
    subject.expect(ready, "an event that is ready, with an error too", "one that is not ready")


@check(
    "error_value.arrives_in_the_callback",
    calls=(*_CALLS, "PJRT_Event_OnReady"),
    rule="A callback on the event of a failed execution gets the error, once.",
)
def _callback(subject: Subject) -> None:
    rows = [[subject.buffer(_X), _failed(subject)]]
    launch = Launch(subject, subject.compile("add"), rows, with_events=True)
    if launch.error is not None:
        launch.expect_error((StatusCode.DATA_LOSS,), _MESSAGE.decode())
        return
    record = CallbackRecord(subject)
    record.register(launch.events[0], 6)
    record.wait(1)
    error = record.calls[0][0]
    subject.expect(error is not None and error.code == StatusCode.DATA_LOSS, "DATA_LOSS", str(error))


@check(
    "error_value.arrives_in_reads",
    calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer"),
    rule="Reading a buffer that has an error fails with that error, in the call or in its event.",
)
def _reads(subject: Subject) -> None:
    launch = Launch(subject, subject.compile("add"), [[subject.buffer(_X), _failed(subject)]])
    buffers = [_failed(subject), *(each for row in launch.results for each in row)]
    for buffer in buffers:
        target = np.zeros(4, np.float32)
        copy = subject.attempt("PJRT_Buffer_ToHostBuffer", src=buffer, dst=target, dst_size=target.nbytes)
        error = copy.error if copy.error is not None else subject.event_error(copy.event)
        right = error is not None and error.code == StatusCode.DATA_LOSS and _MESSAGE.decode() in error.message
        subject.expect(right, f"DATA_LOSS: {_MESSAGE.decode()}", str(error))


@check(
    "error_value.travels_on",
    calls=_CALLS,
    rule="What is computed from a failed result fails with the same error, however many executions lie between.",
)
def _travels(subject: Subject) -> None:
    loaded = subject.compile("add")
    buffer, x = _failed(subject, StatusCode.ABORTED), subject.buffer(_X)
    for _ in range(5):
        launch = Launch(subject, loaded, [[buffer, x]])
        launch.expect_error((StatusCode.ABORTED,), _MESSAGE.decode())
        if launch.error is not None:
            return
        (buffer,) = launch.results[0]


@check(
    "error_value.two_errors",
    calls=_CALLS,
    rule="An execution whose arguments have different errors fails with one of them.",
)
def _two(subject: Subject) -> None:
    row = [_failed(subject, StatusCode.ABORTED), _failed(subject, StatusCode.NOT_FOUND)]
    launch = Launch(subject, subject.compile("add"), [row])
    launch.expect_error((StatusCode.ABORTED, StatusCode.NOT_FOUND), _MESSAGE.decode())


@check(
    "error_value.later",
    calls=(_EXECUTE, "PJRT_AsyncHostToDeviceTransferManager_SetBufferError"),
    rule="An execution that waits for an argument fails when the argument gets an error; nothing waits for ever.",
)
def _later(subject: Subject) -> None:
    pending = PendingBuffer(subject)
    launch = Launch(subject, subject.compile("add"), [[pending.handle, subject.buffer(_X)]], with_events=True)
    second = Launch(subject, subject.compile("add"), [[launch.succeeded().results[0][0], subject.buffer(_X)]])
    pending.fail(StatusCode.UNAVAILABLE, _MESSAGE)
    for each in (launch, second):
        each.expect_error((StatusCode.UNAVAILABLE,), _MESSAGE.decode())
    error = subject.event_error(launch.events[0])
    subject.expect(error is not None and error.code == StatusCode.UNAVAILABLE, "UNAVAILABLE in the event", str(error))


@check(
    "error_value.client_goes_on",
    calls=(*_CALLS, "PJRT_Client_Compile"),
    rule="The client works on after executions that failed.",
)
def _goes_on(subject: Subject) -> None:
    loaded = subject.compile("add")
    for _ in range(20):
        Launch(subject, loaded, [[subject.buffer(_X), _failed(subject)]]).expect_error()
        expect_sum(subject, loaded)
    expect_sum(subject, subject.compile("add"))


@check(
    "error_value.does_not_reach_others",
    calls=_CALLS,
    rule="An error reaches what is computed from it, and no other execution.",
)
def _others(subject: Subject) -> None:
    loaded = subject.compile("add")
    x, failed = subject.buffer(_X), _failed(subject)
    launches = [Launch(subject, loaded, [[x, failed if number % 2 else x]]) for number in range(20)]
    for number, launch in enumerate(launches):
        if number % 2:
            launch.expect_error((StatusCode.DATA_LOSS,))
        else:
            launch.expect(2 * _X)


@check(
    "error_value.shape_of_failed_results",
    calls=(*_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_Device"),
    rule="A result that has an error is a buffer like others: it has a shape, a type and a device, and is destroyed.",
)
def _shape(subject: Subject) -> None:
    launch = Launch(subject, subject.compile("add"), [[subject.buffer(_X), _failed(subject)]])
    if launch.error is not None:
        launch.expect_error()
        return
    (result,) = launch.results[0]
    shape = subject.shape(result)
    subject.expect(shape == (4,), "the shape [4]", str(shape))
    device = subject.call("PJRT_Buffer_Device", buffer=result).device
    subject.expect(device == subject.device, "the first device", hex(device))
    error = buffer_error(subject, result)
    subject.expect(error is not None, "an error", "a value")
    subject.call("PJRT_Buffer_Destroy", buffer=result)


@check(
    "error_value.many_waiting",
    calls=(*_CALLS, "PJRT_Event_Await"),
    rule="Every thread that waits for a failed result gets the error; none waits for ever.",
)
def _many_waiting(subject: Subject) -> None:
    pending = PendingBuffer(subject)
    launch = Launch(subject, subject.compile("add"), [[pending.handle, subject.buffer(_X)]]).succeeded()
    errors: list[object] = []
    barrier = threading.Barrier(9)

    def wait() -> None:
        event = subject.call("PJRT_Buffer_ReadyEvent", buffer=launch.results[0][0]).event
        barrier.wait()
        errors.append(getattr(subject.event_error(event), "code", None))

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    barrier.wait()
    pending.fail(StatusCode.CANCELLED, _MESSAGE)
    for thread in threads:
        thread.join()
    subject.expect(errors == [StatusCode.CANCELLED] * 8, "CANCELLED in 8 threads", str(errors))


@check(
    "error_value.of_a_program",
    calls=(_EXECUTE, "PJRT_Event_Await"),
    rule="A program that fails while it runs gives its error to each result and to the event; the client goes on.",
)
def _of_program(subject: Subject) -> None:
    launch = Launch(subject, compiled_with_handler(subject, "fails"), [[subject.buffer(_X)]], with_events=True)
    launch.expect_error()
    if launch.error is None:
        error = subject.event_error(launch.events[0])
        subject.expect(error is not None, "an error in the event", "an event without one")
    expect_sum(subject, subject.compile("add"))
