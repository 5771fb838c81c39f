"""Checks of executions: results, arguments that fit or do not, donated ones, and errors that travel as values."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.events import CallbackRecord
from pjrt.conformance.plugin.contract.executions.launch import Launch, PendingBuffer, buffer_error, error_buffer
from pjrt.conformance.plugin.contract.extensions import compiled_with_handler
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.samples import MANY
from pjrt.conformance.plugin.subject import Subject


@check("execute.results.add", calls=("PJRT_Client_Compile", "PJRT_LoadedExecutable_Execute"))
def _add(subject: Subject) -> None:
    """An execution returns one buffer for each result of the program, with what the program computes."""
    executable = subject.compile("add")
    x, y = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
    outputs = subject.execute(executable, [[subject.buffer(x), subject.buffer(y)]])
    subject.expect_contents(outputs[0][0], x + y)


# Executions: results, numbers of arguments and results, executions in flight, devices that are named.

_CALLS = ("PJRT_LoadedExecutable_Execute",)
_X = np.arange(4, dtype=np.float32)
_Y = np.full(4, 10, np.float32)
_IN_FLIGHT = 100


@check("execute.adds", calls=_CALLS)
def _adds(subject: Subject) -> None:
    """An execution computes the results of the program from its arguments."""
    loaded = subject.compile("add")
    for factor in (1, -3):
        launch = Launch(subject, loaded, [[subject.buffer(_X * factor), subject.buffer(_Y)]])
        launch.expect(_X * factor + _Y)


@check("execute.order_of_arguments", calls=_CALLS)
def _order(subject: Subject) -> None:
    """Arguments are in the order of the parameters."""
    launch = Launch(subject, subject.compile("subtract"), [[subject.buffer(_X), subject.buffer(_Y)]])
    launch.expect(_X - _Y)


@check("execute.no_arguments", calls=_CALLS)
def _no_arguments(subject: Subject) -> None:
    """A program may have no parameters."""
    launch = Launch(subject, subject.compile("no_arguments"), [[]])
    launch.expect(np.full(4, 3, np.float32))


@check("execute.null_lists", calls=_CALLS)
def _null_lists(subject: Subject) -> None:
    """Where there are no arguments the inner lists have no elements, and may be null."""
    answer = subject.attempt(
        "PJRT_LoadedExecutable_Execute",
        executable=subject.compile("no_arguments"),
        options={},
        argument_lists=[0],
        num_args=0,
        output_lists=[[None]],
    )
    subject.expect(answer.error is None, "an execution that begins", str(answer.error))
    subject.expect_contents(answer.output_lists[0][0], np.full(4, 3, np.float32))


@check("execute.no_results", calls=_CALLS)
def _no_results(subject: Subject) -> None:
    """A program may have no results; its event is ready when it has run."""
    loaded = subject.compile("no_results")
    launch = Launch(subject, loaded, [[subject.buffer(_X)]], num_results=0, with_events=True).succeeded()
    error = subject.event_error(launch.events[0])
    subject.expect(error is None, "an execution that ends well", str(error))


@check("execute.many_arguments", calls=_CALLS)
def _many_arguments(subject: Subject) -> None:
    """A program may have any number of parameters."""
    arrays = [_X + number for number in range(MANY)]
    launch = Launch(subject, subject.compile("many_arguments"), [[subject.buffer(each) for each in arrays]])
    launch.expect(np.asarray(np.sum(arrays, axis=0, dtype=np.float32)))


@check("execute.many_results", calls=_CALLS)
def _many_results(subject: Subject) -> None:
    """A program may have any number of results, each a buffer of its own."""
    launch = Launch(subject, subject.compile("many_results"), [[subject.buffer(_X)]], num_results=MANY)
    launch.expect(*(_X * (number + 1) for number in range(MANY)))
    subject.expect(len(set(launch.results[0])) == MANY, f"{MANY} buffers", "the same handle for two of them")


@check("execute.mixed_results", calls=(*_CALLS, "PJRT_Buffer_ElementType", "PJRT_Buffer_Dimensions"))
def _mixed(subject: Subject) -> None:
    """Each result has the element type and the shape that the program states."""
    launch = Launch(subject, subject.compile("mixed_results"), [[subject.buffer(_X)]], num_results=3)
    launch.expect(_X, np.full((2, 3), 7, np.int32), np.array(1.5, np.float32))
    types = [subject.call("PJRT_Buffer_ElementType", buffer=each).type for each in launch.results[0]]
    subject.expect(types == [ElementType.F32, ElementType.S32, ElementType.F32], "F32, S32, F32", str(types))


@check("execute.results_are_on_the_device", calls=(*_CALLS, "PJRT_Buffer_Device", "PJRT_Buffer_Memory"))
def _on_device(subject: Subject) -> None:
    """Results are on the device that ran the program, in a memory of that device."""
    launch = Launch(subject, subject.compile("add"), [[subject.buffer(_X), subject.buffer(_Y)]]).succeeded()
    (result,) = launch.results[0]
    device = subject.call("PJRT_Buffer_Device", buffer=result).device
    subject.expect(device == subject.device, "the first device", hex(device))
    memory = subject.call("PJRT_Buffer_Memory", buffer=result).memory
    memories = subject.call("PJRT_Device_AddressableMemories", device=subject.device).memories
    subject.expect(memory in memories, "a memory of the device", hex(memory))


@check("execute.same_buffer_twice", calls=_CALLS)
def _execute_same_buffer_twice(subject: Subject) -> None:
    """A buffer may be given as several arguments of an execution that does not donate it."""
    buffer = subject.buffer(_X)
    launch = Launch(subject, subject.compile("add"), [[buffer, buffer]])
    launch.expect(_X + _X)
    subject.expect_contents(buffer, _X)


@check("execute.arguments_are_not_changed", calls=_CALLS)
def _arguments_kept(subject: Subject) -> None:
    """Arguments that are not donated keep their values."""
    x, y = subject.buffer(_X), subject.buffer(_Y)
    launches = [Launch(subject, subject.compile("add"), [[x, y]]) for _ in range(3)]
    for launch in launches:
        launch.expect(_X + _Y)
    subject.expect_contents(x, _X)
    subject.expect_contents(y, _Y)


@check("execute.identity_is_a_buffer_of_its_own", calls=(*_CALLS, "PJRT_Buffer_Destroy"))
def _identity(subject: Subject) -> None:
    """A result is a new buffer, also where the program returns its argument; each is destroyed on its own."""
    buffer = subject.buffer(_X)
    launch = Launch(subject, subject.compile("identity"), [[buffer]]).succeeded()
    (result,) = launch.results[0]
    subject.expect(result != buffer, "a new buffer", "the handle of the argument")
    subject.call("PJRT_Buffer_Destroy", buffer=buffer)
    subject.expect_contents(result, _X)


@check(
    "execute.arguments_can_be_destroyed_at_once",
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    over={"destroy": "PJRT_Buffer_Destroy", "delete": "PJRT_Buffer_Delete"},
)
def _arguments_destroyed(subject: Subject, function: str) -> None:
    """Arguments may be deleted or destroyed when the call has returned; the execution keeps what it needs."""
    loaded = subject.compile("add")
    x, y = subject.buffer(_X), subject.buffer(_Y)
    launch = Launch(subject, loaded, [[x, y]]).succeeded()
    for buffer in (x, y):
        subject.call(function, buffer=buffer)
    launch.expect(_X + _Y)


@check("execute.results_feed_executions", calls=_CALLS)
def _execute_results_feed_executions(subject: Subject) -> None:
    """A result can be an argument before it has its value; executions run in the order of their data."""
    loaded = subject.compile("add")
    one = subject.buffer(np.ones(4, np.float32))
    buffer = subject.buffer(np.zeros(4, np.float32))
    for _ in range(_IN_FLIGHT):
        (buffer,) = Launch(subject, loaded, [[buffer, one]]).succeeded().results[0]
    subject.expect_contents(buffer, np.full(4, _IN_FLIGHT, np.float32))


@check("execute.in_flight", calls=_CALLS)
def _in_flight(subject: Subject) -> None:
    """Any number of executions may be in flight; each has results of its own."""
    loaded = subject.compile("add")
    x = subject.buffer(_X)
    launches = [
        Launch(subject, loaded, [[x, subject.buffer(np.full(4, number, np.float32))]]) for number in range(_IN_FLIGHT)
    ]
    for number, launch in reversed(list(enumerate(launches))):
        launch.expect(_X + number)


@check("execute.results_can_be_destroyed_before_they_are_ready", calls=(*_CALLS, "PJRT_Buffer_Destroy"))
def _destroyed_early(subject: Subject) -> None:
    """A result may be destroyed before it has its value; the execution goes on."""
    loaded = subject.compile("add")
    pending = PendingBuffer(subject)
    launches = [Launch(subject, loaded, [[pending.handle, subject.buffer(_Y)]], with_events=True) for _ in range(3)]
    subject.call("PJRT_Buffer_Destroy", buffer=launches[0].succeeded().results[0][0])
    subject.call("PJRT_Buffer_Delete", buffer=launches[1].succeeded().results[0][0])
    pending.fulfil(_X)
    launches[2].expect(_X + _Y)
    for launch in launches:
        subject.event_error(launch.events[0])


@check("execute.returns_before_its_arguments_are_ready", calls=(*_CALLS, "PJRT_Event_IsReady"))
def _returns(subject: Subject) -> None:
    """An execution is work that is begun: the call returns. Its results and events are ready when their work is done,
    and not before.
    """
    pending = PendingBuffer(subject)
    launch = Launch(
        subject, subject.compile("add"), [[pending.handle, subject.buffer(_Y)]], with_events=True
    ).succeeded()
    ready = subject.call("PJRT_Buffer_ReadyEvent", buffer=launch.results[0][0]).event
    early = [subject.call("PJRT_Event_IsReady", event=event).is_ready for event in (ready, launch.events[0])]
    subject.expect(early == [False, False], "a result and an event that are not ready", f"ready: {early}")
    pending.fulfil(_X)
    for event in (ready, launch.events[0]):
        error = subject.attempt("PJRT_Event_Await", event=event).error
        subject.expect(error is None, "work that ends well", str(error))
        is_ready = subject.call("PJRT_Event_IsReady", event=event).is_ready
        subject.expect(is_ready, "an event that is ready when it was awaited", "one that is not")
    launch.expect(_X + _Y)


@check("execute.reads_wait_for_results", calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer"))
def _read_early(subject: Subject) -> None:
    """A result may be read before it is ready; the copy waits for the value."""
    pending = PendingBuffer(subject)
    launch = Launch(subject, subject.compile("add"), [[pending.handle, subject.buffer(_Y)]]).succeeded()
    target = np.full(4, -1, np.float32)
    copy = subject.call("PJRT_Buffer_ToHostBuffer", src=launch.results[0][0], dst=target, dst_size=target.nbytes)
    pending.fulfil(_X)
    error = subject.event_error(copy.event)
    subject.expect(error is None, "a copy that ends well", str(error))
    subject.expect(np.array_equal(target, _X + _Y), str(_X + _Y), str(target))


@check("execute.callback_of_the_event", calls=(*_CALLS, "PJRT_Event_OnReady"))
def _execute_callback_of_the_event(subject: Subject) -> None:
    """A callback on the event of an execution runs once, when the execution has ended."""
    pending = PendingBuffer(subject)
    launch = Launch(
        subject, subject.compile("add"), [[pending.handle, subject.buffer(_Y)]], with_events=True
    ).succeeded()
    record = CallbackRecord(subject)
    record.register(launch.events[0], 3)
    subject.expect(not record.calls, "no call before the execution has ended", f"{len(record.calls)} calls")
    pending.fulfil(_X)
    record.wait(1)
    subject.expect(record.calls == [(None, 3)], "one call with no error", str(record.calls))


@check("execute.event_destroyed_before_its_callback", calls=(*_CALLS, "PJRT_Event_OnReady", "PJRT_Event_Destroy"))
def _event_destroyed(subject: Subject) -> None:
    """A callback runs when the event is ready, also where the caller has destroyed its handle of the event before."""
    pending = PendingBuffer(subject)
    launch = Launch(
        subject, subject.compile("add"), [[pending.handle, subject.buffer(_Y)]], with_events=True
    ).succeeded()
    record = CallbackRecord(subject)
    record.register(launch.events[0], 4)
    subject.call("PJRT_Event_Destroy", event=launch.events[0])
    pending.fulfil(_X)
    record.wait(1)
    subject.expect(record.calls == [(None, 4)], "one call with no error", str(record.calls))


@check(
    "execute.event_outlives_its_buffer",
    calls=(*_CALLS, "PJRT_Buffer_ReadyEvent", "PJRT_Buffer_Destroy", "PJRT_Event_Await"),
)
def _event_outlives(subject: Subject) -> None:
    """An event belongs to the caller, and becomes ready also when its buffer is destroyed."""
    pending = PendingBuffer(subject)
    launch = Launch(subject, subject.compile("add"), [[pending.handle, subject.buffer(_Y)]]).succeeded()
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=launch.results[0][0]).event
    subject.call("PJRT_Buffer_Destroy", buffer=launch.results[0][0])
    pending.fulfil(_X)
    subject.event_error(event)


@check("execute.events_are_independent", calls=("PJRT_Buffer_ReadyEvent", "PJRT_Event_Destroy"))
def _independent_events(subject: Subject) -> None:
    """Each call of PJRT_Buffer_ReadyEvent returns an event that is destroyed on its own."""
    launch = Launch(subject, subject.compile("add"), [[subject.buffer(_X), subject.buffer(_Y)]]).succeeded()
    first, second = (subject.call("PJRT_Buffer_ReadyEvent", buffer=launch.results[0][0]).event for _ in range(2))
    subject.call("PJRT_Event_Destroy", event=first)
    error = subject.event_error(second)
    subject.expect(error is None, "an event that ends well", str(error))
    error = buffer_error(subject, launch.results[0][0])
    subject.expect(error is None, "a buffer with its value", str(error))


# Arguments that do not fit the program: they are refused with an error, and the client goes on.


def _expect_refused(subject: Subject, executable: int, launch: Launch) -> None:
    """Fail the check unless the call, or each result, has an error with a message, and the executable still works."""
    launch.expect_error()
    for error in launch.errors():
        subject.expect(error is not None and bool(error.message), "a message", f"{error} without one")
    expect_sum(subject, executable)


@check("arguments.number", calls=_CALLS, over=(0, 1, 3, 64))
def _number(subject: Subject, count: int) -> None:
    """num_args is the number of the program's parameters; another number is refused with an error."""
    loaded = subject.compile("add")
    _expect_refused(subject, loaded, Launch(subject, loaded, [[subject.buffer(_X)] * count]))


