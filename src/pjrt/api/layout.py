"""Layouts: the order of an array's elements in memory (``PJRT_Buffer_MemoryLayout``, ``xla::Layout``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from pjrt.api.checks import expect, expect_int, expect_sequence
from pjrt.api.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class TiledLayout:
    """A tiled layout (``PJRT_Buffer_MemoryLayout_Tiled``).

    Attributes:
        minor_to_major: the dimensions' numbers, the fastest varying first; ``(1, 0)`` is row-major for a matrix.
        tiles: the tiles' dimensions, outermost tile first; empty for an untiled layout.
    """

    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...] = ()

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
        """Whether this is untiled C order."""
        return not self.tiles and all(a > b for a, b in zip(self.minor_to_major, self.minor_to_major[1:], strict=False))

    def __str__(self) -> str:
        """Return XLA's spelling, such as ``{1,0:T(8,128)(2,1)}``."""
        tiles = "".join("(" + ",".join(map(str, tile)) + ")" for tile in self.tiles)
        return "{" + ",".join(map(str, self.minor_to_major)) + (":T" + tiles if tiles else "") + "}"

    @staticmethod
    def parse(text: str) -> TiledLayout:
        """Return the layout with a spelling of XLA, such as ``{1,0}`` or ``{1,0:T(8,128)(2,1)}``.

        Properties other than tiles (memory space, element size and the like) are ignored.

        Raises:
            InvalidArgumentError: the text is not a layout.
        """
        body = expect(text, str, "the spelling of a layout as a str").strip()
        if not (body.startswith("{") and body.endswith("}")):
            raise InvalidArgumentError(f"expected a layout such as '{{1,0}}' or '{{1,0:T(8,128)}}', found {text!r}")
        order, _, properties = body[1:-1].partition(":")
        try:
            minor_to_major = tuple(int(d) for d in order.split(",") if d.strip())
            return TiledLayout(minor_to_major, _parse_tiles(properties))
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


def row_major_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the byte strides of an array of this shape in C order."""
    strides = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
