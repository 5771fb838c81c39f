"""The interface of launchers, and those that need no further package: ``local``, ``ssh`` and ``external``.

A launcher starts workers, and returns a handle of each.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TextIO

from pjrt import system
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.printable import printable
from pjrt.remote.security.credentials import read_token
from pjrt.system.python_process import module_command, module_environment

_log = logging.getLogger("pjrt")

_TAIL_LINES = 40
_TAIL_COLUMNS = 500

# Gloo reports each meeting of devices on the standard output, which is no news to a user.
_NOISE = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks")


class WorkerOutput:
    """The output of one worker. Any thread may write to it.

    Args:
        label: the name in front of each line.
        path: the file of the lines; ``None`` for the error stream of this process.
        shown: whether lines are shown at all; the last ones are kept in any case.
    """

    def __init__(self, label: str, *, path: Path | None = None, shown: bool = True) -> None:
        self.label = label
        self._lock = threading.Lock()
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._shown = shown
        self._file: TextIO | None = None if path is None else path.open("w", encoding="utf-8", buffering=1)

    def write_line(self, line: str) -> None:
        """Take a line of output, without the end of the line."""
        if _NOISE.match(line):
            return
        with self._lock:
            self._tail.append(line[:_TAIL_COLUMNS])
            if self._file is not None:
                self._write(f"{line}\n")
        if self._shown and self._file is None:
            try:
                sys.stderr.write(f"[{self.label}] {printable(line, colors=True)}\n")
            except (OSError, ValueError, AttributeError):  # closed, or a program without a console
                self._shown = False

    def _write(self, text: str) -> None:
        """Write to the file; without room for it, lines are shown instead: the worker waits if nobody reads them."""
        assert self._file is not None
        try:
            self._file.write(text)
        except OSError as error:
            _log.warning("cannot write the log of %s, which is shown instead: %s", self.label, error)
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # there is no room for the last line
                self._file.close()
        self._file = None

    @property
    def tail(self) -> list[str]:
        """The last lines."""
        with self._lock:
            return list(self._tail)

    def close(self) -> None:
        """Close the file. May be called again; later lines are kept in the tail alone."""
        with self._lock:
            self._close_file()
            self._shown = False


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The start of one worker.

    Attributes:
        index: the worker's number in the cluster.
        host: its host, as ``Launcher.hosts`` has it.
        bootstrap: one line of JSON, with a secret, that ``pjrt.clusters.workers.worker.run`` takes, or a program
            ``python -m pjrt.clusters.workers`` as its standard input. It must not be an argument of a command, nor in
            the environment: other users of the host could read it.
        environment: further environment variables. The worker sets them, too, but only after Python has started.
        working_directory: the worker's working directory; ``None`` for the launcher's own.
        output: takes the worker's output, line by line.
    """

    index: int
    host: str
    bootstrap: bytes = field(repr=False)
    environment: Mapping[str, str]
    working_directory: Path | None
    output: WorkerOutput


class WorkerHandle(abc.ABC):
    """A worker that was started, as its launcher knows it. Any thread may call it."""

    @abc.abstractmethod
    def poll(self) -> str | None:
        """Return how the worker ended, such as ``exit code 1``; ``None`` while it runs, or where this is unknown."""

    @abc.abstractmethod
    def end(self) -> None:
        """Ask the worker to end; do not wait. Nothing happens if it has ended."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End the worker at once, also one that stands still. Nothing happens if it has ended."""


class Launcher(abc.ABC):
    """A way to start the workers of a cluster: ``pjrt.cluster(launcher=…)`` takes its name, or an object.

    Args:
        hosts: the number of workers, or the host of each.
        options: the launcher's options, whose names are ``option_names``.

    Attributes:
        name: its name for users.
        option_names: the names of the options that it takes.
        is_local: whether all workers are on this machine. They then use local sockets; the others use TLS.
        hosts: the host of each worker, for messages and logs; empty for one that the worker reports itself.
            ``start`` may change it.
        starts_workers: whether it starts the workers, and does not only wait for them.
        token: the secret of the workers, if others choose it; empty for a new one.
    """

    name: ClassVar[str]
    option_names: ClassVar[Sequence[str]] = ()
    is_local: ClassVar[bool] = False
    starts_workers: ClassVar[bool] = True
    hosts: Sequence[str]
    token: str = ""

    def __init__(self, hosts: int | Sequence[str], options: Mapping[str, Any]) -> None:
        self.hosts = [""] * hosts if isinstance(hosts, int) else list(hosts)
        self.options = options

    @abc.abstractmethod
    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        """Start the workers, and return a handle of each; do not wait until they are ready.

        If one cannot be started, those that were started before it are ended.

        Raises:
            PjrtError: a worker cannot be started; the message names its host.
        """

    def close(self) -> None:  # noqa: B027  (most launchers hold nothing)
        """Release what the launcher holds besides the workers, which have ended. May be called again."""


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


_MODULE = "pjrt.clusters.workers"