_WRONG: dict[str, Callable[[], np.ndarray]] = {
    "element_type": lambda: np.arange(4, dtype=np.int32),
    "smaller_element_type": lambda: np.arange(4, dtype=np.int8),
    "more_elements": lambda: np.arange(5, dtype=np.float32),
    "fewer_elements": lambda: np.arange(3, dtype=np.float32),
    "no_elements": lambda: np.zeros(0, np.float32),
    "scalar": lambda: np.array(1, np.float32),
    "rank": lambda: np.arange(4, dtype=np.float32).reshape(2, 2),
}


@check("arguments.shape", calls=_CALLS, over=_WRONG)
def _arguments_shape(subject: Subject, array: Callable[[], np.ndarray]) -> None:
    """An argument has the element type and the shape of its parameter; another is refused with an error."""
    loaded = subject.compile("add")
    for place in (0, 1):
        arguments = [subject.buffer(_X), subject.buffer(_X)]
        arguments[place] = subject.buffer(array())
        _expect_refused(subject, loaded, Launch(subject, loaded, [arguments]))


@check("arguments.another_device", calls=_CALLS)
def _another_device(subject: Subject) -> None:
    """Arguments are on the device that runs the program; a buffer of another device is refused with an error."""
    second = subject.several_devices(2)[1]
    loaded = subject.compile("add")
    launch = Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_X, device=second)]])
    _expect_refused(subject, loaded, launch)


