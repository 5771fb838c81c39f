"""Futures of what jaxlib computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pjrt.api.errors import FailedPreconditionError
from pjrt.api.future import Future, Promise
from pjrt.devices.xla import _jaxlib, shutdown
from pjrt.devices.xla.completion_watcher import CompletionWatcher
from pjrt.devices.xla.errors import converted

T = TypeVar("T")
U = TypeVar("U")


def nothing(_: _jaxlib.Array) -> None:
    """What a future takes of an array when only its readiness counts."""


READY: Future[Any] = Future.completed(None)
"""The future of what is ready: nobody can change it, so one serves all."""


class ArrayFuture(Future[T]):
    """Done when an array of jaxlib's has its value; gives what ``take`` makes of the array then.

    It holds the array, so that the memory stays for as long as it is needed, whatever becomes of the buffer. Only a
    donation takes the memory away: ``DonationGuard`` sees to the futures that still wait for it.
    """

    __slots__ = ("_array", "_take", "_turn", "_watcher")

    def __init__(self, array: _jaxlib.Array, watcher: CompletionWatcher, take: Callable[[_jaxlib.Array], T]) -> None:
        super().__init__()
        self._array: _jaxlib.Array | None = array
        self._watcher = watcher
        self._take = take
        self._turn = [None]  # whoever takes it out, which is atomic, is the one that calls ``take``

    def settle(self) -> None:
        """Waits for the array and completes, or leaves that to another thread that has the value already.

        The wait is jaxlib's own, which minds Ctrl-C. The value is taken once: what it is copied to is the caller's
        again when the future is done, and a second copy would still write to it.
        """
        array = self._array
        if array is None:  # another thread is completing it
            return
        taking = False
        try:
            if self._watcher.lost:
                raise FailedPreconditionError(self._watcher.lost)
            if self._watcher.is_ending:
                shutdown.check_thread()
            array.block_until_ready()
            if not self._has_turn():
                return
            taking = True
            value = self._take(array)
        except Exception as error:
            if array.is_deleted() and self._moved_on(array):
                if taking:
                    self._turn.append(None)
                self.settle()
                return
            self._complete(None, converted(error))
        except BaseException:  # Ctrl-C: whoever comes next takes the value
            if taking:
                self._turn.append(None)
            raise
        else:
            self._complete(value)
        self._array = None

    def _has_turn(self) -> bool:
        """Whether the caller is the one that takes the value."""
        try:
            self._turn.pop()
        except IndexError:
            return False
        return True

    def waits_for(self, array: _jaxlib.Array) -> bool:
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

    def follow(self, array: _jaxlib.Array) -> None:
        """Waits for another array instead, one that is made of the first; if it still waits."""
        if self._array is not None:
            self._array = array

    def _moved_on(self, array: _jaxlib.Array) -> bool:
        with self._watcher.donations.lock:  # a donation that is under way comes to its end
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
    shutdown.register_own(thread)
    thread.start()
    return promise.future
