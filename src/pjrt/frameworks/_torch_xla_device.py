"""PyTorch/XLA's interface of a device, ``DevicePlugin``, method by method, without importing PyTorch/XLA."""

from __future__ import annotations

import atexit
import functools
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.capi.export import ExportedPlugin, export, write_library
from pjrt.capi.layer.environment import library_with_layers
from pjrt.capi.library_files import check_loadable
from pjrt.frameworks._served import TORCH_XLA, Served, in_framework_types
from pjrt.plugins import registry, visible_devices

_exported: dict[str, ExportedPlugin] = {}
"""The devices that libraries of this process run, by their names among the attributes of this module."""


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

    @property
    def runs_in_python(self) -> bool:
        """Whether PyTorch/XLA gets the device through this package, whose threads need the GIL to finish their work."""
        return self._served.is_wrapped

    def library_path(self) -> str:
        """Return the path of the library to load: the vendor's, or one of ours that runs the device in this process."""
        if not self.runs_in_python:
            return str(library_with_layers(self._served.library()))
        return str(_library(self._served.device, self._served.name))

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


def __getattr__(name: str) -> ExportedPlugin:
    """Return what a library of this process looks up when it is loaded."""
    try:
        return _exported[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


@functools.cache
def _library(device: str, name: str) -> Path:
    """Return the library by which PyTorch/XLA makes clients of a device, with the client's own options."""
    attribute = f"device_{len(_exported)}"
    # PyTorch/XLA's launcher reads only platform names of letters.
    platform_name = None if re.fullmatch("[A-Za-z]+", name) else "pjrt"
    make = functools.partial(registry.client, device)
    _exported[attribute] = export(make, name="pjrt", platform_name=platform_name)
    folder = tempfile.mkdtemp(prefix="pjrt-torch-xla-")
    atexit.register(_remove, folder)
    check_loadable(folder)
    (file_name, *_) = system.library_file_names("libpjrt_python")
    return write_library(Path(folder) / file_name, f"{__name__}:{attribute}", "pjrt")


def _remove(folder: str) -> None:
    for file in Path(folder).iterdir():
        file.unlink()
    Path(folder).rmdir()
