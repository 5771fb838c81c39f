"""PyTorch on devices of this package and of vendors: ``device = register("reference")``, then ``model.to(device)``.

``register`` uses TorchTPU, PyTorch's own backend over PJRT plugins. ``register_torchax`` uses torchax and JAX.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Mapping
from typing import Any

from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.capi.environment import library_table, library_with_layers
from pjrt.frameworks import _torch_fallback, _torch_tpu
from pjrt.frameworks import jax as jax_framework
from pjrt.frameworks._served import TORCH, Served
from pjrt.native.exported import ExportedPlugin, check_no_options, export
from pjrt.native.library import heed_interrupts, is_library
from pjrt.plugins import registry
from pjrt.plugins.env_vars import option_text
from pjrt.stablehlo.files import torch_export

VARIABLE = "PJRT_TORCH"
"""The environment variable that names the device; ``register`` sets it for the processes that this one starts."""

FALLBACK_VARIABLE = "PJRT_TORCH_FALLBACK"
"""Whether the CPU runs operators that TorchTPU lacks: ``on`` (the default), ``off``, or ``count``, to print a count."""

_alive: list[ExportedPlugin] = []  # what PyTorch uses until the process ends
_PURPOSE = "run PyTorch on a device of JAX"


def register(
    device: str | os.PathLike[str] | Client | ExportedPlugin,
    *,
    wrap: bool | None = None,
    cpu_fallback: bool | None = None,
    **options: Any,
) -> Any:
    """Make a device PyTorch's own device ``tpu``, through TorchTPU: with autograd, optimizers and ``torch.compile``.

    Call it before or after ``import torch``. PyTorch has one such device in a process. A device in Python that is
    named, or in a file, runs in a process of its own. A client and an exported plugin run in this one, where
    ``torch.compile`` cannot use them. TorchTPU loads a vendor's library itself, if it needs no options. The name
    ``tpu`` leaves the TPU of this machine as it is.

    Args:
        device: one of ``pjrt.plugins.names()``, ``FILE.py:ATTRIBUTE``, the path of a plugin's library, a client, or a
            plugin from ``pjrt.export``. PyTorch does not close a client: keep it open as long as PyTorch uses it.
        wrap: whether a library runs in a process of its own, through this package; by default only with options,
            because TorchTPU passes none.
        cpu_fallback: whether operators that TorchTPU lacks run on the CPU, each with a warning at its first use. By
            default they do, unless ``PJRT_TORCH_FALLBACK`` is ``off``.
        options: the client's options, such as ``num_devices``.

    Returns:
        The device as PyTorch has it, for ``model.to(device)``: ``torch.device("tpu")``.

    Raises:
        FailedPreconditionError: TorchTPU is not installed or of a version that was not tested, PyTorch has another
            device already, or the plugin cannot be used.
        NotFoundError: there is no such device.
        UnimplementedError: the system is not Linux.
    """
    if not _torch_tpu.is_installed():
        return _without_torch_tpu(device, wrap, options)
    fallback = _fallback_setting(cpu_fallback)
    if isinstance(device, Client | ExportedPlugin):
        _start_here(device, options)
    else:
        _start_named(Served(device, TORCH, options, wrap=wrap))
    import torch

    if fallback != "off":
        _torch_fallback.install(_torch_tpu.DEVICE, at_end=fallback == "count")
    return torch.device(_torch_tpu.DEVICE)


def fallback_counts() -> Mapping[str, int]:
    """Return how often each operator that TorchTPU lacks has run on the CPU in this process, the commonest first."""
    return dict(_torch_fallback.counts.most_common())


def register_torchax(
    device: str | os.PathLike[str] | Client | ExportedPlugin, *, wrap: bool | None = None, **options: Any
) -> Any:
    """Make a device PyTorch's device ``jax``, and have torchax run the operations on its tensors.

    The device becomes JAX's default device. It is registered with JAX if it is not yet; that has to happen before JAX
    is first used.

    Args:
        device: one of ``pjrt.plugins.names()``, the path of a plugin's library, a client, or a plugin from
            ``pjrt.export``, as in ``pjrt.frameworks.jax.register``.
        wrap: whether JAX gets a library through this package.
        options: the client's options, such as ``num_devices``.

    Returns:
        The device as PyTorch has it, for ``model.to(device)``: ``torch.device("jax")``.

    Raises:
        FailedPreconditionError: PyTorch, JAX or torchax is not installed; JAX has made its backends already, without
            the device; or the plugin cannot be used.
        NotFoundError: there is no such device.
    """
    package = torch_export.load_torchax(_PURPOSE)
    import jax
    import torch

    platform = jax_framework.platform_of(device) or jax_framework.register(device, wrap=wrap, **options)
    try:
        default = jax.devices(platform)[0]
    except RuntimeError as error:
        raise FailedPreconditionError(f"JAX has no device of the platform {platform!r}: {error}") from error
    jax.config.update("jax_default_device", default)
    package.enable_globally()
    return torch.device("jax")


def _without_torch_tpu(device: Any, wrap: bool | None, options: dict[str, Any]) -> Any:
    """Do what ``register`` did before it knew TorchTPU, where torchax is installed."""
    if importlib.util.find_spec("torchax") is None:
        raise FailedPreconditionError(
            "TorchTPU is needed for a device of PyTorch's own, and it is not installed: pip install torch-tpu (for "
            "Python 3.13 and later); or pip install torchax, and call pjrt.frameworks.torch.register_torchax"
        )
    warnings.warn(
        "TorchTPU is not installed, so register uses torchax; call register_torchax for it, or pip install torch-tpu",
        DeprecationWarning,
        stacklevel=3,
    )
    return register_torchax(device, wrap=wrap, **options)


def _start_named(served: Served) -> None:
    """Have TorchTPU use a device in a process of its own, or a vendor's library as it is."""
    declaration = served.declaration
    if served.device == _torch_tpu.DEVICE and not served.options and not served.is_wrapped:
        _torch_tpu.start_tpu()
        return
    if declaration.library is None and not served.can_be_worker:
        _start_registered(served)
        return
    needs_options = declaration.library is not None and (served.options or registry.default_options(declaration))
    if served.is_wrapped or needs_options:
        library = registry.worker_library(served.device, options=served.options)
    else:
        served.own_options()  # the devices belong to PyTorch from now on
        library = served.library()
    options = ",".join(option_text(*each) for each in served.options.items())
    name = f"{served.device}:{options}" if options else served.device
    _torch_tpu.start(name, library_with_layers(library), library_table(library))
    if is_library(library):
        heed_interrupts(library)
    os.environ[VARIABLE] = name


