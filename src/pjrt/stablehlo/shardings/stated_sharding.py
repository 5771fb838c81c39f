"""Stated shardings: the meshes of a program and how it cuts its arguments and results, human-readable."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.stablehlo.shapes.argument_shapes import StatedShape
from pjrt.stablehlo.shardings.mesh_sharding import Mesh
from pjrt.stablehlo.shardings.sharding import Sharding
from pjrt.stablehlo.shardings.sharding_parser import parse_gspmd, parse_sdy

_DIMENSIONS = re.compile(r"\[(.*?)\](?:,|>|$)")
_DIMENSION = re.compile(r"\{([^}]*)\}")
_AXIS = re.compile(r'"([^"]*)"(?::\((\d+)\)(\d+))?')


@dataclass(frozen=True, slots=True)
class StatedSharding:
    """The sharding of an argument or a result, as a program states it.

    Attributes:
        text: the sharding in Shardy's or GSPMD's spelling.
        tiling: the tiles of the value on the devices; None if the sharding cannot be read.
        axes: the axes of the mesh that cut each dimension; empty for a sharding of GSPMD's, which has no axes.
    """

    text: str
    tiling: Sharding | None = None
    axes: tuple[tuple[str, ...], ...] = ()

    @staticmethod
    def of(text: str, rank: int, meshes: Mapping[str, Mesh]) -> StatedSharding:
        """Return the sharding of a value of some rank.

        Args:
            text: as a program spells it.
            rank: the number of dimensions of the value.
            meshes: the meshes of the program by their names.
        """
        try:
            if "sdy" not in text:
                return StatedSharding(text, parse_gspmd(text, rank))
            (tiling, *_) = parse_sdy(text, lambda name: _mesh(meshes, name))
            return StatedSharding(text, tiling, _axes(text, rank))
        except (PjrtError, KeyError, ValueError):
            return StatedSharding(text)

    def shard_shape(self, shape: StatedShape) -> StatedShape:
        """Return the shape of the part that a device has. A symbolic size that is cut by 4 is ``b/4``.

        The last parts of a dimension that does not divide evenly are padded.
        """
        tiles = self.tiling.tiles if self.tiling is not None else ()
        counts = tiles or (1,) * len(shape)
        return tuple(map(_part, shape, counts))

    def is_even(self, shape: StatedShape) -> bool:
        """Whether the known sizes of a shape divide by the numbers of their parts."""
        tiles = self.tiling.tiles if self.tiling is not None else ()
        return all(not isinstance(size, int) or size % count == 0 for size, count in zip(shape, tiles, strict=False))

    def __str__(self) -> str:
        """Return the axes or the number of parts of each dimension, such as ``data, -`` or ``4 × 1 parts``."""
        if self.tiling is None:
            return self.text
        if self.tiling.is_replicated:
            return "replicated"
        if self.axes:
            return ", ".join("+".join(axes) or "-" for axes in self.axes)
        copies = len(self.tiling.places) // math.prod(self.tiling.tiles)
        parts = " × ".join(map(str, self.tiling.tiles)) + " parts"
        return parts if copies == 1 else f"{parts}, {copies} copies"


def _mesh(meshes: Mapping[str, Mesh], name: str) -> Mesh:
    if name not in meshes:
        raise InvalidArgumentError(f"expected a mesh of the program ({', '.join(meshes)}), found {name}")
    return meshes[name]


def _axes(text: str, rank: int) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each dimension in Shardy's spelling; ``x:(2)4`` is a part of the axis ``x``."""
    match = _DIMENSIONS.search(text)
    dimensions = _DIMENSION.findall(match[1]) if match else []
    axes = tuple(
        tuple(name + (f":({before}){size}" if size else "") for name, before, size in _AXIS.findall(dimension))
        for dimension in dimensions
    )
    return axes if len(axes) == rank else ()


def _part(size: int | str | None, count: int) -> int | str | None:
    if isinstance(size, int):
        return -(-size // count)
    if count == 1:
        return size
    if size is None:
        return f"?/{count}"
    return f"{size}/{count}" if size.isidentifier() else f"({size})/{count}"
