"""Functions of real numbers that numpy lacks, or defines otherwise than StableHLO, on f32 and f64 arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def sign(x: Array) -> Array:
    """Return -1 or 1, or the argument itself where it is a zero or NaN."""
    return np.where(np.equal(x, 0) | np.isnan(x), x, np.copysign(np.ones((), x.dtype), x))


def round_away_from_zero(x: Array) -> Array:
    """Return the nearest integer; halves go away from zero."""
    whole = np.trunc(x)
    up = np.greater_equal(np.abs(np.subtract(x, whole)), x.dtype.type(0.5))
    return np.copysign(np.add(np.abs(whole), up, dtype=x.dtype), x)


def logistic(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``."""
    one = x.dtype.type(1)
    return np.divide(one, np.add(one, np.exp(np.negative(x))))


def rsqrt(x: Array) -> Array:
    """Return ``1 / sqrt(x)``."""
    return np.divide(x.dtype.type(1), np.sqrt(x))
