"""PyTorch/XLA on devices of this package and of vendors.

Call ``pjrt.frameworks.torch_xla.register("reference")``, then ``torch_xla.device()``. PyTorch/XLA loads plugins by path
only. It loads a vendor's library itself. For a device in Python, this module writes a shared library that starts a
Python process for the device.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pjrt import system
from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.capi.environment import library_with_layers
from pjrt.capi.library_files import check_loadable
from pjrt.frameworks._served import TORCH_XLA, Served, in_framework_types
from pjrt.native.exported import write_exported
from pjrt.native.library import heed_interrupts
from pjrt.plugins import registry, visible_devices
from pjrt.plugins.builtin import TORCH_XLA_DEFAULT


class TorchXlaDevice:
    """A device of this package or of a vendor with the methods of ``torch_xla.experimental.plugins.DevicePlugin``.

    Args:
        device: one of ``pjrt.plugins.names()``, or the path of a plugin's library.
        options: the client's options, which come before those of the environment and of the plugin's declaration. If
            several processes of a machine use the device, they share the devices that the options name.
        wrap: whether PyTorch/XLA gets a library through this package instead of loading it itself.
    """

    def __init__(
        self, device: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, wrap: bool | None = None
    ) -> None:
        self._served = Served(device, TORCH_XLA, options or {}, wrap=wrap)

    @property
    def name(self) -> str:
        """The name for PyTorch/XLA, the value of ``PJRT_DEVICE``."""
        return str(self._served.settings.get("name", "")) or f"PJRT_{self._served.name}".upper()

    def library_path(self) -> str:
        """Return the path of the library to load: the vendor's, or one of ours that runs the device in a process."""
        own = _library(self._served.device, self._served.name) if self._served.is_wrapped else self._served.library()
        return str(library_with_layers(own))

    def host_index(self) -> int:
        """Return the index of this machine among those of the job."""
        return visible_devices.host_index(self._served.declaration)

    def configure_single_process(self) -> None:
        """Give one of the devices to this process, for debugging; call it before any client is made.

        Raises:
            FailedPreconditionError: a client exists already, or the plugin cannot select devices.
        """
        self._assign(0, 1, devices=(0,))

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Give this process of several on a machine its part of the devices; call it before any client is made.

        Raises:
            InvalidArgumentError: there is no such process, or the devices cannot be divided equally.
            FailedPreconditionError: a client exists already, or the plugin cannot select devices.
        """
        self._assign(local_rank, local_world_size)

    def physical_chip_count(self) -> int:
        """Return the number of devices of this machine, which is also the default number of processes."""
        return visible_devices.count_devices(self._served.declaration, self._options())

    def client_create_options(self) -> dict[str, Any]:
        """Return the options of the client that PyTorch/XLA makes now, and fix the devices of this process."""
        if not self._served.is_wrapped:
            return self._served.own_options()
        share = visible_devices.start(self._served.declaration)
        return in_framework_types({**self._served.options, **share})

    def requires_xla_coordinator(self) -> bool:
        """Whether the job's processes must find each other through PyTorch/XLA's coordinator before a client is made.

        The plugin's own setting comes first; by default a library needs the coordinator if it takes their number.
        """
        setting = self._served.settings.get("coordinator")
        names = self._served.declaration.processes
        return bool(names and names.total) and not self._served.is_wrapped if setting is None else bool(setting)

    def _options(self) -> dict[str, Any]:
        return {**registry.default_options(self._served.declaration), **self._served.options}

    def _assign(self, local_rank: int, local_world_size: int, devices: tuple[int, ...] | None = None) -> None:
        declaration = self._served.declaration
        visible_devices.assign(declaration, self._options(), local_rank, local_world_size, devices=devices)


@functools.cache
def _library(device: str, name: str) -> Path:
    """Return the library by which PyTorch/XLA makes clients of a device that goes through this package."""
    folder = system.TemporaryFolder("torch-xla")
    atexit.register(folder.close)
    check_loadable(str(folder.path))
    # PyTorch/XLA's launcher reads only platform names of letters.
    platform_name = "" if re.fullmatch("[A-Za-z]+", name) else "pjrt"
    library = write_exported(folder.path / "libpjrt_device.so", registry.factory_place(device), name=platform_name)
    heed_interrupts(library)
    return library


VARIABLE = "PJRT_TORCH_XLA_DEVICE"
"""The environment variable that names the device of the entry point ``PJRT``."""

OPTIONS_VARIABLE = "PJRT_TORCH_XLA_OPTIONS"
"""The environment variable with the options of that device's clients, as a table in JSON.

