"""PyTorch on devices of this package, through torchax and JAX: ``device = register("reference")``."""

from __future__ import annotations

import os
from typing import Any

from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError
from pjrt.frameworks import jax as jax_framework
from pjrt.native.exported import ExportedPlugin
from pjrt.stablehlo.files import torch_export

_PURPOSE = "run PyTorch on a device of JAX"


def register(
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
