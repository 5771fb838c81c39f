"""Futures of the values that jaxlib computes, and the threads that complete them."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pjrt.api.errors import FailedPreconditionError
from pjrt.api.future import Future, Promise
from pjrt.devices.xla import _jaxlib, shutdown
from pjrt.devices.xla._jaxlib import converted

T = TypeVar("T")


class DonationGuard:
    """The futures that wait for arrays which may be donated before they have their value.

    An execution that donates takes the memory at once, whatever waits for it. So a future that only waits until the
    array is ready waits for another result of the same execution, or else for the results of the execution that
    donates: they come later, and fail with the array. A future that reads the array does so before the execution
    starts.

    A launch that waits for one of its arguments uses the values that the others have now. It may wait for what the
    caller does after the donation, so the donation cannot wait for it: the execution that donates takes a copy.

    Attributes:
        lock: held while an execution donates, until all waiting futures know.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: weakref.WeakSet[ArrayFuture[Any]] = weakref.WeakSet()
        self._held: Counter[int] = Counter()

    def hold(self, arrays: Sequence[_jaxlib.Array]) -> None:
        """Keep the values of arrays for a launch that waits; the launch keeps the arrays alive."""
        with self.lock:
            self._held.update(map(id, arrays))

    def release(self, arrays: Sequence[_jaxlib.Array]) -> None:
        """End a hold."""
        with self.lock:
            self._held.subtract(map(id, arrays))
            self._held = +self._held

    def holds(self, arrays: Sequence[_jaxlib.Array]) -> bool:
        """Whether a launch that waits uses one of the arrays."""
        return bool(self._held) and any(id(array) in self._held for array in arrays)

    def add(self, future: ArrayFuture[Any]) -> None:
        """Guard a future that waits for an array that is not ready."""
        with self.lock:
            self._waiting.add(future)

    @property
    def has_waiting(self) -> bool:
        """Whether there may be any such future, or launch."""
        return len(self._waiting) > 0 or bool(self._held)

    def donate(self, donated: Sequence[_jaxlib.Array], execute: Callable[[], tuple[_jaxlib.Array, T]]) -> T:
        """Donate arrays to an execution.

        Args:
            donated: the arrays.
            execute: starts the execution, and returns one of its results and the value to return.
        """
        while True:
            with self.lock:
                for future in [f for f in self._waiting if f.is_settled]:
                    self._waiting.discard(future)
                concerned = [f for f in self._waiting if any(f.waits_for(array) for array in donated)]
                readers = [future for future in concerned if future.needs_value and not future.done()]
                if not readers:
                    successor, outcome = execute()
                    for future in concerned:
                        future.follow(successor, donated)
                    return outcome
            # Without the lock: a reader may wait for a function of the host that needs it.
            for future in readers:
                future.exception()


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


U = TypeVar("U")


def nothing(_: _jaxlib.Array) -> None:
    """Take nothing of an array: for futures that only wait until the array is ready."""


READY: Future[Any] = Future.completed(None)
"""The future of all that is ready: it never changes, so one object serves everywhere."""


def when_ready(array: _jaxlib.Array, watcher: CompletionWatcher, take: Callable[[_jaxlib.Array], T]) -> Future[T]:
    """Return a future of the result of ``take`` for an array that has its value; a donation does not disturb it."""
    if next(_jaxlib.TURNS):
        _jaxlib.collect_released()
    # Small programs are mostly finished by now, and then a future that can wait is not needed.
    try:
        if array.is_ready() and not watcher.lost:
            array.block_until_ready()  # raises the error of the execution
            return READY if take is nothing else Future.completed(take(array))
    except Exception:
        pass  # the array failed or was donated: the future below finds out which
    future = ArrayFuture(array, watcher, take)
    if not future.done():
        watcher.donations.add(future)
    return future


def completion(results: Sequence[_jaxlib.Array], watcher: CompletionWatcher) -> Future[None]:
    """Return a future of the end of an execution, whose results are all ready at once."""
    future = when_ready(results[0], watcher, nothing)
    if isinstance(future, ArrayFuture):
        future.siblings = results[1:]
    return future


