"""Checks of the end: objects are destroyed in any order before their client, and a process may end at any time."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch, PendingBuffer
from pjrt.conformance.plugin.other_process import call_in_another_process
from pjrt.conformance.plugin.subject import Subject

# The end: objects are destroyed in any order before their client, and a process may end at any time.

_DESTROY = "PJRT_Client_Destroy"
_CALLS = (
    _DESTROY,
    "PJRT_Buffer_Destroy",
    "PJRT_LoadedExecutable_Destroy",
    "PJRT_Executable_Destroy",
    "PJRT_Event_Destroy",
)
_X = np.arange(4, dtype=np.float32)
_KINDS = ("argument", "result", "event", "executable", "loaded_executable")
_ORDERS = {"-".join(each): each for each in itertools.islice(itertools.permutations(_KINDS), 0, 120, 17)}


def _another(subject: Subject) -> Subject:
    """Return the plugin with a client of its own."""
    other = Subject(subject.plugin, subject.options, subject.samples, subject.name)
    other.device  # noqa: B018
    return other


def _destroyers(subject: Subject) -> dict[str, list[tuple[str, dict[str, int]]]]:
    """Execute a program, and return the calls that destroy what there is, by what they destroy."""
    loaded = subject.compile("add")
    arguments = [subject.buffer(_X), subject.buffer(_X)]
    launch = Launch(subject, loaded, [arguments], with_events=True).succeeded()
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    return {
        "argument": [("PJRT_Buffer_Destroy", {"buffer": each}) for each in arguments],
        "result": [("PJRT_Buffer_Destroy", {"buffer": each}) for each in launch.results[0]],
        "event": [("PJRT_Event_Destroy", {"event": each}) for each in launch.events],
        "executable": [("PJRT_Executable_Destroy", {"executable": handle})],
        "loaded_executable": [("PJRT_LoadedExecutable_Destroy", {"executable": loaded})],
    }


@check("teardown.order", calls=_CALLS, over=_ORDERS)
def _order(subject: Subject, order: tuple[str, ...]) -> None:
    """The caller destroys buffers, events and executables in any order, before their client."""
    other = _another(subject)
    destroyers = _destroyers(other)
    for kind in order:
        for name, fields in destroyers[kind]:
            other.call(name, **fields)
    other.call(_DESTROY, client=other.client)


@check("teardown.while_work_is_under_way", calls=_CALLS)
def _under_way(subject: Subject) -> None:
    """Objects may be destroyed while the work with them goes on; destroying the client waits for it or ends it."""
    other = _another(subject)
    loaded = other.compile("long_loop")
    x = other.buffer(_X)
    for _ in range(3):
        launch = Launch(other, loaded, [[x]], with_events=True).succeeded()
        launch.destroy()
    other.call("PJRT_Buffer_Destroy", buffer=x)
    other.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    other.call(_DESTROY, client=other.client)


@check("teardown.pending_execution", calls=_CALLS)
def _pending(subject: Subject) -> None:
    """A client may be destroyed while an execution waits for an argument that never comes, if its objects are
    destroyed.
    """
    other = _another(subject)
    pending = PendingBuffer(other)
    loaded = other.compile("add")
    launch = Launch(other, loaded, [[pending.handle, other.buffer(_X)]]).succeeded()
    launch.destroy()
    other.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    other.call("PJRT_Buffer_Destroy", buffer=pending.handle)
    pending.close()
    other.call(_DESTROY, client=other.client)


@check("teardown.another_client", calls=_CALLS)
def _another_client(subject: Subject) -> None:
    """When a client is destroyed, the plugin makes another, and other clients work on."""
    kept = subject.compile("add")
    for _ in range(3):
        other = _another(subject)
        for calls in _destroyers(other).values():
            for name, fields in calls:
                other.call(name, **fields)
        other.call(_DESTROY, client=other.client)
        Launch(subject, kept, [[subject.buffer(_X), subject.buffer(_X)]]).expect(2 * _X)


@check("teardown.long_execution", calls=("PJRT_LoadedExecutable_Execute", "PJRT_Event_IsReady", "PJRT_Event_Await"))
def _long(subject: Subject) -> None:
    """PJRT_Event_IsReady returns at once while a program runs, and is true when PJRT_Event_Await has returned."""
    loaded = subject.compile("long_loop")
    launch = Launch(subject, loaded, [[subject.buffer(_X)]], with_events=True).succeeded()
    for _ in range(10):
        subject.call("PJRT_Event_IsReady", event=launch.events[0])
    error = subject.attempt("PJRT_Event_Await", event=launch.events[0]).error
    subject.expect(error is None, "an execution that ends well", str(error))
    ready = subject.call("PJRT_Event_IsReady", event=launch.events[0]).is_ready
    subject.expect(ready, "an event that is ready when it was awaited", "one that is not")
    launch.expect(_X)


def leave_everything(subject: Subject) -> int:
    """Execute a program, and leave what there is to the end of the process."""
    loaded = subject.compile("add")
    launch = Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_X)]], with_events=True)
    launch.expect(2 * _X)
    return 1


def leave_work(subject: Subject) -> int:
    """Begin executions, and leave them to the end of the process."""
    loaded = subject.compile("long_loop")
    x = subject.buffer(_X)
    return len([Launch(subject, loaded, [[x]], with_events=True).succeeded() for _ in range(3)])


def destroy_client(subject: Subject) -> int:
    """Execute a program, and destroy everything, at last the client."""
    for calls in _destroyers(subject).values():
        for name, fields in calls:
            subject.call(name, **fields)
    subject.call(_DESTROY, client=subject.client)
    return 1


@check(
    "teardown.process_ends",
    calls=_CALLS,
    over={
        "with_everything_left": leave_everything,
        "with_work_under_way": leave_work,
        "after_the_client": destroy_client,
    },
)
def _ends(subject: Subject, function: object) -> None:
    """A process ends normally, whatever of the plugin it leaves: nothing crashes or waits for ever."""
    subject.new_client()
    call_in_another_process(subject, function)  # type: ignore[arg-type]


# The end of clients: what belongs to a client ends with it.

_ROUNDS = 12
_TASKS = Path("/proc/self/task")


@check("client.destroy.while_a_program_runs", calls=(_DESTROY, "PJRT_LoadedExecutable_Execute"))
def _while_running(subject: Subject) -> None:
    """A client whose objects are destroyed can be destroyed before the work that was enqueued is done."""
    client = subject.client
    executable = subject.compile("long_loop")
    argument = subject.buffer(np.arange(4, dtype=np.float32))
    result = subject.attempt_execute(executable, [[argument]])
    subject.expect(result.error is None, "an execution that begins", str(result.error))
    subject.call("PJRT_Event_Destroy", event=result.device_complete_events[0])
    subject.destroy_buffers(argument, *result.output_lists[0])
    subject.call("PJRT_LoadedExecutable_Destroy", executable=executable)
    subject.call(_DESTROY, client=client)


@check("client.destroy.ends_threads", calls=(_DESTROY, "PJRT_Client_Create"))
def _ends_threads(subject: Subject) -> None:
    """Clients can come and go as often as the caller wants. The threads of a client should end with it. The header
    leaves that open: a plugin in a language with a garbage collector may end them later.
    """
    if not _TASKS.is_dir():
        raise Unsupported("the number of threads, which this system does not state")
    for _ in range(2):  # threads of the plugin itself, which stay, come with the first clients
        _come_and_go(subject)
    before = len(list(_TASKS.iterdir()))
    for _ in range(_ROUNDS):
        _come_and_go(subject)
    more = len(list(_TASKS.iterdir())) - before
    subject.advise(more < _ROUNDS, f"no more threads after {_ROUNDS} clients than before", f"{more} more")


def _come_and_go(subject: Subject) -> None:
    subject.call(_DESTROY, client=subject.new_client())
