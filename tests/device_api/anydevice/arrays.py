"""Host arrays that devices can use in place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def aligned(shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return zeros (f32) whose memory begins at a multiple of 64 bytes, so that a device may use it in place."""
    size = math.prod(shape) * 4
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.float32).reshape(shape)
