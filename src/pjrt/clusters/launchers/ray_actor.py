"""The Ray actor behind a worker: it starts the worker on the host that Ray chose, and passes its output on."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pjrt.clusters.launchers.launcher import WorkerStart
from pjrt.clusters.launchers.local import start_here
from pjrt.clusters.launchers.worker_output import WorkerOutput
from pjrt.clusters.launchers.worker_subprocess import WorkerSubprocess
from pjrt.clusters.workers.bootstrap import Bootstrap

_TICK_SECONDS = 0.1


class RayActor:
    """The actor of one worker; ``ray.remote`` makes an actor class of it.

    The worker is a subprocess, the same program as with other launchers, because a worker that crashes then leaves an
    actor that reports how it ended. The worker is killed when the actor ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: WorkerSubprocess | None = None
        self._is_ended = False

    def host(self) -> str:
        """Return the name of the host."""
        return socket.gethostname()

    def run(
        self, index: int, host: str, bootstrap: bytes, environment: Mapping[str, str], working_directory: Path | None
    ) -> Iterator[list[str] | str]:
        """Run the worker until it ends; yield lists of lines of its output, and in the end how it ended.

        The thread that starts the worker must live as long as the worker: this one does. The bootstrap is an argument
        of this method, not of the constructor, whose arguments Ray keeps in its global store.
        """
        output = _QueuedOutput(host)
        line = replace(Bootstrap.of_json(bootstrap), parent=os.getpid()).to_json()
        with self._lock:
            if self._is_ended:
                yield "it was ended before it was started"
                return
            worker = self._worker = start_here(WorkerStart(index, host, line, environment, working_directory, output))
        while (status := worker.poll()) is None:
            if lines := output.take(_TICK_SECONDS):
                yield lines
        if lines := output.take(0):
            yield lines
        yield status

    def end(self) -> None:
        """Ask the worker to end."""
        with self._lock:
            self._is_ended = True
        if self._worker is not None:
            self._worker.end()

    def kill(self) -> None:
        """End the worker at once."""
        with self._lock:
            self._is_ended = True
        if self._worker is not None:
            self._worker.kill()


class _QueuedOutput(WorkerOutput):
    """Lines that wait for the next ``take``."""

    def __init__(self, label: str) -> None:
        super().__init__(label, shown=False)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def write_line(self, line: str) -> None:
        self._lines.put(line)

    def take(self, timeout: float) -> list[str]:
        """Return all lines; wait for the first one, at most so many seconds."""
        lines = []
        try:
            lines.append(self._lines.get(timeout=timeout) if timeout else self._lines.get_nowait())
            while True:
                lines.append(self._lines.get_nowait())
        except queue.Empty:
            return lines
