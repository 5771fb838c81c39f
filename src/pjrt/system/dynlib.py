"""Shared libraries: their names, opening them, the addresses of their symbols, and loading them before others."""

from __future__ import annotations

import itertools
import os
import platform
import sys
from pathlib import Path

_SUFFIXES_ANYWHERE = (".so", ".dylib", ".dll")


def library_suffixes() -> tuple[str, ...]:
    """Return the suffixes of shared libraries on this system, the usual one first.

    On macOS they are ``.dylib`` and ``.so``, the suffix of Python's extension modules and of many plugins.
    """
    if sys.platform == "win32":
        return (".dll",)
    if sys.platform == "darwin":
        return (".dylib", ".so")
    return (".so",)


def library_file_names(stem: str) -> tuple[str, ...]:
    """Return the file names of a shared library on this system, the usual one first: ``libx.so`` for ``libx``."""
    return tuple(stem + suffix for suffix in library_suffixes())


def is_library_file_name(name: str | os.PathLike[str]) -> bool:
    """Whether a file name is that of a shared library on any system: ``x.so``, ``x.so.1``, ``x.dylib``, ``x.dll``."""
    file = Path(name).name
    return file.lower().endswith(_SUFFIXES_ANYWHERE) or ".so." in file


def open_library(path: str | os.PathLike[str]) -> int:
    """Open a shared library and return its handle.

    Its symbols are private: no other library sees them. On POSIX functions of other libraries are resolved when they
    are first called. On Windows the libraries that it needs are searched for beside it, in the folders of
    ``os.add_dll_directory`` and in the system's, and not in those of ``PATH``.

    Args:
        path: an absolute path; a bare name would be searched for in folders that this package has not checked.

    Raises:
        OSError: the system cannot open the library; the text is the linker's.
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


def open_library_content(content: bytes | bytearray) -> int:
    """Open a shared library that is in no file, and return its handle; each time it is another library. Linux only.

    Raises:
        OSError: the system cannot open it.
    """
    file = os.memfd_create("pjrt")
    try:
        with open(file, "wb", closefd=False) as target:
            target.write(content)
        # The linker knows a library by its path, and a file's number is used again: the path is written anew each time.
        spelling = "".join("./" if bit == "1" else "/" for bit in f"{next(_numbers):b}")
        return open_library(f"/proc/self/{spelling}fd/{file}")
    finally:
        os.close(file)


_numbers = itertools.count()


def is_noexec(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is on a file system that is mounted ``noexec``, from which Linux opens no library."""
    return sys.platform == "linux" and bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def library_symbol(handle: int, name: str) -> int | None:
    """Return the address of a function or a variable of an open library; ``None`` if it has none of that name."""
    import ctypes

    if sys.platform == "win32":
        look_up = ctypes.WinDLL("kernel32").GetProcAddress
    else:
        look_up = ctypes.CDLL(None).dlsym
    look_up.argtypes, look_up.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p
    address: int | None = look_up(handle, name.encode())
    return address


def sign_library(path: str | os.PathLike[str]) -> None:
    """Sign a shared library that was changed, on macOS, which opens only libraries with valid checksums.

    Raises:
        OSError: the library cannot be signed.
    """
    if sys.platform == "darwin":
        import subprocess

        command = ["/usr/bin/codesign", "--force", "--sign", "-", os.fspath(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"codesign: {done.stderr.strip()}")


def with_preloaded(library: str, environment: dict[str, str]) -> dict[str, str] | None:
    """Return an environment in which programs load a library before all others.

    Returns:
        The environment; ``None`` where functions of such a library would not come before those of the system. Only
        glibc, of Linux, is known to let them.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return None
    if any(char in library for char in ": "):  # they separate libraries, and cannot be quoted
        return None
    earlier = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{library}{os.pathsep}{earlier}" if earlier else library}
