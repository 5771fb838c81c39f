"""The target of the entry point ``torch.backends``: at ``import torch`` PyTorch gets the device of ``PJRT_TORCH``."""

from __future__ import annotations

import os
import sys


def load() -> None:
    """Register the device; PyTorch calls it at the end of its import.

    Raises:
        PjrtError: the device cannot be used. Then PyTorch cannot be imported, and no program runs elsewhere unnoticed.
    """
    is_worker = "pjrt.native.worker" in sys.modules  # of a device that uses PyTorch itself
    if not is_worker and (device := os.environ.get("PJRT_TORCH", "").strip()):
        from pjrt.frameworks import torch

        torch.register(device)
