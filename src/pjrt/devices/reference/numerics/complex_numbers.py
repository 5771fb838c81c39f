"""Functions of complex numbers, by the rules of C99's Annex G for infinite, zero and NaN parts, and without an overflow
on the way to a finite result.

numpy's own exponential, logarithm, square root, sine, cosine and hyperbolic functions are those of the C library, which
keep these rules. The functions here are those that numpy lacks, or that break the rules. They are computed in
complex128, and complex64 is rounded once: its squares and products do not leave the range of the wider type, and are
exact there.

scipy's ``expm1`` and ``log1p`` have larger errors close to the curves where they nearly cancel, and lose signs of zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any

_LARGE = 600.0
"""From this real part on the exponential minus one equals the exponential, to the last bit."""


def _widened(function: Callable[..., Array]) -> Callable[..., Array]:
    """Let a function on complex128 take complex64 too."""

    @functools.wraps(function)
    def run(*values: Array) -> Array:
        dtype = values[0].dtype
        return function(*(np.asarray(value, np.complex128) for value in values)).astype(dtype, copy=False)

    return run


def multiply(x: Array, y: Array) -> Array:
    """Return the product; infinite where one factor is infinite and the other is not zero."""
    product = np.multiply(x, y)
    fine = np.isfinite(product)
    return product if fine.all() else np.where(fine, product, _careful_product(x, y))


@_widened
def _careful_product(x: Array, y: Array) -> Array:
    of_x, of_y = _exponent(x), _exponent(y)
    scaled = _scaled(np.multiply(_scaled(x, -of_x), _scaled(y, -of_y)), of_x + of_y)
    infinite_x, infinite_y = _is_infinite(x), _is_infinite(y)
    product: Array = np.where(infinite_x | infinite_y, np.multiply(x, y), scaled)
    lost = np.isnan(product.real) & np.isnan(product.imag)
    if not lost.any():
        return product
    a: Array = np.where(infinite_x, _boxed(x), _without_nan(x))
    b: Array = np.where(infinite_y, _boxed(y), _without_nan(y))
    real, imaginary = a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real
    return np.where(lost & (infinite_x | infinite_y), _joined(np.inf * real, np.inf * imaginary), product)


@_widened
def divide(x: Array, y: Array) -> Array:
    """Return the quotient; infinite for a division by zero of anything but NaN and zero, zero for one by infinity."""
    of_x, of_y = _exponent(x), _exponent(y)
    above, below = _scaled(x, -of_x), _scaled(y, -of_y)
    quotient = _scaled(np.divide(above, below), of_x - of_y)
    zero, infinite_x, infinite_y = np.equal(y, 0), _is_infinite(x), _is_infinite(y)
    if not (zero.any() or infinite_x.any() or infinite_y.any()):
        return quotient
    sign = np.copysign(np.inf, y.real)
    quotient = np.where(zero, _joined(sign * x.real, sign * x.imag), quotient)
    finite_x, finite_y = np.isfinite(x), np.isfinite(y)
    by_finite, by_infinite = infinite_x & finite_y & ~zero, finite_x & infinite_y
    a: Array = np.where(by_finite, _boxed(x), above)
    b: Array = np.where(by_infinite, _boxed(y), y)
    real, imaginary = a.real * b.real + a.imag * b.imag, a.imag * b.real - a.real * b.imag
    quotient = np.where(by_finite, _joined(np.inf * real, np.inf * imaginary), quotient)
    return np.where(by_infinite, _joined(0 * real, 0 * imaginary), quotient)


@_widened
def expm1(z: Array) -> Array:
    """Return ``exp(z) - 1``, without cancellation near zero."""
    exponential = np.exp(z)
    x, y = z.real.astype(np.longdouble), z.imag.astype(np.longdouble)
    # exp(x) cos(y) - 1, of which the two terms nearly cancel on a curve through zero: hence the wider type.
    real = np.expm1(x) * np.cos(y) - 2 * np.square(np.sin(y / 2))
    plain = np.isfinite(z) & (z.real < _LARGE)
    return _joined(np.where(plain, real, exponential.real - 1), exponential.imag)


@_widened
def log1p(z: Array) -> Array:
    """Return ``log(1 + z)``, without cancellation near zero."""
    x, y = z.real, z.imag
    shifted = _joined(1 + x, y)  # exact where it is near the unit circle, except for the strip that follows
    logarithm = np.log(shifted)
    strip = (np.abs(x) < 0.5) & (np.abs(y) < 2)
    if not strip.any():
        return logarithm
    x, y = np.where(strip, x, 0), np.where(strip, y, 0)
    # |1 + z|² - 1 is 2x + x² + y², of which the terms nearly cancel on a circle: hence the sum in two parts.
    square_x, rest_x = _square_in_two(x)
    square_y, rest_y = _square_in_two(y)
    some, lost = _sum_in_two(2 * x, square_x)
    total, lost_too = _sum_in_two(some, square_y)
    real = np.log1p(total + (lost + lost_too + rest_x + rest_y)) / 2
    return _joined(np.where(strip, real, logarithm.real), logarithm.imag)


@_widened
def logistic(z: Array) -> Array:
    """Return ``1 / (1 + exp(-z))``, without overflow."""
    small = np.exp(_joined(-np.abs(z.real), np.where(z.real < 0, z.imag, -z.imag)))
    apart = divide(np.where(z.real < 0, small, 1), 1 + small)
    # 1 + exp(-z) nearly cancels near the poles, the hyperbolic tangent does not.
    return np.where(np.abs(z.real) < 1, 0.5 + 0.5 * np.tanh(z / 2), apart)


@_widened
def rsqrt(z: Array) -> Array:
    """Return ``1 / sqrt(z)``."""
    return divide(np.ones((), np.complex128), np.sqrt(z))


@_widened
def cbrt(z: Array) -> Array:
    """Return the principal cube root."""
    thirds = _exponent(z) // 3
    scaled = _scaled(z, -3 * thirds)
    size, angle = np.cbrt(np.abs(scaled)), np.angle(scaled) / 3
    sine = np.sin(angle)
    return _scaled(_joined(size * np.cos(angle), np.where(sine == 0, sine, size * sine)), thirds)


@_widened
def sign(z: Array) -> Array:
    """Return ``z / |z|``; zero for zero, and NaN in both parts where one is NaN."""
    scaled = _scaled(z, -_exponent(z))
    size = np.abs(scaled)
    unit = scaled / np.where(size == 0, 1, size)
    nan = np.isnan(z.real) | np.isnan(z.imag)
    return np.where(nan, complex(np.nan, np.nan), np.where(size == 0, 0, unit))


def tan(z: Array) -> Array:
    """Return the tangent, by tanh, which the C library computes without overflow."""
    return _times_i(np.tanh(_times_i(z)), -1)


def power(z: Array, w: Array) -> Array:
    """Return ``z`` to the power ``w``: ``exp(w log(z))``, by multiplication for small whole ``w``.

    Zero to the power zero is one, and zero to a power with a positive real part is zero.
    """
    dtype = z.dtype
    wide: Any = np.complex128 if dtype == np.complex64 else np.clongdouble
    z, w = np.asarray(z, wide), np.asarray(w, wide)
    result = np.power(z, w)
    if not np.isfinite(result).all():
        by_logarithm = np.exp(multiply(w, np.log(z))) if wide is np.complex128 else np.exp(w * np.log(z))
        doubtful = ~np.isfinite(result) & np.isfinite(z) & np.isfinite(w) & (z != 0)
        result = np.where(doubtful, by_logarithm, np.where((z == 0) & (w.real > 0), 0, result))
    return result.astype(dtype)


@_widened
def atan2(y: Array, x: Array) -> Array:
    """Return the continuation of atan2 to complex numbers: ``-i log((x + i y) / sqrt(x**2 + y**2))``."""
    common = -np.maximum(_exponent(x), _exponent(y))
    x, y = _scaled(x, common), _scaled(y, common)
    return _times_i(np.log(divide(x + _times_i(y), np.sqrt(x * x + y * y))), -1)


@_widened
def remainder(x: Array, y: Array) -> Array:
    """Return ``x - y * q`` with the parts of the quotient cut to whole numbers."""
    quotient = divide(x, y)
    return x - y * _joined(np.trunc(quotient.real), np.trunc(quotient.imag))


def _exponent(z: Array) -> Array:
    """Return the power of two next to the larger part; 0 for zero and parts that are not finite."""
    size = np.fmax(np.abs(z.real), np.abs(z.imag))
    exponent: Array = np.frexp(np.where(np.isfinite(size), size, 0))[1]
    return exponent


def _scaled(z: Array, by: Any) -> Array:
    """Return ``z`` times two to some power."""
    return _joined(np.ldexp(z.real, by), np.ldexp(z.imag, by))


def _joined(real: Array, imaginary: Array) -> Array:
    """Return the complex numbers of these parts."""
    out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), np.complex128)
    out.real, out.imag = real, imaginary
    return out


def _times_i(z: Array, by: int = 1) -> Array:
    out = np.empty_like(z)
    out.real, out.imag = -by * z.imag, by * z.real
    return out


def _is_infinite(z: Array) -> Array:
    """Whether a part is infinite, even if the other is NaN."""
    return np.isinf(z.real) | np.isinf(z.imag)


def _boxed(z: Array) -> Array:
    """Return the direction of an infinite number: 1 for each infinite part, 0 for the others, each with its sign."""
    return _joined(np.copysign(np.isinf(z.real), z.real), np.copysign(np.isinf(z.imag), z.imag))


def _without_nan(z: Array) -> Array:
    """Return the numbers with zeros for NaN parts, with their sign."""
    return _joined(
        np.where(np.isnan(z.real), np.copysign(0.0, z.real), z.real),
        np.where(np.isnan(z.imag), np.copysign(0.0, z.imag), z.imag),
    )


_SPLIT = float((1 << 27) + 1)


def _square_in_two(x: Array) -> tuple[Array, Array]:
    """Return a square as its rounded value and the rounding error (T. J. Dekker)."""
    square = x * x
    spread = _SPLIT * x
    high = spread - (spread - x)
    low = x - high
    return square, ((high * high - square) + 2 * high * low) + low * low


def _sum_in_two(x: Array, y: Array) -> tuple[Array, Array]:
    """Return a sum as its rounded value and the rounding error (D. E. Knuth)."""
    total = x + y
    of_y = total - x
    return total, (x - (total - of_y)) + (y - of_y)
