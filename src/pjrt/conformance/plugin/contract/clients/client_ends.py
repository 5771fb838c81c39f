"""Checks of the end of clients: what belongs to a client ends with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.subject import Subject

_DESTROY = "PJRT_Client_Destroy"
_ROUNDS = 12
_TASKS = Path("/proc/self/task")


@check(
    "client.destroy.while_a_program_runs",
    calls=(_DESTROY, "PJRT_LoadedExecutable_Execute"),
    rule="A client whose objects are destroyed can be destroyed before the work that was enqueued is done.",
)
def _while_running(subject: Subject) -> None:
    client = subject.client
    executable = subject.compile("long_loop")
    argument = subject.buffer(np.arange(4, dtype=np.float32))
    result = subject.attempt_execute(executable, [[argument]])
    subject.expect(result.error is None, "an execution that begins", str(result.error))
    subject.call("PJRT_Event_Destroy", event=result.device_complete_events[0])
    subject.destroy_buffers(argument, *result.output_lists[0])
    subject.call("PJRT_LoadedExecutable_Destroy", executable=executable)
    subject.call(_DESTROY, client=client)


@check(
    "client.destroy.ends_threads",
    calls=(_DESTROY, "PJRT_Client_Create"),
    rule="Clients can come and go as often as the caller wants. The threads of a client should end with it. The header "
    "leaves that open: a plugin in a language with a garbage collector may end them later.",
)
def _ends_threads(subject: Subject) -> None:
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
