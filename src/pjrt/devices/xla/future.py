"""Futures of what jaxlib computes, and the thread that notices when it is there."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pjrt.api.errors import FailedPreconditionError
from pjrt.api.future import Future, Promise
from pjrt.devices.xla import _raw, lifetime
from pjrt.devices.xla._errors import converted

T = TypeVar("T")
U = TypeVar("U")


def nothing(_: _raw.Array) -> None:
    """What a future takes of an array when only its readiness counts."""


READY: Future[Any] = Future.completed(None)
"""The future of what is ready: nobody can change it, so one serves all."""


class ArrayFuture(Future[T]):
    """Done when an array of jaxlib's has its value; gives what ``take`` makes of the array then.

    It holds the array, so that the memory stays for as long as it is needed, whatever becomes of the buffer. Only a
    donation takes the memory away: ``Donations`` sees to the futures that still wait for it.
    """

    __slots__ = ("_array", "_notifier", "_take")

    def __init__(self, array: _raw.Array, notifier: Notifier, take: Callable[[_raw.Array], T]) -> None:
        super().__init__()
        self._array: _raw.Array | None = array
        self._notifier = notifier
        self._take = take

    def settle(self) -> None:
        """Waits for the array and completes. The wait is jaxlib's own, which minds Ctrl-C."""
        array = self._array
        if array is None:  # another thread is completing it
            return
        try:
            if self._notifier.lost:
                raise FailedPreconditionError(self._notifier.lost)
            array.block_until_ready()
            value = self._take(array)
        except Exception as error:
            if array.is_deleted() and self._moved_on(array):
                self.settle()
                return
            self._complete(None, converted(error))
        else:
            self._complete(value)
        self._array = None

    def waits_for(self, array: _raw.Array) -> bool:
        """Whether it is this array whose value is waited for."""
        return self._array is array

    @property
    def is_settled(self) -> bool:
        """Whether it is done and known to be."""
        return self._array is None

    @property
    def needs_value(self) -> bool:
        """Whether the array's memory is going to be looked at."""
        return self._take is not nothing

    def follow(self, array: _raw.Array) -> None:
        """Waits for another array instead, one that is made of the first; if it still waits."""
        if self._array is not None:
            self._array = array

    def _moved_on(self, array: _raw.Array) -> bool:
        with self._notifier.donations.lock:  # a donation that is under way comes to its end
            return self._array is not None and self._array is not array

    def _poll(self) -> None:
        array = self._array
        if array is not None and (self._notifier.lost or array.is_deleted() or array.is_ready()):
            self.settle()

    def _block(self, timeout: float | None) -> None:
        self._notifier.watch(self)
        super()._block(timeout)

    def _watch(self) -> None:
        self._notifier.watch(self)

    def _wait(self, timeout: float | None) -> None:
        if timeout is None:
            self.settle()
        if not self._done:
            super()._wait(timeout)


class Donations:
    """The futures that wait for arrays which may be donated before they have their value.

    An execution that donates takes the memory at once, whoever waits. So whoever only wants to know when the array is
    ready is told when the execution's results are, which comes after and fails with it; and whoever wants to read it
    does so first.

    Attributes:
        lock: held while an execution donates, until everybody who waited knows.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: weakref.WeakSet[ArrayFuture[Any]] = weakref.WeakSet()

    def add(self, future: ArrayFuture[Any]) -> None:
        """A future that waits for an array that is not ready."""
        with self.lock:
            self._waiting.add(future)

    @property
    def has_waiting(self) -> bool:
        """Whether there may be any such future."""
        return len(self._waiting) > 0

    def carry_out(self, donated: Sequence[_raw.Array], execute: Callable[[], tuple[_raw.Array, T]]) -> T:
        """Donates arrays to an execution.

        Args:
            donated: the arrays.
            execute: starts the execution; gives one of its results, and what is returned.
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
                        future.follow(successor)
                    return outcome
            # Without the lock: what they wait for may be a function of the host that needs it.
            for future in readers:
                future.exception()


