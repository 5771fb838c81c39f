"""The end of the interpreter: the one deadline for devices that still work.

Several parts of this package have work to wait for when the interpreter ends. They share one deadline, so that the
process ends in time however many of them wait.
"""

from __future__ import annotations

import threading
import time

PATIENCE_SECONDS = 2.0
"""The seconds that the end of the interpreter waits for work under way before it abandons the work."""

_deadline: float | None = None


def has_begun() -> bool:
    """Whether the interpreter is ending: its main thread has finished, and exit functions run or have run."""
    return _deadline is not None or not threading.main_thread().is_alive()


def time_left() -> float:
    """Return how many seconds the end of the interpreter may still wait; the first call starts the clock."""
    global _deadline
    if _deadline is None:
        _deadline = time.monotonic() + PATIENCE_SECONDS
    return max(_deadline - time.monotonic(), 0.0)
