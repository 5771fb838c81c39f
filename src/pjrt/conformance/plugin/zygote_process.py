"""The zygote as its parent sees it: a process that is given a task, and reports events."""

from __future__ import annotations

import contextlib
import pickle
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from pjrt.api.errors import FailedPreconditionError, InternalError
from pjrt.conformance.plugin.process import Task
from pjrt.system.python_process import Ended, module_command, module_environment

_SLACK = 60.0
"""The seconds that the zygote may be silent beyond the time limit of a check."""


class UnloadableError(FailedPreconditionError):
    """The plugin cannot be loaded, so that no check can be made."""


class ZygoteProcess:
    """A process that runs the checks of a task, each in a process of its own.

    Args:
        task: the task. If it names no checks, ``ask`` names them one by one.
    """

    def __init__(self, task: Task) -> None:
        self._patience = max(task.time_limit, task.load_limit) + _SLACK
        self._plugin = task.plugin
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._process = subprocess.Popen(
            module_command("pjrt.conformance.plugin.zygote"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=module_environment(),
            start_new_session=True,
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="pjrt conform", daemon=True)
        self._send(task)
        self._reader.start()

    def facts(self) -> dict[str, Any]:
        """Return the facts about the plugin, when it has been loaded.

        Raises:
            UnloadableError: it cannot be loaded.
        """
        event = self.next_event()
        if event["kind"] == "unloadable":
            reason: str = event["reason"]
            raise UnloadableError(reason if reason.startswith(self._plugin) else f"{self._plugin}: {reason}")
        facts: dict[str, Any] = event["facts"]
        return facts

    def next_event(self) -> dict[str, Any]:
        """Return the next event.

        Raises:
            InternalError: there is none in time, or the process ended.
        """
        try:
            event = self._events.get(timeout=self._patience)
        except queue.Empty:
            raise InternalError("the process that starts the checks made no progress, and was ended") from None
        if event is None:
            status = self._process.wait()
            self._printed.seek(0)
            end = Ended(status, b"", self._printed.read()[-20000:].decode("utf-8", "replace"))
            raise InternalError(f"the process that starts the checks ended: {end}")
        return event

    def ask(self, name: str) -> dict[str, Any]:
        """Have a check made, and return its event."""
        self._send(name)
        return self.next_event()

    def close(self) -> None:
        """End the process; one of a check that still runs ends with it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._printed.close()

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; the next event reports how
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(EOFError, pickle.UnpicklingError, OSError, ValueError):
            while True:
                self._events.put(pickle.load(self._process.stdout))
        self._events.put(None)


@contextlib.contextmanager
def zygote_process(task: Task) -> Iterator[ZygoteProcess]:
    """Give the zygote of a task, and end it."""
    process = ZygoteProcess(task)
    try:
        yield process
    finally:
        process.close()
