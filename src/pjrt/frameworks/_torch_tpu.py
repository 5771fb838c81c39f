"""TorchTPU with another plugin than a TPU's: all that this package replaces in it, and the versions that were tested.

TorchTPU (the package ``torch-tpu``) is PyTorch's backend over a PJRT plugin. When it is imported, which
``import torch`` does, it loads the library at ``TPU_LIBRARY_PATH``. It makes its client when the device is first used.
Nothing of it is changed on disk. In memory this module replaces

- the function by which it counts the TPUs of the machine: it leaves the device out where there is none,
- the table of a TPU's library that it has loaded already, where the machine has no TPU,
- the function that makes its process groups: several processes need the links of a TPU's slice,
- its compiler, for a device whose Python runs in this process: it would wait for that Python forever.

It also switches PyTorch's flash attention off, because TorchTPU's is a kernel for TPUs alone, and has ``model.to`` keep
parameters that modules share: otherwise PyTorch makes new ones for a device of another kind.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pjrt.api.errors import FailedPreconditionError
from pjrt.capi.environment import replace_table

TESTED = ("0.2.0",)
"""The versions of TorchTPU that this module was tested with."""

DEVICE = "tpu"
"""PyTorch's name for TorchTPU's device."""

_LIBRARY = "TPU_LIBRARY_PATH"

_lock = threading.Lock()
_started: list[str] = []  # what the device was started with


def is_installed() -> bool:
    """Whether TorchTPU is installed."""
    return importlib.util.find_spec("torch_tpu") is not None


def check_version() -> None:
    """Raise ``FailedPreconditionError`` if this version of TorchTPU was not tested."""
    found = importlib.metadata.version("torch_tpu")
    if found not in TESTED:
        raise FailedPreconditionError(
            f"expected torch-tpu of a version that was tested, {' or '.join(TESTED)}, found {found}; "
            f"pip install torch-tpu=={TESTED[-1]}"
        )


def start(what: str, library: Path, table: int, *, in_process: bool = False) -> None:
    """Give PyTorch its device ``tpu``, of a plugin.

    Args:
        what: names the plugin and its options: PyTorch has one of them in a process.
        library: a library for TorchTPU to load, if it is not imported yet.
        table: the address of the plugin's table.
        in_process: whether the plugin is not that of the library, but of Python in this process.

    Raises:
        FailedPreconditionError: TorchTPU has another device already, or cannot be imported.
    """
    check_version()
    with _lock:
        if _started == [what]:
            return
        if _started:
            raise FailedPreconditionError(
                f"PyTorch has the device {_started[0]!r} already, and TorchTPU one device in a process; use another "
                f"process for {what!r}"
            )
        was_loaded = "torch_tpu" in sys.modules and bool(os.environ.get(_LIBRARY))
        if not was_loaded:
            os.environ[_LIBRARY] = str(library)
        loader, hardware = _modules()
        if was_loaded and (loader._LOADED or hardware.get_tpu_device_count()):
            raise FailedPreconditionError(
                f"PyTorch has a TPU already; to use {what!r} in its place, register it before torch is imported"
            )
        if was_loaded or in_process:
            replace_table(os.environ[_LIBRARY], table)
            os.environ[_LIBRARY] = str(library)  # for the processes that this one starts
        hardware.get_tpu_device_count = lambda: 1
        _refuse_groups(loader.tpu_distributed, what)
        loader.load()
        if in_process:
            _refuse_to_compile(what)
        import torch
        import torch.compiler.config as compiler_config

        import pjrt

        torch.backends.cuda.enable_flash_sdp(False)
        torch.__future__.set_swap_module_params_on_conversion(True)
        # What was compiled for one device lies on disk, and is none for another.
        compiler_config.cache_key_tag += f" pjrt {pjrt.__version__} {what}"
        _started.append(what)


def start_tpu() -> None:
    """Leave TorchTPU to the TPU of this machine and to its own library.

    Raises:
        FailedPreconditionError: there is no TPU, or PyTorch has another device.
    """
    if _started:
        raise FailedPreconditionError(
            f"PyTorch has the device {_started[0]!r} already; use another process for the TPU"
        )
    loader, hardware = _modules()
    if not hardware.get_tpu_device_count():
        raise FailedPreconditionError("there is no TPU in this machine: TorchTPU finds none on its PCI bus")
    loader.load()


def _modules() -> tuple[Any, Any]:
    """Return TorchTPU's loader, and its module that counts TPUs; import them, and PyTorch, if that was not done."""
    try:
        return (
            importlib.import_module("torch_tpu._loader"),
            importlib.import_module("torch_tpu._internal.utils.hardware"),
        )
    except (ImportError, OSError, RuntimeError) as error:
        raise FailedPreconditionError(f"TorchTPU is installed, and cannot be imported: {error}") from error


def _refuse_groups(module: Any, what: str) -> None:
    """Have ``torch.distributed`` raise an error for several processes; TorchTPU would ask for variables of a TPU."""
    make = module.create_process_group

    def make_alone(store: Any, rank: int, size: int, *arguments: Any) -> Any:
        if size > 1:
            raise FailedPreconditionError(
                f"expected one process, found a group of {size}: processes compute together on a TPU's slice only, and "
                f"not on {what!r}; use the backend gloo, with tensors on the CPU"
            )
        return make(store, rank, size, *arguments)

    module.create_process_group = make_alone


def _refuse_to_compile(what: str) -> None:
    """Have ``torch.compile`` raise an error: TorchTPU compiles with the interpreter's lock held."""
    from torch_tpu._internal.compile import _backend

    def refuse(*_: Any, **__: Any) -> Any:
        raise FailedPreconditionError(
            f"torch.compile cannot use the device {what!r}: its Python runs in this process, for which TorchTPU's "
            "compiler would wait forever; register a name, a file or a library, which runs in a process of its own"
        )

    _backend.TpuBackend.__call__ = refuse
