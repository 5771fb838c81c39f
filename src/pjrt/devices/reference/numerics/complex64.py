"""Functions of complex64, computed from their parts in f64 and rounded once.

numpy's functions of complex numbers call the C library for each element. Its functions of f64 run on vectors, and f64
is wide enough for simple formulas: squares and products of two f32 are exact in it and stay within its range. A formula
declares the elements that it is good for. The careful functions of ``complex_numbers`` and numpy compute the others,
such as infinities, NaN and the zeros that a formula would divide by.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.devices.reference.numerics import complex_numbers

Array = Any
Parts = tuple[Array, Array]

_CHUNK = 1 << 13
"""Elements for which a formula runs at a time: its arrays stay in the cache, and take no memory to speak of."""

_LARGEST_ANGLE = float(1 << 17)
"""Up to here no f32 but zero is within 1e-9 of a zero of the sine or cosine, so that half angles lose no digit."""

_LARGEST_EXPONENT = 300.0
"""From here on exponentials leave the range of f32, whatever sine or cosine multiplies them, but not that of f64."""


def _by_parts(careful: Callable[..., Array]) -> Callable[[Callable[..., Any]], Callable[..., Array]]:
    """Return the decorator of a formula, which makes it a function of complex64.

    The formula takes real and imaginary part of each operand, in f64. It returns both parts of the result, and where
    they are good: ``careful`` computes the other elements.
    """

    def decorate(formula: Callable[..., tuple[Array, Array, Array]]) -> Callable[..., Array]:
        @functools.wraps(formula)
        def run(*operands: Array) -> Array:
            whole = np.broadcast_arrays(*operands)
            out = np.empty(whole[0].shape, np.complex64)
            flat, target = [np.ascontiguousarray(x).reshape(-1) for x in whole], out.reshape(-1)
            for start in range(0, out.size, _CHUNK):
                chunk = [x[start : start + _CHUNK] for x in flat]
                parts = [part.astype(np.float64) for x in chunk for part in (x.real, x.imag)]
                result = target[start : start + _CHUNK]
                result.real, result.imag, good = formula(*parts)
                if not good.all():
                    others = np.logical_not(good)
                    result[others] = careful(*(x[others] for x in chunk))
            return out

        return run

    return decorate


@_by_parts(np.exp)
def exponential(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return ``exp(z)``."""
    sine, cosine, good = _sine_and_cosine(y)
    size = np.exp(_bounded(x))
    return size * cosine, size * sine, good & np.isfinite(x)


