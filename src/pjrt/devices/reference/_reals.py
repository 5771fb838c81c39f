"""Functions of real and complex numbers that numpy lacks, or defines otherwise than StableHLO, on f32, f64 and complex
arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def sign(x: Array) -> Array:
    """-1, 1, or the argument itself where it is a zero or NaN; ``x / |x|`` for complex numbers, which is what numpy 2
    does too.
    """
    if x.dtype.kind != "c":
        return np.where(np.equal(x, 0) | np.isnan(x), x, np.copysign(np.ones((), x.dtype), x))
    size = np.abs(x)
    nan = np.full((), complex(np.nan, np.nan), x.dtype)
    unit = x / np.where(size == 0, np.ones((), size.dtype), size)
    return np.where(np.isnan(x.real) | np.isnan(x.imag), nan, np.where(size == 0, np.zeros((), x.dtype), unit))


def round_away_from_zero(x: Array) -> Array:
    """The nearest integer; halves go away from zero."""
    whole = np.trunc(x)
    up = np.greater_equal(np.abs(np.subtract(x, whole)), x.dtype.type(0.5))
    return np.copysign(np.add(np.abs(whole), up, dtype=x.dtype), x)


def logistic(x: Array) -> Array:
    """``1 / (1 + exp(-x))``."""
    one = x.dtype.type(1)
    return np.divide(one, np.add(one, np.exp(np.negative(x))))


def rsqrt(x: Array) -> Array:
    """``1 / sqrt(x)``."""
    return np.divide(x.dtype.type(1), np.sqrt(x))


def cbrt(x: Array) -> Array:
    """The real cube root; the principal one of a complex number."""
    if x.dtype.kind != "c":
        return np.cbrt(x)
    root = np.cbrt(np.abs(x)) * np.exp(1j * np.angle(x) / 3).astype(x.dtype)
    return root.astype(x.dtype)


def complex_tan(x: Array) -> Array:
    """The tangent of a complex number by way of tanh, which numpy computes without overflow."""
    turned = np.tanh(_times_i(x))
    return _times_i(turned, -1)


def _times_i(x: Array, by: int = 1) -> Array:
    out = np.empty_like(x)
    out.real, out.imag = -by * x.imag, by * x.real
    return out


def logistic_complex(x: Array) -> Array:
    """``1 / (1 + exp(-x))`` of a complex number, without overflow on the left half plane."""
    left = x.real < 0
    small = np.exp(np.where(left, x, -x))
    return np.where(left, small / (1 + small), 1 / (1 + small)).astype(x.dtype)


def complex_atan2(y: Array, x: Array) -> Array:
    """The continuation of atan2 to complex numbers: ``-i log((x + i y) / sqrt(x**2 + y**2))``."""
    return _times_i(np.log(np.divide(np.add(x, _times_i(y)), np.sqrt(np.add(x * x, y * y)))), -1)


def complex_remainder(x: Array, y: Array) -> Array:
    """``x - y * q`` with the quotient cut to whole parts."""
    quotient = np.divide(x, y)
    quotient = np.trunc(quotient.real) + 1j * np.trunc(quotient.imag)
    return np.subtract(x, y * quotient).astype(x.dtype)
