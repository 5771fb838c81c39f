"""Waits that would never end: a thread that waits for its own later work gets an error instead of hanging."""

from __future__ import annotations

import contextlib
import threading
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
