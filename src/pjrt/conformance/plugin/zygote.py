"""The zygote: a process that has imported what checks need, and forks a process for each check.

It never loads the plugin, so each check begins with a plugin that nothing has used. The task comes pickled on the
standard input, and the names of checks behind it, if it has none; an event for each outcome goes, pickled, to the
standard output. Where processes cannot be forked, the zygote starts one for each check, which imports everything
anew. ``ZygoteProcess`` is the zygote as its parent sees it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from pjrt.api.errors import FailedPreconditionError, InternalError
from pjrt.conformance.plugin.check import all_checks
from pjrt.conformance.plugin.process import LOADING, Child, ForkedChild, SpawnedChild, Task, wait_for_any
from pjrt.plugins import registry
from pjrt.system import TemporaryFolder
from pjrt.system.python_process import PythonChild

_SLACK = 60.0
"""The seconds that the zygote may be silent beyond the time limit of a check."""


class UnloadableError(FailedPreconditionError):
    """The plugin cannot be loaded, so that no check can be made."""


class ZygoteProcess:
    """A process that runs the checks of a task, each in a process of its own.

    Args:
        task: the task. If it names no checks, ``ask`` names them one by one.
    """

    def __init__(self, task: Task) -> None:
        self._patience = max(task.time_limit, task.load_limit) + _SLACK
        self._plugin = task.plugin
        self._child: PythonChild[dict[str, Any]] = PythonChild(__name__, pickle.load, own_session=True)
        self._child.send(task)

    def facts(self) -> dict[str, Any]:
        """Return the facts about the plugin, when it has been loaded.

        Raises:
            UnloadableError: it cannot be loaded.
        """
        event = self.next_event()
        if event["kind"] == "unloadable":
            reason: str = event["reason"]
            raise UnloadableError(reason if reason.startswith(self._plugin) else f"{self._plugin}: {reason}")
        facts: dict[str, Any] = event["facts"]
        return facts

    def next_event(self) -> dict[str, Any]:
        """Return the next event.

        Raises:
            InternalError: there is none in time, or the process ended.
        """
        try:
            event = self._child.next(self._patience)
        except TimeoutError:
            raise InternalError("the process that starts the checks made no progress, and was ended") from None
        if event is None:
            raise InternalError(f"the process that starts the checks ended: {self._child.ended()}")
        return event

    def ask(self, name: str) -> dict[str, Any]:
        """Have a check made, and return its event."""
        self._child.send(name)
        return self.next_event()

    def close(self) -> None:
        """End the process; one of a check that still runs ends with it."""
        self._child.stop(signal.SIGTERM, self._patience)
        self._child.close()


@contextlib.contextmanager
def zygote_process(task: Task) -> Iterator[ZygoteProcess]:
    """Give the zygote of a task, and end it."""
    process = ZygoteProcess(task)
    try:
        yield process
    finally:
        process.close()


_PREPARED = ("pjrt", "jaxlib", "numpy", "ml_dtypes", "google")
"""The packages whose modules are imported before processes are forked, if a process of the plugin imports them."""


def main() -> None:
    """Run the task of the standard input."""
    task: Task = pickle.load(sys.stdin.buffer)
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    all_checks()
    registry.declaration(task.plugin)  # reads files that describe plugins, which each process would read for itself
    kind = ForkedChild if hasattr(os, "fork") else SpawnedChild
    with contextlib.ExitStack() as stack, contextlib.suppress(BrokenPipeError):
        folder = stack.enter_context(TemporaryFolder("conform"))
        slots = [stack.enter_context(contextlib.closing(kind(folder, number))) for number in range(task.jobs)]
        loaded = _load(task, slots[0])
        _send(events, loaded)
        if loaded["kind"] == "loaded":
            if kind is ForkedChild:
                _prepare(loaded.pop("modules"))
            gc.collect()
            gc.freeze()  # a collection in a process that was forked would copy the memory that it looks at
            if task.names:
                _run(task, slots, events)
            else:
                _answer(task, slots[0], events)


def _load(task: Task, child: Child) -> dict[str, Any]:
    """Load the plugin in a process; return the event with the facts about it, or with the reason why it failed."""
    child.start(task, LOADING, task.load_limit)
    while not child.ended():
        wait_for_any([child])
    return child.loading()


def _prepare(modules: Iterable[str]) -> None:
    """Import modules that each process would import for itself."""
    for name in modules:
        if name not in sys.modules and name.partition(".")[0] in _PREPARED:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _run(task: Task, slots: Sequence[Child], events: BinaryIO) -> None:
    waiting, free = deque(task.names), list(slots)
    busy: list[Child] = []
    while waiting or busy:
        while waiting and free:
            child = free.pop()
            child.start(task, waiting.popleft(), task.time_limit)
            busy.append(child)
        wait_for_any(busy)
        for child in [each for each in busy if each.ended()]:
            _send(events, {"kind": "outcome", "outcome": child.outcome()})
            busy.remove(child)
            free.append(child)


def _answer(task: Task, child: Child, events: BinaryIO) -> None:
    """Run the checks that the parent names one by one, until it closes the standard input."""
    with contextlib.suppress(EOFError):
        while True:
            child.start(task, pickle.load(sys.stdin.buffer), task.time_limit)
            while not child.ended():
                wait_for_any([child])
            _send(events, {"kind": "outcome", "outcome": child.outcome()})


def _send(events: BinaryIO, event: dict[str, Any]) -> None:
    pickle.dump(event, events)
    events.flush()


if __name__ == "__main__":
    main()
