"""The launcher: a job of several processes on this machine, for tests and small use."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pjrt import system
from pjrt.api.errors import UnavailableError
from pjrt.distributed.environments import ADDRESS, COUNT, INDEX
from pjrt.distributed.job import NOTES, WAITS
from pjrt.system import TemporaryFolder
from pjrt.system.processes import loopback_host, reserved_port

_LONGEST_LINE = 1 << 16
_TICK_SECONDS = 0.2
_SETTLING_SECONDS = 0.5
_END_SECONDS = 10.0
"""The longest time from a process's note that it fails to its end: it still tells the others, and prints its error."""
_DRAIN_SECONDS = 1.0

_JAX_WITHOUT_PLACE = b"coordinator_address should be defined"
"""The error of ``jax.distributed.initialize()`` without arguments, where no framework tells it its place."""

_JAX_ADVICE = (
    f"; JAX reads no variables of pjrt launch: register a device before, by pjrt.frameworks.jax.register, or give "
    f"jax.distributed.initialize the values of {ADDRESS}, {COUNT} and {INDEX}"
)

Show = Callable[[int, str, bool], object]
"""A function that shows a line: of which process, the line, and whether it is of the error stream."""


@dataclass(eq=False)
class _Process:
    """One process of the job.

    Attributes:
        rank: its number.
        popen: the process.
        open_streams: the streams of its output that have not ended.
        parts: the beginning of a line of each stream.
    """

    rank: int
    popen: subprocess.Popen[bytes]
    open_streams: set[IO[bytes]] = field(default_factory=set)
    parts: dict[IO[bytes], bytes] = field(default_factory=dict)

    def send(self, number: int) -> None:
        """Send a signal to the process, and to those that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)


class Launcher:
    """A job of several processes on this machine.

    Args:
        command: the command of each process.
        environments: the further environment variables of each process.
        show: is called with each line of output.
        report: is called with the launcher's own messages.
        grace: the seconds that a process has to end after SIGTERM, before it is killed.
        stdin: the process that reads this one's standard input; ``None`` for none.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        show: Show,
        report: Callable[[str], object],
        grace: float,
        stdin: int | None,
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._show = show
        self._report = report
        self._grace = grace
        self._stdin = stdin
        self._processes: list[_Process] = []
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._kill_at: float | None = None
        self._advice = ""

    def run(self) -> int:
        """Start the processes, show their output, and return the exit code of the job.

        It is that of the first process that failed, 128 and the signal's number if a signal ended it, and 0 if none
        failed. The others are ended when one fails, and all when this process gets SIGINT or SIGTERM. It is 1 if a
        process ended that the others wait for to begin the job.

        Raises:
            UnavailableError: the processes have no address to meet at.
        """
        host = loopback_host()
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(TemporaryFolder("launch"))
            try:
                port = stack.enter_context(reserved_port(host))
            except OSError as error:
                raise UnavailableError(
                    "expected a loopback address at which the processes meet, 127.0.0.1 or ::1, found none that is up "
                    f"({error.strerror or error}); bring the interface up, as with: ip link set lo up"
                ) from error
            stack.enter_context(self._handling_signals())
            try:
                self._start_all(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", folder)
                return self._follow(folder)
            finally:
                for process in self._processes:
                    with process.popen:  # closes its streams, and waits for it
                        process.send(signal.SIGKILL)

    def _start_all(self, address: str, folder: Path) -> None:
        count = str(len(self._environments))
        shared = {
            ADDRESS: address,
            COUNT: count,
            "WORLD_SIZE": count,
            "LOCAL_WORLD_SIZE": count,
            "PYTHONUNBUFFERED": "1",
            NOTES: str(folder),
        }
        with_parent = system.end_with_parent()
        for rank, further in enumerate(self._environments):
            own = {INDEX: str(rank), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            popen = subprocess.Popen(
                self._command,
                stdin=None if rank == self._stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | shared | own | dict(further),
                start_new_session=True,
                preexec_fn=with_parent,
            )
            process = _Process(rank, popen)
            self._processes.append(process)
            for stream in (popen.stdout, popen.stderr):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
                process.open_streams.add(stream)
                self._selector.register(stream, selectors.EVENT_READ, process)

    @contextlib.contextmanager
    def _handling_signals(self):  # type: ignore[no-untyped-def]
        """Note signals while the block runs, so that no process is left behind."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        waker, wakes = socket.socketpair()
        waker.setblocking(False)
        wakes.setblocking(False)
        previous = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(wakes, selectors.EVENT_READ, None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            waker.close()
            wakes.close()

    def _note(self, number: int, frame: object) -> None:
        self._signals.append(number)

    def _follow(self, folder: Path) -> int:
        """Show the output until all processes have ended."""
        code = 0
        failed = False
        passed_on = 0
        while True:
            self._read(_TICK_SECONDS)
            if len(self._signals) > passed_on:
                number = self._signals[passed_on]
                if passed_on == 0:
                    code, failed = 128 + number, True
                self._end_all(signal.SIGKILL if passed_on else number)
                passed_on += 1
            ended = [process for process in self._processes if process.popen.poll() is not None]
            first = next((process for process in ended if process.popen.returncode), None)
            if first is not None and not failed:
                failed = True
                process = self._cause(first, folder)
                code = _exit_code(process.popen.returncode)
                others = "; the others are ended" if len(ended) < len(self._processes) else ""
                how = system.describe_exit(process.popen.returncode)
                self._report(f"process {process.rank} failed: {how}{others}{self._advice}")
                self._end_all(signal.SIGTERM)
            elif ended and not failed and self._is_awaited(folder):
                code, failed = 1, True
                gone = " and ".join(str(process.rank) for process in ended)
                self._report(
                    f"process {gone} ended without an error, but the others wait for it in distributed.initialize(), "
                    "which all processes call; they are ended"
                )
                self._end_all(signal.SIGTERM)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._kill_at = None
                for process in self._processes:
                    process.send(signal.SIGKILL)
            if len(ended) == len(self._processes):
                self._drain()
                return code

    def _cause(self, first: _Process, folder: Path) -> _Process:
        """Return the process whose failure made the others fail.

        A job reports an error to all processes before the one that has it ends, so another one may end first.
        """
        deadline = time.monotonic() + _SETTLING_SECONDS
        while time.monotonic() < deadline:
            for process in self._processes:
                if (folder / str(process.rank)).exists():
                    end = time.monotonic() + _END_SECONDS
                    while process.popen.poll() is None and time.monotonic() < end:
                        self._read(0.05)
                    if process.popen.returncode:
                        return process
            killed = [p for p in self._processes if (p.popen.poll() or 0) < 0]
            if killed:
                return killed[0]
            self._read(0.05)
        return first

    def _is_awaited(self, folder: Path) -> bool:
        """Return whether a process waits for all others, although one of them has ended."""
        deadline = time.monotonic() + _SETTLING_SECONDS
        running = [process for process in self._processes if process.popen.poll() is None]
        while any((folder / f"{process.rank}{WAITS}").exists() for process in running):
            if time.monotonic() > deadline:
                return True
            self._read(0.05)
        return False

    def _end_all(self, number: int) -> None:
        for process in self._processes:
            if process.popen.poll() is None:
                process.send(number)
        self._kill_at = time.monotonic() + self._grace

    def _read(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(1024)  # type: ignore[union-attr]
                continue
            self._take(key.data, key.fileobj)  # type: ignore[arg-type]

    def _take(self, process: _Process, stream: IO[bytes]) -> None:
        try:
            data = os.read(stream.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, rest = (process.parts.get(stream, b"") + data).split(b"\n")
        if not data:
            self._selector.unregister(stream)
            process.open_streams.discard(stream)
        if rest and (not data or len(rest) > _LONGEST_LINE):
            lines.append(rest)
            rest = b""
        process.parts[stream] = rest
        for line in lines:
            if _JAX_WITHOUT_PLACE in line and stream is process.popen.stderr:
                self._advice = _JAX_ADVICE
            self._show(process.rank, line.decode(errors="replace"), stream is process.popen.stderr)

    def _drain(self) -> None:
        """Show what is left of the output; a process that they have started may keep their streams open."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while any(process.open_streams for process in self._processes) and time.monotonic() < deadline:
            self._read(0.05)


def _exit_code(status: int) -> int:
    return 128 - status if status < 0 else status


def command_of(arguments: Sequence[str], module: str | None) -> list[str]:
    """Return the command that runs a Python program, a module or another command, with arguments.

    Args:
        arguments: the program or command, and its arguments.
        module: the module; ``None`` for none.
    """
    if module is None and _is_command(arguments[0]):
        return list(arguments)
    return [sys.executable, *(["-m", module] if module is not None else []), *arguments]


def _is_command(name: str) -> bool:
    """Return whether a name is that of a command, such as ``python`` or ``./start.sh``, and of no program in Python."""
    found = shutil.which(name)
    if found is None or not os.path.isfile(name):
        return found is not None
    with open(found, "rb") as file:
        beginning = file.readline(256)
    return b"python" not in beginning if beginning.startswith(b"#!") else b"\0" in beginning