@check("arguments.deleted", calls=(*_CALLS, "PJRT_Buffer_Delete"))
def _deleted(subject: Subject) -> None:
    """A deleted buffer has no contents: an execution that takes it is refused with an error."""
    loaded = subject.compile("add")
    buffer = subject.buffer(_X)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    _expect_refused(subject, loaded, Launch(subject, loaded, [[subject.buffer(_X), buffer]]))


@check("arguments.refused_ones_are_not_used_up", calls=_CALLS)
def _not_used_up(subject: Subject) -> None:
    """A call that fails takes nothing: arguments that it would have donated keep their contents."""
    loaded = subject.compile("donates_first")
    x, wrong = subject.buffer(_X), subject.buffer(np.arange(5, dtype=np.float32))
    launch = Launch(subject, loaded, [[x, wrong]])
    launch.expect_error()
    if launch.error is not None and not subject.call("PJRT_Buffer_IsDeleted", buffer=x).is_deleted:
        subject.expect_contents(x, _X)


@check("arguments.number_of_lists", calls=_CALLS, over=(0, 2))
def _lists(subject: Subject, count: int) -> None:
    """There is one list of arguments for each addressable device of the executable; another number is refused."""
    loaded = subject.compile("add")
    launch = Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_X)]] * count, num_args=2)
    subject.expect(launch.error is not None, "an error", f"an execution with {count} lists on 1 device")
    expect_sum(subject, loaded)


