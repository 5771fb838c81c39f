"""The end of the interpreter: how long it waits for devices at work, in all.

Several rooms have something to wait for when the interpreter ends. They share one deadline, so that the process ends
when it was said to, however many of them wait.
"""

from __future__ import annotations

import threading
import time

PATIENCE_SECONDS = 2.0
"""The seconds that the end of the interpreter waits for work under way before it gives the work up."""

_deadline: float | None = None


def has_begun() -> bool:
    """Whether the interpreter is ending: its main thread is through, and what runs at exit runs, or has run."""
    return _deadline is not None or not threading.main_thread().is_alive()


def time_left() -> float:
    """Return for how many seconds the end of the interpreter may still wait; the first call starts the clock."""
    global _deadline
    if _deadline is None:
        _deadline = time.monotonic() + PATIENCE_SECONDS
    return max(_deadline - time.monotonic(), 0.0)
