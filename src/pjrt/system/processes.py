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


def process_is_alive(pid: int) -> bool:
    """Whether there is a process of that number now, of any user. It may be another one than was meant."""
    if pid <= 0:
        return False
    if sys.platform == "win32":
        import ctypes

        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.OpenProcess.restype = ctypes.c_void_p
        may_only_wait, access_denied, still_running = 0x00100000, 5, 0x102
        process = kernel.OpenProcess(may_only_wait, False, pid)
        if process is None:
            return ctypes.get_last_error() == access_denied
        handle = ctypes.c_void_p(process)
        try:
            return int(kernel.WaitForSingleObject(handle, 0)) == still_running
        finally:
            kernel.CloseHandle(handle)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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