@check("arguments.execute_device_takes_one_list", calls=_CALLS)
def _execute_device(subject: Subject) -> None:
    """With execute_device num_devices is 1; another number is refused with an error."""
    loaded = subject.compile("add")
    rows = [[subject.buffer(_X), subject.buffer(_X)]] * 2
    launch = Launch(subject, loaded, rows, execute_device=subject.device)
    subject.expect(launch.error is not None, "an error", "an execution with 2 lists on 1 device")
    expect_sum(subject, loaded)


@check("arguments.execute_device_is_in_the_assignment", calls=_CALLS)
def _unassigned_device(subject: Subject) -> None:
    """A program runs on the devices that it was compiled for: another execute_device is refused with an error, unless
    the executable is portable.
    """
    second = subject.several_devices(2)[1]
    loaded = subject.compile("add")
    rows = [[subject.buffer(_X, device=second), subject.buffer(_X, device=second)]]
    launch = Launch(subject, loaded, rows, execute_device=second)
    launch.expect_error()
    expect_sum(subject, loaded)


# Donated arguments: they are deleted, their memory may be used again, and others are not disturbed.

_DONATION_CALLS = ("PJRT_LoadedExecutable_Execute", "PJRT_Buffer_IsDeleted")


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


@check("donation.result", calls=_DONATION_CALLS)
def _result(subject: Subject) -> None:
    """A program that donates an argument computes the same as one that does not."""
    _donate(subject, subject.buffer(_X)).expect(_X + _Y)


