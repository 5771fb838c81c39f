"""Infeed and outfeed: queues of values between the host and running programs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from pjrt.api.errors import DeadlineExceededError
from pjrt.host.fork_safety import runtime_lock

_WAIT_SLICE_SECONDS = 0.2


class Feed:
    """A queue of values between the host and the programs of one device.

    Args:
        name: its name, for messages.
    """

    __slots__ = ("_changed", "_name", "_values")

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: deque[Any] = deque()
        self._changed = threading.Condition(runtime_lock)

    def put(self, value: Any) -> None:
        """Add a value at the end; never waits."""
        with self._changed:
            self._values.append(value)
            self._changed.notify()

    def get(self, timeout: float | None = None, check: Callable[[], object] = lambda: None) -> Any:
        """Remove and return the first value; wait for it.

        Args:
            timeout: the longest time to wait, in seconds; ``None`` is no limit.
            check: called from time to time while waiting; its exceptions end the wait.

        Raises:
            DeadlineExceededError: no value came in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                if self._values:
                    return self._values.popleft()
                left = _WAIT_SLICE_SECONDS if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceededError(f"nothing came on the {self._name} within {timeout:g} s")
                self._changed.wait(min(left, _WAIT_SLICE_SECONDS))
                if self._values:
                    continue
            check()

    def __len__(self) -> int:
        return len(self._values)
