"""The first messages of callers that have not shown who they are: few at a time, and for a short time only.

gRPC's core holds a message in memory before its receiver sees any of it. Until a receiver asks for a message, the core
takes in no more than some MiB of it. So the messages of strangers are asked for one by one: a small one is there at
once, and a large one is given up before much of it has come.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple, Protocol

AT_ONCE = 1
"""The messages of strangers that are received at one time."""

SECONDS = 0.05
"""The time for one of them. It begins when the core is asked for the message, which has mostly come by then."""

MOST_WAITING = 16
"""The calls of strangers that may wait for their turn; the core may hold some MiB of each."""


class Call(Protocol):
    """A call that has its turn, or has lost it."""

    def receive_first(self) -> None:
        """Ask for the first message."""

    def give_up(self) -> None:
        """End the call: its message has not come in time."""


class _Turn(NamedTuple):
    call: Call
    end: float


class FirstMessages:
    """The turns of calls; the methods may be called by any thread. Somebody must call ``expire`` at ``deadline``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: list[_Turn] = []
        self._waiting: deque[Call] = deque()

    def request(self, call: Call) -> bool:
        """Let a call have its turn, now or later; return whether so many may wait."""
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                return False
            self._waiting.append(call)
        self._begin()
        return True

    def leave(self, call: Call) -> bool:
        """End the turn of a call whose message has come or whose caller is gone; return whether it was waiting."""
        with self._lock:
            was_waiting = call in self._waiting
            if was_waiting:
                self._waiting.remove(call)
            self._turns = [turn for turn in self._turns if turn.call is not call]
        self._begin()
        return was_waiting

    def deadline(self) -> float | None:
        """Return when the next turn ends, on the clock of ``time.time``; ``None`` without one."""
        with self._lock:
            return self._turns[0].end if self._turns else None

    def expire(self) -> None:
        """Give up the calls whose time is over."""
        now = time.time()
        with self._lock:
            late = [turn.call for turn in self._turns if turn.end <= now]
            self._turns = [turn for turn in self._turns if turn.end > now]
        for call in late:
            call.give_up()
        self._begin()

    def _begin(self) -> None:
        """Begin the turns of calls that wait, as many as may be."""
        while True:
            with self._lock:
                if len(self._turns) >= AT_ONCE or not self._waiting:
                    return
                call = self._waiting.popleft()
                self._turns.append(_Turn(call, time.time() + SECONDS))
            call.receive_first()
