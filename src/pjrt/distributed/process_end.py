"""The end of a process that is in jobs: it leaves them, or reports the error that ended it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pjrt import system
from pjrt.api.errors import PjrtError
from pjrt.api.printable import printable

if TYPE_CHECKING:
    from pjrt.distributed.job import Job

FAILURES = "PJRT_LAUNCH_FAILURES"
"""The environment variable with the folder in which ``pjrt launch`` looks for the process that failed first."""

_lock = threading.Lock()
_running: list[Job] = []


def add(job: Job) -> None:
    """Add a job that this process leaves at its end."""
    with _lock:
        _running.append(job)


def remove(job: Job) -> None:
    """Remove a job that this process has left."""
    with _lock, contextlib.suppress(ValueError):
        _running.remove(job)


def _abandon_all() -> None:
    """Leave all jobs at once, if the main thread has ended with an error."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1"):
        for job in reversed(_running[:]):
            _note_failure(job)
            job.abandon(f"it ended with {type(error).__name__}: {error}")


def _note_failure(job: Job) -> None:
    """Note for ``pjrt launch`` that this process failed by itself, and not because of another one."""
    folder = os.environ.get(FAILURES)
    if folder and job.failure is None:
        with contextlib.suppress(OSError):
            (Path(folder) / str(job.process_index)).touch()


@atexit.register
def _leave_all() -> None:
    """Leave all jobs at the end of the process."""
    _abandon_all()
    for job in reversed(_running[:]):
        try:
            job.shutdown()
        except PjrtError as failure:
            print(
                f"pjrt: at the end of process {job.process_index} of the job: {printable(failure.message)}",
                file=sys.stderr,
            )


# Other threads of the user may wait for the job, and the interpreter waits for them before it calls exit functions. The
# standard library's executors use this function for the same reason.
with contextlib.suppress(AttributeError):
    threading._register_atexit(_abandon_all)  # type: ignore[attr-defined]


def _forget_all() -> None:
    """Leave the jobs to the parent process, in the child of a fork."""
    global _lock
    _lock = threading.Lock()
    for job in _running:
        job.forget()
    _running.clear()


system.after_fork_in_child(_forget_all)