@_by_parts(complex_numbers.expm1)
def expm1(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return ``exp(z) - 1``."""
    tangent = np.tan(0.5 * y)
    square = tangent * tangent
    scale = 1 / (1 + square)
    bounded = _bounded(x)
    size = np.expm1(bounded)
    # exp(x) cos(y) - 1, of which the two terms nearly cancel on a curve through zero.
    first, second = size * (1 - square) * scale, 2 * square * scale
    real = first - second
    good = np.isfinite(x) & (np.abs(y) < _LARGEST_ANGLE) & ~_cancel(real, second)
    return real, np.exp(bounded) * (2 * tangent * scale), good


@_by_parts(np.log)
def log(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the principal logarithm."""
    return _log_of_size(x, y), np.arctan2(y, x), np.isfinite(x) & np.isfinite(y)


@_by_parts(complex_numbers.log1p)
def log1p(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return ``log(1 + z)``."""
    shifted, square = 1 + x, y * y
    # |1 + z|² - 1, of which the terms nearly cancel on a circle through zero.
    beyond_one = x * (2 + x) + square
    near_pole = beyond_one < -0.5
    size = np.where(near_pole, np.log(shifted * shifted + square), np.log1p(beyond_one))
    good = np.isfinite(x) & np.isfinite(y) & ~_cancel(beyond_one, square)
    return 0.5 * size, np.arctan2(y, shifted), good


@_by_parts(np.sqrt)
def sqrt(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the principal square root."""
    return *_square_root(x, y), np.isfinite(x) & np.isfinite(y)


@_by_parts(complex_numbers.rsqrt)
def rsqrt(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return ``1 / sqrt(z)``."""
    real, imaginary = _square_root(x, y)
    size = np.sqrt(x * x + y * y)
    return real / size, -imaginary / size, (size > 0) & (size < np.inf)


@_by_parts(complex_numbers.sign)
def sign(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return ``z / |z|``."""
    size = np.sqrt(x * x + y * y)
    return x / size, y / size, (size > 0) & (size < np.inf)


@_by_parts(complex_numbers.logistic)
def logistic(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return ``1 / (1 + exp(-z))``."""
    bounded, tangent = _bounded(x), np.tan(0.5 * y)
    # (exp(x) + exp(iy)) / (2 cosh(x) + 2 cos(y)), without the terms that cancel near the poles.
    size, square, half = np.expm1(bounded), 1 + tangent * tangent, np.sinh(0.5 * bounded)
    above, below = size * square + 2, 4 * (half * half * square + 1)
    good = np.isfinite(x) & (np.abs(y) < _LARGEST_ANGLE) & ~_cancel(above, 2)
    return above / below, 2 * tangent / below, good


@_by_parts(np.tanh)
def tanh(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the hyperbolic tangent."""
    return _hyperbolic_tangent(x, y)


@_by_parts(complex_numbers.tan)
def tan(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the tangent: ``-i tanh(iz)``."""
    real, imaginary, good = _hyperbolic_tangent(-y, x)
    return imaginary, -real, good


@_by_parts(np.cos)
def cosine(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the cosine."""
    sine, cosine_, good = _sine_and_cosine(x)
    hyperbolic = np.sinh(_bounded(y))
    return cosine_ * np.sqrt(1 + hyperbolic * hyperbolic), -sine * hyperbolic, good & np.isfinite(y)


@_by_parts(np.sin)
def sine(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the sine."""
    sine_, cosine_, good = _sine_and_cosine(x)
    hyperbolic = np.sinh(_bounded(y))
    return sine_ * np.sqrt(1 + hyperbolic * hyperbolic), cosine_ * hyperbolic, good & np.isfinite(y)


@_by_parts(complex_numbers.divide)
def divide(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array]:
    """Return the quotient."""
    size = c * c + d * d
    good = (size > 0) & (size < np.inf) & np.isfinite(a) & np.isfinite(b)
    return (a * c + b * d) / size, (b * c - a * d) / size, good


@_by_parts(complex_numbers.power)
def power(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array]:
    """Return ``z`` to the power ``w``: ``exp(w log(z))``."""
    size, angle = _log_of_size(a, b), np.arctan2(b, a)
    exponent, turn = c * size - d * angle, c * angle + d * size
    sine, cosine, good = _sine_and_cosine(turn)
    result = np.exp(_bounded(exponent))
    # Whole powers are products, and exact where these are.
    whole = (d == 0) & (c == np.rint(c))
    good &= np.isfinite(exponent) & ~whole
    return result * cosine, result * sine, good


@_by_parts(complex_numbers.atan2)
def atan2(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array]:
    """Return the continuation of atan2: ``-i log((x + i y) / sqrt(x**2 + y**2))``, with ``y`` before ``x``."""
    real, imaginary = _square_root((a - b) * (a + b) + (c - d) * (c + d), 2 * (a * b + c * d))
    above, beside = c - b, d + a
    size = real * real + imaginary * imaginary
    real, imaginary = (above * real + beside * imaginary) / size, (beside * real - above * imaginary) / size
    good = (size > 0) & (size < np.inf) & ((above != 0) | (beside != 0))
    return np.arctan2(imaginary, real), -_log_of_size(real, imaginary), good


def _sine_and_cosine(angle: Array) -> tuple[Array, Array, Array]:
    """Return both functions of an angle, and whether they are good: by the tangent of its half, which is the one that
    numpy computes on vectors of f64.
    """
    tangent = np.tan(0.5 * angle)
    square = tangent * tangent
    scale = 1 / (1 + square)
    return 2 * tangent * scale, (1 - square) * scale, np.abs(angle) < _LARGEST_ANGLE


def _hyperbolic_tangent(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the parts of the hyperbolic tangent, and whether they are good (W. Kahan's formula)."""
    tangent, sine = np.tan(y), np.sinh(_bounded(x))
    square = 1 + tangent * tangent
    spread = sine * square
    below = sine * spread + 1
    return spread * np.sqrt(1 + sine * sine) / below, tangent / below, np.isfinite(x) & (np.abs(y) < _LARGEST_ANGLE)


def _square_root(x: Array, y: Array) -> Parts:
    """Return the parts of the principal square root of a finite number."""
    larger = np.sqrt(0.5 * (np.abs(x) + np.sqrt(x * x + y * y)))
    smaller = np.abs(y) / (2 * np.maximum(larger, np.finfo(np.float64).tiny))  # 0 for a zero
    right = x >= 0
    return np.where(right, larger, smaller), np.copysign(np.where(right, smaller, larger), y)


def _log_of_size(x: Array, y: Array) -> Array:
    """Return ``log(|z|)``, without cancellation near the unit circle."""
    x, y = np.abs(x), np.abs(y)
    larger, square = np.maximum(x, y), np.square(np.minimum(x, y))
    beyond_one = (larger - 1) * (larger + 1) + square
    far = beyond_one < -0.5
    return 0.5 * np.where(far, np.log(larger * larger + square), np.log1p(beyond_one))


def _bounded(x: Array) -> Array:
    """Return numbers whose exponentials leave the range of f32 where those of ``x`` do, but never that of f64."""
    return np.clip(x, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)


def _cancel(difference: Array, term: Any) -> Array:
    """Whether so many digits of a term cancel that f64 has too few left for f32."""
    return np.abs(difference) < 2.0**-20 * term