class Notifier:
    """Notices that futures are done without anyone asking them: one thread a client, there for as long as a future is
    being watched.

    jaxlib tells nobody when an array is ready; it can be asked. So the thread asks, the more seldom the longer it has
    waited: at intervals of a tenth of the time waited, from 20 µs to 1 ms.

    Attributes:
        donations: the futures that a donation concerns.
        lost: why nothing watched can ever be done, such as after a fork; empty as long as all is well.
    """

    _SHORTEST_SECONDS, _LONGEST_SECONDS, _SHARE = 20e-6, 1e-3, 0.1

    def __init__(self) -> None:
        self.lost = ""
        self.donations = Donations()
        # Entered again by its holder where the garbage collector runs inside a section and ends something there whose
        # end others are told of.
        self._lock = threading.RLock()
        self._watched: dict[int, Future[Any]] = {}
        self._changed = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def watch(self, future: Future[Any]) -> None:
        """Has the future asked whether it is done until it is."""
        thread = None
        try:
            with self._lock:
                if self._stopped:
                    return
                self._changed = self._changed or id(future) not in self._watched
                self._watched[id(future)] = future
                if self._thread is not None:
                    return
                thread = self._thread = threading.Thread(target=self._run, name="pjrt-cpu-notifier", daemon=True)
            # Without the lock: this waits until the new thread runs, which may collect garbage before it says so, and
            # what is collected may have this called.
            thread.start()
        except BaseException:
            # There are no threads left, or Ctrl-C came. Whoever waits next starts another; if this one does run, it
            # takes the place again.
            self._leave(thread)
            raise

    def stop(self) -> None:
        """Ends the thread for good: nobody is left to be told."""
        with self._lock:
            self._stopped = True
            thread = self._thread
        # One that is only just being started finds that it is not needed.
        if thread is not None and thread.is_alive():
            thread.join()

    def abandon(self, reason: str) -> None:
        """Fails whatever is watched from now on: in the child of a fork, where neither the thread is nor whoever held
        a lock.
        """
        self.lost = reason
        self.donations.lock = threading.RLock()
        self._lock = threading.RLock()
        self._thread = None

    def _leave(self, thread: threading.Thread | None) -> None:
        with self._lock:
            if self._thread is thread:
                self._thread = None

    def _run(self) -> None:
        thread = threading.current_thread()
        try:
            self._notice(thread)
        finally:
            self._leave(thread)

    def _notice(self, thread: threading.Thread) -> None:
        since = time.monotonic()
        while True:
            with self._lock:
                if self._thread is None:
                    self._thread = thread
                if not self._watched or self._stopped or self._thread is not thread:
                    self._leave(thread)
                    return
                if self._changed:
                    self._changed = False
                    since = time.monotonic()
                watched = tuple(self._watched.values())
            finished = [future for future in watched if future.done()]
            if finished:
                with self._lock:
                    for future in finished:
                        self._watched.pop(id(future), None)
                continue
            del watched
            waited = (time.monotonic() - since) * self._SHARE
            time.sleep(min(max(waited, self._SHORTEST_SECONDS), self._LONGEST_SECONDS))


def flattened(outer: Future[T], follow: Callable[[T], Future[U]]) -> Future[U]:
    """A future of what the future that ``follow`` makes of the first one's value gives."""
    promise: Promise[U] = Promise()

    def pass_on(inner: Future[U]) -> None:
        error = inner.exception()
        if error is None:
            promise.set_result(inner.result())
        else:
            promise.set_error(error)

    def go_on(source: Future[T]) -> None:
        error = source.exception()
        if error is not None:
            promise.set_error(error)
            return
        try:
            follow(source.result()).add_done_callback(pass_on)
        except Exception as failure:
            promise.set_error(converted(failure))

    outer.add_done_callback(go_on)
    return promise.future


def in_thread(wait: Callable[[], object]) -> Future[None]:
    """A future of the return of a function that blocks and cannot be asked, in a thread of its own."""
    promise: Promise[None] = Promise()

    def run() -> None:
        try:
            wait()
            promise.set_result(None)
        except Exception as error:
            promise.set_error(converted(error))

    thread = threading.Thread(target=run, name="pjrt-cpu-completion", daemon=True)
    lifetime.register_waiting(thread)
    thread.start()
    return promise.future
