"""Functions of this package in a Python subprocess, for code that may crash, hang or print."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO, Any, Generic, TypeVar

from pjrt.system.files import TemporaryFolder

Message = TypeVar("Message")

_MAX_PRINTED = 20000
_LAST_WORDS = (
    # A fatal message in the log of XLA, behind a place in its source; stack frames may follow.
    re.compile(r"F\d{4} [\d:.]+ +\d+ (?:\S+:\d+\] )?(.*)"),
    re.compile(r"(?:\S+:\d+\] )?(.*Check failed.*)"),
    re.compile(r"((?:terminate called|what\(\):).*)"),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a subprocess.

    Attributes:
        status: its exit status; negative where a signal ended it.
        output: its standard output.
        errors: its standard error.
    """

    status: int
    output: bytes
    errors: str

    @property
    def crashed(self) -> bool:
        """Whether a signal ended it, as after an abort or a segmentation fault."""
        return self.status < 0 or self.status > 128

    @property
    def reason(self) -> str:
        """The reason in what it printed, on one line: what native code says of its end, otherwise the last line."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        for pattern in _LAST_WORDS:
            if found := next(filter(None, map(pattern.match, lines)), None):
                return found[1][:300]
        return lines[-1][:300] if lines else ""

    @property
    def how(self) -> str:
        """The signal's name or the exit code."""
        try:
            return signal.Signals(-self.status).name if self.status < 0 else f"exit code {self.status}"
        except ValueError:
            return f"signal {-self.status}"

    def __str__(self) -> str:
        return f"{self.how}; it printed {self.reason!r}" if self.reason else self.how


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as a program in a Python process, which ``module_environment`` completes.

    Python imports nothing from the current folder then: that may hold files of strangers, such as a ``json.py``.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """Return the environment variables of a Python process that finds modules where this process does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


def run_module(
    module: str,
    *arguments: str,
    given: bytes,
    time_limit: float | None,
    meanwhile: Callable[[Callable[[], object]], AbstractContextManager[object]] = lambda kill: nullcontext(),
) -> Ended | None:
    """Run a module as a program in a subprocess, which finds modules where this process does.

    Args:
        module: the module's name.
        arguments: its arguments.
        given: the bytes of its standard input.
        time_limit: the seconds that it may take; ``None`` for no limit.
        meanwhile: returns the context in which it is waited for, given the function that ends it.

    Returns:
        How it ended; ``None`` if there is no Python to start, as in some programs that embed Python.

    Raises:
        TimeoutError: the subprocess took too long, and was ended.
        OSError: it cannot be started, as where processes, memory or file descriptors are used up.
    """
    if not sys.executable:
        return None
    command = module_command(module, *arguments)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=module_environment(),
        )
    except FileNotFoundError:  # no lack of processes, memory or descriptors: they have errors of their own
        return None
    with child:
        try:
            if time_limit is not None:
                _end_without_parent(child.pid, time_limit)
            with meanwhile(child.kill):
                output, errors = child.communicate(given, time_limit)
        except BaseException as error:
            child.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"not done after {time_limit:.0f} s") from error
            raise
    return Ended(child.returncode, output, errors.decode(errors="replace"))


def _end_without_parent(pid: int, time_limit: float) -> None:
    """Have the system end a subprocess that computes for longer than it may, also where its parent was killed.

    Native code that never returns does not notice that its input is closed.
    """
    if sys.platform == "linux":
        import resource

        seconds = math.ceil(time_limit * (os.cpu_count() or 1))  # of all its threads together
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds))


class PythonChild(Generic[Message]):
    """A subprocess that runs a module as a program: it is sent pickles, and its output is read as messages.

    What it prints, on its standard error, is kept for ``ended``.

    Args:
        module: the module's name; it is found where this process finds modules.
        read: reads one message from its output; an ``EOFError``, ``OSError`` or ``ValueError`` means that it has ended.
        own_session: whether it has a session of its own: Ctrl-C on the terminal does not reach it then.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, module: str, read: Callable[[IO[bytes]], Message], *, own_session: bool = False) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._process = subprocess.Popen(
            module_command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=module_environment(),
            start_new_session=own_session,
        )
        self._messages: queue.Queue[Message | None] = queue.Queue()
        self._reader = threading.Thread(target=self._receive, args=(read,), name=f"pjrt {module}", daemon=True)
        self._reader.start()

    def send(self, value: object, *, last: bool = False) -> None:
        """Send a value; nothing happens if the process has ended, which ``next`` reports.

        Args:
            value: the value.
            last: whether its input ends there.
        """
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):
            pickle.dump(value, pipe, protocol=5)
            pipe.flush()
            if last:
                pipe.close()

    def next(self, seconds: float) -> Message | None:
        """Return the next message; ``None`` if the process has ended.

        Raises:
            TimeoutError: there was none in that time.
        """
        try:
            return self._messages.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None

    def stop(self, number: int, seconds: float) -> None:
        """Send the process a signal, and wait so long for its end."""
        self._process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def ended(self) -> Ended:
        """Return how the process ended, when it has."""
        status = self._process.wait()
        self._printed.seek(0)
        return Ended(status, b"", self._printed.read()[-_MAX_PRINTED:].decode("utf-8", "replace"))

    def close(self) -> None:
        """End the process, if it runs, and close the files."""
        self.kill()
        self._reader.join()
        for file in (self._process.stdin, self._process.stdout, self._printed):
            with contextlib.suppress(OSError):  # what was left in the pipe's buffer has no reader any more
                if file is not None:
                    file.close()

    def _receive(self, read: Callable[[IO[bytes]], Message]) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
            while True:
                self._messages.put(read(self._process.stdout))
        self._messages.put(None)


