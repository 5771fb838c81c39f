"""PyTorch/XLA on devices of this package: ``pjrt.frameworks.torch_xla.register("reference")``, ``torch_xla.device()``.

PyTorch/XLA loads plugins by path only, so the device is written as a shared library first; in the process that loads it
it is the same Python.
"""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pjrt
from pjrt.api.errors import NotFoundError
from pjrt.capi.export import write_library

VARIABLE = "PJRT_TORCH_XLA_DEVICE"


def register(device: str, **options: Any) -> str:
    """Makes a device of this package PyTorch/XLA's device in this process.

    Call it before PyTorch/XLA makes its first tensor.

    Args:
        device: one of ``pjrt.plugins.names()``.
        options: the client's options, such as ``num_devices``.

    Returns:
        The name that PyTorch/XLA knows it by, which is also what ``PJRT_DEVICE`` is set to.

    Raises:
        NotFoundError: PyTorch/XLA is not installed.
    """
    plugins = _plugins()
    name = f"PJRT_{device}".upper()
    plugins.use_dynamic_plugins()
    plugins.register_plugin(name, device_plugin(device, **options))
    os.environ["PJRT_DEVICE"] = name
    return name


def device_plugin(device: str, **options: Any) -> Any:
    """A ``torch_xla.experimental.plugins.DevicePlugin`` for a device of this package.

    Args:
        device: one of ``pjrt.plugins.names()``.
        options: the client's options.
    """
    return _plugin_class()(device, options)


@functools.cache
def _plugin_class() -> Any:
    """The class, made when PyTorch/XLA, whose class it derives from, is imported."""
    _let_work_finish()

    class DevicePlugin(_plugins().DevicePlugin):  # type: ignore[misc]
        """A device of pjrt; which one, the environment variable ``PJRT_TORCH_XLA_DEVICE`` says if nobody else does."""

        def __init__(self, device: str | None = None, options: Mapping[str, Any] | None = None) -> None:
            super().__init__()
            self._device = device or os.environ.get(VARIABLE, "reference")
            self._options = dict(options or {})

        def library_path(self) -> str:
            return str(_library())

        def physical_chip_count(self) -> int:
            return int(self._options.get("num_devices", 1))

        def configure_single_process(self) -> None:
            """Nothing to do: a client of ours is made in one process, with as many devices as asked for."""

        def client_create_options(self) -> dict[str, Any]:
            return {"device": self._device, **self._options}

    return DevicePlugin


def __getattr__(name: str) -> Any:
    """``DevicePlugin``, which the entry point ``torch_xla.plugins`` names."""
    if name == "DevicePlugin":
        return _plugin_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def make_client(device: str, **options: Any) -> pjrt.Client:
    """What the library calls for a client; the create options say of which device."""
    return pjrt.client(device, **options)


@functools.cache
def _library() -> Path:
    """The library through which PyTorch/XLA asks for clients: one for all devices, told apart by an option."""
    folder = tempfile.mkdtemp(prefix="pjrt-torch-xla-")
    atexit.register(_remove, folder)
    return write_library(Path(folder) / "libpjrt_python.so", f"{__name__}:make_client", "pjrt")


def _remove(folder: str) -> None:
    for file in Path(folder).iterdir():
        file.unlink()
    Path(folder).rmdir()


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
    """Has PyTorch/XLA wait for its devices without the GIL before it waits for them with it.

    It does the latter at exit and when it runs a cached graph, and a device in Python would never get to finish.
    """
    import torch_xla

    native = torch_xla._XLAC
    run_cached_graph = native._run_cached_graph

    @functools.wraps(run_cached_graph)
    def wait_and_run(*arguments: Any, **keywords: Any) -> Any:
        native._xla_wait_device_ops([])
        return run_cached_graph(*arguments, **keywords)

    native._run_cached_graph = wait_and_run
    atexit.register(native._xla_wait_device_ops, [])
