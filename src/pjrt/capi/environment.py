"""The library of layers, and those of them that ``PJRT_LAYERS`` asks for: before whatever is loaded and exported here.

The room ``layers`` has the library's sources and all that knows what a layer does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from pjrt import system
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError
from pjrt.capi.library_files import check_loadable, library_of, write_with_settings

PROBLEM_SIZE = 1024
"""The bytes that the library's functions may write of what is wrong with layers or options."""

_MARK = b"PJRT-LAYER-SETTINGS\n"
_SYSTEMS = {("Linux", "x86_64"), ("Linux", "aarch64")}
_suspended: ContextVar[bool] = ContextVar("suspended", default=False)


def library_path() -> Path:
    """Return the path of the shared library of layers.

    Raises:
        UnimplementedError: this system has none.
        InternalError: the file is missing.
    """
    if (system := (platform.system(), platform.machine())) not in _SYSTEMS:
        raise UnimplementedError(f"layers need Linux on x86-64 or AArch64, found {' on '.join(system)}")
    return library_of(Path(__file__).parents[1] / "layers")


@functools.cache
def layers_library() -> ctypes.CDLL:
    """Return the library of layers, opened once for each process."""
    return ctypes.CDLL(str(library_path()))


def are_suspended() -> bool:
    """Whether this is inside of ``no_layers``."""
    return _suspended.get()


@contextlib.contextmanager
def no_layers() -> Iterator[None]:
    """Make clients without the layers of ``PJRT_LAYERS``: a device behind an exported plugin needs none of its own."""
    token = _suspended.set(True)
    try:
        yield
    finally:
        _suspended.reset(token)


def with_layers(table: int, name: str) -> int:
    """Return the address of a table with the layers of ``PJRT_LAYERS`` before it; that of the table if there are none.

    A table that has them keeps them, and gets no others.

    Raises:
        InvalidArgumentError: a layer or an option is unknown, or the table is none.
    """
    if not table or not os.environ.get("PJRT_LAYERS"):
        return table
    wrap = layers_library().pjrt_layer_wrap_by_environment
    wrap.restype = ctypes.c_void_p
    wrap.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
    problem = ctypes.create_string_buffer(PROBLEM_SIZE)
    return checked(wrap(table, name.encode(), problem, PROBLEM_SIZE), problem)


def checked(wrapped: int | None, problem: ctypes.Array[ctypes.c_char]) -> int:
    """Return the address of a wrapped table.

    Raises:
        InvalidArgumentError: the library made none; the message is the one that it wrote.
    """
    if wrapped is None:
        raise InvalidArgumentError(problem.value.decode(errors="replace"))
    return wrapped


def library_capsule(library: str | os.PathLike[str]) -> object:
    """Return the table of a plugin's library with the layers of ``PJRT_LAYERS``, as a capsule for JAX.

    Raises:
        InvalidArgumentError: a layer or an option is unknown.
        PjrtError: the library cannot be opened, or is no plugin.
    """
    from pjrt.capi import capsule_of

    return capsule_of(library_table(library))


def library_table(library: str | os.PathLike[str]) -> int:
    """Return the address of the table of a plugin's library, with the layers of ``PJRT_LAYERS``.

    Raises:
        InvalidArgumentError: a layer or an option is unknown.
        PjrtError: the library cannot be opened, or is no plugin.
    """
    from pjrt.capi import open_table

    table, path, _ = open_table(library)
    return with_layers(table, path)


def replace_table(library: str | os.PathLike[str], table: int) -> None:
    """Write a table over that of a library that a framework has loaded, and that has no client yet.

    Raises:
        FailedPreconditionError: the library's table is shorter, or cannot be written to.
        PjrtError: the library cannot be opened, or is no plugin.
    """
    from pjrt.capi import open_table

    own, path, _ = open_table(library)
    found, size = (ctypes.c_size_t.from_address(each).value for each in (own, table))  # each begins with its size
    if found < size or not system.is_writable(own, size):
        raise FailedPreconditionError(
            f"the framework has loaded {path} already, whose table of {found} bytes cannot be replaced by one of "
            f"{size} bytes; register the device before the framework is imported"
        )
    if own != table:
        ctypes.memmove(own, table, size)


@functools.cache
def library_with_layers(library: Path) -> Path:
    """Return a library that puts the layers of ``PJRT_LAYERS`` before a plugin's; the plugin's own without layers.

    For a framework that takes nothing but a path. The library is removed when the process ends.

    Raises:
        FailedPreconditionError: no library can be loaded from the temporary folder.
    """
    if not os.environ.get("PJRT_LAYERS"):
        return library
    folder = tempfile.mkdtemp(prefix="pjrt-layers-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    check_loadable(folder)
    return write_with_layers(Path(folder) / library.name, library)


def write_with_layers(
    path: str | os.PathLike[str], target: str | os.PathLike[str], layers: str = "", options: str = ""
) -> Path:
    """Write a library whose ``GetPjrtApi`` loads a plugin's library and puts layers before its table.

    Args:
        path: the file to write.
        target: the plugin's library, which is loaded from this place.
        layers: the names of layers, with commas between. None: those that ``PJRT_LAYERS`` names in the process that
            loads the library.
        options: the options of layers as the library reads them. Others have those of the environment.

    Raises:
        NotFoundError: there is no such plugin, or no folder for the file.
        InvalidArgumentError: the file cannot be written.
    """
    library = Path(target).resolve()
    if not library.is_file():
        raise NotFoundError(f"{library}: there is no such file; give the path of the plugin's shared library")
    if Path(path).resolve() == library:
        raise InvalidArgumentError(f"expected another file to write to than the plugin itself, {str(library)!r}")
    settings = {"target": str(library), "layers": layers, "options": options}
    return write_with_settings(path, library_path(), _MARK, settings)