@check("donation.deletes_the_argument", calls=(*_DONATION_CALLS, "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_Destroy"))
def _deletes(subject: Subject) -> None:
    """A donated buffer is deleted when the call returns: reading it is an error, destroying it is not."""
    x = subject.buffer(_X)
    launch = _donate(subject, x).succeeded()
    _require_donation(subject, x)
    target = np.zeros(4, np.float32)
    copy = subject.attempt("PJRT_Buffer_ToHostBuffer", src=x, dst=target, dst_size=target.nbytes)
    error = copy.error if copy.error is not None else subject.event_error(copy.event)
    subject.expect(error is not None, "an error", "a copy of a buffer that was donated")
    subject.call("PJRT_Buffer_Destroy", buffer=x)
    launch.expect(_X + _Y)


@check("donation.used_again", calls=_DONATION_CALLS, over=("first", "second"))
def _used_again(subject: Subject, place: str) -> None:
    """A donated buffer cannot be an argument again: the execution is refused with an error."""
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
)
def _questions(subject: Subject) -> None:
    """A function that is asked about a donated buffer answers, or returns an error; it does not end the process."""
    x = subject.buffer(_X)
    _donate(subject, x).succeeded()
    _require_donation(subject, x)
    for name in ("Dimensions", "ElementType", "Device", "Memory", "OnDeviceSizeInBytes", "Delete"):
        subject.attempt(f"PJRT_Buffer_{name}", buffer=x)
    buffer_error(subject, x)
    subject.expect(_is_deleted(subject, x), "a deleted buffer", "one that is not deleted")


