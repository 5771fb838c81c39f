"""Code of this package run by a Python of its own, for what may crash, hang or print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process.

    Attributes:
        status: its exit status; negative where a signal ended it.
        output: what it wrote to its standard output.
        errors: what it wrote to its standard error output.
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
        """Return its last words in one line: the failed check of native code, otherwise the last line."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        told = next((line for line in lines if "Check failed" in line or line.startswith("F0")), "")
        told = told or next((line for line in lines if line.startswith(("terminate called", "what():"))), "")
        return (told or (lines[-1] if lines else ""))[:300]

    @property
    def how(self) -> str:
        """Its end in words: the signal's name or the exit code."""
        try:
            return signal.Signals(-self.status).name if self.status < 0 else f"exit code {self.status}"
        except ValueError:
            return f"signal {-self.status}"

    def __str__(self) -> str:
        return f"{self.how}; it printed {self.reason!r}" if self.reason else self.how


def run_module(module: str, *arguments: str, given: bytes, time_limit: float | None) -> Ended | None:
    """Run a module as a program in a process of its own, which finds modules where this one does.

    Args:
        module: the module's name.
        arguments: its arguments.
        given: what its standard input has.
        time_limit: the seconds that it may take; None for any number.

    Returns:
        How it ended; None where no Python can be started (a program that embeds Python may have none at hand).

    Raises:
        TimeoutError: it was not done in time, and was ended.
    """
    if not sys.executable:
        return None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    command = [sys.executable, "-P", "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, timeout=time_limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"not done after {time_limit:.0f} s") from error
    except OSError:
        return None
    return Ended(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


_CALL = """
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
sys.path[:] = json.loads((folder / "path").read_text(encoding="utf-8"))
import importlib
getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(folder)
"""
_MOST_PRINTED = 20000


def run_function(function: Callable[[Path], None], folder: Path, time_limit: float) -> Ended | None:
    """Call a function in a process of its own with a folder, through which it is asked and answers.

    What is printed in its process goes to the file ``printed`` in the folder, and counts as its errors: a file, because
    a pipe stays open for as long as anything lives that the function started.

    Args:
        function: a function at the top of a module; it is imported by its name there.
        folder: the folder; the process finds modules where this one does.
        time_limit: the seconds after which the process is ended.

    Returns:
        How the process ended; ``None`` if it had to be ended.
    """
    (folder / "path").write_text(json.dumps(sys.path), encoding="utf-8")
    command = [sys.executable, "-c", _CALL, str(folder), function.__module__, function.__name__]
    with (folder / "printed").open("wb") as printed:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed)
        try:
            status = child.wait(time_limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            child.kill()
            child.wait()
    return Ended(status, b"", (folder / "printed").read_bytes()[-_MOST_PRINTED:].decode("utf-8", "replace"))
