"""The target of the entry point ``torch.backends``: ``import torch`` gives PyTorch the device that ``PJRT_TORCH`` names."""

from __future__ import annotations

import os

VARIABLE = "PJRT_TORCH"


def load() -> None:
    """Register the device; PyTorch calls it at the end of its import.

    Raises:
        PjrtError: the device cannot be used. Then PyTorch cannot be imported, and no program runs elsewhere unnoticed.
    """
    if device := os.environ.get(VARIABLE, "").strip():
        from pjrt.frameworks import torch

        torch.register(device)