@check("donation.second_argument_stays", calls=_DONATION_CALLS)
def _second(subject: Subject) -> None:
    """Arguments that the program does not donate stay as they are."""
    y = subject.buffer(_Y)
    _donate(subject, subject.buffer(_X), y).expect(_X + _Y)
    subject.expect(not _is_deleted(subject, y), "a buffer that is not deleted", "a deleted one")
    subject.expect_contents(y, _Y)


@check("donation.non_donatable", calls=_DONATION_CALLS)
def _non_donatable(subject: Subject) -> None:
    """An argument whose index is in non_donatable_input_indices is not donated: it keeps its contents."""
    x = subject.buffer(_X)
    loaded = subject.compile("donates_first")
    launch = Launch(subject, loaded, [[x, subject.buffer(_Y)]], non_donatable_input_indices=[0])
    launch.expect(_X + _Y)
    subject.expect(not _is_deleted(subject, x), "a buffer that is not deleted", "a deleted one")
    subject.expect_contents(x, _X)


@check("donation.non_donatable_other", calls=_DONATION_CALLS)
def _non_donatable_other(subject: Subject) -> None:
    """non_donatable_input_indices only speaks of the arguments that it names."""
    x, y = subject.buffer(_X), subject.buffer(_Y)
    loaded = subject.compile("donates_first")
    Launch(subject, loaded, [[x, y]], non_donatable_input_indices=[1]).expect(_X + _Y)
    subject.expect_contents(y, _Y)
    other = subject.buffer(_X)
    _donate(subject, other).succeeded()
    subject.expect(
        _is_deleted(subject, x) == _is_deleted(subject, other), "the first argument donated as without indices", "kept"
    )


@check("donation.same_buffer_twice", calls=_DONATION_CALLS)
def _donation_same_buffer_twice(subject: Subject) -> None:
    """A buffer that is donated may not be another argument of the execution too: the call has an error, or the results
    are right.
    """
    x = subject.buffer(_X)
    launch = _donate(subject, x, x)
    if launch.error is None and all(error is None for error in launch.errors()):
        launch.expect(_X + _X)
        return
    launch.expect_error()


@check("donation.chain", calls=_DONATION_CALLS)
def _donation_chain(subject: Subject) -> None:
    """A result in donated memory can be donated in its turn."""
    loaded = subject.compile("donates_first")
    buffer, one = subject.buffer(_X), subject.buffer(np.ones(4, np.float32))
    for _ in range(100):
        (buffer,) = Launch(subject, loaded, [[buffer, one]]).succeeded().results[0]
    subject.expect_contents(buffer, _X + 100)


@check("donation.while_it_is_read", calls=(*_DONATION_CALLS, "PJRT_Buffer_ToHostBuffer"))
def _while_read(subject: Subject) -> None:
    """A copy that was begun before a donation sees the values of before it."""
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


@check("donation.while_another_execution_reads_it", calls=_DONATION_CALLS)
def _while_executed(subject: Subject) -> None:
    """An execution that was begun before a donation computes with the values of before it."""
    add, donates = subject.compile("add"), subject.compile("donates_first")
    pending = PendingBuffer(subject)
    x = subject.buffer(_X)
    reader = Launch(subject, add, [[pending.handle, x]]).succeeded()
    donation = Launch(subject, donates, [[x, subject.buffer(_Y)]])
    pending.fulfil(_Y)
    reader.expect(_X + _Y)
    if donation.error is None:
        donation.expect(_X + _Y)


