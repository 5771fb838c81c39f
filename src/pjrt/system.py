"""What differs between operating systems, and nothing else (floor 0: knows no other room, and every room may use it).

Shared libraries, a user's folders, locks between processes, who may write to a file, device files, processes. The rest
of the package asks here and names no system. What could not be tried on a system is said in ``docs/platforms.md``.

What goes wrong is an ``OSError``: the rooms above say what it means.
"""

from __future__ import annotations

import array
import glob
import os
import stat
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

APPLICATION = "pjrt"
"""What the folders of this package are called among those of other programs."""

LIBRARY_SUFFIXES = (".so", ".dylib", ".dll")
"""How file names of shared libraries end, on any system."""

# ── shared libraries ──────────────────────────────────────────────────────────────────────────────────────────────────


def library_suffixes() -> tuple[str, ...]:
    """How file names of shared libraries end on this system, the usual one first.

    On macOS that is ``.dylib``, and ``.so`` as well: Python's own extension modules and many plugins are called so.
    """
    if sys.platform == "win32":
        return (".dll",)
    if sys.platform == "darwin":
        return (".dylib", ".so")
    return (".so",)


def library_file_names(stem: str) -> tuple[str, ...]:
    """The file names that a shared library may have on this system, the usual one first: ``libx`` gives ``libx.so``."""
    return tuple(stem + suffix for suffix in library_suffixes())


def is_library_file_name(name: str | os.PathLike[str]) -> bool:
    """Whether a file's name is that of a shared library on any system: ``x.so``, ``x.so.1``, ``x.dylib``, ``x.dll``."""
    file = Path(name).name
    return file.lower().endswith(LIBRARY_SUFFIXES) or ".so." in file


def open_library(path: str | os.PathLike[str]) -> int:
    """Opens a shared library, and gives its handle.

    Its symbols are its own: no other library sees them. On POSIX functions of other libraries are looked up when they
    are first called. On Windows the libraries it needs are looked for beside it, in the folders of
    ``os.add_dll_directory`` and in the system's, and not in those of ``PATH``.

    Args:
        path: an absolute path; a bare name would be looked for in folders that this package has not seen.

    Raises:
        OSError: the system cannot open it; the text is the linker's.
    """
    if not os.path.isabs(path):
        raise OSError(f"expected the absolute path of a library, found {os.fspath(path)!r}")
    import ctypes

    if sys.platform == "win32":
        return ctypes.WinDLL(os.fspath(path))._handle
    linker = ctypes.CDLL(None)
    linker.dlopen.argtypes, linker.dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    linker.dlerror.argtypes, linker.dlerror.restype = (), ctypes.c_char_p
    handle: int | None = linker.dlopen(os.fsencode(path), os.RTLD_LAZY | os.RTLD_LOCAL)
    if handle is None:
        reason: bytes | None = linker.dlerror()
        raise OSError("no reason given" if reason is None else reason.decode("utf-8", "replace"))
    return handle


def library_symbol(handle: int, name: str) -> int | None:
    """The address of a function or a variable of an opened library; ``None`` where it has none of that name."""
    import ctypes

    if sys.platform == "win32":
        look_up = ctypes.WinDLL("kernel32").GetProcAddress
    else:
        look_up = ctypes.CDLL(None).dlsym
    look_up.argtypes, look_up.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p
    address: int | None = look_up(handle, name.encode())
    return address


def close_library(handle: int) -> None:
    """Gives back one opening of a library. The system may keep it in memory all the same.

    Raises:
        OSError: it is no handle of a library.
    """
    import _ctypes

    if sys.platform == "win32":
        _ctypes.FreeLibrary(handle)
    else:
        _ctypes.dlclose(handle)


def library_is_open(path: str | os.PathLike[str]) -> bool:
    """Whether this process has a library in memory that was opened by this absolute path."""
    import ctypes

    if sys.platform == "win32":
        look_up = ctypes.WinDLL("kernel32").GetModuleHandleW
        look_up.argtypes, look_up.restype = (ctypes.c_wchar_p,), ctypes.c_void_p
        return look_up(os.fspath(path)) is not None
    linker = ctypes.CDLL(None)
    linker.dlopen.argtypes, linker.dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    handle: int | None = linker.dlopen(os.fsencode(path), os.RTLD_LAZY | os.RTLD_NOLOAD)
    if handle is None:
        return False
    close_library(handle)
    return True


