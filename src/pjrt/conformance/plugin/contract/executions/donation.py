"""Checks of donated arguments: they are deleted, their memory may be used again, and others are not disturbed."""

from __future__ import annotations

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch, buffer_error
from pjrt.conformance.plugin.contract.executions.pending_buffer import PendingBuffer, error_buffer
from pjrt.conformance.plugin.subject import Subject

_CALLS = ("PJRT_LoadedExecutable_Execute", "PJRT_Buffer_IsDeleted")
_X = np.arange(4, dtype=np.float32)
_Y = np.full(4, 10, np.float32)


def _is_deleted(subject: Subject, buffer: int) -> bool:
    return bool(subject.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted)


def _donate(subject: Subject, buffer: int, other: int | None = None) -> Launch:
    """Execute a program that donates its first argument."""
    rows = [[buffer, other if other is not None else subject.buffer(_Y)]]
    return Launch(subject, subject.compile("donates_first"), rows, with_events=True)


def _require_donation(subject: Subject, buffer: int) -> None:
    """End the check as unsupported where the plugin does not use donated memory: it may leave the argument alone."""
    if not _is_deleted(subject, buffer):
        raise Unsupported("donation of arguments: the plugin leaves a donated buffer as it is")


@check(
    "donation.result",
    calls=_CALLS,
    rule="A program that donates an argument computes the same as one that does not.",
)
def _result(subject: Subject) -> None:
    _donate(subject, subject.buffer(_X)).expect(_X + _Y)


@check(
    "donation.deletes_the_argument",
    calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_Destroy"),
    rule="A donated buffer is deleted when the call returns: reading it is an error, destroying it is not.",
)
def _deletes(subject: Subject) -> None:
    x = subject.buffer(_X)
    launch = _donate(subject, x).succeeded()
    _require_donation(subject, x)
    target = np.zeros(4, np.float32)
    copy = subject.attempt("PJRT_Buffer_ToHostBuffer", src=x, dst=target, dst_size=target.nbytes)
    error = copy.error if copy.error is not None else subject.event_error(copy.event)
    subject.expect(error is not None, "an error", "a copy of a buffer that was donated")
    subject.call("PJRT_Buffer_Destroy", buffer=x)
    launch.expect(_X + _Y)


@check(
    "donation.used_again",
    calls=_CALLS,
    over=("first", "second"),
    rule="A donated buffer cannot be an argument again: the execution is refused with an error.",
)
def _used_again(subject: Subject, place: str) -> None:
    x = subject.buffer(_X)
    _donate(subject, x).succeeded()
    _require_donation(subject, x)
    loaded = subject.compile("add")
    row = [x, subject.buffer(_Y)]
    Launch(subject, loaded, [row if place == "first" else row[::-1]]).expect_error()
    Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_Y)]]).expect(_X + _Y)


@check(
    "donation.questions_about_the_buffer",
    calls=(
        "PJRT_Buffer_Dimensions",
        "PJRT_Buffer_ElementType",
        "PJRT_Buffer_Device",
        "PJRT_Buffer_Memory",
        "PJRT_Buffer_ReadyEvent",
        "PJRT_Buffer_OnDeviceSizeInBytes",
        "PJRT_Buffer_Delete",
    ),
    rule="A function that is asked about a donated buffer answers, or returns an error; it does not end the process.",
)
def _questions(subject: Subject) -> None:
    x = subject.buffer(_X)
    _donate(subject, x).succeeded()
    _require_donation(subject, x)
    for name in ("Dimensions", "ElementType", "Device", "Memory", "OnDeviceSizeInBytes", "Delete"):
        subject.attempt(f"PJRT_Buffer_{name}", buffer=x)
    buffer_error(subject, x)
    subject.expect(_is_deleted(subject, x), "a deleted buffer", "one that is not deleted")


@check(
    "donation.second_argument_stays",
    calls=_CALLS,
    rule="Arguments that the program does not donate stay as they are.",
)
def _second(subject: Subject) -> None:
    y = subject.buffer(_Y)
    _donate(subject, subject.buffer(_X), y).expect(_X + _Y)
    subject.expect(not _is_deleted(subject, y), "a buffer that is not deleted", "a deleted one")
    subject.expect_contents(y, _Y)


@check(
    "donation.non_donatable",
    calls=_CALLS,
    rule="An argument whose index is in non_donatable_input_indices is not donated: it keeps its contents.",
)
def _non_donatable(subject: Subject) -> None:
    x = subject.buffer(_X)
    loaded = subject.compile("donates_first")
    launch = Launch(subject, loaded, [[x, subject.buffer(_Y)]], non_donatable_input_indices=[0])
    launch.expect(_X + _Y)
    subject.expect(not _is_deleted(subject, x), "a buffer that is not deleted", "a deleted one")
    subject.expect_contents(x, _X)


@check(
    "donation.non_donatable_other",
    calls=_CALLS,
    rule="non_donatable_input_indices only speaks of the arguments that it names.",
)
def _non_donatable_other(subject: Subject) -> None:
    x, y = subject.buffer(_X), subject.buffer(_Y)
    loaded = subject.compile("donates_first")
    Launch(subject, loaded, [[x, y]], non_donatable_input_indices=[1]).expect(_X + _Y)
    subject.expect_contents(y, _Y)
    other = subject.buffer(_X)
    _donate(subject, other).succeeded()
    subject.expect(
        _is_deleted(subject, x) == _is_deleted(subject, other), "the first argument donated as without indices", "kept"
    )


