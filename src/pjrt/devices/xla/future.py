"""Futures of the values that jaxlib computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pjrt.api.errors import FailedPreconditionError
from pjrt.api.future import Future, Promise
from pjrt.devices.xla import _jaxlib, shutdown
from pjrt.devices.xla._jaxlib import converted
from pjrt.devices.xla.completion_watcher import CompletionWatcher

T = TypeVar("T")
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
