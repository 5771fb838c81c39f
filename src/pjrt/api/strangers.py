"""Strangers: whether the program that is being compiled comes from one, as from a client of a server.

What only the user of this process may ask of it, such as handlers in C whose operands nobody checks, is refused to
strangers. Checks that cannot be made are no reason to compile their programs unseen.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator


@contextlib.contextmanager
def for_stranger() -> Iterator[None]:
    """Let the programs that this thread compiles meanwhile be those of a stranger."""
    token = _is_for_stranger.set(True)
    try:
        yield
    finally:
        _is_for_stranger.reset(token)


_is_for_stranger: contextvars.ContextVar[bool] = contextvars.ContextVar("pjrt_is_for_stranger", default=False)


def is_for_stranger() -> bool:
    """Return whether the program that this thread compiles is a stranger's."""
    return _is_for_stranger.get()
