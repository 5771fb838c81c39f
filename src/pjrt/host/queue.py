"""Work queues: one thread each, which runs tasks one after the other."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pjrt.api.errors import CancelledError, FailedPreconditionError, PjrtError, UnavailableError
from pjrt.api.future import Future, Promise

_log = logging.getLogger("pjrt")

EXIT_GRACE_SECONDS = 10.0
"""How long the end of the interpreter waits for work under way before it gives it up."""


class Task(Protocol):
    """A piece of work for a queue."""

    def run(self) -> None:
        """Does the work; deals with its own errors."""

    def fail(self, error: PjrtError) -> None:
        """Called instead of ``run`` when the work will never be done."""


class WorkQueue:
    """Runs tasks in the order in which they were put, on a thread of its own.

    The thread starts with the first task and ends when the queue is closed or dropped. It is a daemon thread that the
    end of the interpreter waits for, but only for ``EXIT_GRACE_SECONDS``: a thread that Python joins without a limit
    would let one device function that hangs keep the process from ever ending, and a daemon thread that nobody waits
    for would lose work that is nearly done and may be killed inside somebody's C code.
    """

    __slots__ = ("__weakref__", "_finalizer", "_items", "_name", "_pending", "_thread", "_tidings")

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        # What was put and is not finished. Kept apart from the items because after a fork nobody can look into those.
        self._pending: set[Task] = set()
        self._thread: threading.Thread | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._tidings = _generation
        _live.add(self)

    def put(self, task: Task) -> None:
        """Adds a task; never blocks.

        Raises:
            FailedPreconditionError: the queue was made before a fork, by the parent process.
            UnavailableError: no thread can be started, or the interpreter is ending.
        """
        if self._tidings != _generation:
            raise forked()
        if self._thread is None:
            self._start()
        self._pending.add(task)
        self._items.put(task)

    @property
    def is_busy(self) -> bool:
        """Whether something was put that is not finished, and the caller may wait for it."""
        return bool(self._pending) and self._thread is not threading.current_thread()

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is the queue's own thread."""
        return self._thread is threading.current_thread()

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until everything put before is finished; returns whether it is."""
        if self._tidings != _generation or not self._pending or self.is_current_thread:
            return not self._pending
        fence = _Fence()
        self.put(fence)
        try:
            fence.passed.future.result(timeout)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Ends the thread when it has run what was put before."""
        if self._finalizer is not None:
            self._finalizer()

    def abandon(self, error: PjrtError) -> None:
        """Fails everything that is not finished; for when the thread is gone or will never come back."""
        for task in list(self._pending):
            task.fail(error)
        self._pending.clear()

    def _start(self) -> None:
        with _start_lock:
            if self._thread is not None:
                return
            thread = threading.Thread(
                target=_serve, args=(self._items, self._pending), name=f"pjrt {self._name}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                raise UnavailableError(
                    f"the thread of the work queue {self._name} cannot be started: {error}"
                ) from error
            self._thread = thread
            self._finalizer = weakref.finalize(self, self._items.put, None)
            self._finalizer.atexit = False


class _Fence:
    """A task that does nothing but tell that it was reached."""

    __slots__ = ("passed",)

    def __init__(self) -> None:
        self.passed: Promise[None] = Promise()

    def run(self) -> None:
        self.passed.future._complete(None)

    def fail(self, error: PjrtError) -> None:
        self.passed.future._complete(None, error)


class Call:
    """A task that calls a function and puts what becomes of it into a future."""

    __slots__ = ("_function", "future")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self.future: Future[Any] = Future()

    def run(self) -> None:
        """Calls the function."""
        function, self._function = self._function, None
        if function is None:
            return
        try:
            value = function()
        except BaseException as error:
            function = None
            self.future._complete(None, clean(error))
        else:
            function = None
            self.future._complete(value)

    def fail(self, error: PjrtError) -> None:
        """Fails the future."""
        self._function = None
        self.future._complete(None, error)


def _serve(items: queue.SimpleQueue[Task | None], pending: set[Task]) -> None:
    # Holds neither the queue nor its client, so that both can go away while the thread waits.
    while True:
        task = items.get()
        if task is None:
            return
        try:
            task.run()
        except BaseException as error:
            _log.exception("a task of a work queue raised, which is a defect of the host runtime")
            task.fail(PjrtError.wrap(error))
        pending.discard(task)
        del task


def after(futures: Iterable[Future[Any]], function: Callable[[], object]) -> None:
    """Calls the function once, when all futures are done, failed or not: at once in this thread if they are, otherwise
    in the thread that completes the last.
    """
    waited = [future for future in futures if not future.done()]
    if not waited:
        function()
        return
    tickets = [None] * len(waited)

    def one_done(_: Future[Any]) -> None:
        # Taking from a list is atomic: exactly one caller takes the last ticket.
        if _take_last(tickets):
            function()

    for future in waited:
        future.add_done_callback(one_done)


def _take_last(tickets: list[None]) -> bool:
    with _start_lock:
        tickets.pop()
        return not tickets


def clean(error: BaseException) -> PjrtError:
    """An exception of a device's code as a ``PjrtError`` that keeps no frames alive.

    A traceback holds the frames, and those hold the arrays they worked on: memory of the device, for as long as
    somebody keeps the error. So the traceback is kept as text, in a note that Python prints with the error.
    """
    wrapped = PjrtError.wrap(error)
    if error.__traceback__ is not None:
        import traceback

        text = "".join(traceback.format_exception(error))
        if not getattr(wrapped, "__notes__", None):
            wrapped.add_note("in the device:\n" + text)
        _drop_frames(error)
        wrapped.__traceback__ = None
    return wrapped


def _drop_frames(error: BaseException | None) -> None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        _drop_frames_of_context(error.__context__, seen)
        error = error.__cause__


def _drop_frames_of_context(error: BaseException | None, seen: set[int]) -> None:
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def generation() -> int:
    """A number that a fork changes in the child."""
    return _generation


def forked() -> FailedPreconditionError:
    """The error of whoever uses a client of the parent process after a fork."""
    return FailedPreconditionError(
        "this client was made before the process forked, and its threads are in the parent only; "
        "make a new client in the child"
    )


# Life and end of the process.

_generation = 0
_live: weakref.WeakSet[WorkQueue] = weakref.WeakSet()
_start_lock = threading.RLock()


def _after_fork_in_child() -> None:
    global _generation
    _generation += 1
    _start_lock._at_fork_reinit()  # type: ignore[attr-defined]
    for waiting in list(_live):
        waiting.abandon(forked())


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT_GRACE_SECONDS
    for waiting in list(_live):
        if not waiting.drain(max(deadline - time.monotonic(), 0)):
            _log.warning(
                "the interpreter ends although %s is still at work after %g s; the work is given up",
                waiting._name,
                EXIT_GRACE_SECONDS,
            )
            waiting.abandon(CancelledError("the interpreter ended before the work was done"))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
