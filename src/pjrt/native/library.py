"""The libraries of devices that run in C, written without a compiler: copies of one that comes with this package."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import logging
import os
import sys
import sysconfig
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pjrt.host.shutdown  # noqa: F401  # its function for the end is registered before the one of this module
from pjrt.api.client import Client
from pjrt.api.device import NamedValue
from pjrt.api.errors import CancelledError, InvalidArgumentError, NotFoundError, UnimplementedError
from pjrt.api.waits import time_left
from pjrt.capi.interrupts import AWAITED, watch_for_interrupts
from pjrt.capi.library_files import library_of, read_settings, write_with_settings
from pjrt.native.facts import plugin_facts

MARK = b"PJRT-NATIVE-SETTINGS\n"


def get_include() -> str:
    """Return the folder of ``pjrt_driver.h``, for the compiler that builds a driver: ``cc -I$(...)``."""
    return str(Path(__file__).parent / "include")


def write_library(
    path: str | os.PathLike[str],
    compiler: str = "",
    *,
    driver: str | os.PathLike[str] = "host",
    name: str = "",
    python: str | os.PathLike[str] = "",
    attributes: Mapping[str, NamedValue] | None = None,
    profiler: str = "",
    label: str | None = None,
    shared: bool = False,
) -> Path:
    """Write the shared library of a device: a PJRT plugin in C, for programs that load a plugin by its path.

    Args:
        path: the file to write.
        compiler: ``package.module:attribute`` or ``/path/of/file.py:attribute`` of a function
            ``compile(program, options)`` that returns ``pjrt.native.Code``. Without one the library only runs
            executables that were serialized. With the driver ``worker`` it is the function that makes clients.
        driver: the driver's shared library, which has ``pjrt_driver_entry``; or ``host``, for code in shared objects
            that runs in the memory of the host; or ``worker``, for a device in Python in a process of its own.
        name: the platform's name, for ``host`` and ``worker``; other drivers name their own. By default that of the
            module or file for ``host``, and that of the client for ``worker``.
        python: the Python of the process that compiles or computes, by default this one. ``PJRT_WORKER_PYTHON`` names
            another later.
        attributes: the plugin's attributes, for ``worker``; others are those of its clients.
        profiler: the place of what makes profiling sessions, for ``worker``; empty for no profiler.
        label: what stands before the lines that its process prints, by default the name of the platform or the device;
            where it is empty, they are not shown.
        shared: whether all processes of a user have one ``worker`` for the device, instead of one each.

    Raises:
        UnimplementedError: the system is not Linux.
        NotFoundError: the folder or the driver does not exist.
        InvalidArgumentError: the spec is of neither form, or the file cannot be written.
    """
    if sys.platform != "linux":
        raise UnimplementedError(f"libraries of devices need Linux, and this system is {sys.platform}")
    if shared and driver != "worker":
        raise InvalidArgumentError(f"expected a device in Python to be shared, found the driver {os.fspath(driver)!r}")
    place, colon, attribute = compiler.rpartition(":")
    if (compiler or driver == "worker") and not (colon and place and attribute):
        raise InvalidArgumentError(
            f"expected MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE, such as mychip:compile, found {compiler!r}"
        )
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise NotFoundError(f"there is no file {place!r}")
        compiler = f"{Path(place).resolve()}:{attribute}"
    if driver not in ("host", "worker"):
        if not Path(driver).is_file():
            raise NotFoundError(f"there is no driver {os.fspath(driver)!r}")
        if name:
            raise InvalidArgumentError(f"the driver names its platform itself, found the name {name!r}")
        driver = Path(driver).resolve()
    if not name and driver != "worker":
        name = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    if label is None:
        label = name or (attribute if place == "pjrt.plugins.factories" else Path(place).stem)
    settings = {
        "driver": str(driver),
        "compiler": compiler,
        "python": os.fspath(python) or sys.executable,
        "path": _search_path(place),
        "platform": name,
        "label": label,
        "stablehlo": _versions() if compiler else "",
        "attributes": plugin_facts(attributes).hex() if attributes else "",
        "profiler": profiler,
        "shared": "1" if shared else "",
    }
    return write_with_settings(path, library_of(Path(__file__).parent), MARK, settings)


def make_relocatable(path: str | os.PathLike[str]) -> None:
    """Take this machine's Python and folders out of a library, which then works where it is installed, as from a wheel.

    Its processes use the Python that the framework runs in where it says so, as TensorFlow's adapter does; or else
    ``python3`` of the search path. ``PJRT_WORKER_PYTHON`` names another.

    Raises:
        InvalidArgumentError: the library is none of this package, or needs a file of this machine: a driver, or a
            device in a file instead of a module.
    """
    settings = read_settings(path, MARK)
    if not settings:
        raise InvalidArgumentError(f"expected a library of an exported device, found {os.fspath(path)}")
    for place in (settings["driver"], settings["compiler"]):
        if place.startswith(os.sep):
            raise InvalidArgumentError(
                f"expected a device that other machines have by the name of a module, found the file {place}"
            )
    write_with_settings(path, library_of(Path(__file__).parent), MARK, {**settings, "python": "", "path": ""})


def is_library(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is such a library."""
    return bool(read_settings(path, MARK))


