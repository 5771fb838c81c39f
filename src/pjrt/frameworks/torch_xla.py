"""PyTorch/XLA on devices of this package and of vendors.

Call ``pjrt.frameworks.torch_xla.register("reference")``, then ``torch_xla.device()``. PyTorch/XLA loads plugins by path
only. It loads a vendor's library itself. For a device in Python, this module writes a shared library that uses the
Python of the process that loads it.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.capi.export import release_gil_in_waits
from pjrt.frameworks._torch_xla_device import TorchXlaDevice
from pjrt.plugins.builtin import TORCH_XLA_DEFAULT

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

        def library_path(self) -> str:
            path = TorchXlaDevice.library_path(self)
            if self.runs_in_python:
                _let_work_finish()
            return path

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


@functools.cache
def _let_work_finish() -> None:
    """Have PyTorch and PyTorch/XLA release the GIL while they wait: a device in Python could never finish otherwise.

    They hold it wherever they read a number from a tensor to convert an argument, as for ``x[i]``, when they run a
    cached graph, and at exit; no list of such places would stay complete.
    """
    import torch
    import torch_xla

    libraries = (Path(torch.__file__).parent / "lib").glob("*.so")
    if not release_gil_in_waits(*libraries, torch_xla._XLAC.__file__):
        warnings.warn(
            "PyTorch/XLA's libraries cannot be made to release the GIL while they wait: a device in Python may hang "
            "where PyTorch waits for it with the GIL, as for x[i] with an i that the device computes",
            stacklevel=2,
        )