``register`` sets it for the processes that this one starts.
"""


def register(device: str | os.PathLike[str], *, wrap: bool | None = None, **options: Any) -> str:
    """Make a device PyTorch/XLA's device, in this process and in those that it starts.

    Call it before PyTorch/XLA makes its first tensor.

    Args:
        device: one of ``pjrt.plugins.names()``, or the path of a plugin's library.
        wrap: whether PyTorch/XLA gets a library through this package; by default it loads a library itself.
        options: the client's options, such as ``num_devices``.

    Returns:
        The device's name in PyTorch/XLA, which is also the value that ``PJRT_DEVICE`` gets.

    Raises:
        NotFoundError: PyTorch/XLA is not installed, or there is no such device.
        FailedPreconditionError: the plugin cannot be used.
    """
    plugins = _plugins()
    plugin = device_plugin(device, wrap=wrap, **options)
    name: str = plugin.name
    plugin.library_path()  # raises now if the plugin cannot be used
    plugins.use_dynamic_plugins()
    # Its launchers look a device up by the part of PJRT_DEVICE before the first _.
    for key in dict.fromkeys((name.partition("_")[0], name)):
        plugins.register_plugin(key, plugin)
    os.environ |= {"PJRT_DEVICE": name, VARIABLE: os.fspath(device), OPTIONS_VARIABLE: json.dumps(options)}
    return name


def device_plugin(device: str | os.PathLike[str], *, wrap: bool | None = None, **options: Any) -> Any:
    """Return a ``torch_xla.experimental.plugins.DevicePlugin`` for a device, made from the plugin's declaration.

    Args:
        device: one of ``pjrt.plugins.names()``, such as ``cuda``; or the path of a plugin's library.
        wrap: whether PyTorch/XLA gets a library through this package.
        options: the client's options.
    """
    return _plugin_class()(device, options, wrap=wrap)


@functools.cache
def _plugin_class() -> Any:
    """Return the class, made at the first call because it derives from a class of PyTorch/XLA."""
    base = _plugins().DevicePlugin

    class DevicePlugin(TorchXlaDevice, base):  # type: ignore[misc, valid-type]
        """A device: the one that is given, or else the one that the environment names."""

        def __init__(
            self,
            device: str | os.PathLike[str] | None = None,
            options: Mapping[str, Any] | None = None,
            *,
            wrap: bool | None = None,
        ) -> None:
            base.__init__(self)
            if device is None:
                device, options = _from_environment()
            TorchXlaDevice.__init__(self, device, options, wrap=wrap)

    return DevicePlugin


def _from_environment() -> tuple[str, dict[str, Any]]:
    """Return the device that ``PJRT_TORCH_XLA_DEVICE`` or ``PJRT_DEVICE=PJRT_NAME`` names, and its options."""
    prefix, _, name = os.environ.get("PJRT_DEVICE", "").partition("_")
    device = os.environ.get(VARIABLE) or (name.lower() if prefix.upper() == "PJRT" else "") or TORCH_XLA_DEFAULT
    try:
        options = json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}")
    except ValueError as error:
        raise InvalidArgumentError(f"{OPTIONS_VARIABLE} is not written in JSON: {error}") from error
    if not isinstance(options, dict):
        raise InvalidArgumentError(f"{OPTIONS_VARIABLE} must be a table, found {options!r}")
    return device, options


def _entry_point() -> Any:
    """Return the plugin of the entry point ``PJRT``: the device that the environment names.

    Register it under the value of ``PJRT_DEVICE`` too: a process that called ``register`` set it for those it started.
    """
    plugin = _plugin_class()()
    name = os.environ.get("PJRT_DEVICE", "")
    if name == plugin.name or name.upper().startswith("PJRT_"):
        _plugins().register_plugin(name, plugin)
    return plugin


if not TYPE_CHECKING:  # a type checker would accept any name here

    def __getattr__(name: str) -> Any:
        """Return ``DevicePlugin``, which the entry point ``torch_xla.plugins`` names, made at its first use."""
        if name == "DevicePlugin":
            return _entry_point
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _plugins() -> Any:
    try:
        from torch_xla.experimental import plugins
    except ImportError as error:
        raise NotFoundError(
            "PyTorch/XLA is not installed: pip install torch==2.9.0 torch_xla==2.9.0 (several GB)"
        ) from error
    return plugins
