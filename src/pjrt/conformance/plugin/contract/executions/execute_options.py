"""Checks of execute options: launch ids, poison, contexts, call locations, tasks, and the struct's older forms."""

from __future__ import annotations

import ctypes

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.capi.layer.schema import STRUCTS
from pjrt.capi.raw import Struct
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.contract.executions.pending_buffer import PendingBuffer
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.subject import Subject

_CALLS = ("PJRT_LoadedExecutable_Execute",)
_POISON = "PJRT_Device_PoisonExecution"
_X = np.arange(4, dtype=np.float32)
_Y = np.full(4, 10, np.float32)


def _add(subject: Subject, **options: object) -> Launch:
    return Launch(subject, subject.compile("add"), [[subject.buffer(_X), subject.buffer(_Y)]], **options)  # type: ignore[arg-type]


@check(
    "execute_options.launch_id",
    calls=_CALLS,
    over=(0, 1, 77, 2**31 - 1, -1),
    rule="launch_id is any number; executions with an id compute the same as without one.",
)
def _launch_id(subject: Subject, number: int) -> None:
    for _ in range(2):
        _add(subject, launch_id=number).expect(_X + _Y)


@check(
    "execute_options.launch_ids_out_of_order",
    calls=_CALLS,
    rule="Launches of one process on one device may have their ids in any order.",
)
def _out_of_order(subject: Subject) -> None:
    loaded = subject.compile("add")
    row = [subject.buffer(_X), subject.buffer(_Y)]
    for launch in [Launch(subject, loaded, [row], launch_id=number) for number in (9, 3, 12, 3, 1)]:
        launch.expect(_X + _Y)


@check(
    "execute_options.call_location",
    calls=_CALLS,
    over={"null": 0, "empty": b"\0", "line": b"train.py:12\0", "long": b"x" * 10_000 + b":1\0"},
    rule="call_location is a text of the caller that lives for the call only; it changes no result.",
)
def _call_location(subject: Subject, location: bytes | int) -> None:
    if isinstance(location, int):
        _add(subject, call_location=0).expect(_X + _Y)
        return
    memory = ctypes.create_string_buffer(location, len(location))
    launch = _add(subject, call_location=ctypes.addressof(memory))
    ctypes.memset(memory, 0x5A, len(location))
    launch.expect(_X + _Y)


@check(
    "execute_options.tasks",
    calls=_CALLS,
    rule="task_ids and incarnation_ids have num_tasks entries, which live for the call only; they change no result.",
)
def _tasks(subject: Subject) -> None:
    _add(subject, num_tasks=2, task_ids=[0, 1], incarnation_ids=[11, 2**62]).expect(_X + _Y)
    _add(subject, num_tasks=0, task_ids=0, incarnation_ids=0).expect(_X + _Y)


@check(
    "execute_options.context",
    calls=(*_CALLS, "PJRT_ExecuteContext_Create", "PJRT_ExecuteContext_Destroy"),
    rule="An execute context may be given to executions, one after the other, and is destroyed by the caller.",
)
def _context(subject: Subject) -> None:
    subject.require("PJRT_ExecuteContext_Create")
    context = subject.call("PJRT_ExecuteContext_Create").context
    loaded = subject.compile("add")
    for _ in range(3):
        launch = Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_Y)]], context=context)
        if launch.error is not None and launch.error.code == StatusCode.UNIMPLEMENTED:
            raise Unsupported(f"executions with a context: {launch.error}")
        launch.expect(_X + _Y)
    subject.call("PJRT_ExecuteContext_Destroy", context=context)


@check(
    "execute_context.destroy",
    calls=("PJRT_ExecuteContext_Create", "PJRT_ExecuteContext_Destroy"),
    rule="Each context is a new one that the caller destroys; null may be destroyed, too.",
)
def _context_destroy(subject: Subject) -> None:
    subject.require("PJRT_ExecuteContext_Create", "PJRT_ExecuteContext_Destroy")
    contexts = [subject.call("PJRT_ExecuteContext_Create").context for _ in range(3)]
    subject.expect(len(set(contexts)) == 3, "3 contexts", "the same handle for two of them")
    for context in [*contexts, 0]:
        subject.call("PJRT_ExecuteContext_Destroy", context=context)


_FIELDS = ("num_recv_ops", "num_non_donatable_input_indices", "context", "call_location")


