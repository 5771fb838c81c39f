"""Groups of element types, and arithmetic on those that numpy does not compute with.

Floats below 32 bits are computed in f32 and rounded once. Integers below 8 bits are computed in 8 bits and wrapped.
That is the exact result of the operation, rounded or taken modulo two to the number of bits, as in the specification.
"""

from __future__ import annotations

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
    """
    if 0 in x.strides and x.size >= 1024:
        repeated = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides)
        return np.broadcast_to(x[repeated].astype(dtype), x.shape)
    return x.astype(dtype)


def lift(kernel: Callable[..., Any], operand: ElementType, result: ElementType) -> Callable[..., Any]:
    """Return a function of one or more values of compute types as one on element types."""
    if is_native(operand) and is_native(result):
        return kernel
    wide, dtype = compute_dtype(operand), result.dtype
    if is_native(result):
        return lambda *values: kernel(*[cast(x, wide) for x in values])
    return lambda *values: kernel(*[cast(x, wide) for x in values]).astype(dtype)


def _same(value: Any) -> Any:
    return value
