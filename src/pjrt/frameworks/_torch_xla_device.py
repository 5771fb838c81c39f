"""What PyTorch/XLA asks of a device, answered without PyTorch/XLA: its interface ``DevicePlugin``, method by method."""

from __future__ import annotations

import atexit
import functools
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pjrt
from pjrt import system
from pjrt.capi.export import ExportedPlugin, export, write_library
from pjrt.frameworks._served import TORCH_XLA, Served, in_framework_types
from pjrt.plugins import registry, visible_devices

PLAINLY_NAMED = "plainly_named"


class TorchXlaDevice:
    """A device of this package or of a vendor, in the words of ``torch_xla.experimental.plugins.DevicePlugin``.

    Args:
        device: one of ``pjrt.plugins.names()``, or the path of a plugin's library.
        options: the client's options, which come before those of the environment and of the plugin's declaration. Of
            several processes on a machine, each has its share of the devices that they speak of.
        wrap: whether PyTorch/XLA is to get a library through this package.
    """

    def __init__(
        self, device: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, wrap: bool | None = None
    ) -> None:
        self._served = Served(device, TORCH_XLA, options or {}, wrap=wrap)

    @property
    def name(self) -> str:
        """The name for PyTorch/XLA, which ``PJRT_DEVICE`` is set to."""
        return str(self._served.facts.get("name", "")) or f"PJRT_{self._served.name}".upper()

    @property
    def runs_in_python(self) -> bool:
        """Whether PyTorch/XLA gets the device through this package, whose threads take the GIL to finish their work."""
        return self._served.is_wrapped

    def library_path(self) -> str:
        """The path of the library to load: the vendor's own, or one of ours that runs the device in this process."""
        if not self.runs_in_python:
            return str(self._served.library())
        return str(_library("make_client" if re.fullmatch("[A-Za-z]+", self._served.name) else PLAINLY_NAMED))

    def host_index(self) -> int:
        """The number of this machine among those of the job."""
        return visible_devices.host_index(self._served.declaration)

    def configure_single_process(self) -> None:
        """Leaves one of the devices to this process, for debugging; before any client is made.

        Raises:
            FailedPreconditionError: it is too late, or the plugin cannot be told.
        """
        self._assign(0, 1, devices=(0,))

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Leaves its share of the devices to this process, one of several on this machine; before any client is made.

        Raises:
            InvalidArgumentError: there is no such process, or the devices cannot be shared equally.
            FailedPreconditionError: it is too late, or the plugin cannot be told.
        """
        self._assign(local_rank, local_world_size)

    def physical_chip_count(self) -> int:
        """How many devices this machine has, and so how many processes are started where nobody says."""
        return visible_devices.count_devices(self._served.declaration, self._options())

    def client_create_options(self) -> dict[str, Any]:
        """The options of the client that PyTorch/XLA makes now; from now on the share of the devices is settled."""
        if not self._served.is_wrapped:
            return self._served.own_options()
        share = visible_devices.start(self._served.declaration)
        return in_framework_types({"device": self._served.device, **self._served.options, **share})

    def requires_xla_coordinator(self) -> bool:
        """Whether the processes of the job must find each other before a client is made, through PyTorch/XLA's
        coordinator: what the plugin says, otherwise yes for a library that wants to know how many there are.
        """
        said = self._served.facts.get("coordinator")
        names = self._served.declaration.processes
        return bool(names and names.total) and not self._served.is_wrapped if said is None else bool(said)

    def _options(self) -> dict[str, Any]:
        return {**registry.default_options(self._served.declaration), **self._served.options}

    def _assign(self, local_rank: int, local_world_size: int, devices: tuple[int, ...] | None = None) -> None:
        declaration = self._served.declaration
        visible_devices.assign(declaration, self._options(), local_rank, local_world_size, devices=devices)


def make_client(device: str, **options: Any) -> pjrt.Client:
    """What the library calls for a client; the create options say of which device."""
    return pjrt.client(device, **options)


def __getattr__(name: str) -> ExportedPlugin:
    """The same with a platform's name of letters only: PyTorch/XLA's launcher reads no others."""
    if name != PLAINLY_NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return export(make_client, name="pjrt", platform_name="pjrt")


@functools.cache
def _library(attribute: str) -> Path:
    """The library through which PyTorch/XLA asks for clients: one for all devices, told apart by an option."""
    folder = tempfile.mkdtemp(prefix="pjrt-torch-xla-")
    atexit.register(_remove, folder)
    (name, *_) = system.library_file_names("libpjrt_python")
    return write_library(Path(folder) / name, f"{__name__}:{attribute}", "pjrt")


def _remove(folder: str) -> None:
    for file in Path(folder).iterdir():
        file.unlink()
    Path(folder).rmdir()
