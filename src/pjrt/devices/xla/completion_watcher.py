"""The watcher of completions: it notices that jaxlib has computed a value without anyone asking."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from pjrt.api.future import Future
from pjrt.devices.xla import shutdown
from pjrt.devices.xla.donation_guard import DonationGuard

_THREAD = "pjrt-cpu-completion-watcher"

_LINGER_SECONDS = 0.5
"""The time that an idle thread stays: a new thread waits for a processor, which the work that it watches may occupy."""

_Settle = Callable[[], object]
_Watched = tuple[Future[Any], _Settle | None]


class Waiters:
    """A few threads, each of which waits for one future at a time.

    Args:
        more: returns another future to wait for, or None, when a thread is done with its own.
    """

    MOST = 4

    def __init__(self, more: Callable[[], _Watched | None]) -> None:
        # Reentrant: the garbage collector may run while a thread holds the lock, and may delete an object whose end
        # other futures are told of, which calls ``take``.
        self._lock = threading.RLock()
        self._threads: set[threading.Thread] = set()
        self._keys: set[int] = set()
        self._more = more
        self._stopped = False
        # Work for idle threads. There are always at least as many idle threads as elements.
        self._handed: queue.SimpleQueue[_Watched | None] = queue.SimpleQueue()
        self._idle = 0

    def take(self, future: Future[Any], settle: _Settle) -> bool:
        """Call ``settle``, which waits for the future's value and completes the future, in a thread.

        Returns:
            Whether a thread does so, or all of them have stopped for good; False if all of them wait for others.
        """
        key = id(future)  # no other future has it as long as a thread holds this one
        thread = None
        try:
            with self._lock:
                if self._stopped or key in self._keys:
                    return True
                if self._idle:
                    self._idle -= 1
                    self._keys.add(key)
                    self._handed.put((future, settle))
                    return True
                if len(self._threads) >= self.MOST:
                    return False
                thread = threading.Thread(target=self._run, args=(future, settle), name=_THREAD, daemon=True)
                shutdown.register_own(thread)
                self._threads.add(thread)
                self._keys.add(key)
            # Without the lock: ``start`` waits until the new thread runs, which may collect garbage first, and that may
            # call this method.
            thread.start()
        except BaseException:
            # The system has no thread left, or Ctrl-C came. The next caller starts another; two do no harm.
            self._leave(thread, key)
            raise
        return True

    def stop(self, deadline: float | None = None) -> None:
        """Wait for the threads, until a time of ``time.monotonic`` at most, and start no thread any more."""
        with self._lock:
            self._stopped = True
            threads = list(self._threads)
            for _ in threads:
                self._handed.put(None)
        for thread in threads:
            _join(thread, deadline)

    def _run(self, future: Future[Any], settle: _Settle | None) -> None:
        thread = threading.current_thread()
        watched: _Watched | None = (future, settle)
        del future, settle  # or the thread would keep the first future alive while it is idle
        try:
            while watched is not None:
                watched = self._wait_for(*watched) or self._rest()
        finally:
            self._leave(thread, None)

    def _wait_for(self, future: Future[Any], settle: _Settle | None) -> _Watched | None:
        """Wait for one future, and return the next one if there is one already."""
        try:
            if settle is not None:
                settle()
        finally:
            with self._lock:
                self._keys.discard(id(future))
        following = None if self._stopped else self._more()
        if following is not None:
            with self._lock:
                self._keys.add(id(following[0]))
        return following

    def _rest(self) -> _Watched | None:
        """Wait for a future from ``take``; return None after a while, or when the threads stop."""
        with self._lock:
            if self._stopped:
                return None
            self._idle += 1
        with contextlib.suppress(queue.Empty):
            return self._handed.get(timeout=_LINGER_SECONDS)
        with self._lock:
            with contextlib.suppress(queue.Empty):  # ``take`` may have handed it over just now
                return self._handed.get_nowait()
            self._idle -= 1
            return None

    def _leave(self, thread: threading.Thread | None, key: int | None) -> None:
        with self._lock:
            if thread is not None:
                self._threads.discard(thread)
                if key is not None:
                    self._keys.discard(key)


def _join(thread: threading.Thread, deadline: float | None) -> None:
    if thread.is_alive():  # a thread that is only just being started finds out by itself that it is not needed
        thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))


class CompletionWatcher:
    """Completes futures soon after their values are there, without anyone asking them.

    jaxlib has no callback for an array that is ready. A thread can wait for the array, which takes a thread; or ask,
    which takes time from the very work that it waits for. So a few futures have a thread each that waits (``Waiters``),
    and one thread asks all the others, less often the longer it has asked: at intervals of a tenth of that time, from
    20 µs to 1 ms, or longer where asking all of them takes long. The waiting threads handle those other futures too
    when they are free, because the results of one execution come together. The threads live for as long as there is
    something to watch, and a moment longer.

    Attributes:
        donations: the futures that a donation concerns.
        lost: the reason why no watched future can ever be done, such as a fork; empty as long as all is well.
        is_ending: whether the interpreter is ending, so that not every thread may wait inside jaxlib.
    """

    _SHORTEST_SECONDS, _LONGEST_SECONDS, _INTERVAL_SHARE = 20e-6, 1e-3, 0.1
    _BUSY_SHARE = 0.02
    """The part of the asking thread's time that it may spend on asking."""

    def __init__(self) -> None:
        self.lost = ""
        self.is_ending = False
        self.donations = DonationGuard()
        self._waiters = Waiters(self._next)
        self._lock = threading.RLock()  # reentrant for the same reason as that of the waiters
        self._asked: dict[int, _Watched] = {}
        self._changed = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._is_idle = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def watch(self, future: Future[Any], settle: _Settle | None = None) -> None:
        """Complete the future soon after its value is there.

        Args:
            future: the future.
            settle: waits for the value and completes the future; without it, the future is asked.
        """
        if settle is None or not self._waiters.take(future, settle):
            self._ask(future, settle)

    def stop(self, deadline: float | None = None) -> None:
        """End the threads for good.

        Args:
            deadline: the latest time to wait for them, on the clock of ``time.monotonic``; the default is no limit.
        """
        self._waiters.stop(deadline)
        with self._lock:
            self._stopped = True
            self._wake.put(None)
            thread = self._thread
        if thread is not None:
            _join(thread, deadline)

    def abandon(self, reason: str) -> None:
        """Fail all futures from now on, in the child of a fork.

        The threads do not exist there, nor the threads that held the locks.
        """
        self.lost = reason
        self.donations.lock = threading.RLock()
        self._lock = threading.RLock()
        self._waiters = Waiters(self._next)
        self._thread = None
        self._is_idle = False

    def _next(self) -> _Watched | None:
        with self._lock:
            for key, (future, settle) in self._asked.items():
                if settle is not None:
                    del self._asked[key]
                    return future, settle
            return None

    def _ask(self, future: Future[Any], settle: _Settle | None) -> None:
        thread = None
        try:
            with self._lock:
                if self._stopped:
                    return
                self._changed = self._changed or id(future) not in self._asked
                self._asked[id(future)] = future, settle
                if self._is_idle:
                    self._is_idle = False
                    self._wake.put(None)
                if self._thread is not None:
                    return
                thread = self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
                shutdown.register_own(thread)
            thread.start()  # without the lock, as the waiters do
        except BaseException:
            # The system has no thread left, or Ctrl-C came. The next caller starts another; if this thread does run,
            # it takes its place again.
            self._leave(thread)
            raise

    def _leave(self, thread: threading.Thread | None) -> None:
        with self._lock:
            if self._thread is thread:
                self._thread = None

    def _is_woken(self, thread: threading.Thread) -> bool:
        """Wait until there is something to ask about; give up after a while."""
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=_LINGER_SECONDS)
            return True
        with self._lock:
            if self._asked:
                return True
            self._is_idle = False
            self._leave(thread)  # in the same section, so that the next caller starts another thread
            return False

    def _run(self) -> None:
        thread = threading.current_thread()
        try:
            self._ask_all(thread)
        finally:
            self._leave(thread)

    def _ask_all(self, thread: threading.Thread) -> None:
        since = time.monotonic()
        while True:
            begin = time.thread_time()  # the thread's own time: waiting for a processor does not make asking dearer
            with self._lock:
                if self._thread is None:
                    self._thread = thread
                if self._stopped or self._thread is not thread:
                    return
                if self._changed:
                    self._changed = False
                    since = time.monotonic()
                asked = tuple(future for future, _ in self._asked.values())
                self._is_idle = not asked
            if not asked:
                if self._is_woken(thread):
                    continue
                return
            finished = [future for future in asked if future.done()]
            if finished:
                with self._lock:
                    for future in finished:
                        self._asked.pop(id(future), None)
                continue
            del asked  # or this thread would keep the futures alive while it sleeps
            waited = time.monotonic() - since
            rest = min(max(waited * self._INTERVAL_SHARE, self._SHORTEST_SECONDS), self._LONGEST_SECONDS)
            time.sleep(max(rest, (time.thread_time() - begin) / self._BUSY_SHARE))
