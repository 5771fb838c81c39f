"""Processes, and the programs of the system."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn


def after_fork_in_child(function: Callable[[], object]) -> None:
    """Have a function called in each child process that is made by fork; nothing happens where there is no fork."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


def close_in_child(descriptors: Iterable[int]) -> None:
    """Make file descriptors ones of no connection, in the child of a fork, so that the connections end with the parent.

    The objects that have the descriptors may close them later: the numbers stay taken until then.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor)
    os.close(nothing)


def fork() -> int:
    """Fork a process with one thread of its own, as ``os.fork`` does, without Python's warning of further threads.

    Since 3.12 Python warns of any thread. Those of numpy's library are idle, and the library ends them before a fork.
    """
    if sys.platform == "win32":
        raise OSError("this system has no fork")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def succeeds_in_fork(function: Callable[[], object], time_limit: float) -> bool:
    """Whether a function returns without an error in a fork of this process; false where there can be no fork.

    The function may crash there, or print. Only the thread that forks lives on in the fork: where another thread may
    hold a lock of native code that the function needs, the fork waits for it until the time limit.

    Args:
        function: the function.
        time_limit: the seconds after which the fork is killed.
    """
    if sys.platform != "linux":  # libraries of macOS do not survive a fork
        return False
    import select
    import signal

    try:
        reading, writing = os.pipe()
    except OSError:
        return False
    try:
        child = fork()
        if not child:
            _end_after(function)
    except OSError:
        os.close(reading)
        return False
    finally:
        os.close(writing)
    ended = False
    try:
        ended = bool(select.select([reading], [], [], time_limit)[0])  # the pipe ends with the fork
    finally:
        os.close(reading)
        if not ended:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return status == 0


def _end_after(function: Callable[[], object]) -> NoReturn:
    """Call a function, and end this fork without a trace, whether the function returns or not."""
    status = 1
    try:
        close_in_child((1, 2))
        function()
        status = 0
    finally:
        os._exit(status)


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


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends in any way, even if this one stands still.

    Where the system has nothing of the kind (it is Linux's ``PR_SET_PDEATHSIG``) nothing happens. The thread of the
    parent that started this process must live as long as the parent: its end counts, too.

    Args:
        parent: the parent's process identifier; if it is not that of the parent any more, this process ends at once.
    """
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    end_with_parent_signal = 1
    ctypes.CDLL(None).prctl(end_with_parent_signal, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


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


def describe_exit(status: int) -> str:
    """Return how a process ended, human-readable, by the status that ``subprocess`` reports."""
    import signal

    if status >= 0:
        return f"exit code {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"


def use_all_open_files() -> None:
    """Let this process have as many open files as the system allows it; the usual 1,024 are few for a server."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS calls its limit infinite and takes no such number
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
