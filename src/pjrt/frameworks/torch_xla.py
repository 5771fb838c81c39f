"""PyTorch/XLA on devices of this package and of vendors: ``pjrt.frameworks.torch_xla.register("reference")``, then
``torch_xla.device()``.

PyTorch/XLA loads plugins by path only. A vendor's library is loaded as it is; a device in Python is written as a shared
library first, and in the process that loads it it is the same Python.
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

VARIABLE = "PJRT_TORCH_XLA_DEVICE"
"""The environment variable with the device of the entry point ``PJRT``."""

OPTIONS_VARIABLE = "PJRT_TORCH_XLA_OPTIONS"
"""The environment variable with the options of its clients, as a table in JSON; ``register`` sets it for processes that
this one starts.
"""

_FALLBACK = "reference"


def register(device: str | os.PathLike[str], *, wrap: bool | None = None, **options: Any) -> str:
    """Makes a device PyTorch/XLA's device in this process and in those that it starts.

    Call it before PyTorch/XLA makes its first tensor.

    Args:
        device: one of ``pjrt.plugins.names()``, or the path of a plugin's library.
        wrap: whether PyTorch/XLA is to get a library through this package; it loads it as it is if not said.
        options: the client's options, such as ``num_devices``.

    Returns:
        The name that PyTorch/XLA knows it by, which is also what ``PJRT_DEVICE`` is set to.

    Raises:
        NotFoundError: PyTorch/XLA is not installed, or there is no such device.
        FailedPreconditionError: the plugin cannot be used.
    """
    plugins = _plugins()
    plugin = device_plugin(device, wrap=wrap, **options)
    name: str = plugin.name
    plugin.library_path()  # what is wrong with the plugin is said here
    plugins.use_dynamic_plugins()
    # Its launchers look a device up by what stands before the first _ in PJRT_DEVICE.
    for known_as in dict.fromkeys((name.partition("_")[0], name)):
        plugins.register_plugin(known_as, plugin)
    os.environ |= {"PJRT_DEVICE": name, VARIABLE: os.fspath(device), OPTIONS_VARIABLE: json.dumps(options)}
    return name


def device_plugin(device: str | os.PathLike[str], *, wrap: bool | None = None, **options: Any) -> Any:
    """A ``torch_xla.experimental.plugins.DevicePlugin`` for a device: all of that interface, from its declaration.

    Args:
        device: one of ``pjrt.plugins.names()``, such as ``cuda``; or the path of a plugin's library.
        wrap: whether PyTorch/XLA is to get a library through this package.
        options: the client's options.
    """
    return _plugin_class()(device, options, wrap=wrap)


@functools.cache
def _plugin_class() -> Any:
    """The class, made when PyTorch/XLA, whose class it derives from, is imported."""
    base = _plugins().DevicePlugin

    class DevicePlugin(TorchXlaDevice, base):  # type: ignore[misc, valid-type]
        """A device; which one, the environment says if nobody else does."""

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
    """The device that the environment names by ``PJRT_TORCH_XLA_DEVICE`` or ``PJRT_DEVICE=PJRT_NAME``; its options."""
    prefix, _, named = os.environ.get("PJRT_DEVICE", "").partition("_")
    device = os.environ.get(VARIABLE) or (named.lower() if prefix.upper() == "PJRT" else "") or _FALLBACK
    try:
        options = json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}")
    except ValueError as error:
        raise InvalidArgumentError(f"{OPTIONS_VARIABLE} is not written in JSON: {error}") from error
    if not isinstance(options, dict):
        raise InvalidArgumentError(f"{OPTIONS_VARIABLE} must be a table, found {options!r}")
    return device, options


def _entry_point() -> Any:
    """What the entry point ``PJRT`` gives: the device that the environment names, also by the name in ``PJRT_DEVICE``,
    as in a process that was started by one that has registered it.
    """
    plugin = _plugin_class()()
    named = os.environ.get("PJRT_DEVICE", "")
    if named == plugin.name or named.upper().startswith("PJRT_"):
        _plugins().register_plugin(named, plugin)
    return plugin


if not TYPE_CHECKING:  # a type checker would take any name for granted here

    def __getattr__(name: str) -> Any:
        """``DevicePlugin``, which the entry point ``torch_xla.plugins`` names."""
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
    """Have PyTorch and PyTorch/XLA let go of the GIL while they wait, or a device in Python would never get to finish.

    They wait with it wherever a number is read from a tensor while arguments are converted, as for ``x[i]``, when a
    cached graph is run and at exit; and no list of such places would stay complete.
    """
    import torch
    import torch_xla

    libraries = (Path(torch.__file__).parent / "lib").glob("*.so")
    if not release_gil_in_waits(*libraries, torch_xla._XLAC.__file__):
        warnings.warn(
            "PyTorch/XLA's libraries cannot be told to let go of the GIL while they wait: a device in Python may hang "
            "where PyTorch waits for it with the GIL, as for x[i] with an i that the device computes",
            stacklevel=2,
        )
