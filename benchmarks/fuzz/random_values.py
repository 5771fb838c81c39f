"""Facts about the values of a random program, and the element types of which it may have some."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from pjrt import ElementType
from pjrt.conformance.operation_table import tensor
from pjrt.host_memory.tolerance import Tolerance

Shape = tuple[int, ...]


def types_named(names: str) -> tuple[ElementType, ...]:
    """Return element types by their names, which spaces part."""
    return tuple(ElementType[name] for name in names.split())


PRED = ElementType.PRED
INTEGERS = types_named("S4 S8 S16 S32 S64 U4 U8 U16 U32 U64")
FLOATS = types_named("F32 F32 F64 F16 BF16 F8E4M3FN F8E5M2")
COMPLEX = (ElementType.C64, ElementType.C128)
PARTS = {ElementType.C64: ElementType.F32, ElementType.C128: ElementType.F64}
WHOLES = {part: whole for whole, part in PARTS.items()}

LARGEST = 400
"""The most elements of nearly all arrays."""


@dataclasses.dataclass(frozen=True)
class Value:
    """A value of the program.

    Attributes:
        name: its name.
        shape: its shape.
        element: its element type.
        most: the largest magnitude of its elements.
        error: how far an element may be off; 0 for those that every device has the same.
        is_special: whether there may be infinities, numbers of every size, and NaN.
        has_free_bits: whether the sign of zeros is left to the device, or there may be NaN.
    """

    name: str
    shape: Shape
    element: ElementType
    most: float = 0.0
    error: float = 0.0
    is_special: bool = False
    has_free_bits: bool = False

    @property
    def type(self) -> str:
        """Its type, as StableHLO spells it."""
        return tensor(self.shape, self.element)

    @property
    def is_number(self) -> bool:
        """Whether arithmetic may be done with it: it is an integer, or has numbers of moderate size."""
        return not self.is_special and self.element is not PRED

    def tolerance(self) -> Tolerance:
        """Return how far two devices may be apart."""
        if not self.error:
            return Tolerance(0.0, 0.0)
        return Tolerance(0.0, 2 * self.error + 2 * float(info_of(self.element).smallest_normal))


class UnsuitableError(Exception):
    """There is no operation of this kind for the value."""


@functools.cache
def info_of(element: ElementType) -> Any:
    """Return the limits of a floating-point type, or of the parts of a complex one."""
    dtype = element.dtype
    if element.is_complex:
        dtype = np.dtype(np.float32 if element is ElementType.C64 else np.float64)
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def eps_of(element: ElementType) -> float:
    """Return the largest relative error of one rounded operation."""
    return float(info_of(element).eps) * (4 if element.is_complex else 1)


def is_float(element: ElementType) -> bool:
    """Whether a type is a real floating-point type."""
    return element.is_floating and not element.is_complex


def like(value: Value, shape: Shape | None = None, **changes: Any) -> Value:
    """Return what is known of a value like another one, but for some changes."""
    return dataclasses.replace(value, name="", shape=value.shape if shape is None else shape, **changes)


def join(given: Sequence[Value], shape: Shape) -> Value:
    """Return what is known of a value with elements of several."""
    return Value(
        "",
        shape,
        given[0].element,
        max(value.most for value in given),
        max(value.error for value in given),
        any(value.is_special for value in given),
        any(value.has_free_bits for value in given),
    )
