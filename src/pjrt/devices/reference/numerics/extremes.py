"""Maximum and minimum of IEEE 754-2019, which StableHLO uses: -0 is less than +0, and NaN wins.

numpy's own functions take both zeros as equal, and return one or the other: which one depends on the processor and on
the place in the array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType

Array = Any


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