def heed_interrupts(path: str | os.PathLike[str]) -> None:
    """Have Ctrl-C end the waits for devices of a library that a framework of this process has loaded, or will load.

    A device then gives up the executions that the main thread waits for, and those whose results nobody holds. Pressed
    again, it gives up all that is still in flight, and then a worker that goes on is ended. When the interpreter ends,
    devices get a moment to finish their work.
    """
    _heed(os.path.abspath(path))


@functools.cache
def _heed(path: str) -> None:
    heed_interrupts_of(ctypes.CDLL(path))


@functools.cache
def heed_interrupts_of(library: ctypes.CDLL) -> None:
    """Do what ``heed_interrupts`` does for a library that this process has opened."""
    interrupt = library.pjrt_native_interrupt
    interrupt.argtypes, interrupt.restype = [ctypes.c_int], ctypes.c_int
    _heeded.append(interrupt)
    watch_for_interrupts(interrupt)
    watch_for_interrupts(_give_up)


_heeded: list[Callable[[int], int]] = []

served_here: weakref.WeakSet[Any] = weakref.WeakSet()
"""The clients of this process as the runtime has them: they learn which of their work it has cancelled."""

clients_here: weakref.WeakSet[Client] = weakref.WeakSet()
"""The clients of this process behind such libraries: they are told when nobody waits for their work any more."""


def _give_up(stage: int) -> None:
    for served in list(served_here):
        served.give_up_cancelled()
    if stage == AWAITED:
        _tell_clients("interrupted by Ctrl-C while a framework waited for the device", only_ask=False)


def _tell_clients(message: str, *, only_ask: bool) -> None:
    for client in list(clients_here):
        try:
            client.give_up_work(CancelledError(message), only_ask=only_ask)
        except Exception:
            logging.getLogger("pjrt").exception("a device of an exported plugin failed to give up its work")


def wait_for_work() -> bool:
    """Wait for the work of devices when the interpreter ends, as long as it may; return whether all has ended."""
    return all(_has_ended(interrupt) for interrupt in _heeded)


_ENDING, _NONE = 3, 4  # stages of pjrt_native_interrupt; Ctrl-C has others


_END = "the Python interpreter that this device runs in is ending"
_MOMENT_SECONDS = 0.2
"""The seconds that unfinished work may go on when the interpreter ends, before functions that ask learn of the end."""


def _has_ended(interrupt: Callable[[int], int]) -> bool:
    moment: float | None = time_left() - _MOMENT_SECONDS
    while in_flight := interrupt(_NONE):
        left = time_left()
        if moment is not None and left < moment:
            _tell_clients(_END, only_ask=True)
            moment = None
        if not left:
            break
        time.sleep(0.005)
    return in_flight == 0


def _end_work() -> None:
    for interrupt in _heeded:
        left = 0 if _has_ended(interrupt) else 20
        if left:
            _tell_clients(_END, only_ask=False)
        while left and interrupt(_ENDING):  # what is given up ends soon; or else a worker is ended, at the second time
            time.sleep(0.05)
            left -= 1


# The first to be registered is the last to be called: functions hear first of this end, and then of that of the host
# runtime, which was imported before.
atexit.register(_end_work)


def device_of(path: str | os.PathLike[str]) -> str:
    """Return the place of the function whose device a library has; empty for one of another kind."""
    settings = read_settings(path, MARK)
    return settings.get("compiler", "") if settings.get("driver") == "worker" else ""


def _search_path(place: str) -> str:
    """Return the folder to import a module from; empty for a file, and where installed packages are.

    It is the folder that the module is imported from here, or else the current one.
    """
    if not place or place.endswith(".py"):
        return ""
    try:
        found = importlib.util.find_spec(place.partition(".")[0])
    except ValueError:  # such as __main__, which has no place
        found = None
    if found is None:
        return os.getcwd()
    # A package without __init__.py has no file.
    files = [*(found.submodule_search_locations or ()), found.origin if found.has_location else None]
    if files[0] is None:
        return ""
    folder = Path(files[0]).resolve().parent
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    return "" if folder in installed else str(folder)


def _versions() -> str:
    from pjrt import stablehlo

    return f"{stablehlo.current_version()} {stablehlo.minimum_version()}"