@check("donation.of_a_pending_buffer", calls=_DONATION_CALLS)
def _pending(subject: Subject) -> None:
    """A buffer that has no value yet can be donated; it is deleted, and the execution waits for the value."""
    pending = PendingBuffer(subject)
    launch = _donate(subject, pending.handle).succeeded()
    pending.fulfil(_X)
    launch.expect(_X + _Y)


@check("donation.of_an_error", calls=(*_DONATION_CALLS, "PJRT_Client_CreateErrorBuffer"))
def _of_error(subject: Subject) -> None:
    """A buffer with an error can be donated; the results have its error."""
    launch = _donate(subject, error_buffer(subject, StatusCode.DATA_LOSS, b"lost on the way"))
    launch.expect_error((StatusCode.DATA_LOSS,), "lost on the way")


@check(
    "donation.with_external_reference",
    calls=(
        *_DONATION_CALLS,
        "PJRT_Buffer_IncreaseExternalReferenceCount",
        "PJRT_Buffer_DecreaseExternalReferenceCount",
    ),
)
def _external(subject: Subject) -> None:
    """The memory of a buffer with external references stays: the donation fails, or leaves the memory as it is."""
    import ctypes

    subject.require("PJRT_Buffer_IncreaseExternalReferenceCount", "PJRT_Buffer_OpaqueDeviceMemoryDataPointer")
    x = subject.buffer(_X)
    subject.await_buffers([x])  # a launch that fails waits for nothing
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


@check("donation.event", calls=(*_DONATION_CALLS, "PJRT_Event_Await"))
def _donation_event(subject: Subject) -> None:
    """The event of an execution that donates is ready when the execution has ended."""
    launch = _donate(subject, subject.buffer(_X)).succeeded()
    subject.await_event(launch.events[0])
    launch.expect(_X + _Y)


# Errors that travel as values: buffers with errors, failed executions, and what is computed from them.

_EXECUTE = "PJRT_LoadedExecutable_Execute"
_ERROR_CALLS = (_EXECUTE, "PJRT_Client_CreateErrorBuffer")
_MESSAGE = b"the wheel came off"
_CODES = tuple(code for code in StatusCode if code is not StatusCode.OK)


def _failed(subject: Subject, code: StatusCode = StatusCode.DATA_LOSS) -> int:
    return error_buffer(subject, code, _MESSAGE)


@check("error_value.arrives_in_results", calls=_ERROR_CALLS, over={code.name: code for code in _CODES})
def _arrives(subject: Subject, code: StatusCode) -> None:
    """An execution that is given a buffer with an error fails with the code and the message of that error."""
    launch = Launch(subject, subject.compile("add"), [[subject.buffer(_X), _failed(subject, code)]])
    launch.expect_error((code,), _MESSAGE.decode())


@check("error_value.arrives_in_each_result", calls=_ERROR_CALLS)
def _each_result(subject: Subject) -> None:
    """Each result of a failed execution has the error."""
    launch = Launch(subject, subject.compile("many_results"), [[_failed(subject)]], num_results=MANY)
    launch.expect_error((StatusCode.DATA_LOSS,), _MESSAGE.decode())


@check("error_value.arrives_in_the_event", calls=(*_ERROR_CALLS, "PJRT_Event_Await", "PJRT_Event_Error"))
def _error_value_arrives_in_the_event(subject: Subject) -> None:
    """The event of a failed execution has the error."""
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


@check("error_value.arrives_in_the_callback", calls=(*_ERROR_CALLS, "PJRT_Event_OnReady"))
def _error_value_arrives_in_the_callback(subject: Subject) -> None:
    """A callback on the event of a failed execution gets the error, once."""
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


