"""Stated shardings: the meshes of a program and how it cuts its arguments and results, human-readable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.stablehlo.shapes.argument_shapes import StatedShape
from pjrt.stablehlo.shardings.mesh_sharding import Mesh
from pjrt.stablehlo.shardings.sharding import Sharding
from pjrt.stablehlo.shardings.sharding_parser import is_over_mesh, parse_gspmd, parse_mesh_sharding, parse_shardy


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
                named = parse_mesh_sharding(text) if is_over_mesh(text) else None
                tiling = parse_gspmd(text, rank)
            else:
                (named, *_) = parse_shardy(text, lambda name: _mesh(meshes, name))
                tiling = Sharding.of_axes(named)
        except PjrtError:
            return StatedSharding(text)
        axes = () if named is None or named.device is not None else named.spelled_axes
        return StatedSharding(text, tiling, axes if len(axes) == rank else ())

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
        terms = f"; {self.tiling.num_terms} terms of a {self.tiling.reduction}" if self.tiling.terms else ""
        if self.axes:
            return ", ".join("+".join(axes) or "-" for axes in self.axes) + terms
        parts = " × ".join(map(str, self.tiling.tiles)) + " parts"
        return (parts if self.tiling.copies == 1 else f"{parts}, {self.tiling.copies} copies") + terms


def _mesh(meshes: Mapping[str, Mesh], name: str) -> Mesh:
    if name not in meshes:
        raise InvalidArgumentError(f"expected a mesh of the program ({', '.join(meshes)}), found {name}")
    return meshes[name]


def _part(size: int | str | None, count: int) -> int | str | None:
    if isinstance(size, int):
        return -(-size // count)
    if count == 1:
        return size
    if size is None:
        return f"?/{count}"
    return f"{size}/{count}" if size.isidentifier() else f"({size})/{count}"
