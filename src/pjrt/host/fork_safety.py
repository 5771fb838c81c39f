"""The lock of the host runtime, and how objects notice that the process has forked.

Threads do not survive a fork. A client that was made before it has neither its threads nor, perhaps, the holder of its
locks, so the child cannot use it.
"""

from __future__ import annotations

import threading

from pjrt.api.errors import FailedPreconditionError
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


def _after_fork_in_child() -> None:
    global _generation
    _generation += 1
    runtime_lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does for its own locks


after_fork_in_child(_after_fork_in_child)
