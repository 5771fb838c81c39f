"""Processes, and the programs of the system."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path


def after_fork_in_child(function: Callable[[], object]) -> None:
    """Have a function called in each child process that is made by fork; nothing happens where there is no fork."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


def end_with_parent() -> Callable[[], None] | None:
    """Return a function for a new child process, after which the child is killed when its parent ends in any way.

    The function is called between fork and exec. It is ``None`` where the system has nothing of the kind (it is
    Linux's ``PR_SET_PDEATHSIG``).
    """
    if sys.platform != "linux":
        return None
    import ctypes
    import signal

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()
    kill, end_with_parent_signal = int(signal.SIGKILL), 1

    def prepare() -> None:
        prctl(end_with_parent_signal, kill)
        if os.getppid() != parent:  # it ended before
            os._exit(1)

    return prepare


def process_command(pid: int) -> str:
    """Return the command line of a running process, human-readable; empty if it is unknown.

    On Windows it is always empty: it could be had only with libraries that this package does without.
    """
    if sys.platform == "win32":
        return ""
    if sys.platform == "linux":
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return ""
        return raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return program_output("/bin/ps", "-o", "command=", "-p", str(pid)).strip()


def program_output(*command: str) -> str:
    """Return what one of the system's own programs prints; empty if it cannot be run."""
    import subprocess

    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