@check("error_value.arrives_in_reads", calls=(*_ERROR_CALLS, "PJRT_Buffer_ToHostBuffer"))
def _reads(subject: Subject) -> None:
    """Reading a buffer that has an error fails with that error, in the call or in its event."""
    launch = Launch(subject, subject.compile("add"), [[subject.buffer(_X), _failed(subject)]])
    buffers = [_failed(subject), *(each for row in launch.results for each in row)]
    for buffer in buffers:
        target = np.zeros(4, np.float32)
        copy = subject.attempt("PJRT_Buffer_ToHostBuffer", src=buffer, dst=target, dst_size=target.nbytes)
        error = copy.error if copy.error is not None else subject.event_error(copy.event)
        right = error is not None and error.code == StatusCode.DATA_LOSS and _MESSAGE.decode() in error.message
        subject.expect(right, f"DATA_LOSS: {_MESSAGE.decode()}", str(error))


@check("error_value.travels_on", calls=_ERROR_CALLS)
def _travels(subject: Subject) -> None:
    """What is computed from a failed result fails with the same error, however many executions lie between."""
    loaded = subject.compile("add")
    buffer, x = _failed(subject, StatusCode.ABORTED), subject.buffer(_X)
    for _ in range(5):
        launch = Launch(subject, loaded, [[buffer, x]])
        launch.expect_error((StatusCode.ABORTED,), _MESSAGE.decode())
        if launch.error is not None:
            return
        (buffer,) = launch.results[0]


@check("error_value.two_errors", calls=_ERROR_CALLS)
def _two(subject: Subject) -> None:
    """An execution whose arguments have different errors fails with one of them."""
    row = [_failed(subject, StatusCode.ABORTED), _failed(subject, StatusCode.NOT_FOUND)]
    launch = Launch(subject, subject.compile("add"), [row])
    launch.expect_error((StatusCode.ABORTED, StatusCode.NOT_FOUND), _MESSAGE.decode())


@check("error_value.later", calls=(_EXECUTE, "PJRT_AsyncHostToDeviceTransferManager_SetBufferError"))
def _later(subject: Subject) -> None:
    """An execution that waits for an argument fails when the argument gets an error; nothing waits for ever."""
    pending = PendingBuffer(subject)
    launch = Launch(subject, subject.compile("add"), [[pending.handle, subject.buffer(_X)]], with_events=True)
    second = Launch(subject, subject.compile("add"), [[launch.succeeded().results[0][0], subject.buffer(_X)]])
    pending.fail(StatusCode.UNAVAILABLE, _MESSAGE)
    for each in (launch, second):
        each.expect_error((StatusCode.UNAVAILABLE,), _MESSAGE.decode())
    error = subject.event_error(launch.events[0])
    subject.expect(error is not None and error.code == StatusCode.UNAVAILABLE, "UNAVAILABLE in the event", str(error))


@check("error_value.client_goes_on", calls=(*_ERROR_CALLS, "PJRT_Client_Compile"))
def _goes_on(subject: Subject) -> None:
    """The client works on after executions that failed."""
    loaded = subject.compile("add")
    for _ in range(20):
        Launch(subject, loaded, [[subject.buffer(_X), _failed(subject)]]).expect_error()
        expect_sum(subject, loaded)
    expect_sum(subject, subject.compile("add"))


@check("error_value.does_not_reach_others", calls=_ERROR_CALLS)
def _others(subject: Subject) -> None:
    """An error reaches what is computed from it, and no other execution."""
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
    calls=(*_ERROR_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_Device"),
)
def _error_value_shape_of_failed_results(subject: Subject) -> None:
    """A result that has an error is a buffer like others: it has a shape, a type and a device, and is destroyed."""
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


@check("error_value.many_waiting", calls=(*_ERROR_CALLS, "PJRT_Event_Await"))
def _many_waiting(subject: Subject) -> None:
    """Every thread that waits for a failed result gets the error; none waits for ever."""
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


@check("error_value.of_a_program", calls=(_EXECUTE, "PJRT_Event_Await"))
def _of_program(subject: Subject) -> None:
    """A program that fails while it runs gives its error to each result and to the event; the client goes on."""
    launch = Launch(subject, compiled_with_handler(subject, "fails"), [[subject.buffer(_X)]], with_events=True)
    launch.expect_error()
    if launch.error is None:
        error = subject.event_error(launch.events[0])
        subject.expect(error is not None, "an error in the event", "an event without one")
    expect_sum(subject, subject.compile("add"))