@check(
    "donation.same_buffer_twice",
    calls=_CALLS,
    rule="A buffer that is donated may not be another argument of the execution too: the call has an error, or the "
    "results are right.",
)
def _same_twice(subject: Subject) -> None:
    x = subject.buffer(_X)
    launch = _donate(subject, x, x)
    if launch.error is None and all(error is None for error in launch.errors()):
        launch.expect(_X + _X)
        return
    launch.expect_error()


@check(
    "donation.chain",
    calls=_CALLS,
    rule="A result in donated memory can be donated in its turn.",
)
def _chain(subject: Subject) -> None:
    loaded = subject.compile("donates_first")
    buffer, one = subject.buffer(_X), subject.buffer(np.ones(4, np.float32))
    for _ in range(100):
        (buffer,) = Launch(subject, loaded, [[buffer, one]]).succeeded().results[0]
    subject.expect_contents(buffer, _X + 100)


@check(
    "donation.while_it_is_read",
    calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer"),
    rule="A copy that was begun before a donation sees the values of before it.",
)
def _while_read(subject: Subject) -> None:
    shape = (1 << 16,)
    tensor = f"{shape[0]}xf32"
    loaded = subject.compile("donates_first", tensor)
    value, one = np.arange(shape[0], dtype=np.float32), np.ones(shape, np.float32)
    buffer, other = subject.buffer(value), subject.buffer(one)
    for number in range(10):
        target = np.full(shape, -1, np.float32)
        copy = subject.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=target, dst_size=target.nbytes)
        (buffer,) = Launch(subject, loaded, [[buffer, other]]).succeeded().results[0]
        subject.await_event(copy.event)
        right = value + number
        subject.expect(np.array_equal(target, right), f"the values of before donation {number}", str(target[:8]))


@check(
    "donation.while_another_execution_reads_it",
    calls=_CALLS,
    rule="An execution that was begun before a donation computes with the values of before it.",
)
def _while_executed(subject: Subject) -> None:
    add, donates = subject.compile("add"), subject.compile("donates_first")
    pending = PendingBuffer(subject)
    x = subject.buffer(_X)
    reader = Launch(subject, add, [[pending.handle, x]]).succeeded()
    donation = Launch(subject, donates, [[x, subject.buffer(_Y)]])
    pending.fulfil(_Y)
    reader.expect(_X + _Y)
    if donation.error is None:
        donation.expect(_X + _Y)


@check(
    "donation.of_a_pending_buffer",
    calls=_CALLS,
    rule="A buffer that has no value yet can be donated; it is deleted, and the execution waits for the value.",
)
def _pending(subject: Subject) -> None:
    pending = PendingBuffer(subject)
    launch = _donate(subject, pending.handle).succeeded()
    pending.fulfil(_X)
    launch.expect(_X + _Y)


@check(
    "donation.of_an_error",
    calls=(*_CALLS, "PJRT_Client_CreateErrorBuffer"),
    rule="A buffer with an error can be donated; the results have its error.",
)
def _of_error(subject: Subject) -> None:
    launch = _donate(subject, error_buffer(subject, StatusCode.DATA_LOSS, b"lost on the way"))
    launch.expect_error((StatusCode.DATA_LOSS,), "lost on the way")


@check(
    "donation.with_external_reference",
    calls=(*_CALLS, "PJRT_Buffer_IncreaseExternalReferenceCount", "PJRT_Buffer_DecreaseExternalReferenceCount"),
    rule="The memory of a buffer with external references stays: the donation fails, or leaves the memory as it is.",
)
def _external(subject: Subject) -> None:
    import ctypes

    subject.require("PJRT_Buffer_IncreaseExternalReferenceCount", "PJRT_Buffer_OpaqueDeviceMemoryDataPointer")
    x = subject.buffer(_X)
    subject.call("PJRT_Buffer_IncreaseExternalReferenceCount", buffer=x)
    pointer = subject.call("PJRT_Buffer_OpaqueDeviceMemoryDataPointer", buffer=x).device_memory_ptr
    on_host = subject.call("PJRT_Buffer_IsOnCpu", buffer=x).is_on_cpu
    launch = _donate(subject, x)
    if launch.error is None and all(error is None for error in launch.errors()):
        launch.expect(_X + _Y)
    if on_host:
        values = np.frombuffer(ctypes.string_at(pointer, _X.nbytes), np.float32)
        subject.expect(np.array_equal(values, _X), f"the memory as it was, {_X}", str(values))
    subject.call("PJRT_Buffer_DecreaseExternalReferenceCount", buffer=x)
    subject.call("PJRT_Buffer_Destroy", buffer=x)


@check(
    "donation.event",
    calls=(*_CALLS, "PJRT_Event_Await"),
    rule="The event of an execution that donates is ready when the execution has ended.",
)
def _event(subject: Subject) -> None:
    launch = _donate(subject, subject.buffer(_X)).succeeded()
    subject.await_event(launch.events[0])
    launch.expect(_X + _Y)
