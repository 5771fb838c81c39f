"""Shape specs: the shapes, types and layouts of arrays without their values (``PJRT_ShapeSpec``).

A layout is the order of an array's elements in memory (``PJRT_Buffer_MemoryLayout``, ``xla::Layout``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.checks import expect, expect_int, expect_sequence, unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class TiledLayout:
    """A tiled layout (``PJRT_Buffer_MemoryLayout_Tiled``).

    Attributes:
        minor_to_major: the dimensions' numbers, the fastest varying first; ``(1, 0)`` is row-major for a matrix.
        tiles: the tiles' dimensions, outermost tile first; empty for an untiled layout.
        element_bits: the bits of an element that is packed with others in a byte: 1, 2 or 4; 0 where each has its own
            bytes.
    """

    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...] = ()
    element_bits: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "minor_to_major", _numbers(self.minor_to_major, "TiledLayout.minor_to_major"))
        if self.tiles:
            rows = expect_sequence(self.tiles, "TiledLayout.tiles as one sequence a tile")
            object.__setattr__(self, "tiles", tuple(_numbers(row, "a tile of TiledLayout.tiles") for row in rows))
        if sorted(self.minor_to_major) != list(range(len(self.minor_to_major))):
            raise InvalidArgumentError(
                f"minor_to_major must name each dimension once, found {self.minor_to_major}; "
                "row-major is TiledLayout.row_major(rank)"
            )

    @staticmethod
    @functools.cache
    def row_major(rank: int) -> TiledLayout:
        """Return the untiled layout in which the last dimension varies fastest (C order)."""
        return TiledLayout(tuple(range(rank - 1, -1, -1)))

    @property
    def is_row_major(self) -> bool:
        """Whether this is untiled C order, with bytes for each element."""
        return (
            not self.tiles
            and not self.element_bits
            and self.minor_to_major == tuple(range(len(self.minor_to_major) - 1, -1, -1))
        )

    def size_of(self, spec: ShapeSpec) -> int:
        """Return the bytes of an array that lies so: whole tiles, and packed elements."""
        if (not self.tiles and not self.element_bits) or any(side < 1 for tile in self.tiles for side in tile):
            return spec.size_in_bytes  # a side that stands for none joins two dimensions: that takes no padding
        sizes = [spec.shape[dimension] for dimension in reversed(self.minor_to_major)]
        for tile in self.tiles:
            sizes = [1] * (len(tile) - len(sizes)) + sizes
            first = len(sizes) - len(tile)
            counts = [-(-size // side) for size, side in zip(sizes[first:], tile, strict=True)]
            sizes = [*sizes[:first], *counts, *tile]
        return -(-math.prod(sizes) * (self.element_bits or max(spec.element_type.bits, 8)) // 8)

    def __str__(self) -> str:
        """Return XLA's spelling, such as ``{1,0:T(8,128)(2,1)}``."""
        tiles = "".join("(" + ",".join(map(str, tile)) + ")" for tile in self.tiles)
        properties = ("T" + tiles if tiles else "") + (f"E({self.element_bits})" if self.element_bits else "")
        return "{" + ",".join(map(str, self.minor_to_major)) + (":" + properties if properties else "") + "}"

    @staticmethod
    def parse(text: str) -> TiledLayout:
        """Return the layout with a spelling of XLA, such as ``{1,0}`` or ``{1,0:T(8,128)(2,1)}``.

        Properties other than tiles and the size of packed elements (memory space and the like) are ignored.

        Raises:
            InvalidArgumentError: the text is not a layout.
        """
        body = expect(text, str, "the spelling of a layout as a str").strip()
        if not (body.startswith("{") and body.endswith("}")):
            raise InvalidArgumentError(f"expected a layout such as '{{1,0}}' or '{{1,0:T(8,128)}}', found {text!r}")
        order, _, properties = body[1:-1].partition(":")
        try:
            minor_to_major = tuple(int(d) for d in order.split(",") if d.strip())
            _, is_packed, bits = properties.partition("E(")
            return TiledLayout(
                minor_to_major, _parse_tiles(properties), int(bits.partition(")")[0]) if is_packed else 0
            )
        except ValueError as error:
            raise InvalidArgumentError(
                f"expected a layout such as '{{1,0}}' or '{{1,0:T(8,128)}}', found {text!r}"
            ) from error


def _parse_tiles(properties: str) -> tuple[tuple[int, ...], ...]:
    if not properties.startswith("T("):
        return ()
    tiles: list[tuple[int, ...]] = []
    rest = properties[1:]
    while rest.startswith("("):
        inside, _, rest = rest[1:].partition(")")
        tiles.append(tuple(-1 if d.strip() == "*" else int(d) for d in inside.split(",")))
    return tuple(tiles)


@dataclass(frozen=True, slots=True)
class StridedLayout:
    """A strided layout (``PJRT_Buffer_MemoryLayout_Strides``).

    Attributes:
        byte_strides: for each dimension the distance in bytes between neighbors; may be negative or zero.
    """

    byte_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "byte_strides", _numbers(self.byte_strides, "StridedLayout.byte_strides"))


Layout = TiledLayout | StridedLayout
"""The layout of an array in memory: tiled (most devices) or strided (hosts)."""


def expect_layout(value: Layout) -> Layout:
    """Return a layout.

    Raises:
        InvalidArgumentError: the value is not a layout.
    """
    return expect(value, (TiledLayout, StridedLayout), "a layout as pjrt.TiledLayout or pjrt.StridedLayout")


def _numbers(values: Sequence[int], what: str) -> tuple[int, ...]:
    return tuple([expect_int(n, f"{what} as whole numbers") for n in expect_sequence(values, f"{what} as a sequence")])


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


_NUMBERS = frozenset((int,))


def expect_shape(value: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of an array's dimensions as a tuple.

    Raises:
        InvalidArgumentError: the sizes are not whole numbers from 0 up.
    """
    if type(value) is tuple and _NUMBERS.issuperset(map(type, value)):
        shape = value
    else:
        sizes = expect_sequence(value, "a shape as a sequence of whole numbers")
        shape = tuple([expect_int(size, "the dimensions of a shape as whole numbers") for size in sizes])
    if shape and min(shape) < 0:
        raise InvalidArgumentError(f"the dimensions of a shape are 0 or more, found {shape}")
    return shape


def format_shape(element_type: ElementType, shape: Sequence[int]) -> str:
    """Return XLA's spelling of a shape, such as ``f32[2,3]``."""
    return f"{element_type.name.lower()}[{','.join(map(str, shape))}]"
