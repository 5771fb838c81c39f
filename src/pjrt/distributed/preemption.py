"""Preemption: when one process is asked to end, all agree on one future step, after which they save and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.distributed.messages import Message


class Preemption:
    """The agreement of a job on the step after which it ends, seen from one process.

    When a process announces its preemption, each process reports the last step that it has asked about, and waits at
    its next one until all have reported. The step after the highest one is agreed on: no process has passed it.

    Args:
        report: sends an event to all processes.
        failure: returns the error that ended the job, if there is one.
    """

    def __init__(self, report: Callable[..., None], failure: Callable[[], PjrtError | None]) -> None:
        self._report = report
        self._failure = failure
        self._changed = threading.Condition(threading.RLock())  # a signal handler may interrupt its owner
        self._last_step = -1
        self._announced = False
        self._agreed: int | None = None
        self._handler: Any = None
        self._watching = False

    def announce(self) -> None:
        """Report that this process was asked to end."""
        self._report("preempted")

    def notice(self, event: Message) -> None:
        """Take note of an event of the job."""
        with self._changed:
            if event["type"] == "preempted":
                if self._announced:
                    return
                self._announced = True
                self._report("step", step=self._last_step)
            else:
                self._agreed = event["step"]
                self._changed.notify_all()

    def wake(self) -> None:
        """Have a call that waits see that the job has failed."""
        with self._changed:
            self._changed.notify_all()

    def reached(self, step: int) -> bool:
        """Return whether ``step`` is the agreed one: ``Job.reached_preemption_step``."""
        self._watch()
        with self._changed:
            if step <= self._last_step and not self._announced:
                raise InvalidArgumentError(f"expected a step after {self._last_step}, found {step}: steps grow")
            if self._announced:
                self._changed.wait_for(lambda: self._agreed is not None or self._failure() is not None)
                failure = self._failure()
                if failure is not None:
                    raise failure
            self._last_step = max(step, self._last_step)
            return self._agreed is not None and step >= self._agreed

    def _watch(self) -> None:
        """Take SIGTERM for the announcement of a preemption, once; a second one has its former effect."""
        if self._watching:
            return
        if threading.current_thread() is not threading.main_thread():
            raise FailedPreconditionError(
                "expected the first call of reached_preemption_step in the main thread, because it handles SIGTERM; "
                "found it in another one"
            )
        self._watching = True
        self._handler = signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.end()
        self.announce()

    def end(self) -> None:
        """Give SIGTERM back its former effect."""
        if self._handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None
