"""TensorFlow on devices of this package and of vendors: ``register("reference")``, then ``tf.device("REFERENCE:0")``.

TensorFlow takes a plugin through an adapter, a library in C++ that is compiled against the installed TensorFlow. It is
compiled once, which takes 20 to 60 seconds, and kept for each version of TensorFlow and of this package.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.api.client import Client
from pjrt.api.device import AllocatorStats
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError
from pjrt.capi.environment import library_with_layers
from pjrt.capi.library_files import check_loadable
from pjrt.frameworks._served import TENSORFLOW, Served
from pjrt.native.exported import ExportedPlugin
from pjrt.native.library import make_relocatable
from pjrt.plugins import registry

SOURCE = Path(__file__).with_name("tensorflow_adapter.cc")
"""The adapter's source."""

RESERVED = ("CPU", "GPU", "TPU")
"""TensorFlow treats devices with one of these in their names as its own: it puts kernels of oneDNN on them."""
_OTHER_NAME = "PJRT"
_NAME = re.compile("[A-Z][A-Z0-9_]*")
_PLATFORM = "XLA_CPU_JIT"
_TYPES = {bool: "b", int: "i", float: "f", str: "s"}
_STATS = 3
_FLAG = "--tf_xla_use_device_api"
_BUILD_SECONDS = 600.0

_lock = threading.Lock()
_folders: list[system.TemporaryFolder] = []
_registered: dict[str, tuple[Any, Any]] = {}  # by name in TensorFlow: what was asked for, and the adapter


def register(
    device: str | os.PathLike[str] | ExportedPlugin, *, name: str = "", wrap: bool | None = None, **options: Any
) -> str:
    """Make the devices of a plugin TensorFlow's devices, such as ``/device:REFERENCE:0``.

    Call it before TensorFlow first lists or uses devices; importing TensorFlow before is fine. The same call again does
    nothing. A device in Python runs in a process of its own. Operations and types that the device lacks run on
    TensorFlow's CPU.

    Args:
        device: one of ``pjrt.plugins.names()``, the path of a plugin's library, or a plugin from ``pjrt.export``.
        name: the device's name in TensorFlow, of capital letters; by default its own name. TensorFlow's own devices
            have names with ``CPU``, ``GPU`` and ``TPU``: a device with such a name is called ``PJRT``.
        wrap: whether TensorFlow gets a vendor's library through this package, in a process of its own.
        options: the client's options, such as ``num_devices``.

    Returns:
        The device's name in TensorFlow: ``tf.device(f"{name}:0")``.

    Raises:
        NotFoundError: TensorFlow or a C++ compiler is not installed, or there is no such device.
        FailedPreconditionError: TensorFlow has used its devices already, or has one of this name; the plugin cannot be
            used; or the adapter cannot be compiled against the installed TensorFlow.
        InvalidArgumentError: the name cannot be one of TensorFlow, or the adapter cannot state an option.
    """
    tf = _tensorflow()
    _add_flag()
    place = _Place(device, name, options, wrap)
    asked = (place.device, name, wrap, options)
    with _lock:
        if place.name in _registered and _registered[place.name][0] == asked:
            return place.name  # such as a cell of a notebook that runs again
        _check_not_too_late(tf, place.name)
        if place.name in _registered:
            raise FailedPreconditionError(
                f"TensorFlow has a device {place.name!r} already, of {_registered[place.name][0][0]!r}; "
                "give another name"
            )
        if not _folders:
            _folders.append(system.TemporaryFolder("tensorflow"))
            atexit.register(_folders[0].close)
        library = place.write(_folders[0].path, build())
        from tensorflow.python.framework import load_library

        try:
            load_library.load_pluggable_device_library(str(library))
            found = tf.config.list_physical_devices(place.name)  # makes the client
        except tf.errors.OpError as error:
            raise FailedPreconditionError(f"TensorFlow cannot use {place.device!r}: {error.message}") from error
        adapter = ctypes.CDLL(str(library))
        if not found:
            adapter.PjrtAdapter_Problem.restype = ctypes.c_char_p
            problem = adapter.PjrtAdapter_Problem().decode(errors="replace") or "the plugin has none"
            raise FailedPreconditionError(f"TensorFlow has no device {place.name!r}: {problem}")
        _registered[place.name] = (asked, adapter)
    return place.name


