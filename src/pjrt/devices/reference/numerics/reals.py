"""Functions of real numbers that numpy lacks, or defines otherwise than StableHLO."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType

Array = Any


def sign(x: Array) -> Array:
    """Return -1 or 1, or the argument itself where it is a zero or NaN."""
    return np.where(np.equal(x, 0) | np.isnan(x), x, np.copysign(np.ones((), x.dtype), x))


def round_away_from_zero(x: Array) -> Array:
    """Return the nearest integer; halves go away from zero."""
    # Not 0.5 itself: that sum would round the number below 0.5 up to 1.
    below_half = np.nextafter(x.dtype.type(0.5), x.dtype.type(0))
    return np.trunc(np.add(x, np.copysign(below_half, x)))


def logistic(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``."""
    one, result = x.dtype.type(1), -x
    if not result.ndim:  # operators are several times as fast on scalars as functions of numpy
        return one / (one + np.exp(result))
    np.exp(result, out=result)
    result += one
    return np.divide(one, result, out=result)


def rsqrt(x: Array) -> Array:
    """Return ``1 / sqrt(x)``."""
    return np.divide(x.dtype.type(1), np.sqrt(x))


def remainder(x: Array, y: Array) -> Array:
    """Return ``np.fmod(x, y)``, exactly, without its loop over the bits of the quotient, which takes 20 ns an element.

    It works wherever the quotient is small enough that its product with the divisor, or with each half of the divisor's
    bits, is exact in f64.
    """
    if x.size < _FEWEST or x.shape != y.shape:
        return np.fmod(x, y)
    result = _remainder_of_f32(x, y) if x.dtype == np.float32 else _remainder_of_f64(x, y)
    return np.fmod(x, y) if result is None else result


_FEWEST = 256
"""Fewer elements are faster with numpy's one call."""


def _remainder_of_f32(x: Array, y: Array) -> Array | None:
    """Return the remainders, or None where a quotient is too large or NaN, or a divisor is infinite.

    Two numbers of 24 bits whose quotient is below 2**28 have a rounded quotient in f64 that is on the right side of
    each integer, and 28 + 24 bits of the product fit into f64.
    """
    wide = x.astype(np.float64)
    quotient = np.divide(wide, y)
    if not (_is_within(quotient, 2.0**28) and _is_within(y, np.inf)):
        return None
    np.trunc(quotient, out=quotient)
    np.multiply(quotient, y, out=quotient)
    np.subtract(wide, quotient, out=wide)
    return np.copysign(wide.astype(np.float32), x)  # a remainder of zero has the sign of the dividend


def _remainder_of_f64(x: Array, y: Array) -> Array | None:
    """Return the remainders, or None where a quotient is too large or NaN, or a divisor is very large or small."""
    magnitude, divisor = np.absolute(x), np.absolute(y)
    quotient = np.divide(magnitude, divisor)
    if not (_is_within(quotient, 2.0**25) and divisor.min() > 2.0**-900 and divisor.max() < 2.0**1000):
        return None
    np.floor(quotient, out=quotient)
    upper = np.bitwise_and(divisor.view(np.int64), -1 << 27).view(np.float64)  # 26 bits; the lower part has 27
    product = np.multiply(quotient, upper)
    difference = np.subtract(magnitude, product)
    magnitude -= difference
    magnitude -= product  # what the rounding of the difference lost
    lower = np.subtract(divisor, upper, out=upper)
    quotient *= lower
    difference -= quotient
    difference += magnitude
    # The rounded quotient may be the next integer: then the difference is one divisor short.
    difference += np.multiply(divisor, np.less(difference, 0), out=divisor)
    return np.copysign(difference, x, out=difference)


def _is_within(x: Array, limit: float) -> bool:
    """Whether all numbers are between a limit and its negative, and none is NaN."""
    return bool(x.max() < limit and x.min() > -limit)


# Maximum and minimum of IEEE 754-2019, which StableHLO uses: -0 is less than +0, and NaN wins. numpy's own functions
# take both zeros as equal, and return one or the other: which one depends on the processor and on the place in the
# array.


class Extreme:
    """The maximum or the minimum of f32 or f64, with the methods of numpy's functions that reductions use.

    Args:
        function: numpy's function.
        signs: the function of the signs of two numbers, as bits, that gives the sign of the result.
        zero: the zero that wins over the other one.
    """

    def __init__(self, function: Any, signs: np.ufunc, zero: float) -> None:
        self._function, self._signs, self._zero = function, signs, zero

    def __call__(self, x: Array, y: Array, out: Array | None = None) -> Array:
        """Return the maximum or minimum of two arrays, element by element."""
        bits = np.dtype(f"u{x.dtype.itemsize}")
        sign = bits.type(1 << (8 * bits.itemsize - 1))
        signs = np.bitwise_and(self._signs(x.view(bits), y.view(bits)), sign)
        result = np.asarray(self._function(x, y, out=out))
        whole = result.view(bits)
        np.bitwise_and(whole, ~sign, out=whole)
        np.bitwise_or(whole, signs, out=whole)
        return result

    def reduce(self, x: Array, axis: Any, dtype: AnyDType, out: None, keepdims: bool, initial: Array) -> Array:
        """Return the maximum or minimum along some axes, as numpy's ``reduce`` does."""
        total = self._function.reduce(x, axis, dtype, out, keepdims, initial)
        zeros = np.equal(total, 0)
        if not zeros.any():
            return total
        wins: Any = np.any(self._wins(x), axis, keepdims=keepdims)
        won = wins | self._wins(initial)
        zero = total.dtype.type(self._zero)
        return np.where(zeros, np.where(won, zero, -zero), total)

    def at(self, data: Array, places: Array, values: Array) -> None:
        """Combine elements of ``data`` with values, one after the other, as numpy's ``at`` does."""
        before = data[places]
        self._function.at(data, places, values)
        won = places[self._wins(before) | self._wins(values)]
        data[won[np.equal(data[won], 0)]] = self._zero

    def _wins(self, x: Array) -> Array:
        """Return where there is the zero that wins over the other one, in a float type of any size."""
        bits = np.dtype(f"u{x.dtype.itemsize}")
        return np.equal(x.view(bits), np.array(self._zero).astype(x.dtype).view(bits))


maximum = Extreme(np.maximum, np.bitwise_and, 0.0)
minimum = Extreme(np.minimum, np.bitwise_or, -0.0)


def maximum_of_complex(x: Array, y: Array) -> Array:
    """Return the larger numbers by their real, then by their imaginary parts; the zeros of equal numbers are as
    ``maximum`` has them.
    """
    return _of_complex(np.maximum, maximum, x, y)


def minimum_of_complex(x: Array, y: Array) -> Array:
    """Return the smaller numbers, as ``maximum_of_complex`` does."""
    return _of_complex(np.minimum, minimum, x, y)


def _of_complex(function: np.ufunc, of_parts: Extreme, x: Array, y: Array) -> Array:
    merged = np.empty(np.broadcast_shapes(x.shape, y.shape), x.dtype)
    merged.real, merged.imag = of_parts(x.real, y.real), of_parts(x.imag, y.imag)
    return np.where(np.equal(x, y), merged, function(x, y))
