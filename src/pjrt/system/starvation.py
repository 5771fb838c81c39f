"""Threads that cannot go on, because a busy machine has no processor for them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path


class Starvation:
    """Notices threads of this process that get no processor; on Linux, elsewhere there seems to be none."""

    def __init__(self) -> None:
        self._wanting = _wanting_threads()

    def look(self) -> bool:
        """Whether a thread, other than the caller, has wanted a processor since the last look and has got none.

        The system counts in steps of 10 ms, so looks that follow faster take working threads for starving ones.
        """
        before, self._wanting = self._wanting, _wanting_threads()
        return any(before.get(thread) == time for thread, time in self._wanting.items())


def _wanting_threads() -> dict[str, int]:
    """Return the processor time of each other thread that runs, waits for a processor, or waits for the disk."""
    if sys.platform != "linux":
        return {}
    caller, times = str(threading.get_native_id()), {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            # The name of the thread, in parentheses, may contain anything.
            state, *numbers = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if state in ("R", "D") and folder.name != caller:
            times[folder.name] = int(numbers[10]) + int(numbers[11])
    return times