def threads_in_library(path: str | os.PathLike[str]) -> int | None:
    """How many threads of this process are inside of an opened library, or would return into it; ``None`` where that
    cannot be learned.

    Code that a thread is to return to must stay in memory. Looked for are addresses of the library on the threads'
    stacks. One that was left there by an earlier call counts as well, and so does a thread that runs just now: the
    number may be too high, and is never too low. It is known on Linux only.

    Args:
        path: the absolute path that the library was opened by.
    """
    if sys.platform != "linux":
        return None
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            areas = [line.rstrip("\n").split(maxsplit=5) for line in maps]
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            return _threads_at(memory.fileno(), areas, os.path.realpath(path))
    except OSError:
        return None


def _threads_at(memory: int, areas: list[list[str]], library: str) -> int:
    bounds = [tuple(int(end, 16) for end in area[0].split("-")) for area in areas]
    code = [
        bound
        for bound, area in zip(bounds, areas, strict=True)
        if "x" in area[1] and len(area) == 6 and area[5].removesuffix(" (deleted)") == library
    ]
    inside = 0
    for thread in os.listdir("/proc/self/task"):
        if int(thread) == threading.get_native_id():
            continue
        try:
            state = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if len(state) < 3:
            inside += 1  # it runs: where it is cannot be told
            continue
        top, counter = int(state[-2], 16), int(state[-1], 16)
        end = next((high for low, high in bounds if low <= top < high), top)
        try:
            stack = array.array("Q", os.pread(memory, (end - top) // 8 * 8, top))
        except OSError:
            continue  # its stack is gone, so it has ended meanwhile
        inside += any(low <= address < high for address in (counter, *stack) for low, high in code)
    return inside


def python_library() -> Path | None:
    """The shared library of the Python that runs; ``None`` where it has none, as in some builds that link it in."""
    if sys.platform == "win32":
        candidates = [Path(sys.base_prefix) / f"python{sys.version_info.major}{sys.version_info.minor}.dll"]
    else:
        # A framework of macOS says where it is as a folder of its own, and its file from there.
        folders = [sysconfig.get_config_var(name) for name in ("PYTHONFRAMEWORKPREFIX", "LIBDIR")]
        file = sysconfig.get_config_var("INSTSONAME")
        shared = sysconfig.get_config_var("Py_ENABLE_SHARED") or sysconfig.get_config_var("PYTHONFRAMEWORK")
        candidates = [Path(folder) / file for folder in folders if folder and file and shared]
    return next((path for path in candidates if path.is_file()), None)


def sign_library(path: str | os.PathLike[str]) -> None:
    """Makes a shared library that was changed one that the system opens: macOS wants its checksums to be right.

    Raises:
        OSError: it cannot be signed.
    """
    if sys.platform == "darwin":
        import subprocess

        command = ["/usr/bin/codesign", "--force", "--sign", "-", os.fspath(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"codesign: {done.stderr.strip()}")


# ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def config_folder() -> Path:
    """The folder of this user's settings for this package; it need not exist.

    ``$XDG_CONFIG_HOME/pjrt`` or ``~/.config/pjrt``; on macOS ``~/Library/Application Support/pjrt``; on Windows
    ``%APPDATA%\\pjrt``.
    """
    if sys.platform == "win32":
        return _folder_of("APPDATA", Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / APPLICATION
    return _folder_of("XDG_CONFIG_HOME", Path.home() / ".config")


def runtime_folder() -> Path:
    """A folder of this user alone for files that all of the user's processes share, such as locks; it is made.

    On POSIX it is ``/tmp/pjrt-UID`` whatever ``TMPDIR`` and ``XDG_RUNTIME_DIR`` say: processes that were started in
    different ways must meet there. On Windows it is ``%LOCALAPPDATA%\\pjrt``.

    Raises:
        OSError: it cannot be made, or what is there is another user's, or others can get at it.
    """
    if sys.platform == "win32":
        folder = _folder_of("LOCALAPPDATA", Path.home() / "AppData" / "Local")
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path("/tmp") / f"{APPLICATION}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} must be a folder of yours that nobody else can enter; remove it")
    return folder


def _folder_of(variable: str, otherwise: Path) -> Path:
    """Our folder below the one that an environment variable names, if it names one by its whole path."""
    named = os.environ.get(variable, "")
    return (Path(named) if os.path.isabs(named) else otherwise) / APPLICATION


# ── locks between processes ───────────────────────────────────────────────────────────────────────────────────────────

# On Windows a locked part of a file cannot be read by others. A part far behind all content leaves the content to them.
_LOCKED_BYTE = 1 << 30


def try_lock(descriptor: int) -> bool:
    """Locks an open file for its holder alone, without waiting; ``False`` where another has it.

    The system takes the lock back when the file is closed, and so when the process ends in any way. The file can be
    read by anyone meanwhile. Opening the same file again and locking it through that is refused also within a process.
    On POSIX a child made by fork shares the lock, until all of them have closed the file.

    Args:
        descriptor: of a file that was opened for writing.

    Raises:
        OSError: the file's system has no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        return _at_locked_byte(descriptor, msvcrt.LK_NBLCK)
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Gives back what ``try_lock`` took."""
    if sys.platform == "win32":
        import msvcrt

        _at_locked_byte(descriptor, msvcrt.LK_UNLCK)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


if sys.platform == "win32":

    def _at_locked_byte(descriptor: int, mode: int) -> bool:
        import msvcrt

        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, mode, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
        return True


# ── who may write ─────────────────────────────────────────────────────────────────────────────────────────────────────


def writable_by_everyone(path: str | os.PathLike[str]) -> str:
    """Why anyone on this machine could change what is at a path, or put something else there; empty if nobody could.

    On POSIX the modes of the file or folder and of all folders above it are looked at, both of the path as it is
    written and of what its links lead to. A folder such as ``/tmp``, where everyone may make files but remove only
    their own, is no place to look for something; what lies in it is safe if it belongs to this user or to root.
    On Windows nothing is looked at: permissions are lists there that Python does not read. It is always empty.

    Raises:
        OSError: there is nothing at the path, or it cannot be looked at.
    """
    if sys.platform == "win32":
        return ""
    written = Path(os.path.abspath(path))
    for way in (written, written.resolve(strict=True)):
        if not way.is_symlink() and way.stat().st_mode & stat.S_IWOTH:
            return f"everyone may write to {way}"
        for entry, folder in zip((way, *way.parents), way.parents, strict=False):
            mode = folder.stat().st_mode
            if not mode & stat.S_IWOTH:
                continue
            if not mode & stat.S_ISVTX:
                return f"everyone may write to {folder}"
            if entry.lstat().st_uid not in (0, os.getuid()):
                return f"{entry} belongs to another user, and everyone may write to {folder}"
    return ""


# ── device files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def device_files(vendor: str) -> tuple[str, ...]:
    """File name patterns of which one matches where the hardware of ``tpu``, ``cuda`` or ``rocm`` and its driver are.

    They are empty for a vendor that has no driver for this system.
    """
    if sys.platform == "win32":
        system = Path(os.environ.get("SYSTEMROOT", "C:\\Windows")) / "System32"
        drivers = {"cuda": ("nvcuda.dll",), "rocm": ("amdhip64*.dll",)}
        return tuple(str(system / name) for name in drivers.get(vendor, ()))
    if sys.platform == "linux":
        # Linux within Windows (WSL) has no /dev/nvidia0: its driver is a library that Windows puts there.
        files = {
            "tpu": ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
            "cuda": ("/dev/nvidia[0-9]*", "/usr/lib/wsl/lib/libcuda.so*"),
            "rocm": ("/dev/kfd",),
        }
        return files.get(vendor, ())
    return ()


def any_file(patterns: Iterable[str]) -> bool:
    """Whether there is a file that matches one of some file name patterns."""
    return any(glob.glob(pattern) for pattern in patterns)


# ── the processor ─────────────────────────────────────────────────────────────────────────────────────────────────────


def processor_features() -> tuple[str, ...]:
    """What the processor can do, as the system names it, in alphabetical order: ``avx2``, ``asimd``, ``FEAT_BF16``.

    On Windows it is the name of the processor's model alone, from which its features follow.
    """
    if sys.platform == "linux":
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            return ()
        found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        return tuple(sorted(found.partition(":")[2].split()))
    if sys.platform == "darwin":
        return _features_of(_answer("/usr/sbin/sysctl", "machdep.cpu", "hw.optional"))
    return tuple(filter(None, [os.environ.get("PROCESSOR_IDENTIFIER", "")]))


def _features_of(answer: str) -> tuple[str, ...]:
    """The features in what ``sysctl`` prints: lists of words for Intel's processors, one line a feature for Apple's."""
    found: set[str] = set()
    for line in answer.splitlines():
        name, _, value = line.partition(": ")
        if name.startswith("machdep.cpu.") and name.endswith("features"):
            found.update(value.lower().split())
        elif name.startswith("hw.optional.") and value == "1":
            found.add(name.rpartition(".")[2])
    return tuple(sorted(found))


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    return _answer("/bin/ps", "-o", "command=", "-p", str(pid)).strip()


def _answer(*command: str) -> str:
    """What one of the system's own programs prints; empty if it cannot be asked."""
    import subprocess

    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
