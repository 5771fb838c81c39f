"""The shape of one array without its data (``PJRT_ShapeSpec``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.checks import expect, expect_int, expect_sequence, unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.layout import Layout, expect_layout


@dataclass(frozen=True, slots=True)
class ShapeSpec:
    """Dimensions, element type and, where it matters, the layout of an array.

    Attributes:
        shape: the sizes of the dimensions, the most significant first; ``()`` is a scalar.
        element_type: the type of the elements; a numpy dtype is taken too.
        layout: how it lies in the device's memory; ``None`` is the device's default layout.
    """

    shape: tuple[int, ...]
    element_type: ElementType
    layout: Layout | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", expect_shape(self.shape))
        object.__setattr__(self, "element_type", ElementType.of(self.element_type))
        if self.layout is not None:
            expect_layout(self.layout)

    @staticmethod
    def of(array: Any) -> ShapeSpec:
        """The spec of anything that has ``shape`` and ``dtype``.

        Raises:
            InvalidArgumentError: it has none, or the dtype is no element type.
        """
        if not (hasattr(array, "shape") and hasattr(array, "dtype")):
            raise unexpected(array, "an array, or what else has a shape and a dtype")
        return ShapeSpec(tuple(array.shape), ElementType.of(array.dtype))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def size_in_bytes(self) -> int:
        """The bytes of a dense array of this shape on the host, where sub-byte elements take a byte each."""
        if self.element_type is ElementType.TOKEN:
            return 0
        return self.size * self.element_type.dtype.itemsize

    def __str__(self) -> str:
        return format_shape(self.element_type, self.shape)


def expect_spec(value: ShapeSpec) -> ShapeSpec:
    """The shape of an array without its data.

    Raises:
        InvalidArgumentError: it is something else.
    """
    return expect(value, ShapeSpec, "a shape and its element type as pjrt.ShapeSpec")


def expect_shape(value: Sequence[int]) -> tuple[int, ...]:
    """The sizes of an array's dimensions.

    Raises:
        InvalidArgumentError: they are no whole numbers from 0 up.
    """
    given = expect_sequence(value, "a shape as a sequence of whole numbers")
    shape = tuple([expect_int(size, "the dimensions of a shape as whole numbers") for size in given])
    if shape and min(shape) < 0:
        raise InvalidArgumentError(f"the dimensions of a shape are 0 or more, found {shape}")
    return shape


def format_shape(element_type: ElementType, shape: Sequence[int]) -> str:
    """A shape as XLA spells it, such as ``f32[2,3]``."""
    return f"{element_type.name.lower()}[{','.join(map(str, shape))}]"
