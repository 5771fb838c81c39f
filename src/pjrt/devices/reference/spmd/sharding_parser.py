"""Shardings as GSPMD (``mhlo.sharding``) and Shardy (``sdy.sharding``) spell them: both come down to the same tiles."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.sharding import REPLICATED, Shape, Sharding
from pjrt.stablehlo.types import TensorType, ValueType

_GSPMD_TILED = re.compile(
    r"^\{devices=\[(?P<tiles>[\d,]+)\]\s*(?:<=\[(?P<iota>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<list>[\d,]+))(?P<rest>.*)\}$"
)


def parse_gspmd(text: str, rank: int) -> Sharding:
    """The sharding that ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}`` and its like spell, for a value of some
    rank.

    Raises:
        UnimplementedError: it is of a kind that this device does not know.
    """
    spelled = text.strip()
    if spelled in ("{replicated}", "{manual}", "", "{unknown}") or spelled.startswith("{maximal"):
        return REPLICATED
    match = _GSPMD_TILED.match(spelled)
    if match is None:
        raise UnimplementedError(f"expected a sharding such as {{devices=[2,1]<=[2]}}, found {text[:120]}")
    tiles = _numbers(match["tiles"])
    if match["list"]:
        devices = np.array(_numbers(match["list"]))
    else:
        devices = np.arange(math.prod(_numbers(match["iota"]))).reshape(_numbers(match["iota"]))
        if match["order"]:
            devices = devices.transpose(_numbers(match["order"]))
    grid = devices.reshape(tiles)
    kinds = re.search(r"last_tile_dims=\{([^}]*)\}", match["rest"])
    last = [kind.strip() for kind in kinds[1].split(",")] if kinds else []
    summed = [rank + i for i, kind in enumerate(last) if kind == "unreduced"]
    return Sharding.of_grid(grid, rank, summed)


@dataclass(frozen=True)
class Mesh:
    """Devices in a grid whose axes have names."""

    axes: Mapping[str, int]
    devices: tuple[int, ...]

    def coordinates(self) -> list[dict[str, int]]:
        """For each device its place along each axis."""
        found: list[dict[str, int]] = [{} for _ in self.devices]
        sizes = tuple(self.axes.values())
        for number, device in enumerate(self.devices):
            found[device] = dict(zip(self.axes, map(int, np.unravel_index(number, sizes)), strict=True))
        return found


def parse_mesh(text: str) -> Mesh:
    """The mesh that ``#sdy.mesh<["x"=4, "y"=2], device_ids=[…]>`` spells."""
    axes = {name: int(size) for name, size in re.findall(r'"([^"]*)"=(\d+)', text)}
    listed = re.search(r"device_ids=\[([\d, ]*)\]", text)
    count = math.prod(axes.values())
    devices = _numbers(listed[1]) if listed and axes else tuple(range(count))
    return Mesh(axes, devices)


_SDY = re.compile(
    r"<(?P<mesh>@[\w.$]+|@\"[^\"]*\"|mesh<[^>]*>),\s*\[(?P<dims>[^\]]*)\]"
    r"(?:,\s*replicated=\{[^}]*\})?(?:,\s*unreduced=\{(?P<unreduced>[^}]*)\})?"
)


def parse_sdy(text: str, mesh: Callable[[str], Mesh], manual: Collection[str] | None = None) -> list[Sharding]:
    """The shardings that ``#sdy.sharding<@mesh, [{"x"}, {}]>``, or a list of such, spells.

    Args:
        text: the attribute as MLIR prints it.
        mesh: finds a mesh by its name.
        manual: if given, only these axes count.

    Raises:
        InvalidArgumentError: there is no sharding in it.
    """
    found = [
        _of_axes(
            parse_mesh(m["mesh"]) if m["mesh"].startswith("mesh<") else mesh(m["mesh"].strip('@"')),
            m["dims"],
            m["unreduced"] or "",
            manual,
        )
        for m in _SDY.finditer(text)
    ]
    if not found:
        raise InvalidArgumentError(f"expected a sharding of Shardy, found {text[:120]}")
    return found


_AXIS = re.compile(r'"(?P<name>[^"]*)"(?::\((?P<before>\d+)\)(?P<size>\d+))?')


def _of_axes(mesh: Mesh, dimensions: str, unreduced: str, manual: Collection[str] | None) -> Sharding:
    """Each dimension is cut along some axes of the mesh, or parts of them, the first one the coarsest; the terms of a
    sum lie along others.
    """
    spread = [_along(mesh, spelled, manual) for spelled in re.findall(r"\{([^}]*)\}", dimensions)]
    places = tuple(tuple(numbers[device] for _, numbers in spread) for device in range(len(mesh.devices)))
    terms = _along(mesh, unreduced, manual)[1]
    return Sharding(tuple(count for count, _ in spread), places, tuple(terms) if any(terms) else ())


def _along(mesh: Mesh, spelled: str, manual: Collection[str] | None) -> tuple[int, list[int]]:
    """Return how many places there are along some axes together, and which of them each device has."""
    coordinates = mesh.coordinates()
    count, numbers = 1, [0] * len(coordinates)
    for axis in _AXIS.finditer(spelled):
        if manual is not None and axis["name"] not in manual:
            continue
        whole = mesh.axes[axis["name"]]
        size = int(axis["size"] or whole)
        after = whole // (int(axis["before"] or 1) * size)
        count *= size
        for device, place in enumerate(coordinates):
            numbers[device] = numbers[device] * size + place[axis["name"]] // after % size
    return count, numbers


def shardings_of(
    attributes: Sequence[Mapping[str, Any]],
    types: Sequence[ValueType],
    symbol: Callable[[str], Mapping[str, Any]],
) -> list[Sharding | None]:
    """What the program says about the arguments or results of a function: Shardy's word first, else GSPMD's, else None.

    Args:
        attributes: those of each value.
        types: the type of each.
        symbol: finds the attributes of a named op of the module.
    """

    def of(said: Mapping[str, Any], type_: ValueType) -> Sharding | None:
        if not isinstance(type_, TensorType):
            return None
        if "sdy.sharding" in said:
            text = getattr(said["sdy.sharding"], "text", str(said["sdy.sharding"]))
            return parse_sdy(text, lambda name: parse_mesh(symbol(name)["mesh"].text))[0]
        if "mhlo.sharding" in said:
            return parse_gspmd(said["mhlo.sharding"], type_.rank)
        return None

    return [of(said, type_) for said, type_ in zip(attributes, types, strict=True)]


def _numbers(text: str) -> Shape:
    return tuple(int(part) for part in text.split(",") if part.strip())