@check(
    "execute_options.older_struct",
    calls=_CALLS,
    over=_FIELDS,
    rule="Options of an older header end earlier, as struct_size states; the plugin takes the rest as unset.",
)
def _older(subject: Subject, last: str) -> None:
    fields = STRUCTS["PJRT_ExecuteOptions"].fields
    size = fields[last].offset + fields[last].size
    if last == "num_recv_ops":
        size = fields["launch_id"].offset + fields["launch_id"].size
    answer = subject.attempt(
        "PJRT_LoadedExecutable_Execute",
        executable=subject.compile("add"),
        options=Struct("PJRT_ExecuteOptions", struct_size=size, call_location=1 if last == "context" else 0),
        argument_lists=[[subject.buffer(_X), subject.buffer(_Y)]],
        output_lists=[[None]],
    )
    subject.expect(answer.error is None, "an execution that begins", str(answer.error))
    subject.expect_contents(answer.output_lists[0][0], _X + _Y)


@check(
    "execute_options.non_donatable_of_nothing",
    calls=_CALLS,
    rule="non_donatable_input_indices may name arguments that the program does not donate.",
)
def _nothing(subject: Subject) -> None:
    _add(subject, non_donatable_input_indices=[0, 1]).expect(_X + _Y)


def _poison(subject: Subject, launch_id: int, device: int | None = None) -> bool:
    subject.require(_POISON)
    return bool(
        subject.call(
            _POISON,
            device=device or subject.device,
            launch_id=launch_id,
            error_code=StatusCode.CANCELLED,
            error_message=b"called off",
        ).poisoned
    )


@check(
    "poison.pending_execution",
    calls=(_POISON, *_CALLS),
    rule="An execution with this launch id that has not ended is poisoned: its results have the error. poisoned states "
    "whether that was done.",
)
def _pending(subject: Subject) -> None:
    subject.require(_POISON)
    loaded = subject.compile("add")
    pending = PendingBuffer(subject)
    launch = Launch(subject, loaded, [[pending.handle, subject.buffer(_Y)]], with_events=True, launch_id=77).succeeded()
    poisoned = _poison(subject, 77)
    pending.fulfil(_X)
    if poisoned:
        launch.expect_error((StatusCode.CANCELLED,), "called off")
    else:
        launch.expect(_X + _Y)
    expect_sum(subject, loaded)


@check(
    "poison.another_launch",
    calls=(_POISON, *_CALLS),
    rule="Only executions with the launch id are poisoned.",
)
def _another_launch(subject: Subject) -> None:
    subject.require(_POISON)
    pending = PendingBuffer(subject)
    rows = [[pending.handle, subject.buffer(_Y)]]
    launch = Launch(subject, subject.compile("add"), rows, launch_id=77).succeeded()
    poisoned = _poison(subject, 78)
    subject.expect(not poisoned, "poisoned false for a launch that there is not", "true")
    pending.fulfil(_X)
    launch.expect(_X + _Y)


@check(
    "poison.finished_execution",
    calls=(_POISON, *_CALLS),
    rule="An execution that has ended is not poisoned: poisoned is false, and its results keep their values.",
)
def _finished(subject: Subject) -> None:
    subject.require(_POISON)
    launch = _add(subject, with_events=True, launch_id=5).succeeded()
    subject.await_event(launch.events[0])
    launch.expect(_X + _Y)
    poisoned = _poison(subject, 5)
    subject.expect(not poisoned, "poisoned false for an execution that has ended", "true")
    launch.expect(_X + _Y)


@check(
    "poison.earliest_of_two",
    calls=(_POISON, *_CALLS),
    rule="Of several executions with the launch id the earliest is poisoned, and no other.",
)
def _earliest(subject: Subject) -> None:
    subject.require(_POISON)
    loaded = subject.compile("add")
    pending = PendingBuffer(subject)
    rows = [[pending.handle, subject.buffer(_Y)]]
    launches = [Launch(subject, loaded, rows, launch_id=6).succeeded() for _ in range(2)]
    poisoned = _poison(subject, 6)
    pending.fulfil(_X)
    if poisoned:
        launches[0].expect_error((StatusCode.CANCELLED,), "called off")
    else:
        launches[0].expect(_X + _Y)
    launches[1].expect(_X + _Y)
