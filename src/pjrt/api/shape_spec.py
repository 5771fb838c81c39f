"""Shape specs: the shapes and types of arrays without their values (``PJRT_ShapeSpec``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.checks import expect, expect_int, expect_sequence, unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.layout import Layout, expect_layout

Shapes = (
    Sequence[Sequence[int] | None]
    | Mapping[str, Sequence[int] | int]
    | Mapping[int, Sequence[int]]
    | Mapping[str | int, Sequence[int] | int]
)
"""Shapes for the arguments of a program with dynamic shapes.

A sequence has one for each argument, or ``None`` for an argument that is static. The keys of a mapping are indices and
names of arguments, with shapes as values, and the symbols for sizes that the program states: ``{"b": 8}``.
"""


@dataclass(frozen=True, slots=True)
class ShapeSpec:
    """The dimensions, element type and, if it matters, the layout of an array.

    Attributes:
        shape: the sizes of the dimensions, the most significant first; ``()`` is a scalar.
        element_type: the type of the elements; a numpy dtype is converted.
        layout: the layout in the device's memory; ``None`` is the device's default layout.
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
        """Return the spec of an object that has ``shape`` and ``dtype``.

        Raises:
            InvalidArgumentError: the object lacks one of them, or no element type corresponds to the dtype.
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
        """The number of bytes of a dense array of this shape on the host, where sub-byte elements take a byte each."""
        if self.element_type is ElementType.TOKEN:
            return 0
        return self.size * self.element_type.dtype.itemsize

    def __str__(self) -> str:
        return format_shape(self.element_type, self.shape)


def stands_for_token(element_type: ElementType, shape: tuple[int, ...]) -> bool:
    """Whether an array of this type may be the argument for a token: a token, or an empty array of booleans.

    Frameworks begin a chain of tokens with such an array, which XLA accepts.
    """
    return element_type is ElementType.TOKEN or (element_type is ElementType.PRED and shape == (0,))


def expect_spec(value: ShapeSpec) -> ShapeSpec:
    """Return a shape spec.

    Raises:
        InvalidArgumentError: the value is not a shape spec.
    """
    return expect(value, ShapeSpec, "a shape and its element type as pjrt.ShapeSpec")


def expect_shape(value: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of an array's dimensions as a tuple.

    Raises:
        InvalidArgumentError: the sizes are not whole numbers from 0 up.
    """
    sizes = expect_sequence(value, "a shape as a sequence of whole numbers")
    shape = tuple([expect_int(size, "the dimensions of a shape as whole numbers") for size in sizes])
    if shape and min(shape) < 0:
        raise InvalidArgumentError(f"the dimensions of a shape are 0 or more, found {shape}")
    return shape


def format_shape(element_type: ElementType, shape: Sequence[int]) -> str:
    """Return XLA's spelling of a shape, such as ``f32[2,3]``."""
    return f"{element_type.name.lower()}[{','.join(map(str, shape))}]"
