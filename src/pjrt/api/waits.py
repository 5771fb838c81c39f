"""Waits for devices: those that would never end, those that Ctrl-C ends, and those at the interpreter's end."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import FailedPreconditionError

if TYPE_CHECKING:
    from pjrt.api.future import Future


class Server:
    """A thread that does tasks one after the other, such as the thread of a device.

    A future that one of its tasks completes names it (``Future.need``).

    Attributes:
        name: its tasks, for messages.
        thread: the thread's identifier; 0 before it runs and after it has ended.
        waits_for: the future that the present task waits for, if it waits.
    """

    __slots__ = ("name", "thread", "waits_for")

    def __init__(self, name: str) -> None:
        self.name = name
        self.thread = 0
        self.waits_for: Future[Any] | None = None

    def begin(self) -> None:
        """Make the calling thread the one that serves."""
        self.thread = threading.get_ident()
        _serving[self.thread] = self

    def end(self) -> None:
        """Note that the thread does not serve any more."""
        _serving.pop(self.thread, None)
        self.thread = 0

    def check(self, future: Future[Any]) -> None:
        """Raise an error if a task of this thread would wait for ever for a future.

        Raises:
            FailedPreconditionError: the future needs a later task of this thread, directly or through other threads
                that wait.
        """
        if self._is_needed_by(future):
            raise FailedPreconditionError(
                f"a function that runs on {self.name} waits for a value that {self.name} makes only when the function "
                "has returned: this would wait for ever; take the value in a callback (add_done_callback), compute it "
                "before the program runs, or on another device"
            )

    def _is_needed_by(self, future: Future[Any]) -> bool:
        seen: set[int] = set()
        left: list[Any] = [future]
        while left:
            needed = left.pop()
            if needed is self:
                return True
            if needed is None or id(needed) in seen:
                continue
            seen.add(id(needed))
            if isinstance(needed, Server):
                left.append(needed.waits_for)
            elif not needed._done:
                left.extend(needed.needs)
        return False


_serving: dict[int, Server] = {}


@contextlib.contextmanager
def serving(name: str) -> Iterator[None]:
    """Have the calling thread count as one that serves, within a ``with`` statement.

    Args:
        name: its tasks, for messages.
    """
    if server_here() is not None:
        yield
        return
    server = Server(name)
    server.begin()
    try:
        yield
    finally:
        server.end()


def server_here() -> Server | None:
    """Return the server whose thread the caller is on, if there is one."""
    return _serving.get(threading.get_ident())


# Work goes on when the wait for it is interrupted, because its results may still be wanted. If nobody holds them any
# more, a device function that checks is asked to end (``RunContext.check``).

_interruptions = 0

# Packages whose functions wait for devices. Users look in the frames of their own functions for values to rescue.
_WAITING_PACKAGES = frozenset({"jax", "numpy", "pjrt", "torch", "torch_xla"})


def interruption_count() -> int:
    """Return how often Ctrl-C was noted in this process."""
    return _interruptions


def note_interruption() -> None:
    """Note that Ctrl-C was pressed during a wait for a device, or possibly during one."""
    global _interruptions
    _interruptions += 1


def forget_variables() -> None:
    """Drop the local variables of the calls that Ctrl-C ended, in the frames of this package and of frameworks.

    They hold the awaited results as long as the exception exists: while it is handled, and at a prompt until the next
    exception, which may be for ever. The frames of the user's own functions are not touched.
    """
    shown = getattr(sys, "last_value", None)
    for handled in (shown, *sys._current_exceptions().values()):
        # Python 3.11 returns the type and the traceback, too.
        error = handled[1] if isinstance(handled, tuple) else handled
        if isinstance(error, KeyboardInterrupt):
            _forget(error)


def _forget(error: BaseException) -> None:
    seen: set[int] = set()
    context: BaseException | None = error
    # A framework may have turned Ctrl-C into an error of its own, which is then the context of the exception.
    while context is not None and id(context) not in seen:
        seen.add(id(context))
        trace = context.__traceback__
        while trace is not None:
            if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in _WAITING_PACKAGES:
                with contextlib.suppress(RuntimeError):  # The frame that handles the exception is still running.
                    trace.tb_frame.clear()
            trace = trace.tb_next
        context = context.__context__


# Several parts of this package have work to wait for when the interpreter ends. They share one deadline, so that the
# process ends in time however many of them wait.

PATIENCE_SECONDS = 2.0
"""The seconds that the end of the interpreter waits for work under way before it abandons the work."""

_deadline: float | None = None


def interpreter_is_ending() -> bool:
    """Whether the interpreter is ending: its main thread has finished, and exit functions run or have run."""
    return _deadline is not None or not threading.main_thread().is_alive()


def time_left() -> float:
    """Return how many seconds the end of the interpreter may still wait; the first call starts the clock."""
    global _deadline
    if _deadline is None:
        _deadline = time.monotonic() + PATIENCE_SECONDS
    return max(_deadline - time.monotonic(), 0.0)
