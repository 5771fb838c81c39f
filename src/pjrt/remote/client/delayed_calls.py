"""Calls that come a little later, for work that is done in batches: releases of handles, and short requests."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from pjrt.system import after_fork_in_child

T = TypeVar("T")

_log = logging.getLogger("pjrt")


class DelayedCalls(Generic[T]):
    """A thread that calls a function on objects a moment after they ask for it; it starts with the first object.

    Args:
        seconds: the moment.
        call: the function.
        name: the name of the thread.
    """

    def __init__(self, seconds: float, call: Callable[[T], object], name: str) -> None:
        self._seconds = seconds
        self._call = call
        self._name = name
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        # Its methods can be interrupted by the garbage collector and called again, unlike those of other queues.
        self._due: queue.SimpleQueue[weakref.ref[T]] = queue.SimpleQueue()
        self._starts = threading.Lock()
        self._runs = False

    def wake(self, subject: T) -> None:
        """Have the function called on an object soon, unless the object is gone by then; never blocks."""
        if (
            sys.is_finalizing()
        ):  # a new thread would end on the spot, and its start, before Python 3.12, would not return
            return
        self._due.put(weakref.ref(subject))
        if not self._runs and self._starts.acquire(blocking=False):
            try:
                if not self._runs:
                    threading.Thread(target=self._run, args=(self._due,), name=self._name, daemon=True).start()
                    self._runs = True
            except RuntimeError:  # the interpreter is ending; the session's end releases everything
                pass
            finally:
                self._starts.release()

    def _run(self, due: queue.SimpleQueue[weakref.ref[T]]) -> None:
        while True:
            references = [due.get()]
            time.sleep(self._seconds)
            while not due.empty():
                references.append(due.get())
            while references:
                subject = references.pop()()
                if subject is not None:
                    try:
                        self._call(subject)
                    except Exception:  # the other objects need the thread
                        _log.exception("a delayed call of %r failed", subject)
                del subject
