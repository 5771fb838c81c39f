"""Processes for programs of strangers: what the system takes from them, and how nothing of them is left.

A process that starts such processes, one by one, begins with ``begin`` and starts each with ``fork_apart``; where there
are no namespaces, it calls ``kill_others`` when one has ended. Each begins with ``confine``. Linux alone has all of it;
Python has no functions for most, so the C library is called by ``ctypes``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import struct
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from pjrt.system.processes import end_with, fork

CAN_CONFINE = sys.platform == "linux"
"""Whether this system has confined processes."""

NETWORK, PROCESSES, FILES = "use the network", "send signals to processes of this user", "write to files of this user"
"""What a confined process may do all the same, where the system has no namespaces for it."""

_END_WITH_PARENT, _SET_DUMPABLE, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 4, 36, 38
_NEW_MOUNTS, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x20000, 0x10000000, 0x20000000, 0x40000000
_CAPABILITIES_3 = 0x20080522
_NO_SET_UID, _NO_DEVICES, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 1 << 12, 1 << 14, 1 << 18
_SET_ATTRIBUTES, _HERE, _ALL_BELOW, _READ_ONLY = 442, -100, 0x8000, 1
_FOLDER_OPTIONS = "mode=0700,size=1g"


def begin(parent: int) -> list[str]:
    """Prepare this process, which has one thread, to start confined ones; it ends with its parent from now on.

    Where the system allows namespaces, this function goes on in a fork of the process, which has no network, sees only
    the processes that it starts, and may write to no file; so has what it starts. That is the first to end where memory
    is short.

    Args:
        parent: the parent's process identifier.

    Returns:
        What the processes may do all the same, as this system does not take it from them.
    """
    end_with(parent)
    library = ctypes.CDLL(None)
    library.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with contextlib.suppress(OSError):  # a container may keep it from being written
        Path("/proc/self/oom_score_adj").write_text("1000")
    user, group = os.getuid(), os.getgid()
    if library.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_NETWORK | _NEW_PROCESSES):
        hide_memory()
        return [NETWORK, PROCESSES, FILES]
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    may = [] if _make_all_read_only(library) else [FILES]
    hide_memory()
    if child := fork():
        os.waitpid(child, 0)
        os._exit(0)
    library.prctl(_END_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
    return may


def _make_all_read_only(library: ctypes.CDLL) -> bool:
    if library.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None):
        return False
    attributes = struct.pack("<4Q", _READ_ONLY, 0, 0, 0)
    return not library.syscall(_SET_ATTRIBUTES, _HERE, b"/", _ALL_BELOW, attributes, len(attributes))


def fork_apart() -> int:
    """Fork a process that sees no others but those that it starts, and that takes them along when it ends.

    Where the system allows no namespaces, it is a fork as any other. ``begin`` comes before.
    """
    library = ctypes.CDLL(None)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        apart = not library.unshare(_NEW_PROCESSES)
        child = fork()
        if child and apart:
            library.setns(own, _NEW_PROCESSES)
        return child
    finally:
        os.close(own)


def confine(folder: str, secrets: Iterable[str], may: Collection[str], *, open_files: int, file_bytes: int) -> None:
    """Take from this process, which ``fork_apart`` has made, the rights and resources that its programs do not need.

    It ends with its parent, has no rights but those of its user, gets no further ones by starting a program, and leaves
    no core file. Unless it may write to files all the same, its folder is empty, its own, and goes with it, and the
    files with secrets are empty.

    Args:
        folder: the folder in which it works.
        secrets: the files that it may not read.
        may: what ``begin`` has returned.
        open_files: the files that it may have open.
        file_bytes: the size of a file that it may write.
    """
    import resource

    library = ctypes.CDLL(None)
    library.prctl(_END_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
    if FILES not in may:
        flags, options = _NO_SET_UID | _NO_DEVICES, _FOLDER_OPTIONS.encode()
        failed = library.unshare(_NEW_MOUNTS) or library.mount(b"pjrt", folder.encode(), b"tmpfs", flags, options)
        if failed or any(library.mount(b"/dev/null", path.encode(), None, _BIND, None) for path in secrets):
            raise OSError("the system gives a process no view of files of its own")
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    library.capset(header, nothing)
    if library.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError("the system does not keep a process from getting further rights")
    os.setsid()


def hide_memory() -> None:
    """Keep other processes of this user from reading and changing the memory of this one, by a debugger for example."""
    if CAN_CONFINE:
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def limit_memory(more: int) -> None:
    """Let this process, and each one that it starts, have so many bytes of addresses more than it has now."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def kill_others(known: Collection[int]) -> None:
    """Kill all children of this process but the known ones, and the children that they leave, until there are none."""
    while others := _children() - set(known):
        for pid in others:
            os.kill(pid, signal.SIGKILL)  # it is a child that nobody has waited for, so the number is still its own
        for pid in others:
            os.waitpid(pid, 0)


def _main(parent: str, module: str) -> None:
    """Begin before a module is imported that may start threads, as numpy does, and call its function ``main``."""
    may = begin(int(parent))
    importlib.import_module(module).main(may)


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


if __name__ == "__main__":
    _main(*sys.argv[1:])