def _start_registered(served: Served) -> None:
    """Have TorchTPU use a device that was registered with an object of this process, in this process."""

    def make(**options: Any) -> Client:
        return registry.client_of(served.declaration, **{**options, **served.options})

    _start_exported(export(make, name=served.name), served.device)


def _start_here(device: Client | ExportedPlugin, options: Mapping[str, Any]) -> None:
    if isinstance(device, Client):
        check_no_options(device, options)
        _start_exported(export(device, name=device.platform_name), device.platform_name)
        return
    if options:
        raise InvalidArgumentError(
            f"TorchTPU passes no options to the clients of {device!r}, found {', '.join(options)}; give them in the "
            "function that makes its clients"
        )
    _start_exported(device, device.name)


def _start_exported(exported: ExportedPlugin, name: str) -> None:
    placeholder = registry.worker_library("reference")  # for TorchTPU to load, and never started
    _torch_tpu.start(name, placeholder, exported.address, in_process=True)
    os.environ.pop(VARIABLE, None)  # no other process has it
    _alive.append(exported)


def _fallback_setting(cpu_fallback: bool | None) -> str:
    """Return ``on``, ``off`` or ``count``."""
    setting = os.environ.get(FALLBACK_VARIABLE, "") or "on"
    if setting not in ("on", "off", "count"):
        raise InvalidArgumentError(f"{FALLBACK_VARIABLE}: expected on, off or count, found {setting!r}")
    if cpu_fallback is None:
        return setting
    if not cpu_fallback:
        return "off"
    return "on" if setting == "off" else setting
