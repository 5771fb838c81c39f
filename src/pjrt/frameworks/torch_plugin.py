"""Entry points for PyTorch: the device of ``PJRT_TORCH``, and the backend ``pjrt`` of ``torch.compile``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def load() -> None:
    """Register the device; PyTorch calls it at the end of its import.

    Raises:
        PjrtError: the device cannot be used. Then PyTorch cannot be imported, and no program runs elsewhere unnoticed.
    """
    is_worker = "pjrt.native.worker" in sys.modules  # of a device that uses PyTorch itself
    if not is_worker and (device := os.environ.get("PJRT_TORCH", "").strip()):
        from pjrt.frameworks import torch

        torch.register(device)


def backend(module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any) -> Any:
    """Compile a graph of Dynamo's for a device: the target of the entry point ``torch_dynamo_backends``.

    Args:
        module: the graph.
        inputs: examples of its arguments.
        options: of ``torch.compile(…, options=…)``: ``device``, the name of a device as in ``pjrt plugins``, or a
            client; ``cpu_fallback``, whether operations that cannot be lowered run on the CPU; ``cache``, a folder for
            compiled programs, or False for none. The other ones are the client's options.

    Raises:
        FailedPreconditionError: torchax or JAX is not installed.
        NotFoundError: there is no such device.
        UnimplementedError: an operation cannot be lowered, and must not run on the CPU.
    """
    from pjrt.frameworks import _torch_compile  # it needs PyTorch, whose import calls `load`

    return _torch_compile.compile_graph(module, inputs, options)
