"""Integer arithmetic as StableHLO defines it: every result is taken modulo two to the number of bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType

Array = Any


def unsigned(dtype: AnyDType) -> AnyDType:
    """Return the unsigned dtype of the same width."""
    return np.dtype(f"u{dtype.itemsize}")


def divide(x: Array, y: Array) -> Array:
    """Return the quotient, rounded towards zero; all bits set for a division by zero, and the least value for the least
    value by -1.
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
    """Return the remainder of ``divide``, with the sign of the dividend; the dividend for a division by zero."""
    special = np.equal(y, 0)
    by_one = special | np.equal(y, -1) if x.dtype.kind == "i" else special
    return np.where(special, x, np.fmod(x, np.where(by_one, np.ones((), y.dtype), y)))


def power(x: Array, y: Array) -> Array:
    """Return ``x`` to the power ``y``, by repeated squaring; negative exponents give 0, but for the bases 1 and -1."""
    x, y = np.broadcast_arrays(x, y)
    exponent = y.astype(unsigned(y.dtype))
    base, result = np.array(x), np.ones(x.shape, x.dtype)
    factor = np.empty(x.shape, x.dtype)
    while highest := exponent.max(initial=0):
        # The factor is the base where the exponent's lowest bit is set, and 1 elsewhere: without a branch.
        np.subtract(base, 1, out=factor)
        np.multiply(factor, np.bitwise_and(exponent, 1).view(x.dtype), out=factor)
        np.add(factor, 1, out=factor)
        np.multiply(result, factor, out=result)
        if highest > 1:
            np.multiply(base, base, out=base)
        np.right_shift(exponent, 1, out=exponent)
    if x.dtype.kind == "u" or y.min(initial=0) >= 0:
        return result
    odd = np.bitwise_and(y, 1) != 0
    of_negative = np.where(np.equal(x, -1) & odd, -1, np.where(np.abs(x) == 1, 1, 0)).astype(x.dtype)
    return np.where(np.less(y, 0), of_negative, result)


def shifts(bits: int, kind: str) -> Any:
    """Return one of the three shifts for a type of some bits; a shift by the width or more (or by a negative number)
    moves every bit out.
    """

    def left(x: Array, y: Array) -> Array:
        one = _uniform(y, bits)
        if one is not None:
            return np.left_shift(x, x.dtype.type(one))
        amount, inside = _amount(y, bits)
        return np.bitwise_and(np.left_shift(x, amount.view(x.dtype)), inside.view(x.dtype))

    def logical(x: Array, y: Array) -> Array:
        plain = np.asarray(x).view(unsigned(x.dtype))
        if bits < 8:
            plain = np.bitwise_and(plain, (1 << bits) - 1)
        one = _uniform(y, bits)
        if one is not None:
            return np.right_shift(plain, plain.dtype.type(one)).view(x.dtype)
        amount, inside = _amount(y, bits)
        return np.bitwise_and(np.right_shift(plain, amount), inside).view(x.dtype)

    def arithmetic(x: Array, y: Array) -> Array:
        amount, _ = _amount(y, bits)
        whole = np.dtype(f"i{x.dtype.itemsize}")
        signed = np.asarray(x).view(whole)
        if bits < 8 and x.dtype.kind == "u":
            spare = 8 - bits
            signed = np.right_shift(np.left_shift(signed, spare), spare)
        return np.right_shift(signed, amount.view(whole)).view(x.dtype)

    return {"left": left, "logical": logical, "arithmetic": arithmetic}[kind]


def _uniform(y: Array, bits: int) -> int | None:
    """Return the amount if it is the same for every element and below the width: the usual case."""
    if y.size == 0 or any(y.strides):
        return None
    amount = int(y[(0,) * y.ndim])
    return amount if 0 <= amount < bits else None


def _amount(y: Array, bits: int) -> tuple[Array, Array]:
    """Return amounts cut to below the width, and all bits set where they are below it: without a branch."""
    plain = np.asarray(y).view(unsigned(y.dtype))
    return np.minimum(plain, plain.dtype.type(bits - 1)), np.negative(np.less(plain, bits).astype(plain.dtype))


def population_count(bits: int) -> Any:
    """Return the function that counts the bits set in values of some bits."""

    return lambda x: np.bitwise_count(_bits_of(x, bits)).astype(x.dtype)


def count_leading_zeros(bits: int) -> Any:
    """Return the function that counts the zero bits above the highest one."""

    def run(x: Array) -> Array:
        plain = _bits_of(x, bits)
        step = 1
        while step < bits:  # smear the highest bit over all bits below it
            plain = np.bitwise_or(plain, np.right_shift(plain, step))
            step *= 2
        return (bits - np.bitwise_count(plain).astype(np.int64)).astype(x.dtype)

    return run


def _bits_of(x: Array, bits: int) -> Array:
    plain = np.asarray(x).view(unsigned(x.dtype))
    return np.bitwise_and(plain, (1 << bits) - 1) if bits < 8 else plain
