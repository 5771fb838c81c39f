"""Integer arithmetic as StableHLO defines it, on whole numpy arrays: every result is taken modulo two to the number of
bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType

Array = Any


def unsigned(dtype: AnyDType) -> AnyDType:
    """The unsigned dtype of the same width."""
    return np.dtype(f"u{dtype.itemsize}")


def divide(x: Array, y: Array) -> Array:
    """The quotient rounded towards zero; all bits set for a division by zero, and the least value for the least value
    by -1.
    """
    zero = np.equal(y, 0)
    safe = np.where(zero, np.ones((), y.dtype), y)
    if x.dtype.kind == "u":
        return np.where(zero, np.full((), -1, np.int64).astype(x.dtype), np.floor_divide(x, safe))
    least_by_minus_one = np.equal(safe, -1)  # numpy's own answer is right, but some builds of it warn or trap
    safe = np.where(least_by_minus_one, np.ones((), y.dtype), safe)
    quotient = np.floor_divide(x, safe)
    inexact = np.not_equal(np.multiply(quotient, safe), x) & (np.less(x, 0) != np.less(safe, 0))
    quotient = np.add(quotient, inexact, dtype=x.dtype, casting="unsafe")
    quotient = np.where(least_by_minus_one, np.negative(x), quotient)
    return np.where(zero, np.full((), -1, x.dtype), quotient)


def remainder(x: Array, y: Array) -> Array:
    """What ``divide`` leaves, with the sign of the dividend; the dividend for a division by zero."""
    special = np.equal(y, 0)
    if x.dtype.kind == "i":
        minus_one = np.equal(y, -1)
        found = np.fmod(x, np.where(special | minus_one, np.ones((), y.dtype), y))
    else:
        found = np.fmod(x, np.where(special, np.ones((), y.dtype), y))
    return np.where(special, x, found)


def power(x: Array, y: Array) -> Array:
    """``x`` to the power ``y`` by repeated squaring, wrapping; negative exponents give 0, but for the bases 1 and
    -1.
    """
    x, y = np.broadcast_arrays(x, y)
    exponent = y.astype(unsigned(y.dtype))
    base, result = x, np.ones(x.shape, x.dtype)
    for _ in range(8 * x.dtype.itemsize):
        if not exponent.any():
            break
        result = np.where(np.bitwise_and(exponent, 1) != 0, np.multiply(result, base), result)
        base = np.multiply(base, base)
        exponent = np.right_shift(exponent, 1)
    if x.dtype.kind == "u":
        return result
    odd = np.bitwise_and(y, 1) != 0
    of_negative = np.where(np.equal(x, -1) & odd, -1, np.where(np.abs(x) == 1, 1, 0)).astype(x.dtype)
    return np.where(np.less(y, 0), of_negative, result)


def shifts(bits: int, kind: str) -> Any:
    """One of the three shifts for a type of so many bits; a shift by the width or more (or by a negative number) moves
    every bit out.
    """

    def left(x: Array, y: Array) -> Array:
        one = _uniform(y, bits)
        if one is not None:
            return np.left_shift(x, x.dtype.type(one))
        amount, inside = _amount(y, bits)
        return np.where(inside, np.left_shift(x, amount.astype(x.dtype)), np.zeros((), x.dtype))

    def logical(x: Array, y: Array) -> Array:
        plain = np.asarray(x).view(unsigned(x.dtype))
        if bits < 8:
            plain = np.bitwise_and(plain, (1 << bits) - 1)
        one = _uniform(y, bits)
        if one is not None:
            return np.right_shift(plain, plain.dtype.type(one)).view(x.dtype)
        amount, inside = _amount(y, bits)
        moved = np.where(inside, np.right_shift(plain, amount), np.zeros((), plain.dtype))
        return moved.view(x.dtype)

    def arithmetic(x: Array, y: Array) -> Array:
        amount, inside = _amount(y, bits)
        whole = np.dtype(f"i{x.dtype.itemsize}")
        signed = np.asarray(x).view(whole)
        if bits < 8 and x.dtype.kind == "u":
            spare = 8 - bits
            signed = np.right_shift(np.left_shift(signed, spare), spare)
        moved = np.right_shift(signed, np.where(inside, amount, bits - 1).astype(whole))
        return moved.view(x.dtype)

    return {"left": left, "logical": logical, "arithmetic": arithmetic}[kind]


def _uniform(y: Array, bits: int) -> int | None:
    """The one amount to shift by, where it is the same for every element and below the width: the usual case."""
    if y.size == 0 or any(y.strides):
        return None
    amount = int(y[(0,) * y.ndim])
    return amount if 0 <= amount < bits else None


def _amount(y: Array, bits: int) -> tuple[Array, Array]:
    plain = np.asarray(y).view(unsigned(y.dtype))
    inside = np.less(plain, bits)
    return np.where(inside, plain, np.zeros((), plain.dtype)), inside


def population_count(bits: int) -> Any:
    """The number of bits set in values of so many bits."""

    def run(x: Array) -> Array:
        plain = _bits_of(x, bits)
        return _count(plain).astype(x.dtype)

    return run


def count_leading_zeros(bits: int) -> Any:
    """The number of zero bits above the highest one."""

    def run(x: Array) -> Array:
        plain = _bits_of(x, bits)
        step = 1
        while step < bits:  # smear the highest bit over all bits below it
            plain = np.bitwise_or(plain, np.right_shift(plain, step))
            step *= 2
        return (bits - _count(plain).astype(np.int64)).astype(x.dtype)

    return run


def _bits_of(x: Array, bits: int) -> Array:
    plain = np.asarray(x).view(unsigned(x.dtype))
    return np.bitwise_and(plain, (1 << bits) - 1) if bits < 8 else plain


_COUNT_OF_BYTE = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def _count(plain: Array) -> Array:
    if hasattr(np, "bitwise_count"):  # numpy 2
        return np.bitwise_count(plain)
    contiguous = np.ascontiguousarray(plain)
    in_bytes = _COUNT_OF_BYTE[contiguous.reshape((*contiguous.shape, 1)).view(np.uint8)]
    return in_bytes.sum(-1, dtype=np.uint8).reshape(np.shape(plain))
