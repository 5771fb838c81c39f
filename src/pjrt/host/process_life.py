"""The life of the process: what becomes of work queues when it forks and when the interpreter ends.

The threads of the queues are daemons that the end of the interpreter waits for, but not for ever. Threads that Python
joins would let one device function that hangs keep the process from ever ending; daemons that nobody waits for would
lose work that is nearly done, and may be stopped inside somebody's C code.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from typing import Protocol

from pjrt.api import interpreter_end
from pjrt.api.errors import CancelledError, FailedPreconditionError, PjrtError
from pjrt.system import after_fork_in_child

_log = logging.getLogger("pjrt")

_MOMENT_SECONDS = 0.2
"""The seconds that work under way may go on when the interpreter ends, before a function that asks is told."""


class Worker(Protocol):
    """Whatever has work under way on a thread of its own."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def is_busy(self) -> bool:
        """Whether it has work under way."""

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until its work is done; returns whether it is."""

    def ask_to_end(self, error: PjrtError) -> None:
        """Tell the work, as far as it asks, that nobody waits for it any more."""

    def abandon(self, error: PjrtError) -> None:
        """Fails the work, because nobody will do it."""


lock = threading.RLock()
"""For all short critical sections of the host runtime; nobody waits for anything inside.

One lock for all, because it must be made anew in the child of a fork, where its holder does not exist. It can be
entered again by its holder, because the garbage collector may run inside a section and end things there.
"""

_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_generation = 0


def register(worker: Worker) -> None:
    """Lets a worker take part in forks and in the end of the interpreter."""
    _workers.add(worker)


def generation() -> int:
    """A number that a fork changes in the child."""
    return _generation


def is_exiting() -> bool:
    """Whether the interpreter is ending, so that nobody will look at an error any more."""
    return interpreter_end.has_begun()


def forked() -> FailedPreconditionError:
    """The error of whoever uses a client of the parent process after a fork."""
    return FailedPreconditionError(
        "this client was made before the process forked, and its threads are in the parent only; "
        "make a new client in the child"
    )


def _after_fork_in_child() -> None:
    global _generation
    _generation += 1
    lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does for its own
    for worker in list(_workers):
        worker.abandon(forked())


def _at_exit() -> None:
    _drain(min(_MOMENT_SECONDS, interpreter_end.time_left()))
    for worker in _busy_workers():
        worker.ask_to_end(CancelledError("the interpreter is ending"))
    for worker in _drain(interpreter_end.time_left()):
        _log.warning(
            "the interpreter ends although %s is still at work after %g s; the work is given up",
            worker.name,
            interpreter_end.PATIENCE_SECONDS,
        )
        worker.abandon(CancelledError("the interpreter ended before the work was done"))


def _drain(seconds: float) -> list[Worker]:
    """Wait for the work under way, and for what it sets going, at most so long; return who is still at work."""
    deadline = time.monotonic() + seconds
    busy = _busy_workers()
    while busy and time.monotonic() < deadline:
        for worker in busy:
            worker.drain(max(deadline - time.monotonic(), 0))
        busy = _busy_workers()
    return busy


def _busy_workers() -> list[Worker]:
    return [worker for worker in list(_workers) if worker.is_busy]


after_fork_in_child(_after_fork_in_child)
atexit.register(_at_exit)