class ArrayFuture(Future[T]):
    """A future that is done when an array of jaxlib has its value; it holds the result of ``take`` for the array.

    It holds the array, so that the memory stays for as long as it is needed, even if the buffer is deleted. Only a
    donation takes the memory away: ``DonationGuard`` handles the futures that still wait for it.

    Attributes:
        siblings: other results of the execution that makes the array, which are ready when it is. A future that takes
            nothing waits for one of them if the array is donated.
    """

    __slots__ = ("_array", "_take", "_turn", "_watcher", "siblings")

    def __init__(self, array: _jaxlib.Array, watcher: CompletionWatcher, take: Callable[[_jaxlib.Array], T]) -> None:
        super().__init__()
        self._array: _jaxlib.Array | None = array
        self.siblings: Sequence[_jaxlib.Array] = ()
        self._watcher = watcher
        self._take = take
        self._turn = [None]  # the thread that pops the element, which is atomic, is the one that calls ``take``

    def settle(self) -> None:
        """Wait for the array and complete, or return if another thread has the value and is about to complete.

        The wait is jaxlib's own, which handles Ctrl-C. ``take`` runs once: the memory that it copies to belongs to the
        caller again when the future is done, and a second copy would still write to it.
        """
        array = self._array
        if array is None:  # another thread is completing it
            return
        is_taking = False
        try:
            if self._watcher.lost:
                raise FailedPreconditionError(self._watcher.lost)
            if self._watcher.is_ending:
                shutdown.check_thread()
            array.block_until_ready()
            if not self._has_turn():
                return
            is_taking = True
            value = self._take(array)
        except Exception as error:
            if array.is_deleted() and self._has_followed(array):
                if is_taking:
                    self._turn.append(None)
                self.settle()
                return
            self._complete(None, converted(error))
        except BaseException:  # Ctrl-C: the next thread that settles takes the value
            if is_taking:
                self._turn.append(None)
            raise
        else:
            self._complete(value)
        self._array = None
        self.siblings = ()

    def _has_turn(self) -> bool:
        """Whether the calling thread is the one that calls ``take``."""
        try:
            self._turn.pop()
        except IndexError:
            return False
        return True

    def waits_for(self, array: _jaxlib.Array) -> bool:
        """Whether the future waits for this array."""
        return self._array is array

    @property
    def is_settled(self) -> bool:
        """Whether the future is complete, without asking jaxlib."""
        return self._array is None

    @property
    def needs_value(self) -> bool:
        """Whether the future is going to read the array's memory."""
        return self._take is not nothing

    def follow(self, array: _jaxlib.Array, donated: Sequence[_jaxlib.Array]) -> None:
        """Wait for another array instead; do nothing if the future does not wait.

        Args:
            array: one that is computed from the donated ones.
            donated: the donated arrays.
        """
        if self._array is None:
            return
        gone = set(map(id, donated))
        self.siblings = [sibling for sibling in self.siblings if id(sibling) not in gone]
        self._array = self.siblings[0] if self.siblings else array

    def _has_followed(self, array: _jaxlib.Array) -> bool:
        with self._watcher.donations.lock:  # wait until a donation under way has replaced the array
            return self._array is not None and self._array is not array

    def _poll(self) -> None:
        array = self._array
        if next(_jaxlib.TURNS):
            _jaxlib.collect_released()
        if array is not None and (self._watcher.lost or array.is_deleted() or array.is_ready()):
            self.settle()

    def _block(self, timeout: float | None) -> None:
        self._watch()
        super()._block(timeout)

    def _watch(self) -> None:
        self._watcher.watch(self, self.settle)

    def _wait(self, timeout: float | None) -> None:
        if timeout is None:
            self.settle()
        if not self._done:
            super()._wait(timeout)


def flattened(outer: Future[T], follow: Callable[[T], Future[U]]) -> Future[U]:
    """Return a future of the result of the future that ``follow`` makes of the first future's result."""
    promise: Promise[U] = Promise()

    def go_on(source: Future[T]) -> None:
        error = source.exception()
        if error is not None:
            promise.set_error(error)
            return
        try:
            pass_on(follow(source.result()), promise)
        except Exception as failure:
            promise.set_error(converted(failure))

    outer.add_done_callback(go_on)
    return promise.future


def pass_on(source: Future[T], promise: Promise[T]) -> None:
    """Keep a promise with the result or the error of a future, when it is done."""

    def keep(source: Future[T]) -> None:
        error = source.exception()
        if error is None:
            promise.set_result(source.result())
        else:
            promise.set_error(error)

    source.add_done_callback(keep)


def in_thread(wait: Callable[[], T]) -> Future[T]:
    """Return a future of the result of a function that blocks and cannot be polled; it runs in a thread of its own."""
    promise: Promise[T] = Promise()

    def run() -> None:
        try:
            promise.set_result(wait())
        except Exception as error:
            promise.set_error(converted(error))

    thread = threading.Thread(target=run, name="pjrt-cpu-completion", daemon=True)
    shutdown.register_own(thread)
    thread.start()
    return promise.future
