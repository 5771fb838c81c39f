"""Groups of element types, and arithmetic on those that numpy does not compute with.

Floats below 32 bits are computed in f32 and rounded once. Integers below 8 bits are computed in 8 bits and wrapped.
That is the exact result of the operation, rounded or taken modulo two to the number of bits, as in the specification.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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
