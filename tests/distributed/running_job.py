"""A job of real processes on this machine, for tests: its output by rank, its end, and how to kill its processes."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pjrt.system.processes import reserved_port

LIMIT = 120.0
"""The longest time that a job, and a wait for its output, may take."""

PRELUDE = """
import os, signal, sys
rank, count, address = int(os.environ["RANK_OF_TEST"]), int(os.environ["COUNT_OF_TEST"]), os.environ["ADDRESS_OF_TEST"]
import pjrt
from pjrt import distributed

def initialize(**options):
    times = dict(initialization_timeout=120, heartbeat_timeout_seconds=60, shutdown_timeout_seconds=60)
    return distributed.initialize(address, count, rank, **times | options)

def say(*words):
    print(*words, flush=True)

def hear():
    return sys.stdin.readline().strip()

def attempt(function, *arguments, **named):
    try:
        result = function(*arguments, **named)
    except BaseException as error:
        say(type(error).__name__, str(error).replace("\\\\n", " "))
    else:
        say("result", result)
"""


@dataclass
class Process:
    """One process of a job.

    Attributes:
        popen: the process.
        lines: the lines of its standard output so far, and of its standard error.
        errors: the lines of its standard error so far.
        job: the processes that were started for the job.
    """

    popen: subprocess.Popen[str]
    job: list[Process]
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    news: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def status(self) -> int | None:
        return self.popen.poll()

    def hear(self, text: str, timeout: float = LIMIT) -> str:
        """Wait for a line of its standard output that contains a text, and return the line."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self.news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {text!r} within {timeout} s: {self}{self._stacks()}") from None
            if line is None:
                raise AssertionError(f"it ended without a line with {text!r}: {self}")
            if text in line:
                return line

    def say(self, text: str = "go") -> None:
        """Write a line to its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(text + "\n")
        self.popen.stdin.flush()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        self.popen.send_signal(number)

    def wait(self, timeout: float = LIMIT) -> int:
        """Wait for its end, and return its status."""
        try:
            status = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended after {timeout} s: {self}{self._stacks()}") from None
        for reader in self.readers:
            reader.join(timeout)
        return status

    def _stacks(self) -> str:
        """End all processes of the job, and return their output with the stacks of their threads."""
        running = [process for process in self.job if process.status is None]
        for process in running:
            process.kill(signal.SIGABRT)
        for process in running:
            process.popen.wait(LIMIT)
            for reader in process.readers:
                reader.join(LIMIT)
        return "\nthe processes of the job that had not ended:\n" + "\n".join(map(str, running))

    def __str__(self) -> str:
        return f"status {self.status}, output {self.lines}, errors {self.errors}"


class RunningJob:
    """A job of real processes.

    Args:
        sources: the program of each process; ``PRELUDE`` comes before it.
        environment: further environment variables.
        address: where process 0 leads the job; by default a free port of this host.
        place: returns the command that runs another one on the host of a process; by default it is this host.
    """

    def __init__(
        self,
        sources: Sequence[str],
        environment: Mapping[str, str] | None = None,
        address: str = "",
        place: Callable[..., list[str]] = lambda rank, *command: list(command),
    ) -> None:
        self._port = contextlib.ExitStack()
        self.address = address or f"127.0.0.1:{self._port.enter_context(reserved_port())}"
        self._place = place
        self.count = len(sources)
        self.sources = list(sources)
        self._environment = dict(environment or {})
        self._running: dict[int, Process] = {}
        self._started: list[Process] = []  # those that were replaced, too

    def start(self, rank: int) -> Process:
        """Start one process, in place of one that has ended if there was one."""
        own = {"RANK_OF_TEST": str(rank), "COUNT_OF_TEST": str(self.count), "ADDRESS_OF_TEST": self.address}
        popen = subprocess.Popen(
            self._place(rank, sys.executable, "-u", "-X", "faulthandler", "-c", PRELUDE + self.sources[rank]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | own | self._environment,
        )
        process = Process(popen, self._started)
        for stream, lines, news in ((popen.stdout, process.lines, process.news), (popen.stderr, process.errors, None)):
            reader = threading.Thread(target=_read, args=(stream, lines, news), daemon=True)
            reader.start()
            process.readers.append(reader)
        self._started.append(process)
        if rank in self._running:
            self._running[rank].popen.wait(LIMIT)
        self._running[rank] = process
        return process

    def start_all(self) -> RunningJob:
        for rank in range(self.count):
            self.start(rank)
        return self

    @property
    def processes(self) -> list[Process]:
        """The processes that were started, by rank; of those that were replaced, the last."""
        return [self._running[rank] for rank in sorted(self._running)]

    def __getitem__(self, rank: int) -> Process:
        return self._running[rank]

    def wait(self, timeout: float = LIMIT) -> list[int]:
        """Wait for the end of all processes, and return their statuses."""
        deadline = time.monotonic() + timeout
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]

    def succeed(self, timeout: float = LIMIT) -> list[list[str]]:
        """Wait for the end of all processes, check that they succeeded, and return their output by rank."""
        statuses = self.wait(timeout)
        assert not any(statuses), "\n".join(map(str, self.processes))
        return [process.lines for process in self.processes]

    def end(self) -> None:
        """End all processes that still run."""
        for process in self._started:
            if process.status is None:
                process.popen.kill()
        for process in self._started:
            process.popen.wait(LIMIT)
            for reader in process.readers:
                reader.join(LIMIT)
            for stream in (process.popen.stdin, process.popen.stdout, process.popen.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._port.close()


def _read(stream: object, lines: list[str], news: queue.SimpleQueue[str | None] | None) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.append(line.rstrip("\n"))
        if news is not None:
            news.put(lines[-1])
    if news is not None:
        news.put(None)
