"""Checks of executions: results, numbers of arguments and results, executions in flight, devices that are named."""

from __future__ import annotations

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.events.event_callbacks import CallbackRecord
from pjrt.conformance.plugin.contract.executions.launch import Launch, buffer_error
from pjrt.conformance.plugin.contract.executions.pending_buffer import PendingBuffer
from pjrt.conformance.plugin.samples import MANY
from pjrt.conformance.plugin.subject import Subject

_CALLS = ("PJRT_LoadedExecutable_Execute",)
_X = np.arange(4, dtype=np.float32)
_Y = np.full(4, 10, np.float32)
_IN_FLIGHT = 100


@check("execute.adds", calls=_CALLS, rule="An execution computes the results of the program from its arguments.")
def _adds(subject: Subject) -> None:
    loaded = subject.compile("add")
    for factor in (1, -3):
        launch = Launch(subject, loaded, [[subject.buffer(_X * factor), subject.buffer(_Y)]])
        launch.expect(_X * factor + _Y)


@check(
    "execute.order_of_arguments",
    calls=_CALLS,
    rule="Arguments are in the order of the parameters.",
)
def _order(subject: Subject) -> None:
    launch = Launch(subject, subject.compile("subtract"), [[subject.buffer(_X), subject.buffer(_Y)]])
    launch.expect(_X - _Y)


@check("execute.no_arguments", calls=_CALLS, rule="A program may have no parameters.")
def _no_arguments(subject: Subject) -> None:
    launch = Launch(subject, subject.compile("no_arguments"), [[]])
    launch.expect(np.full(4, 3, np.float32))


@check(
    "execute.null_lists",
    calls=_CALLS,
    rule="Where there are no arguments the inner lists have no elements, and may be null.",
)
def _null_lists(subject: Subject) -> None:
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


@check(
    "execute.no_results",
    calls=_CALLS,
    rule="A program may have no results; its event is ready when it has run.",
)
def _no_results(subject: Subject) -> None:
    loaded = subject.compile("no_results")
    launch = Launch(subject, loaded, [[subject.buffer(_X)]], num_results=0, with_events=True).succeeded()
    error = subject.event_error(launch.events[0])
    subject.expect(error is None, "an execution that ends well", str(error))


@check("execute.many_arguments", calls=_CALLS, rule="A program may have any number of parameters.")
def _many_arguments(subject: Subject) -> None:
    arrays = [_X + number for number in range(MANY)]
    launch = Launch(subject, subject.compile("many_arguments"), [[subject.buffer(each) for each in arrays]])
    launch.expect(np.asarray(np.sum(arrays, axis=0, dtype=np.float32)))


@check("execute.many_results", calls=_CALLS, rule="A program may have any number of results, each a buffer of its own.")
def _many_results(subject: Subject) -> None:
    launch = Launch(subject, subject.compile("many_results"), [[subject.buffer(_X)]], num_results=MANY)
    launch.expect(*(_X * (number + 1) for number in range(MANY)))
    subject.expect(len(set(launch.results[0])) == MANY, f"{MANY} buffers", "the same handle for two of them")


@check(
    "execute.mixed_results",
    calls=(*_CALLS, "PJRT_Buffer_ElementType", "PJRT_Buffer_Dimensions"),
    rule="Each result has the element type and the shape that the program states.",
)
def _mixed(subject: Subject) -> None:
    launch = Launch(subject, subject.compile("mixed_results"), [[subject.buffer(_X)]], num_results=3)
    launch.expect(_X, np.full((2, 3), 7, np.int32), np.array(1.5, np.float32))
    types = [subject.call("PJRT_Buffer_ElementType", buffer=each).type for each in launch.results[0]]
    subject.expect(types == [ElementType.F32, ElementType.S32, ElementType.F32], "F32, S32, F32", str(types))


@check(
    "execute.results_are_on_the_device",
    calls=(*_CALLS, "PJRT_Buffer_Device", "PJRT_Buffer_Memory"),
    rule="Results are on the device that ran the program, in a memory of that device.",
)
def _on_device(subject: Subject) -> None:
    launch = Launch(subject, subject.compile("add"), [[subject.buffer(_X), subject.buffer(_Y)]]).succeeded()
    (result,) = launch.results[0]
    device = subject.call("PJRT_Buffer_Device", buffer=result).device
    subject.expect(device == subject.device, "the first device", hex(device))
    memory = subject.call("PJRT_Buffer_Memory", buffer=result).memory
    memories = subject.call("PJRT_Device_AddressableMemories", device=subject.device).memories
    subject.expect(memory in memories, "a memory of the device", hex(memory))


@check(
    "execute.same_buffer_twice",
    calls=_CALLS,
    rule="A buffer may be given as several arguments of an execution that does not donate it.",
)
def _same_twice(subject: Subject) -> None:
    buffer = subject.buffer(_X)
    launch = Launch(subject, subject.compile("add"), [[buffer, buffer]])
    launch.expect(_X + _X)
    subject.expect_contents(buffer, _X)


@check(
    "execute.arguments_are_not_changed",
    calls=_CALLS,
    rule="Arguments that are not donated keep their values.",
)
def _arguments_kept(subject: Subject) -> None:
    x, y = subject.buffer(_X), subject.buffer(_Y)
    launches = [Launch(subject, subject.compile("add"), [[x, y]]) for _ in range(3)]
    for launch in launches:
        launch.expect(_X + _Y)
    subject.expect_contents(x, _X)
    subject.expect_contents(y, _Y)


