"""Element types: the groups of those that ops take alike, and the conversion of values between them.

Floats below 32 bits are computed in f32 and rounded once. Integers below 8 bits are computed in 8 bits and wrapped.
That is the exact result of the operation, rounded or taken modulo two to the number of bits, as in the specification.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pjrt.api.element_type import AnyDType, ElementType

BOOLEAN = frozenset({ElementType.PRED})
SIGNED = frozenset({ElementType.S2, ElementType.S4, ElementType.S8, ElementType.S16, ElementType.S32, ElementType.S64})
UNSIGNED = frozenset(
    {ElementType.U2, ElementType.U4, ElementType.U8, ElementType.U16, ElementType.U32, ElementType.U64}
)
INTEGER = SIGNED | UNSIGNED
FLOAT = frozenset(t for t in ElementType if t.is_floating)
COMPLEX = frozenset({ElementType.C64, ElementType.C128})
EVERY = BOOLEAN | INTEGER | FLOAT | COMPLEX

_NATIVE_FLOATS = frozenset({ElementType.F32, ElementType.F64})


def compute_dtype(element: ElementType) -> AnyDType:
    """Return the dtype for arithmetic on an element type: its own if numpy has it, else the next wider one that numpy
    has.
    """
    if element.is_floating and element not in _NATIVE_FLOATS:
        return np.dtype(np.float32)
    if element.is_integer and element.bits < 8:
        return np.dtype(np.int8) if element in SIGNED else np.dtype(np.uint8)
    return element.dtype


def is_native(element: ElementType) -> bool:
    """Whether numpy computes with an element type itself."""
    return compute_dtype(element) == element.dtype


def widen(element: ElementType) -> Callable[[Any], Any]:
    """Return the function from an element type to its compute type."""
    wide = compute_dtype(element)
    if wide == element.dtype:
        return _same
    return lambda x: cast(x, wide)


def narrow(element: ElementType) -> Callable[[Any], Any]:
    """Return the function that rounds (or wraps) values of the compute type to the element type."""
    if is_native(element):
        return _same
    dtype = element.dtype
    return lambda x: x.astype(dtype)


def cast(x: Any, dtype: AnyDType) -> Any:
    """Return ``x.astype(dtype)``, and convert the repeated elements of a broadcast view only once: numpy takes thirty
    times as long for the small floats of such views as for contiguous ones.

    Floats that numpy or ``ml_dtypes`` convert one by one are looked up in a table of all of them.
    """
    if x.size < 1024:
        return x.astype(dtype)
    if 0 in x.strides:
        repeated = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides)
        return np.broadcast_to(x[repeated].astype(dtype), x.shape)
    if dtype == np.float32 and x.dtype in _LOOKED_UP:
        return _all_in_f32(x.dtype).take(x.view(f"u{x.dtype.itemsize}"))
    return x.astype(dtype)


_LOOKED_UP = frozenset(
    element.dtype
    for element in FLOAT - _NATIVE_FLOATS
    if element is not ElementType.BF16  # its bits are the upper ones of f32: the fastest conversion
)


@functools.cache
def _all_in_f32(dtype: AnyDType) -> Any:
    """Return all numbers of a type of 8 or 16 bits, by their bits, in f32."""
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    return bits.view(dtype).astype(np.float32)


def lift(kernel: Callable[..., Any], operand: ElementType, result: ElementType) -> Callable[..., Any]:
    """Return a function of one or more values of compute types as one on element types."""
    if is_native(operand) and is_native(result):
        return kernel
    wide, dtype = compute_dtype(operand), result.dtype
    if is_native(result):
        return lambda *values: kernel(*[cast(x, wide) for x in values])
    if operand.dtype in _LOOKED_UP:
        return _looked_up(kernel, operand.dtype, dtype)
    return lambda *values: kernel(*[cast(x, wide) for x in values]).astype(dtype)


def _looked_up(kernel: Callable[..., Any], operand: AnyDType, result: AnyDType) -> Callable[..., Any]:
    """Return a function on floats of 8 or 16 bits. Results of one large operand are looked up: it has few values."""
    wide, bits = np.dtype(np.float32), np.dtype(f"u{operand.itemsize}")
    many = 1 << 8 * operand.itemsize

    def run(x: Any, *others: Any) -> Any:
        if others or x.size < many:
            return kernel(*[cast(value, wide) for value in (x, *others)]).astype(result)
        return _results_of_all(kernel, operand, result).take(x.view(bits))

    return run


@functools.lru_cache(maxsize=64)  # 128 KiB for each function of f16
def _results_of_all(kernel: Callable[..., Any], operand: AnyDType, result: AnyDType) -> Any:
    """Return the results for all numbers of a type, by their bits."""
    return kernel(_all_in_f32(operand)).astype(result)


def _same(value: Any) -> Any:
    return value


# numpy and ml_dtypes round twice in some conversions (f64 to f32 to bf16), and make arbitrary integers of floats that
# are out of range. Here narrowing uses rounding to odd, which a second rounding cannot harm, and floats saturate to the
# range of the integer type, as on every XLA device.

Array = Any


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
    if target in FLOAT - _NATIVE_FLOATS and (source is ElementType.F64 or source not in FLOAT):
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
    is_own = element in _NATIVE_FLOATS or element in (ElementType.F16, ElementType.BF16)
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
