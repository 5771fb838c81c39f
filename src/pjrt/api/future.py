"""Futures: values that come later (``PjRtFuture``, ``PJRT_Event``).

Everything that takes time returns at once with a ``Future``. There are three ways to wait for it: blocking
(``result``), in asyncio (``await``), and by a callback (``add_done_callback``). A future is completed once: by its
``Promise``, or by the class that implements it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

from pjrt.api import waits
from pjrt.api.errors import DeadlineExceededError, FailedPreconditionError, InternalError, PjrtError
from pjrt.api.waits import Server, server_here
from pjrt.system import after_fork_in_child

T = TypeVar("T")
U = TypeVar("U")

_log = logging.getLogger("pjrt")
_NO_FURTHER = "a callback of a future raised; the exception goes no further"

# Waits are cut into slices so that Ctrl-C is seen while a thread waits: not every platform can interrupt the wait for a
# lock without a limit.
_WAIT_SLICE_SECONDS = 0.5

# One lock serves the short critical sections of all futures: completing one and adding a callback. A lock for each
# would cost more than it saves. Its holder can enter it again, because the garbage collector may run inside a section
# and drop some other promise there.
_lock = threading.RLock()
# As the standard library does for its own locks; they have no such method where there is no fork.
after_fork_in_child(lambda: _lock._at_fork_reinit())  # type: ignore[attr-defined]


class Future(Generic[T]):
    """A value of type ``T`` that arrives later, or the error that came instead.

    Devices subclass it if the value comes from elsewhere. They override ``_poll`` (find out, without blocking, whether
    the value is there), ``_block`` (wait for it) and ``_watch`` (the first callback was added: make sure that the
    completion is noticed), and call ``_complete``. Plain futures come from ``Promise``, ``completed`` and ``failed``.
    """

    __slots__ = ("__weakref__", "_callbacks", "_done", "_error", "_needs", "_value", "_waiter")

    def __init__(self) -> None:
        self._done = False
        self._value: T | None = None
        self._error: PjrtError | None = None
        self._callbacks: list[Callable[[Future[T]], object]] | None = None
        self._waiter: threading.Lock | None = None

    @staticmethod
    def completed(value: U) -> Future[U]:
        """Return a future that has its value already."""
        future: Future[U] = Future()
        future._value = value
        future._done = True
        return future

    @staticmethod
    def failed(error: BaseException) -> Future[Any]:
        """Return a future that has failed already."""
        future: Future[Any] = Future()
        future._error = PjrtError.wrap(error)
        future._done = True
        return future

    def done(self) -> bool:
        """Whether the value or the error is there (``PJRT_Event_IsReady``); never blocks."""
        if not self._done:
            self._poll()
        return self._done

    def result(self, timeout: float | None = None) -> T:
        """Return the value; wait for it (``PJRT_Event_Await``).

        Args:
            timeout: the longest time to wait, in seconds; ``None`` is no limit. Ctrl-C interrupts the wait, not the
                work.

        Raises:
            DeadlineExceededError: the time is over; the work goes on.
            PjrtError: the error that came instead of the value.
        """
        if not self._done:
            self._wait(timeout)
        error = self._error
        if error is not None:
            try:
                # Raised anew each time: tracebacks of earlier raises would pile up and keep their frames alive.
                raise error.with_traceback(None)
            finally:
                # The error's traceback holds this frame; without its local variables, there is no reference cycle.
                del self, error
        return self._value  # type: ignore[return-value]  # a cast is a call, and this is a hot path

    def exception(self, timeout: float | None = None) -> PjrtError | None:
        """Return the error that came instead of the value (``PJRT_Event_Error``), or ``None``; wait as ``result`` does.

        Args:
            timeout: the longest time to wait, in seconds; ``None`` is no limit.

        Raises:
            DeadlineExceededError: the time is over; the work goes on.
        """
        if not self._done:
            self._wait(timeout)
        return self._error

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Have ``callback(self)`` called once, when the future is done (``PJRT_Event_OnReady``).

        If it is done already, the call is made at once in this thread, otherwise in the thread that completes the
        future, which must not be blocked for long. An exception of a callback is logged and not raised, not even
        ``SystemExit``; only Ctrl-C in the main thread is raised.
        """
        with _lock:
            pending = not self._done
            first = pending and self._callbacks is None
            if first:
                self._callbacks = [callback]
            elif pending and self._callbacks is not None:
                self._callbacks.append(callback)
        if first:
            self._watch()
        if pending:
            return
        self._call(callback)

    def then(self, function: Callable[[T], U]) -> Future[U]:
        """Return a future of ``function(value)``; it fails if this future or the function fails."""
        promise: Promise[U] = Promise()
        promise.future.need(self)

        def pass_on(source: Future[T]) -> None:
            try:
                promise.set_result(function(source.result()))
            except BaseException as error:
                promise.set_error(error)
                if isinstance(error, KeyboardInterrupt):
                    raise

        self.add_done_callback(pass_on)
        return promise.future

    @staticmethod
    def all(futures: Iterable[Future[Any]]) -> Future[None]:
        """Return a future that is done when all of these are. If some fail, it fails with the error of the first of
        them in the order of the argument.
        """
        waited = list(futures)
        promise: Promise[None] = Promise()
        promise.future.need(*waited)

        def settle() -> None:
            error = next((f._error for f in waited if f._error is not None), None)
            if error is None:
                promise.set_result(None)
            else:
                promise.set_error(error)

        when_all_done(waited, settle)
        return promise.future

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            # Imported here, because that takes as long as importing jaxlib, and most programs never await.
            import asyncio

            loop = asyncio.get_running_loop()
            arrived: asyncio.Future[None] = loop.create_future()

            def arrive() -> None:
                if not arrived.done():
                    arrived.set_result(None)

            def notify(_: Future[T]) -> None:
                try:
                    loop.call_soon_threadsafe(arrive)
                except RuntimeError:
                    _log.debug("a future was done after the event loop that awaited it was closed")

            self.add_done_callback(notify)
            yield from arrived
        return self.result()

    def __repr__(self) -> str:
        state = "pending" if not self._done else "done" if self._error is None else f"failed: {self._error}"
        return f"<{type(self).__name__} {state}>"

    # For subclasses to override.

    def _poll(self) -> None:
        """Complete the future if its value is there; do not block."""

    def _block(self, timeout: float | None) -> None:
        """Wait until the future is complete or ``timeout`` seconds are over."""
        with _lock:
            if self._done:
                return
            waiter = self._waiter
            if waiter is None:
                # A bare lock, held until the future is done and then passed from one waiter to the next: it wakes a
                # thread in three quarters of the time that an Event takes.
                waiter = self._waiter = threading.Lock()
                waiter.acquire()
        if waiter.acquire(timeout=-1 if timeout is None else timeout):
            waiter.release()

    def _watch(self) -> None:
        """Make sure that the completion is noticed without a wait: the first callback was added."""

    # For the code that completes the future.

    def need(self, *others: Future[Any] | Server) -> None:
        """Record what must be done before this future can be: other futures, or tasks of a server.

        A task of a server that waits for the future while the future needs that server fails instead of hanging.
        """
        self._needs = others

    @property
    def needs(self) -> tuple[Future[Any] | Server, ...]:
        """The arguments of ``need``; empty if it was not called, or the future is done."""
        return () if self._done else getattr(self, "_needs", ())

    # For subclasses to call.

    def _complete(self, value: T | None, error: BaseException | None = None) -> bool:
        """Complete the future and call its callbacks in this thread; return whether this call completed it."""
        failure = None if error is None else PjrtError.wrap(error)
        with _lock:
            if self._done:
                return False
            self._value = value
            self._error = failure
            self._done = True
            self._needs = ()
            callbacks, self._callbacks = self._callbacks, None
            waiter = self._waiter
        if waiter is not None:
            waiter.release()
        if callbacks:
            left = iter(callbacks)
            try:
                for callback in left:
                    self._call(callback)
            finally:
                # After a callback that Ctrl-C ended, the other callbacks must still be called.
                for callback in left:
                    self._call(callback)
        return True

    def _wait(self, timeout: float | None) -> None:
        self._poll()
        if self._done:
            return
        server = server_here()
        if server is None:
            self._wait_in_slices(timeout, None)
            return
        before, server.waits_for = server.waits_for, self
        try:
            self._wait_in_slices(timeout, server)
        finally:
            server.waits_for = before

    def _wait_in_slices(self, timeout: float | None, server: Server | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        # Around the loop: Ctrl-C that another thread of the process gets is seen between two slices.
        try:
            while not self._done:
                left = _WAIT_SLICE_SECONDS
                if deadline is not None:
                    left = min(deadline - time.monotonic(), left)
                if left <= 0:
                    raise DeadlineExceededError(
                        f"the result was not there within {timeout} s; the work goes on and can be waited for again"
                    )
                if server is not None:
                    server.check(self)
                self._block(left)
        except KeyboardInterrupt:
            waits.note_interruption()
            raise

    def _call(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except KeyboardInterrupt:
            # In the main thread it is Ctrl-C, which the program must see whatever it was doing.
            if threading.current_thread() is threading.main_thread():
                raise
            _log.exception(_NO_FURTHER)
        except BaseException:  # A SystemExit would end the thread that happens to complete the future.
            _log.exception(_NO_FURTHER)


class Promise(Generic[T]):
    """The producing end of a ``Future``: its holder completes the future, once (``PjRtFuture::Promise``,
    ``PJRT_Event_Create``).

    A promise that is dropped before that fails its future, so that nobody waits for ever.
    """

    __slots__ = ("__weakref__", "future")

    future: Future[T]

    def __init__(self) -> None:
        self.future = Future()

    def set_result(self, value: T) -> None:
        """Complete the future with a value.

        Raises:
            FailedPreconditionError: the future is complete already.
        """
        if not self.future._complete(value):
            raise FailedPreconditionError("the promise was kept already; a future is completed once")

    def set_error(self, error: BaseException) -> None:
        """Complete the future with an error; any exception becomes a ``PjrtError`` (``PJRT_Event_Set``).

        Raises:
            FailedPreconditionError: the future is complete already.
        """
        if not self.future._complete(None, error):
            raise FailedPreconditionError("the promise was kept already; a future is completed once")

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        future = getattr(self, "future", None)
        if future is not None and not future._done and not is_finalizing():
            future._complete(
                None,
                InternalError(
                    "the promise of this future was dropped without a result: its producer died or forgot it"
                ),
            )


def when_all_done(futures: Iterable[Future[Any]], function: Callable[[], object]) -> None:
    """Call a function once, when all futures are done or have failed: at once in this thread if they are, otherwise in
    the thread that completes the last.
    """
    waited = [future for future in futures if not future.done()]
    left = len(waited)
    if not left:
        function()

    def one_done(_: Future[Any]) -> None:
        nonlocal left
        with _lock:
            left -= 1
            is_last = not left
        if is_last:
            function()

    for future in waited:
        future.add_done_callback(one_done)
