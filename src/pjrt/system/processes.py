"""Processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from pjrt.system._programs import answer


def after_fork_in_child(function: Callable[[], object]) -> None:
    """Has a function called in each child process that is made by fork; nothing where there is no fork."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


def process_command(pid: int) -> str:
    """The command line of a running process, for people to know it by; empty where it cannot be learned.

    On Windows it is not asked for: that needs libraries that this package does without.
    """
    if sys.platform == "win32":
        return ""
    if sys.platform == "linux":
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return ""
        return raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return answer("/bin/ps", "-o", "command=", "-p", str(pid)).strip()
