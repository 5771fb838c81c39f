"""Processes, their memory and threads, ports for their servers, and the programs of the system."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


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


class ProcessUsage(NamedTuple):
    """The resources of a process and of those that it has started.

    Attributes:
        seconds: the processor time, also of those that have ended and that their parent has waited for.
        resident_bytes: the main memory.
    """

    seconds: float
    resident_bytes: int


def usage_of(pid: int) -> ProcessUsage | None:
    """Return what a process and its children use; ``None`` if it has ended, or the system is not Linux."""
    if sys.platform != "linux":
        return None
    seconds, pages, pending = 0.0, 0, [pid]
    for each in pending:
        folder = Path("/proc") / str(each)
        try:
            # Behind the name, which may have any character; the first field there is the third of ``man proc``.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            for task in (folder / "task").iterdir():
                pending += map(int, (task / "children").read_text().split())
        except OSError:  # it has ended
            if each == pid:
                return None
            continue
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        pages += int(fields[21])
    return ProcessUsage(seconds, pages * os.sysconf("SC_PAGE_SIZE"))


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


def most_open_files() -> int:
    """Return how many files this process may have open."""
    if sys.platform == "win32":
        return 1 << 16
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


class Starvation:
    """Notices threads of this process that get no processor; on Linux, elsewhere there seems to be none."""

    def __init__(self) -> None:
        self._wanting = _wanting_threads()

    def look(self) -> bool:
        """Whether a thread, other than the caller, has wanted a processor since the last look and has got none.

        The system counts in steps of 10 ms, so looks that follow faster take working threads for starving ones.
        """
        before, self._wanting = self._wanting, _wanting_threads()
        return any(before.get(thread) == time for thread, time in self._wanting.items())


def _wanting_threads() -> dict[str, int]:
    """Return the processor time of each other thread that runs, waits for a processor, or waits for the disk."""
    if sys.platform != "linux":
        return {}
    caller, times = str(threading.get_native_id()), {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            # The name of the thread, in parentheses, may contain anything.
            state, *numbers = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if state in ("R", "D") and folder.name != caller:
            times[folder.name] = int(numbers[10]) + int(numbers[11])
    return times


def loopback_host() -> str:
    """Return the address that only programs of this host reach: ``127.0.0.1``, or ``::1`` where no other is up."""
    return next(filter(_is_up, ("127.0.0.1", "::1")), "127.0.0.1")


def _is_up(host: str) -> bool:
    with contextlib.suppress(OSError):
        _expect_up(host)
        return True
    return False


def _expect_up(host: str) -> None:
    """Raise OSError if no packet reaches an address; nothing is sent. A socket may be bound to one that is down."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))


@contextlib.contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Give a port that is free, and that the system gives to nobody else meanwhile.

    On Linux, the port stays bound: a server may listen on it all the same, if it lets an address be used again
    (``SO_REUSEADDR``), as servers do. Elsewhere it could not, so the port is only one that was free a moment ago.

    Raises:
        OSError: the host is no address of this machine that is up.
    """
    import socket

    _expect_up(host)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port


def limit_xla_log(least: int = 1) -> None:
    """Leave messages below a level out of XLA's log, unless the user has chosen a level.

    A library with XLA inside reads the level once, when it is loaded: this must come first.

    Args:
        least: the level of the least important messages that are written: 0 for information, 1 for warnings, 2 for
            errors. ``import jax`` chooses 1, too.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", str(least))


# The memory of this process: its C heap, and how much of it stands in main memory.

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 32 << 20  # the largest value that glibc takes
_TRIM_BYTES = 128 << 20


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory for the next allocation; return whether it can (glibc's ``mallopt``).

    XLA's CPU device allocates tens of MiB for each run of a larger program and frees them at its end. glibc gives such
    memory back to the system and gets it again, page by page, in the next run: ResNet-50 took a quarter longer.
    Allocations above 32 MiB go back to the system as before, and the heap keeps at most 128 MiB at its end.
    """
    mallopt = _glibc("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def release_freed_memory() -> bool:
    """Give freed memory back to the system; return whether any was (glibc's ``malloc_trim``)."""
    trim = _glibc("malloc_trim")
    return trim is not None and bool(trim(ctypes.c_size_t(0)))


@functools.cache
def _glibc(name: str) -> Any:
    """Return a function of glibc; ``None`` where the C library is another one."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""The value that makes Linux begin a new peak, since version 4.0."""


def reset_peak_resident_bytes() -> bool:
    """Begin a new peak of the resident memory; return whether the system can do that."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_resident_bytes() -> int | None:
    """Return the most bytes of main memory that the process had since the last reset, or since its start.

    ``None`` where the system does not report it.
    """
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _peak_of_usage()


def _peak_of_usage() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, the other systems count KiB.
    return peak if sys.platform == "darwin" else peak * 1024


def is_writable(address: int, size: int) -> bool:
    """Whether memory of this process can be written to; false where the system does not say."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    end = address + size
    for line in lines:  # in the order of their addresses
        span, rights = line.split()[:2]
        first, last = (int(each, 16) for each in span.split("-"))
        if first <= address < last and "w" in rights:
            address = last
    return address >= end
