"""Calls that can be abandoned: they run in other threads, and end with an error when a process that they need is lost.

The functions of XLA's agent block in native code, some of them without a time limit. The caller waits for a result
here, in Python, where a lost process, a time limit and Ctrl-C can end the wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from pjrt.api.errors import PjrtError

T = TypeVar("T")

_end_lock = threading.Lock()

# A signal that comes just before a thread begins to wait for a lock does not interrupt the wait: Python would notice
# Ctrl-C only at its end.
_SIGNAL_SECONDS = 0.5


class _Call:
    """One call: a function, and its result or error when it has ended."""

    __slots__ = ("_ended", "arguments", "error", "function", "needs", "result")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], needs: Collection[int]) -> None:
        self.function = function
        self.arguments = arguments
        self.needs = needs
        self.result: Any = None
        self.error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self) -> None:
        try:
            result = self.function(*self.arguments)
        except BaseException as error:
            self.end(None, error)
        else:
            self.end(result, None)

    def end(self, result: Any, error: BaseException | None) -> None:
        """Set the result or the error; only the first one counts."""
        with _end_lock:
            if not self._ended.locked():
                return
            self.result, self.error = result, error
            self._ended.release()

    def wait(self, deadline: float | None) -> bool:
        """Wait for the end; return False if the deadline, on the monotonic clock, has passed."""
        while True:
            left = _SIGNAL_SECONDS if deadline is None else deadline - time.monotonic()
            if self._ended.acquire(timeout=max(0.0, min(left, _SIGNAL_SECONDS))):
                break
            if left <= 0:
                return False
        with _end_lock:
            return True  # result and error are set


class Calls:
    """The calls of one agent, and the threads that they run in.

    The threads are daemons, because a call may never return. A thread is used again when its call has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Call | None]] = []
        self._pending: set[_Call] = set()
        self._threads: set[threading.Thread] = set()
        self._failure: Callable[[], PjrtError] | None = None

    def run(
        self,
        function: Callable[..., T],
        *arguments: Any,
        needs: Collection[int] = (),
        deadline: float | None = None,
    ) -> T:
        """Return the result of a function, which runs in another thread.

        Args:
            function: the function.
            arguments: its arguments.
            needs: the processes without which it would not end.
            deadline: when to stop waiting for it, on the monotonic clock.

        Raises:
            TimeoutError: the deadline has passed.
            PjrtError: a needed process, or the whole job, was lost.
        """
        call = _Call(function, arguments, needs)
        with self._lock:
            if self._failure is not None:
                raise self._failure()
            self._pending.add(call)
            tasks = self._idle.pop() if self._idle else None
        if tasks is None:
            tasks = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=(tasks,), name="pjrt-job-call", daemon=True)
            with self._lock:
                self._threads.add(thread)
            thread.start()
        tasks.put(call)
        try:
            if not call.wait(deadline):
                raise TimeoutError
        finally:
            with self._lock:
                self._pending.discard(call)
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def _work(self, tasks: queue.SimpleQueue[_Call | None]) -> None:
        while (call := tasks.get()) is not None:
            call.run()
            del call  # with its arguments and its result
            with self._lock:
                if self._failure is not None:
                    break
                self._idle.append(tasks)
        with self._lock:
            self._threads.discard(threading.current_thread())

    def fail(self, error: Callable[[], PjrtError]) -> None:
        """End all calls, and those that come later, with an error."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            pending = list(self._pending)
            idle, self._idle = self._idle, []
        for call in pending:
            call.end(None, error())
        for tasks in idle:
            tasks.put(None)

    def fail_those_that_need(self, process_index: int, error: Callable[[], PjrtError]) -> None:
        """End the calls that wait for a process with an error."""
        with self._lock:
            pending = [call for call in self._pending if process_index in call.needs]
        for call in pending:
            call.end(None, error())

    def join(self, timeout: float) -> None:
        """Wait for the threads to end, after ``fail``; give up after ``timeout`` seconds.

        A thread that comes back from native code while the interpreter ends would abort the process.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def forget(self, error: Callable[[], PjrtError]) -> None:
        """End all later calls with an error, in the child of a fork, where the threads do not exist."""
        self._lock = threading.Lock()
        self._failure = error
