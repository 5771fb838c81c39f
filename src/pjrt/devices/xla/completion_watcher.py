"""Noticing that what jaxlib computes is there, without anyone asking."""

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
"""How long a thread with nothing to do stays: starting one waits for a processor, which the work it is for may have."""

_Settle = Callable[[], object]
_Watched = tuple[Future[Any], _Settle | None]


class Waiters:
    """A few threads, each of which waits for one future at a time.

    Args:
        more: gives another future to wait for, if there is one, when a thread is done with its own.
    """

    MOST = 4

    def __init__(self, more: Callable[[], _Watched | None]) -> None:
        # Entered again by its holder where the garbage collector runs inside a section and ends something there whose
        # end others are told of.
        self._lock = threading.RLock()
        self._threads: set[threading.Thread] = set()
        self._keys: set[int] = set()
        self._more = more
        self._stopped = False
        # What is handed to threads at rest, of which there are at least as many.
        self._given: queue.SimpleQueue[_Watched | None] = queue.SimpleQueue()
        self._resting = 0

    def take(self, future: Future[Any], settle: _Settle) -> bool:
        """Has a thread call ``settle``, which waits for the future's value and completes it.

        Returns:
            Whether one does, or none is to any more; not where all of them wait for others.
        """
        key = id(future)  # no other future's, as long as a thread holds this one
        thread = None
        try:
            with self._lock:
                if self._stopped or key in self._keys:
                    return True
                if self._resting:
                    self._resting -= 1
                    self._keys.add(key)
                    self._given.put((future, settle))
                    return True
                if len(self._threads) >= self.MOST:
                    return False
                thread = threading.Thread(target=self._run, args=(future, settle), name=_THREAD, daemon=True)
                shutdown.register_own(thread)
                self._threads.add(thread)
                self._keys.add(key)
            # Without the lock: this waits until the new thread runs, which may collect garbage before it says so, and
            # what is collected may have this called.
            thread.start()
        except BaseException:
            # There are no threads left, or Ctrl-C came. Whoever asks next starts another; two do no harm.
            self._leave(thread, key)
            raise
        return True

    def stop(self, deadline: float | None = None) -> None:
        """Waits for the threads, until a time of ``time.monotonic`` at most, and starts none any more."""
        with self._lock:
            self._stopped = True
            threads = list(self._threads)
            for _ in threads:
                self._given.put(None)
        for thread in threads:
            _join(thread, deadline)

    def _run(self, future: Future[Any], settle: _Settle | None) -> None:
        thread = threading.current_thread()
        watched: _Watched | None = (future, settle)
        del future, settle
        try:
            while watched is not None:
                watched = self._wait_for(*watched) or self._rest()
        finally:
            self._leave(thread, None)

    def _wait_for(self, future: Future[Any], settle: _Settle | None) -> _Watched | None:
        """Waits for one, and gives the next that is there already."""
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
        """Waits for what ``take`` gives; nothing after a while, or at the end."""
        with self._lock:
            if self._stopped:
                return None
            self._resting += 1
        with contextlib.suppress(queue.Empty):
            return self._given.get(timeout=_LINGER_SECONDS)
        with self._lock:
            with contextlib.suppress(queue.Empty):  # it may have been given just now
                return self._given.get_nowait()
            self._resting -= 1
            return None

    def _leave(self, thread: threading.Thread | None, key: int | None) -> None:
        with self._lock:
            if thread is not None:
                self._threads.discard(thread)
                if key is not None:
                    self._keys.discard(key)


def _join(thread: threading.Thread, deadline: float | None) -> None:
    if thread.is_alive():  # one that is only just being started finds that it is not needed
        thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))


class CompletionWatcher:
    """Notices that futures are done without anyone asking them.

    jaxlib tells nobody when an array is ready. It can be waited for, which takes a thread; and it can be asked, which
    takes time from the very work that is waited for. So a few futures have a thread each that waits, and all others
    have one together that asks, the more seldom the longer it has: at intervals of a tenth of the time it has asked,
    from 20 µs to 1 ms, or longer where asking all of them takes long. The threads that wait see to those others too,
    when they are free: the results of one execution come together. Threads are there for as long as there is something
    to notice, and a moment longer.

    Attributes:
        donations: the futures that a donation concerns.
        lost: why nothing watched can ever be done, such as after a fork; empty as long as all is well.
        is_ending: whether the interpreter is ending, so that not every thread may wait inside jaxlib.
    """

    _SHORTEST_SECONDS, _LONGEST_SECONDS, _SHARE = 20e-6, 1e-3, 0.1
    _BUSY_SHARE = 0.02

    def __init__(self) -> None:
        self.lost = ""
        self.is_ending = False
        self.donations = DonationGuard()
        self._waiters = Waiters(self._next)
        self._lock = threading.RLock()  # entered again by its holder, as that of the waiters
        self._asked: dict[int, _Watched] = {}
        self._changed = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._rests = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def watch(self, future: Future[Any], settle: _Settle | None = None) -> None:
        """Sees to it that the future is done soon after its value is there.

        Args:
            future: the future.
            settle: waits for the value and completes the future; where there is none, the future is asked.
        """
        if settle is None or not self._waiters.take(future, settle):
            self._ask(future, settle)

    def stop(self, deadline: float | None = None) -> None:
        """Ends the threads for good: nobody is left to be told.

        Args:
            deadline: until when to wait for them, as ``time.monotonic`` tells the time; for ever if not said.
        """
        self._waiters.stop(deadline)
        with self._lock:
            self._stopped = True
            self._wake.put(None)
            thread = self._thread
        if thread is not None:
            _join(thread, deadline)

    def abandon(self, reason: str) -> None:
        """Fails whatever is watched from now on: in the child of a fork, where neither the threads are nor whoever
        held a lock.
        """
        self.lost = reason
        self.donations.lock = threading.RLock()
        self._lock = threading.RLock()
        self._waiters = Waiters(self._next)
        self._thread = None
        self._rests = False

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
                if self._rests:
                    self._rests = False
                    self._wake.put(None)
                if self._thread is not None:
                    return
                thread = self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
                shutdown.register_own(thread)
            thread.start()  # without the lock, as that of a waiter
        except BaseException:
            # There are no threads left, or Ctrl-C came. Whoever waits next starts another; if this one does run, it
            # takes the place again.
            self._leave(thread)
            raise

    def _leave(self, thread: threading.Thread | None) -> None:
        with self._lock:
            if self._thread is thread:
                self._thread = None

    def _is_woken(self, thread: threading.Thread) -> bool:
        """Waits until there is something to ask about; not for ever."""
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=_LINGER_SECONDS)
            return True
        with self._lock:
            if self._asked:
                return True
            self._rests = False
            self._leave(thread)  # within the same section: whoever comes next starts another
            return False

    def _run(self) -> None:
        thread = threading.current_thread()
        try:
            self._notice(thread)
        finally:
            self._leave(thread)

    def _notice(self, thread: threading.Thread) -> None:
        since = time.monotonic()
        while True:
            begin = time.thread_time()  # its own: where others keep it from running, asking does not cost more
            with self._lock:
                if self._thread is None:
                    self._thread = thread
                if self._stopped or self._thread is not thread:
                    return
                if self._changed:
                    self._changed = False
                    since = time.monotonic()
                asked = tuple(future for future, _ in self._asked.values())
                self._rests = not asked
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
            del asked
            waited = time.monotonic() - since
            rest = min(max(waited * self._SHARE, self._SHORTEST_SECONDS), self._LONGEST_SECONDS)
            time.sleep(max(rest, (time.thread_time() - begin) / self._BUSY_SHARE))