def memory_stats(device: str) -> AllocatorStats:
    """Return the memory of a device in use, as the plugin counts it (``PJRT_Device_MemoryStats``).

    TensorFlow's own ``tf.config.experimental.get_memory_info`` knows nothing of devices that plugins bring.

    Args:
        device: a device of TensorFlow, such as ``REFERENCE:0``.

    Raises:
        NotFoundError: there is no such device, or ``register`` has not made it.
        UnimplementedError: the plugin does not count its memory.
    """
    name, _, number = device.rpartition("/")[2].removeprefix("device:").partition(":")
    if name not in _registered:
        raise NotFoundError(f"expected a device that register has made ({_few(_registered)}), found {device!r}")
    if number and not number.isdigit():
        raise NotFoundError(f"expected a device such as '{name}:0', found {device!r}")
    adapter = _registered[name][1]
    stats = (ctypes.c_int64 * _STATS)()
    adapter.PjrtAdapter_MemoryStats.restype = ctypes.c_bool
    if not adapter.PjrtAdapter_MemoryStats(ctypes.c_int32(int(number or 0)), stats):
        raise UnimplementedError(f"there is no device {device!r}, or it does not count its memory")
    used, peak, limit = (None if each < 0 else each for each in stats)
    return AllocatorStats(bytes_in_use=used or 0, peak_bytes_in_use=peak, bytes_limit=limit)


def write_plugin(
    folder: str | os.PathLike[str],
    device: str | os.PathLike[str] | ExportedPlugin,
    *,
    name: str = "",
    wrap: bool | None = None,
    relocatable: bool = False,
    **options: Any,
) -> Path:
    """Write what TensorFlow needs for a device into a folder, for programs that do not import this package.

    TensorFlow loads it when it is imported and ``TF_PLUGGABLE_DEVICE_LIBRARY_PATH`` names the folder, or when a wheel
    has the files in its folder ``tensorflow-plugins``. They are for the installed version of TensorFlow alone.

    Args:
        folder: the folder; it is made.
        device: as for ``register``.
        name: as for ``register``.
        wrap: as for ``register``.
        relocatable: whether the files go into a wheel. The device then runs in TensorFlow's own Python, which has its
            package and this one; by default it runs in the Python that writes the files.
        options: as for ``register``.

    Returns:
        The adapter in the folder. The plugin's library is beside it, and a file with their names and the options.

    Raises:
        InvalidArgumentError: a relocatable device is in a file instead of a module; or as for ``register``.
        PjrtError: as ``register``, but for what concerns this process.
    """
    _tensorflow()
    place = _Place(device, name, options, wrap)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        return place.write(target, build(), copy=True, relocatable=relocatable)
    except OSError as error:
        raise InvalidArgumentError(f"cannot write to {os.fspath(folder)}: {error.strerror}") from error


def build() -> Path:
    """Compile the adapter against the installed TensorFlow, unless it is there, and return its library.

    Raises:
        NotFoundError: TensorFlow or a C++ compiler is not installed.
        FailedPreconditionError: it cannot be compiled against this TensorFlow.
        UnimplementedError: the system is not Linux.
    """
    import filelock

    if sys.platform != "linux":
        raise UnimplementedError("TensorFlow loads adapters of plugins on Linux alone")
    tf = _tensorflow()
    folder = Path(tf.sysconfig.get_lib())
    # Without a path to search at run time: TensorFlow has loaded its libraries before it loads the adapter.
    flags = [*tf.sysconfig.get_compile_flags(), f"-L{folder}"]
    stated = json.dumps([tf.version.VERSION, tf.version.GIT_VERSION, flags]).encode() + SOURCE.read_bytes()
    cache = system.cache_folder() / "tensorflow"
    library = cache / f"adapter-{tf.version.VERSION}-{hashlib.sha256(stated).hexdigest()[:16]}.so"
    if library.is_file():
        return library
    compiler = _compiler()
    system.make_protected_folder(cache)
    with filelock.FileLock(library.with_suffix(".lock")):
        if library.is_file():  # another process has made it meanwhile
            return library
        print(
            f"pjrt: compiling the adapter for TensorFlow {tf.version.VERSION}, once: about a minute",
            file=sys.stderr,
            flush=True,
        )
        with system.TemporaryFolder("tensorflow-build") as scratch:
            made = Path(scratch) / library.name
            libraries = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
            own = ["-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-w", "-o", str(made), str(SOURCE)]
            version = f'-DTENSORFLOW_VERSION="{tf.version.VERSION}"'
            command = [*compiler, version, *own, *flags, *libraries]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
            except subprocess.TimeoutExpired as error:
                raise FailedPreconditionError(
                    f"{shlex.join(compiler)} did not compile the adapter for TensorFlow within {_BUILD_SECONDS:g} s"
                ) from error
            if done.returncode:
                reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:500])
                raise FailedPreconditionError(
                    f"the adapter cannot be compiled against TensorFlow {tf.version.VERSION} with "
                    f"{shlex.join(compiler)}: {reason}; it was tested with TensorFlow 2.21"
                )
            system.write_whole(library, made.read_bytes())
    return library


