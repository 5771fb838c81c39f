"""Whose program is compiled or run: the user's, a stranger's as from a client of a server, or a framework's.

What only the user of this process may ask of it, such as handlers in C whose operands nobody checks, is refused to
strangers. Checks that cannot be made are no reason to compile their programs unseen. And what works for a stranger
alone ends when it leaves, where it can be ended. A framework of this process may name its own functions by address.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator


class Stranger:
    """Someone whose programs are compiled here; its methods may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_left = False
        self._ends: list[Callable[[], object]] = []

    @property
    def has_left(self) -> bool:
        """Whether ``leave`` was called."""
        return self._has_left

    def leave(self) -> None:
        """End what works for the stranger alone."""
        with self._lock:
            self._has_left = True
            ends, self._ends = self._ends, []
        for end in ends:
            end()

    @contextlib.contextmanager
    def served_by(self, end: Callable[[], object]) -> Iterator[None]:
        """Have a function called if the stranger leaves meanwhile, or has left; it ends what works for it."""
        with self._lock:
            self._ends.append(end)
        if self._has_left:
            self.leave()
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._ends.remove(end)


@contextlib.contextmanager
def for_stranger(stranger: Stranger | None = None) -> Iterator[None]:
    """Let the programs that this thread compiles and runs meanwhile be those of a stranger."""
    token = _stranger.set(stranger or Stranger())
    try:
        yield
    finally:
        _stranger.reset(token)


_stranger: contextvars.ContextVar[Stranger | None] = contextvars.ContextVar("pjrt_stranger", default=None)


def the_stranger() -> Stranger | None:
    """Return whose programs this thread compiles and runs; ``None`` for those of the user of this process."""
    return _stranger.get()


def is_for_stranger() -> bool:
    """Return whether the program that this thread compiles is a stranger's."""
    return _stranger.get() is not None


@contextlib.contextmanager
def from_caller(*, framework: bool) -> Iterator[None]:
    """Let the programs that this thread compiles meanwhile come through the C API.

    The outermost caller counts: a plugin that passes a framework's program on to another passes on its functions, too.

    Args:
        framework: whether a framework of this process called; else a client of this package did, with any program.
    """
    token = _from_framework.set(framework) if _from_framework.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _from_framework.reset(token)


_from_framework: contextvars.ContextVar[bool | None] = contextvars.ContextVar("pjrt_from_framework", default=None)


def is_from_framework() -> bool:
    """Return whether a framework of this process asks for the program that this thread compiles."""
    return bool(_from_framework.get()) and not is_for_stranger()
