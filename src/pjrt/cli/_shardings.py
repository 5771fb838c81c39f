"""Shardings in the output of ``pjrt inspect``: the meshes, and how each argument and result is cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pjrt.stablehlo import ArgumentInfo, ProgramInfo, ResultInfo, TensorType
from pjrt.stablehlo.shapes.argument_shapes import StatedShape, spelled_shape
from pjrt.stablehlo.shardings.sharding import Mesh
from pjrt.stablehlo.shardings.sharding_parser import StatedSharding


def is_partitioned(info: ProgramInfo) -> bool:
    """Whether a program is for several partitions, or states a sharding."""
    values: list[ArgumentInfo | ResultInfo] = [*info.arguments, *info.results]
    return info.num_partitions > 1 or any(value.sharding for value in values)


def spelled_mesh(mesh: Mesh) -> str:
    """Return the axes of a mesh and their sizes, such as ``data=4, model=2``."""
    axes = ", ".join(f"{name}={size}" for name, size in mesh.axes.items())
    order = "" if mesh.devices == tuple(range(len(mesh.devices))) else f", in the order {list(mesh.devices)}"
    return f"{axes or 'one device'} ({len(mesh.devices)} devices{order})"


def sharding_cells(value: ArgumentInfo | ResultInfo, shape: StatedShape, meshes: Mapping[str, Mesh]) -> list[str]:
    """Return two cells of a table: how an argument or result is cut, and the part that one device has."""
    if not isinstance(value.type, TensorType):
        return ["", ""]
    if not value.sharding:
        return ["not stated", ""]
    return tiling_cells(StatedSharding.of(value.sharding, len(shape), meshes), shape)


def tiling_cells(sharding: StatedSharding, shape: StatedShape) -> list[str]:
    """Return two cells of a table: a sharding, and the part that one device has of an array of some shape."""
    padded = "" if sharding.is_even(shape) else ", the last one padded"
    return [str(sharding), f"{spelled_shape(sharding.shard_shape(shape))}{padded}" if sharding.tiling else ""]


def sharding_dict(value: ArgumentInfo | ResultInfo, shape: StatedShape, meshes: Mapping[str, Mesh]) -> dict[str, Any]:
    """Return the sharding of an argument or result for ``--json``: the program's spelling, and what it means."""
    if not value.sharding or not isinstance(value.type, TensorType):
        return {"sharding": value.sharding}
    return tiling_dict(StatedSharding.of(value.sharding, len(shape), meshes), shape)


def tiling_dict(sharding: StatedSharding, shape: StatedShape) -> dict[str, Any]:
    """Return a sharding for ``--json``, and the part that one device has of an array of some shape."""
    facts: dict[str, Any] = {"sharding": sharding.text}
    if sharding.tiling is not None:
        tiles = sharding.tiling.tiles or (1,) * len(shape)
        copies = 1 if sharding.tiling.is_replicated else sharding.tiling.copies
        facts |= {"shard_shape": list(sharding.shard_shape(shape)), "parts": list(tiles)}
        facts |= {"axes": [list(axes) for axes in sharding.axes] or None, "copies": copies}
        if sharding.tiling.terms:
            facts |= {"terms": sharding.tiling.num_terms, "reduction": sharding.tiling.reduction}
    return facts


def mesh_dict(mesh: Mesh) -> dict[str, Any]:
    """Return a mesh for ``--json``."""
    return {"axes": dict(mesh.axes), "devices": list(mesh.devices)}