class LocalLauncher(Launcher):
    """Subprocesses on this machine, each of which stands for a host."""

    name = "local"
    is_local = True

    def __init__(self, hosts: int | Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__([f"local{index}" for index in range(hosts)] if isinstance(hosts, int) else hosts, options)
        self._is_closed = threading.Event()
        self._handles: Future[Sequence[WorkerHandle]] = Future()

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        if not sys.executable:
            raise FailedPreconditionError(
                "there is no Python program to start workers with (sys.executable is empty, as in some programs that "
                "embed Python)"
            )
        # The system ends the workers with the thread that has started them, so that this is not the caller's.
        self._handles.set_running_or_notify_cancel()
        threading.Thread(target=self._keep, args=(starts,), name="pjrt-cluster-launcher", daemon=True).start()
        return self._handles.result()

    def _keep(self, starts: Sequence[WorkerStart]) -> None:
        try:
            self._handles.set_result(_start_all(starts, start_here))
        except BaseException as error:
            self._handles.set_exception(error)
        self._is_closed.wait()

    def close(self) -> None:
        # Ctrl-C may have ended the wait for the handles, so that nobody else has them.
        if self._handles.running() or self._handles.done():
            with contextlib.suppress(Exception):
                for handle in self._handles.result():
                    handle.kill()
        self._is_closed.set()


def _start_all(
    starts: Sequence[WorkerStart], start_one: Callable[[WorkerStart], WorkerHandle]
) -> Sequence[WorkerHandle]:
    handles: list[WorkerHandle] = []
    try:
        handles.extend(map(start_one, starts))
    except BaseException:
        for handle in handles:
            handle.kill()
        raise
    return handles


def start_here(start: WorkerStart) -> WorkerSubprocess:
    """Start a worker as a subprocess of this process, with its Python and its modules.

    The thread that calls this must live as long as the worker may: the system ends the worker with the thread.
    """
    environment = module_environment() | {"PYTHONUNBUFFERED": "1"} | dict(start.environment)
    return WorkerSubprocess(start, module_command(_MODULE), environment, start.working_directory)


_QUIET = ("-T", "-o", "BatchMode=yes")  # no terminal, and no questions, which nobody could answer
_PYTHON = "python3"


class SshLauncher(Launcher):
    """Workers on the hosts that ``ssh`` reaches; its own configuration has users, ports, keys and jump hosts.

    The standard input of ``ssh`` carries the bootstrap, and its end ends the worker, also one that stands still.

    Args:
        hosts: the host of each worker, as ``ssh`` takes it, such as ``node1`` or ``user@node1``.
        options: ``ssh_command``, the command that starts programs on other machines, ``ssh`` by default, with
            arguments of its own, such as ``ssh -p 2222 -i key``; ``python``, the Python program on the other machines,
            ``python3`` by default, in whose environment this package is installed.

    Raises:
        InvalidArgumentError: an option is wrong, or the hosts have no names.
    """

    name = "ssh"
    option_names = ("python", "ssh_command")

    def __init__(self, hosts: int | Sequence[str], options: Mapping[str, Any]) -> None:
        if isinstance(hosts, int):
            raise InvalidArgumentError(
                f"the launcher 'ssh' needs the names of the hosts, such as hosts=['node1', 'node2:4']; found {hosts}"
            )
        super().__init__(hosts, options)
        self._command = _words(options.get("ssh_command", "ssh"), "ssh_command")
        self._python = _words(options.get("python", _PYTHON), "python")

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        return _start_all(starts, lambda start: WorkerSubprocess(start, self._command_of(start.host), os.environ))

    def _command_of(self, host: str) -> list[str]:
        quiet = _QUIET if Path(self._command[0]).name == "ssh" else ()
        # One argument: ssh joins several with blanks, and the shell of the other machine splits them again.
        remote = shlex.join([*self._python, "-u", "-P", "-m", _MODULE, "--guard"])
        return [*self._command, *quiet, host, f"exec {remote}"]


def _words(command: Any, option: str) -> list[str]:
    """Return the words of a command, which is a string or a list of strings."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"expected a command as {option}, found {command!r}: {error}") from None
    if not words or not all(isinstance(word, str) for word in words):
        raise InvalidArgumentError(f"expected a command as {option}, found {command!r}")
    return words


class ExternalLauncher(Launcher):
    """Workers that others start with ``pjrt worker``, and that know the controller's address and a token.

    Args:
        hosts: the number of workers; or the host of each, if the workers give their numbers.
        options: ``token_file``, a file with a secret that all workers have, too.

    Raises:
        InvalidArgumentError: there is no token file, or it has not one token.
        NotFoundError: the file cannot be read.
        PermissionDeniedError: every user of this machine may read the file.
    """

    name = "external"
    option_names = ("token_file",)
    starts_workers = False

    def __init__(self, hosts: int | Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__(hosts, options)
        if not options.get("token_file"):
            raise InvalidArgumentError(
                "the launcher 'external' needs token_file, a file with a secret that the workers have, too; make one "
                "with: (umask 077; openssl rand -hex 32 > token)"
            )
        self.token = read_token(Path(options["token_file"]))

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        return [_ExternalHandle() for _ in starts]


class _ExternalHandle(WorkerHandle):
    """A worker that only its connection ends."""

    def poll(self) -> str | None:
        return None

    def end(self) -> None:
        pass

    def kill(self) -> None:
        pass
