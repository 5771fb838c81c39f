"""Conversion of numpy arrays between element types, each value rounded once.

numpy and ml_dtypes round twice in some conversions (f64 to f32 to bf16), and make arbitrary integers of floats that are
out of range. Here narrowing uses rounding to odd, which a second rounding cannot harm, and floats saturate to the range
of the integer type, as on every XLA device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.numerics.element_types import BOOLEAN, COMPLEX, FLOAT, INTEGER, SIGNED, widen

Array = Any

_PLAIN_FLOATS = frozenset({ElementType.F32, ElementType.F64})


def converter(source: ElementType, target: ElementType) -> Callable[[Array], Array]:
    """Return the function that converts arrays of one element type to another (StableHLO's ``convert``)."""
    dtype, wide = target.dtype, widen(source)  # ml_dtypes converts its types to few others
    if source is target:
        return lambda x: x
    if source in COMPLEX and target not in COMPLEX:
        half = ElementType.F32 if source is ElementType.C64 else ElementType.F64
        convert = converter(half, target)  # the imaginary part is ignored, for booleans too
        return lambda x: convert(np.real(x))
    if target in BOOLEAN:
        return lambda x: np.not_equal(wide(x), 0)
    if target in INTEGER and source in FLOAT:
        return lambda x: saturate(wide(x), target)
    if target in INTEGER and target.bits < 8:
        return lambda x: x.astype(np.int8).astype(dtype)  # wraps: only the lowest bits count
    if target in FLOAT - _PLAIN_FLOATS and (source is ElementType.F64 or source not in FLOAT):
        return _narrowing(source, target)
    return lambda x: wide(x).astype(dtype)


def _narrowing(source: ElementType, target: ElementType) -> Callable[[Array], Array]:
    """Return the function from a type that f32 may not hold exactly to one of fewer bits."""
    dtype = target.dtype
    if source is ElementType.F64:
        return lambda x: narrow_double(x).astype(dtype)
    if source in BOOLEAN or source.bits <= 16:
        return lambda x: x.astype(np.float32).astype(dtype)
    if source.bits == 32:
        return lambda x: narrow_double(x.astype(np.float64)).astype(dtype)
    return lambda x: narrow_double(_wide_integer(x)).astype(dtype)


def saturate(x: Array, target: ElementType) -> Array:
    """Return floats truncated to an integer type: the nearest end of its range for those outside, 0 for NaN."""
    low = -(2.0 ** (target.bits - 1)) if target in SIGNED else 0.0
    high = 2.0 ** (target.bits - 1 if target in SIGNED else target.bits)  # the first value that is too large
    narrow: Any = target.dtype if target.bits >= 8 else np.dtype(np.int8)
    if x.size == 0 or (x.min() >= low and x.max() < high):  # false if there is a NaN
        return x.astype(narrow).astype(target.dtype, copy=False)
    inside = np.logical_and(np.greater_equal(x, low), np.less(x, high))
    cut = np.where(inside, x, x.dtype.type(0)).astype(narrow)
    top = int(high) - 1
    if target.bits < 8 and target not in SIGNED:
        narrow = np.dtype(np.uint8)
        cut = cut.astype(narrow)
    clipped = np.where(np.less(x, low), narrow.type(int(low)), cut)
    return np.where(np.greater_equal(x, high), narrow.type(top), clipped).astype(target.dtype, copy=False)


def narrow_double(x: Array) -> Array:
    """Return f64 as f32, rounded to odd: an inexact result has its last bit set, so that rounding it again to fewer
    bits is right.
    """
    near = np.asarray(x.astype(np.float32))
    back = near.astype(np.float64)
    inexact = np.logical_and(np.not_equal(back, x), np.logical_not(np.isnan(x)))
    bits = near.view(np.uint32)
    towards_zero = np.subtract(bits, np.greater(np.abs(back), np.abs(x)).astype(np.uint32))
    return np.where(inexact, np.bitwise_or(towards_zero, np.uint32(1)), bits).view(np.float32)


def _wide_integer(x: Array) -> Array:
    """Return 64-bit integers as f64, rounded to odd."""
    x = np.asarray(x)
    shift = 11 if x.dtype.kind == "u" else 10
    sticky = np.not_equal(np.bitwise_and(x, (1 << shift) - 1), 0)
    odd = np.bitwise_or(np.right_shift(x, shift), sticky.astype(x.dtype))
    small = np.less(x, 1 << 53)
    if x.dtype.kind == "i":
        small = np.logical_and(small, np.greater(x, -(1 << 53)))
    return np.where(small, x.astype(np.float64), np.multiply(odd.astype(np.float64), float(1 << shift)))


def bit_width(element: ElementType) -> int:
    """Return the bits of one element, by the specification: 1 for booleans."""
    return 1 if element is ElementType.PRED else element.bits


def bitcaster(source: ElementType, target: ElementType) -> Callable[[Array], Array]:
    """Return the function that reads the bits of one element type as another (StableHLO's ``bitcast_convert``), lowest
    bits first.
    """
    have, want = bit_width(source), bit_width(target)
    if have == want:
        return lambda x: np.asarray(x).view(target.dtype)
    if have < want:
        return lambda x: _join(x, have, want).view(target.dtype)[..., 0]
    return lambda x: _split(x, have, want).view(target.dtype)


def _join(x: Array, have: int, want: int) -> Array:
    """Return several narrow elements along the last dimension as the bytes of one wide element."""
    if have >= 8:
        return np.ascontiguousarray(x)
    parts = np.bitwise_and(np.ascontiguousarray(x).view(np.uint8), (1 << have) - 1)
    each = min(8, want) // have
    parts = parts.reshape(*parts.shape[:-1], parts.shape[-1] // each, each)
    shifts = np.arange(each, dtype=np.uint8) * have
    return np.bitwise_or.reduce(np.left_shift(parts, shifts.astype(np.uint8)), axis=-1)


def _split(x: Array, have: int, want: int) -> Array:
    """Return one wide element as narrow ones along a new last dimension."""
    whole = np.ascontiguousarray(np.expand_dims(x, -1))
    if want >= 8:
        return whole.view(np.dtype(f"u{want // 8}"))
    parts = whole.view(np.uint8)
    shifts = np.arange(min(have, 8) // want, dtype=np.uint8) * want
    cut = np.bitwise_and(np.right_shift(parts[..., None], shifts.astype(np.uint8)), (1 << want) - 1)
    return cut.reshape(*parts.shape[:-1], parts.shape[-1] * cut.shape[-1]).astype(np.uint8)


def precision_reducer(element: ElementType, exponent_bits: int, mantissa_bits: int) -> Callable[[Array], Array]:
    """Return the function that rounds floats as if to a type of fewer bits, and keeps their own type.

    Values that are too large become infinite, those that would be subnormal become zero. NaN stays, but a format
    without mantissa bits has none: there it becomes infinity.
    """
    is_own = element in _PLAIN_FLOATS or element in (ElementType.F16, ElementType.BF16)
    work = element.dtype if is_own else np.dtype(np.float32)
    info: Any = ml_dtypes.finfo(work)  # type: ignore[no-untyped-call]
    own: Any = ml_dtypes.finfo(element.dtype)  # type: ignore[no-untyped-call]
    mantissa, width = int(info.nmant), 8 * work.itemsize
    exponent = width - 1 - mantissa
    unsigned = np.dtype(f"u{work.itemsize}").type
    bias = (1 << (exponent - 1)) - 1
    ending = min((1 << (exponent_bits - 1)) - 1, bias)
    largest = unsigned((bias + ending) << mantissa)
    smallest = unsigned((bias - ending) << mantissa)
    infinity = unsigned(((1 << exponent) - 1) << mantissa)
    sign = unsigned(1 << (width - 1))
    dropped = mantissa - mantissa_bits if mantissa_bits < own.nmant else 0
    least = np.float32(own.smallest_normal)  # the subnormals of the other types are normal numbers of f32
    step = np.ldexp(least, -mantissa_bits)

    def run(x: Array) -> Array:
        value = np.asarray(x.astype(work, copy=False))
        if dropped and not is_own:
            value = np.where(np.less(np.abs(value), least), np.multiply(np.rint(np.divide(value, step)), step), value)
        bits = value.view(unsigned)
        magnitude = np.bitwise_and(bits, ~sign)
        is_nan = np.greater(magnitude, infinity)
        if dropped:
            last = np.bitwise_and(np.right_shift(magnitude, unsigned(dropped)), unsigned(1))
            magnitude = np.add(magnitude, np.add(last, unsigned((1 << (dropped - 1)) - 1)))
            magnitude = np.bitwise_and(magnitude, ~unsigned((1 << dropped) - 1))
        if exponent_bits < own.nexp:
            field = np.bitwise_and(magnitude, infinity)
            magnitude = np.where(np.less_equal(field, smallest), unsigned(0), magnitude)
            magnitude = np.where(np.greater(field, largest), infinity, magnitude)
        rounded = np.bitwise_or(magnitude, np.bitwise_and(bits, sign)).view(work)
        nan = value if mantissa_bits else np.asarray(infinity).view(work)
        return np.where(is_nan, nan, rounded).astype(element.dtype, copy=False)

    return run
