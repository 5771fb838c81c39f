"""The backlog of a session: executions that were started and have not ended."""

from __future__ import annotations

import threading
from collections import deque

from pjrt.api.errors import DeadlineExceededError
from pjrt.api.future import Future
from pjrt.ifrt.array import Array

_STEP = 16
_WAIT_SECONDS = 0.2


class ExecutionBacklog:
    """The executions of a session that have not ended, roughly counted: of each 16, one is looked at.

    A client that starts programs faster than the devices run them is held back: the session handles no request while
    the backlog is full, so gRPC's flow control stops the client, and the server's memory does not grow without limit.

    Args:
        most: the executions that may be under way.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most // _STEP
        self._started = 0
        self._samples: deque[Future[None]] = deque()

    def add(self, outputs: list[Array]) -> None:
        """Note an execution by its results."""
        self._started += 1
        if not self._started % _STEP and outputs:
            self._samples.append(outputs[0].ready())

    def wait(self, ended: threading.Event) -> None:
        """Wait while the backlog is full, or until the session has ended."""
        samples = self._samples
        while samples and samples[0].done():
            samples.popleft()
        while len(samples) > self._most and not ended.is_set():
            try:
                samples[0].exception(_WAIT_SECONDS)
            except DeadlineExceededError:
                continue
            samples.popleft()
