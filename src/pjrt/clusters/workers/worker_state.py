"""The state of a worker, as its controller knows it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pjrt.api.errors import PjrtError
from pjrt.clusters.launchers import WorkerHandle, WorkerOutput
from pjrt.clusters.settings import HIDDEN

STARTING, SERVING = "starting its process", "serving"

CAUSE_SECONDS = 1.0
"""The longest time from the end of a worker's connection to that of its process, if its process ended first."""

_POLL_SECONDS = 0.01


@dataclass(eq=False)
class WorkerState:
    """One worker, as its controller knows it.

    Attributes:
        index: its number.
        host: its host; empty while it is unknown.
        output: its output.
        handle: the launcher's handle; ``None`` before it is started.
        state: its state, human-readable.
        address: where it serves; empty until it does.
        pid: its process on its host; 0 until it has connected.
        error: why it has failed or is lost; ``None`` while it is there.
        has_reported: whether the error is its own report.
        is_gone: whether its connection has ended.
    """

    index: int
    host: str
    output: WorkerOutput
    handle: WorkerHandle | None = None
    state: str = STARTING
    address: str = ""
    pid: int = 0
    error: PjrtError | None = None
    has_reported: bool = False
    is_gone: bool = False

    def __str__(self) -> str:
        place = f" on {self.host}" if self.host else ""
        return f"worker {self.index}{place}" + (f" (pid {self.pid})" if self.pid else "")

    @property
    def end(self) -> str | None:
        """The way in which its process ended, such as ``exit code 1``; ``None`` while it runs."""
        return None if self.handle is None else self.handle.poll()

    def end_within(self, seconds: float) -> str | None:
        """Return how its process ended, or ends within a time; ``None`` if it goes on, or this is unknown."""
        deadline = time.monotonic() + seconds
        while (end := self.end) is None and self.handle is not None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return end

    @property
    def end_of_output(self) -> str:
        """The last lines of its output, for an error message."""
        tail = "".join(f"\n  {line}" for line in self.output.tail)
        return f"; the end of its output:{tail}" if tail else ""


def worker_output(hosts: Sequence[str], index: int, logs: str | Path) -> WorkerOutput:
    """Return the output of a worker.

    Args:
        hosts: the host of each worker.
        index: the number of this worker.
        logs: as ``ClusterSettings.logs``.
    """
    host = hosts[index]
    label = (host if hosts.count(host) == 1 else f"{host}/{index}") if host else f"worker {index}"
    if isinstance(logs, Path):
        return WorkerOutput(label, path=logs / f"worker-{index}{f'-{host}' if host else ''}.log")
    return WorkerOutput(label, shown=logs != HIDDEN)