_ANSWER = """
import json, pickle, sys
from pathlib import Path
folder = Path(sys.argv[1])
sys.path[:] = json.loads(sys.argv[2])
function, question = pickle.loads((folder / "question").read_bytes())
answer = function(question)
(folder / "partial").write_text(json.dumps(answer, default=str), encoding="utf-8")
(folder / "partial").rename(folder / "answer")
"""


class NoAnswerError(Exception):
    """A subprocess ended, or was ended, before it had an answer.

    Attributes:
        end: how it ended; ``None`` if it was ended after the time limit.
    """

    def __init__(self, end: Ended | None) -> None:
        super().__init__(str(end))
        self.end = end


def ask(function: Callable[[Any], Any], question: Any, time_limit: float) -> Any:
    """Return ``function(question)``, called in a subprocess that finds modules where this process does.

    An answer counts even if the subprocess crashes or hangs after it.

    Args:
        function: a function at the top level of a module. It returns values that JSON has: the subprocess may run
            code of others, whose objects this process could not read.
        question: its argument, which can be pickled.
        time_limit: the seconds after which the subprocess is ended.

    Raises:
        NoAnswerError: the subprocess crashed, raised an error, or took too long.
    """
    with TemporaryFolder("ask") as folder:
        (folder / "question").write_bytes(pickle.dumps((function, question)))
        command = [sys.executable, "-P", "-c", _ANSWER, str(folder), json.dumps(sys.path)]
        printed = folder / "printed"  # a file: a pipe would stay open as long as anything that the function started
        with printed.open("wb") as output:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            status = None
            try:
                status = child.wait(time_limit)
            except subprocess.TimeoutExpired:
                pass
            finally:
                child.kill()
                child.wait()
        if (folder / "answer").exists():
            return json.loads((folder / "answer").read_text(encoding="utf-8"))
        if status is None:
            raise NoAnswerError(None)
        text = printed.read_bytes()[-_MAX_PRINTED:].decode("utf-8", "replace")
        raise NoAnswerError(Ended(status, b"", text))