class _Place:
    """A device for TensorFlow: its name there, its library and its client's options."""

    def __init__(
        self,
        device: str | os.PathLike[str] | ExportedPlugin,
        name: str,
        options: Mapping[str, Any],
        wrap: bool | None,
    ) -> None:
        self._exported: ExportedPlugin | None = None
        self._served: Served | None = None
        if isinstance(device, Client):
            raise InvalidArgumentError(
                f"TensorFlow waits for a device in this process while Python cannot run, so {device!r} would never "
                "answer; give the device's name, or a function that makes such clients to pjrt.export"
            )
        if isinstance(device, ExportedPlugin):
            self._exported, self.device, own = device, device.name, device.name
            self._options = dict(options)
        else:
            self._served = Served(device, TENSORFLOW, options, wrap=wrap)
            self.device, own = self._served.device, self._served.name
            own = str(self._served.settings.get("name", "")) or own
            self._options = self._served.own_options()
        if name and (not _NAME.fullmatch(name) or any(each in name for each in RESERVED)):
            raise InvalidArgumentError(
                f"expected a name of capital letters, digits and _ without CPU, GPU and TPU, found {name!r}"
            )
        own = re.sub("[^A-Z0-9_]", "_", own.upper())
        self.name = name or (_OTHER_NAME if any(each in own for each in RESERVED) or not _NAME.match(own) else own)

    def write(self, folder: Path, adapter: Path, *, copy: bool = False, relocatable: bool = False) -> Path:
        """Write the adapter's library for this device, and the file that it reads; return the former.

        Args:
            folder: the folder.
            adapter: the compiled adapter; each device needs a file of its own, which the system loads once.
            copy: whether the plugin's library is to be in the folder, too.
            relocatable: whether the folder, with that library, works on other machines.
        """
        library = folder / f"libpjrt_{self.name.lower()}.so"
        platform = _PLATFORM
        if self._served is not None:
            platform = str(self._served.settings.get("platform", "")) or platform
        if copy:
            inside = folder / "pjrt"  # TensorFlow loads each library of the folder itself
            inside.mkdir(exist_ok=True)
            plugin = self._plugin(inside)
            if plugin.parent != inside:
                plugin = Path(shutil.copyfile(plugin, inside / plugin.name))
            if relocatable:
                make_relocatable(plugin)
            stated = f"pjrt/{plugin.name}"
        else:
            stated = str(self._plugin(folder))
        # register raises an error about what the adapter would print.
        problems = "printed" if copy else "kept"
        lines = [("device", self.name), ("plugin", stated), ("platform", platform), ("problems", problems)]
        lines += [(f"option {_type_of(key, value)} {key}", _text_of(value)) for key, value in self._options.items()]
        for key, value in lines:
            if "\n" in key + value or "\t" in key + value:
                raise InvalidArgumentError(f"the adapter cannot state a tab or the end of a line: {key}={value!r}")
        library.with_name(f"{library.name}.conf").write_text("".join(f"{key}\t{value}\n" for key, value in lines))
        shutil.copyfile(adapter, library)
        check_loadable(str(folder))
        return library

    def _plugin(self, folder: Path) -> Path:
        """Return the library with the plugin, which is written to the folder if a device was exported."""
        if self._exported is not None:
            library = self._exported.write_library(folder / f"plugin_{self.name.lower()}.so")
        else:
            assert self._served is not None
            is_wrapped = self._served.is_wrapped
            library = registry.worker_library(self._served.device) if is_wrapped else self._served.library()
        return Path(library_with_layers(library))


def _type_of(name: str, value: Any) -> str:
    if isinstance(value, list | tuple) and all(type(each) is int for each in value):
        return "l"
    if type(value) not in _TYPES:
        raise InvalidArgumentError(
            f"expected text, a number, true or false, or whole numbers for the option {name!r}, found {value!r}"
        )
    return _TYPES[type(value)]


def _text_of(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def _few(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none so far"


def _compiler() -> list[str]:
    """Return the command of the C++ compiler."""
    stated = shlex.split(os.environ.get("CXX", ""))
    for command in (stated, ["c++"], ["g++"], ["clang++"]):
        if command and shutil.which(command[0]):
            return command
    raise NotFoundError(
        "TensorFlow's adapter needs a C++ compiler once, and there is none: install g++ or clang++, or name one in "
        "CXX. 'pjrt tensorflow build' makes the adapter ahead of time, such as for an image of a container"
    )


def _check_not_too_late(tf: Any, name: str) -> None:
    """Raise an error if TensorFlow has made its devices already: it adds none later.

    It says so by refusing another number of threads.
    """
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError as error:
        raise FailedPreconditionError(
            f"TensorFlow has used its devices already, and takes no further ones: register {name!r} before the first "
            "tensor is made and before devices are listed"
        ) from error
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def _add_flag() -> None:
    """Have TensorFlow compile functions for devices of plugins; it reads the flags when it first looks at devices."""
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if _FLAG not in flags:
        os.environ["TF_XLA_FLAGS"] = f"{flags} {_FLAG}=true".strip()


def _tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise NotFoundError(f"TensorFlow cannot be imported: {error}; pip install tensorflow-cpu==2.21.*") from error
    return tf
