"""Workers that are subprocesses of this process, or that one starts: their standard input, output and end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pjrt import system
from pjrt.api.errors import FailedPreconditionError
from pjrt.clusters.launchers.launcher import WorkerHandle, WorkerStart

_LONGEST_LINE = 1 << 16
_OUTPUT_SECONDS = 10.0
"""The longest time that the last lines take to arrive, if no process that the worker has started keeps them open."""


class WorkerSubprocess(WorkerHandle):
    """A worker behind a subprocess of this process.

    Args:
        start: the start of the worker.
        command: the command of the subprocess, which gets the bootstrap as its standard input.
        environment: its environment variables.
        working_directory: its working directory; ``None`` for that of this process.

    Raises:
        FailedPreconditionError: the command cannot be run.
    """

    def __init__(
        self,
        start: WorkerStart,
        command: Sequence[str],
        environment: Mapping[str, str],
        working_directory: Path | None = None,
    ) -> None:
        self._start = start
        self._patience = _OUTPUT_SECONDS
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=working_directory,
                start_new_session=True,  # Ctrl-C on the terminal is for the controller, which ends the workers
            )
        except OSError as error:
            culprit = error.filename or command[0]
            raise FailedPreconditionError(
                f"cannot start worker {start.index} on {start.host}: {error.strerror or error}: {str(culprit)!r}"
            ) from None
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        # The pipe has room for the bootstrap, so this does not wait. It stays open: its end is that of the controller.
        with contextlib.suppress(OSError):
            self._popen.stdin.write(start.bootstrap + b"\n")
            self._popen.stdin.flush()
        self._reader = threading.Thread(target=self._read, name=f"pjrt-worker-{start.index}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stream = self._popen.stdout
        assert stream is not None
        while line := stream.readline(_LONGEST_LINE):
            self._start.output.write_line(line.decode("utf-8", "replace").rstrip("\r\n"))
        stream.close()

    def poll(self) -> str | None:
        status = self._popen.poll()
        if status is None:
            return None
        self._reader.join(self._patience)  # so that the last lines are in the tail
        self._patience = 0.0
        self._close_input()
        return system.describe_exit(status)

    def end(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(5)
        self._close_input()

    def _close_input(self) -> None:
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def _send(self, number: int) -> None:
        """Send a signal to the process and to those that it has started."""
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, number)
