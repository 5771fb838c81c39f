"""A module of this package run by a Python of its own, for what may crash or never end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass


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
        """Its end for people: the signal's name or the exit status."""
        try:
            return signal.Signals(-self.status).name if self.status < 0 else f"exit status {self.status}"
        except ValueError:
            return f"signal {-self.status}"


def run_module(module: str, *arguments: str, given: bytes, time_limit: float | None) -> Ended | None:
    """Runs a module as a program in a process of its own, which finds modules where this one does.

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
