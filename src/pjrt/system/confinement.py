"""Processes for programs of strangers: what the system takes from them, and how nothing of them is left.

A process that starts such processes, one by one, begins with ``begin`` and starts each with ``fork_apart``; where there
are no namespaces, it calls ``kill_others`` when one has ended. Each begins with ``confine``. Linux alone has all of it;
Python has no functions for most, so the C library is called by ``ctypes``.

Namespaces take files, the network and other processes out of sight; many containers have none. Landlock refuses files
and signals by rules, and a filter of seccomp refuses calls to the kernel: both need no privileges.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from pjrt.system.files import TemporaryFolder
from pjrt.system.processes import end_with, fork
from pjrt.system.python_process import Ended, module_command, module_environment

CAN_CONFINE = sys.platform == "linux"
"""Whether this system has confined processes."""

NETWORK, PROCESSES, FILES = "use the network", "send signals to processes of this user", "write to files of this user"
READING, CALLS = "read files of this user", "make all calls to the kernel"
PROCESSORS = "take more of the processors than others by more threads"
"""The rights that a confined process keeps, where the system cannot take them from it."""

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
        What the processes may do all the same, as the system has no namespaces that take it from them.
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


def confine(
    folder: str,
    secrets: Iterable[str],
    may: Collection[str],
    *,
    readable: Collection[str] | None,
    open_files: int,
    file_bytes: int,
) -> list[str]:
    """Take from this process, which ``fork_apart`` has made, the rights and resources that its programs do not need.

    It ends with its parent, has no rights but those of its user, gets no further ones by starting a program, and leaves
    no core file. Unless it may write to files all the same, its folder is empty, its own, and goes with it, and the
    files with secrets are empty. The process has one thread: what the system takes holds for later ones.

    Args:
        folder: the folder in which it works.
        secrets: the files that it may not read.
        may: what ``begin`` has returned.
        readable: the files and folders that it may read, beside those of Python and of the system's libraries; ``None``
            for all. The current folder is not among Python's.
        open_files: the files that it may have open.
        file_bytes: the size of a file that it may write.

    Returns:
        What it may do all the same, as this system does not take it from it.
    """
    import resource

    library = ctypes.CDLL(None)
    library.prctl(_END_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
    reads = ["/"] if readable is None else [*_of_python(), *_LIBRARIES, *_SYSTEM_FILES, *readable]
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
    refused = _refuse_files(library, folder, reads) | _refuse_calls(library)
    if _has_share_of_processors():
        refused.add(PROCESSORS)
    return [each for each in (*may, READING, CALLS, PROCESSORS) if each not in refused]


_AUTOGROUPS, _GROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled"), Path("/proc/self/cgroup")
_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def _has_share_of_processors() -> bool:
    """Return whether the kernel gives each session of processes an equal share of the processors (autogroups).

    It does so for processes that are in no control group with a share of its own: those share by their threads.
    """
    try:
        if _AUTOGROUPS.read_text().strip() != "1":
            return False
        groups = [line.split(":", 2) for line in _GROUPS.read_text().splitlines()]
    except OSError:
        return False
    for _, controllers, path in groups:
        if controllers:
            if "cpu" in controllers.split(",") and path != "/":
                return False
            continue
        for mount in _MOUNTS:
            folder = mount / path.lstrip("/")
            if any((each / "cpu.weight").exists() for each in (folder, *folder.parents)):
                return False
    return True


def kept_rights(time_limit: float) -> list[str]:
    """Confine a process that does nothing else, and return what it may do all the same on this machine.

    Raises:
        OSError: it cannot be confined; the message says why.
        TimeoutError: it takes longer than the time limit, in seconds.
    """
    with TemporaryFolder("confined") as folder:
        command = module_command(__name__, str(os.getpid()), __name__)
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=module_environment()
        )
        with child:
            try:
                output, errors = child.communicate(timeout=time_limit)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"not done after {time_limit:g} s") from None
            finally:
                child.kill()
    if not output:
        raise OSError(str(Ended(child.returncode, output, errors.decode(errors="replace"))))
    rights: list[str] = json.loads(output)
    return rights


def main(may: list[str]) -> None:
    """Print what a confined process may do all the same; ``kept_rights`` has it called in a process of its own."""
    child = fork_apart()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    try:
        kept = confine(os.getcwd(), (), may, readable=(), open_files=64, file_bytes=1 << 20)
        os.write(1, json.dumps(kept).encode())
    except OSError as error:
        os.write(2, str(error).encode())
    finally:
        os._exit(0)


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


# Landlock. Its first number names the calls; those of Linux 5.13 or newer are the same on all processors.

_CREATE_RULES, _ADD_RULE, _RESTRICT_SELF, _VERSION, _BENEATH = 444, 445, 446, 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_OF_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # the rights by version
_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
_SIGNALS_SINCE, _TRUNCATE_SINCE, _TCP_SINCE = 6, 3, 4
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15  # the others are of folders

_LIBRARIES = ("/usr", "/lib", "/lib64", "/bin", "/nix/store", "/proc", "/sys")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/nsswitch.conf", "/etc/os-release")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def _refuse_files(library: ctypes.CDLL, folder: str, readable: Iterable[str]) -> set[str]:
    """Have the kernel refuse all files but those that this process needs, and signals; return what it refuses."""
    version = library.syscall(_CREATE_RULES, None, 0, _VERSION)
    if version < 1:
        return set()
    rights = _ALL_OF_FILES[max(each for each in _ALL_OF_FILES if each <= version)]
    handled = struct.pack(
        "<3Q",
        rights,
        _TCP if version >= _TCP_SINCE else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SIGNALS_SINCE else 0,
    )
    length = 24 if version >= _SIGNALS_SINCE else 16 if version >= _TCP_SINCE else 8
    rules = library.syscall(_CREATE_RULES, handled, length, 0)
    allowed = dict.fromkeys(readable, _READ_FILE | _READ_DIR | _EXECUTE)
    allowed |= {folder: rights, **dict.fromkeys(_DEVICES, _READ_FILE | _WRITE_FILE)}
    for path, some in allowed.items():
        with contextlib.suppress(OSError):  # it is not there
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            some = some if os.path.isdir(path) else some & _OF_A_FILE
            library.syscall(_ADD_RULE, rules, _BENEATH, struct.pack("<Qi", some, file), 0)
            os.close(file)
    failed = library.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)
    if failed:
        return set()
    refused = set() if "/" in allowed else {READING}
    refused |= {FILES} if version >= _TRUNCATE_SINCE else set()
    return refused | ({PROCESSES} if version >= _SIGNALS_SINCE else set())


def _of_python() -> set[str]:
    """Return the files and folders with Python, its packages, and the libraries that the environment names."""
    packages = {folder for module in list(sys.modules.values()) for folder in getattr(module, "__path__", ())}
    paths = {*sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)} - {"", os.getcwd()}
    return {sys.prefix, sys.base_prefix, sys.exec_prefix, *paths, *packages}


# A filter of seccomp, a program of BPF: each instruction is its code, two relative jumps and a number.

_LOAD, _IS, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _REFUSE, _UNKNOWN, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000
_SET_SECCOMP, _FILTER = 22, 2
_NEW_NAMESPACES = 0x7E020000
_LOCAL_SOCKETS = 1
_OF_X32 = 0x40000000

_ARCHITECTURES = {"x86_64": (0xC000003E, 41, 56), "aarch64": (0xC00000B7, 198, 220)}
"""By processor: its number, and those of the calls ``socket`` and ``clone``."""

_CLONE_3 = 435
_NEVER = {
    "x86_64": (101, 112, 155, 161, 165, 166, 248, 249, 250, 272, 298, 304, 308, 310, 311, 312, 321, 323),
    "aarch64": (39, 40, 41, 51, 97, 117, 157, 217, 218, 219, 241, 265, 268, 270, 271, 272, 280, 282),
}
"""Mounts and namespaces, other processes, keys, counters of the processor, and programs that the kernel runs.

And further sessions of processes (``setsid``), each of which would have a share of the processors.
"""

_NEVER_ANYWHERE = (*range(425, 428), *range(428, 434), 438, 442)
"""Queues of calls (``io_uring``), which pass by the filter, the newer calls for mounts, and files of others."""


def _refuse_calls(library: ctypes.CDLL) -> set[str]:
    """Have the kernel refuse sockets but local ones, and calls that no program needs; return what it refuses."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return set()
    architecture, socket, clone = _ARCHITECTURES[machine]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IS, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # calls of another architecture have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OF_X32),
        (_RETURN, 0, 0, _KILL),
        (_IS, 0, 1, _CLONE_3),  # its flags are in memory, which a filter cannot see: glibc calls ``clone`` then
        (_RETURN, 0, 0, _UNKNOWN),
    ]
    for number in (*_NEVER[machine], *_NEVER_ANYWHERE):
        program += [(_IS, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    program += [
        (_IS, 0, 4, socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_IS, 1, 0, _LOCAL_SOCKETS),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
        (_IS, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_HAS, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in program))
    described = struct.pack("@HP", len(program), ctypes.addressof(code))
    return set() if library.prctl(_SET_SECCOMP, _FILTER, described, 0, 0) else {NETWORK, CALLS}


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