@check(
    "execute.identity_is_a_buffer_of_its_own",
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    rule="A result is a new buffer, also where the program returns its argument; each is destroyed on its own.",
)
def _identity(subject: Subject) -> None:
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
    rule="Arguments may be deleted or destroyed when the call has returned; the execution keeps what it needs.",
)
def _arguments_destroyed(subject: Subject, function: str) -> None:
    loaded = subject.compile("add")
    x, y = subject.buffer(_X), subject.buffer(_Y)
    launch = Launch(subject, loaded, [[x, y]]).succeeded()
    for buffer in (x, y):
        subject.call(function, buffer=buffer)
    launch.expect(_X + _Y)


@check(
    "execute.results_feed_executions",
    calls=_CALLS,
    rule="A result can be an argument before it has its value; executions run in the order of their data.",
)
def _chain(subject: Subject) -> None:
    loaded = subject.compile("add")
    one = subject.buffer(np.ones(4, np.float32))
    buffer = subject.buffer(np.zeros(4, np.float32))
    for _ in range(_IN_FLIGHT):
        (buffer,) = Launch(subject, loaded, [[buffer, one]]).succeeded().results[0]
    subject.expect_contents(buffer, np.full(4, _IN_FLIGHT, np.float32))


@check(
    "execute.in_flight",
    calls=_CALLS,
    rule="Any number of executions may be in flight; each has results of its own.",
)
def _in_flight(subject: Subject) -> None:
    loaded = subject.compile("add")
    x = subject.buffer(_X)
    launches = [
        Launch(subject, loaded, [[x, subject.buffer(np.full(4, number, np.float32))]]) for number in range(_IN_FLIGHT)
    ]
    for number, launch in reversed(list(enumerate(launches))):
        launch.expect(_X + number)


@check(
    "execute.results_can_be_destroyed_before_they_are_ready",
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    rule="A result may be destroyed before it has its value; the execution goes on.",
)
def _destroyed_early(subject: Subject) -> None:
    loaded = subject.compile("add")
    pending = PendingBuffer(subject)
    launches = [Launch(subject, loaded, [[pending.handle, subject.buffer(_Y)]], with_events=True) for _ in range(3)]
    subject.call("PJRT_Buffer_Destroy", buffer=launches[0].succeeded().results[0][0])
    subject.call("PJRT_Buffer_Delete", buffer=launches[1].succeeded().results[0][0])
    pending.fulfil(_X)
    launches[2].expect(_X + _Y)
    for launch in launches:
        subject.event_error(launch.events[0])


@check(
    "execute.returns_before_its_arguments_are_ready",
    calls=(*_CALLS, "PJRT_Event_IsReady"),
    rule="An execution is work that is begun: the call returns. Its results and events are ready when their work is "
    "done, and not before.",
)
def _returns(subject: Subject) -> None:
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


@check(
    "execute.reads_wait_for_results",
    calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer"),
    rule="A result may be read before it is ready; the copy waits for the value.",
)
def _read_early(subject: Subject) -> None:
    pending = PendingBuffer(subject)
    launch = Launch(subject, subject.compile("add"), [[pending.handle, subject.buffer(_Y)]]).succeeded()
    target = np.full(4, -1, np.float32)
    copy = subject.call("PJRT_Buffer_ToHostBuffer", src=launch.results[0][0], dst=target, dst_size=target.nbytes)
    pending.fulfil(_X)
    error = subject.event_error(copy.event)
    subject.expect(error is None, "a copy that ends well", str(error))
    subject.expect(np.array_equal(target, _X + _Y), str(_X + _Y), str(target))


@check(
    "execute.callback_of_the_event",
    calls=(*_CALLS, "PJRT_Event_OnReady"),
    rule="A callback on the event of an execution runs once, when the execution has ended.",
)
def _callback(subject: Subject) -> None:
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


@check(
    "execute.event_destroyed_before_its_callback",
    calls=(*_CALLS, "PJRT_Event_OnReady", "PJRT_Event_Destroy"),
    rule="A callback runs when the event is ready, also where the caller has destroyed its handle of the event before.",
)
def _event_destroyed(subject: Subject) -> None:
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
    rule="An event belongs to the caller, and becomes ready also when its buffer is destroyed.",
)
def _event_outlives(subject: Subject) -> None:
    pending = PendingBuffer(subject)
    launch = Launch(subject, subject.compile("add"), [[pending.handle, subject.buffer(_Y)]]).succeeded()
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=launch.results[0][0]).event
    subject.call("PJRT_Buffer_Destroy", buffer=launch.results[0][0])
    pending.fulfil(_X)
    subject.event_error(event)


@check(
    "execute.events_are_independent",
    calls=("PJRT_Buffer_ReadyEvent", "PJRT_Event_Destroy"),
    rule="Each call of PJRT_Buffer_ReadyEvent returns an event that is destroyed on its own.",
)
def _independent_events(subject: Subject) -> None:
    launch = Launch(subject, subject.compile("add"), [[subject.buffer(_X), subject.buffer(_Y)]]).succeeded()
    first, second = (subject.call("PJRT_Buffer_ReadyEvent", buffer=launch.results[0][0]).event for _ in range(2))
    subject.call("PJRT_Event_Destroy", event=first)
    error = subject.event_error(second)
    subject.expect(error is None, "an event that ends well", str(error))
    error = buffer_error(subject, launch.results[0][0])
    subject.expect(error is None, "a buffer with its value", str(error))
