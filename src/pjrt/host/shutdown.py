"""The ends of a process: the lock of the host runtime, which a fork makes anew, and what becomes of work at the exit.

Threads do not survive a fork. A client that was made before it has neither its threads nor, perhaps, the holder of its
locks, so the child cannot use it.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from typing import Protocol

from pjrt.api import waits
from pjrt.api.errors import CancelledError, FailedPreconditionError, PjrtError
from pjrt.system import after_fork_in_child

runtime_lock = threading.RLock()
"""For all short critical sections of the host runtime; nobody waits for anything while holding it.

One lock for all, because it must be made anew in the child of a fork, where its holder does not exist. Its holder can
enter it again, because the garbage collector may run inside a section and end things there.
"""

_generation = 0


def generation() -> int:
    """Return a number that each fork changes in the child."""
    return _generation


def forked_error() -> FailedPreconditionError:
    """Return the error for the use of a parent process's client after a fork."""
    return FailedPreconditionError(
        "this client was made before the process forked, and its threads are in the parent only; "
        "make a new client in the child"
    )


def _renew_lock() -> None:
    global _generation
    _generation += 1
    runtime_lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does for its own locks


after_fork_in_child(_renew_lock)


# The end of work in progress when the interpreter ends, and in the child of a fork.
#
# The threads of the work queues are daemons that the end of the interpreter waits for, but not for ever. If Python
# joined them, one device function that hangs would keep the process from ending. If nobody waited for them, work that
# is nearly done would be lost, and a thread might be stopped inside foreign C code.

_log = logging.getLogger("pjrt")

_GRACE_SECONDS = 0.2
"""The seconds that work may go on when the interpreter ends, before functions that ask are asked to end."""

_ABANDONED = "the interpreter ended before the work was done"


class Worker(Protocol):
    """An object that has work under way on its own thread."""

    @property
    def name(self) -> str:
        """The name of its device, for messages."""

    @property
    def is_busy(self) -> bool:
        """Whether it has work under way."""

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until its work is done; return whether it is."""

    def ask_to_end(self, error: PjrtError) -> None:
        """Ask the work to end, because nobody waits for it any more; it may go on all the same."""

    def abandon(self, error: PjrtError) -> None:
        """Fail the work, because it will never be done."""


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def register(worker: Worker) -> None:
    """Have a worker's work ended at the end of the interpreter and in the child of a fork."""
    _workers.add(worker)


def is_exiting() -> bool:
    """Whether the interpreter is ending, so that nobody will see an error any more."""
    return waits.interpreter_is_ending()


def is_lost(error: PjrtError) -> bool:
    """Whether nobody will see an error, nor has the warning of the interpreter's end told of it."""
    return is_exiting() and error.message != _ABANDONED


def _after_fork_in_child() -> None:
    for worker in list(_workers):
        worker.abandon(forked_error())


def _at_exit() -> None:
    _drain(min(_GRACE_SECONDS, waits.time_left()))
    for worker in _busy_workers():
        worker.ask_to_end(CancelledError("the interpreter is ending"))
    left = _drain(waits.time_left())
    if left:
        names = sorted({worker.name for worker in left})  # a device has several workers
        _log.warning(
            "the interpreter ends although the %s still at work after %g s; the work is abandoned",
            f"device {names[0]} is" if len(names) == 1 else f"devices {', '.join(names)} are",
            waits.PATIENCE_SECONDS,
        )
    for worker in left:
        worker.abandon(CancelledError(_ABANDONED))


def _drain(seconds: float) -> list[Worker]:
    """Wait for the work under way and for what it starts, at most so long; return the workers that are still busy."""
    deadline = time.monotonic() + seconds
    busy = _busy_workers()
    while busy and time.monotonic() < deadline:
        for worker in busy:
            worker.drain(max(deadline - time.monotonic(), 0))
        busy = _busy_workers()
    return busy


def _busy_workers() -> list[Worker]:
    return [worker for worker in list(_workers) if worker.is_busy]


# After the lock was made anew.
after_fork_in_child(_after_fork_in_child)
atexit.register(_at_exit)
