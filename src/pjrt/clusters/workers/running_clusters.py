"""The clusters of this process, which end with it."""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING

from pjrt import system

if TYPE_CHECKING:
    from pjrt.clusters.workers.workers import Workers

_lock = threading.Lock()
_running: list[Workers] = []


def add(workers: Workers) -> None:
    """Add workers that this process ends at its own end."""
    with _lock:
        _running.append(workers)


def remove(workers: Workers) -> None:
    """Remove workers that have ended."""
    with _lock:
        if workers in _running:
            _running.remove(workers)


@atexit.register
def _close_all() -> None:
    for workers in reversed(_running[:]):
        workers.close()


def _forget_all() -> None:
    """Leave the workers to the parent process, in the child of a fork."""
    global _lock
    _lock = threading.Lock()
    for workers in _running:
        workers.forget()
    _running.clear()


system.after_fork_in_child(_forget_all)
