"""The parser of shardings, as GSPMD (``mhlo.sharding``) and Shardy (``sdy.sharding``) write them: both become tiles."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.shardings.sharding import REPLICATED, Shape, Sharding
from pjrt.stablehlo.types import TensorType, ValueType

_GSPMD_TILED = (
    r"^\{devices=\[(?P<tiles>[\d,]+)\]\s*"
    r"(?:<=\[(?P<iota>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<list>[\d,]+))(?P<rest>.*)\}$"
)


def parse_gspmd(text: str, rank: int) -> Sharding:
    """Return the sharding of a value that is written as ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}``.

    Raises:
        UnimplementedError: the sharding is of an unknown kind.
    """
    text = text.strip()
    if text in ("{replicated}", "{manual}", "", "{unknown}") or text.startswith("{maximal"):
        return REPLICATED
    match = re.match(_GSPMD_TILED, text)
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
        """Return, for each device, its place along each axis."""
        places: list[dict[str, int]] = [{} for _ in self.devices]
        sizes = tuple(self.axes.values())
        for number, device in enumerate(self.devices):
            places[device] = dict(zip(self.axes, map(int, np.unravel_index(number, sizes)), strict=True))
        return places


def parse_mesh(text: str) -> Mesh:
    """Return the mesh that is written as ``#sdy.mesh<["x"=4, "y"=2], device_ids=[…]>``."""
    axes = {name: int(size) for name, size in re.findall(r'"([^"]*)"=(\d+)', text)}
    listed = re.search(r"device_ids=\[([\d, ]*)\]", text)
    count = math.prod(axes.values())
    devices = _numbers(listed[1]) if listed and axes else tuple(range(count))
    return Mesh(axes, devices)


_SDY = (
    r"<(?P<mesh>@[\w.$]+|@\"[^\"]*\"|mesh<[^>]*>),\s*\[(?P<dims>[^\]]*)\]"
    r"(?:,\s*replicated=\{[^}]*\})?(?:,\s*unreduced=\{(?P<unreduced>[^}]*)\})?"
)


def parse_sdy(text: str, mesh: Callable[[str], Mesh], manual: Collection[str] | None = None) -> list[Sharding]:
    """Return the shardings that are written as ``#sdy.sharding<@mesh, [{"x"}, {}]>``, or as a list of such.

    Args:
        text: the attribute as MLIR prints it.
        mesh: finds a mesh by its name.
        manual: the only axes that count; all by default.

    Raises:
        InvalidArgumentError: the text has no sharding.
    """
    shardings = [
        _of_axes(
            parse_mesh(m["mesh"]) if m["mesh"].startswith("mesh<") else mesh(m["mesh"].strip('@"')),
            m["dims"],
            m["unreduced"] or "",
            manual,
        )
        for m in re.finditer(_SDY, text)
    ]
    if not shardings:
        raise InvalidArgumentError(f"expected a sharding of Shardy, found {text[:120]}")
    return shardings


_AXIS = r'"(?P<name>[^"]*)"(?::\((?P<before>\d+)\)(?P<size>\d+))?'


def _of_axes(mesh: Mesh, dimensions: str, unreduced: str, manual: Collection[str] | None) -> Sharding:
    """Return the sharding that cuts each dimension along some axes of the mesh, or parts of them, the first one being
    the coarsest; the terms of a sum lie along others.
    """
    spread = [_along(mesh, axes, manual) for axes in re.findall(r"\{([^}]*)\}", dimensions)]
    places = tuple(tuple(numbers[device] for _, numbers in spread) for device in range(len(mesh.devices)))
    terms = _along(mesh, unreduced, manual)[1]
    return Sharding(tuple(count for count, _ in spread), places, tuple(terms) if any(terms) else ())


def _along(mesh: Mesh, axes: str, manual: Collection[str] | None) -> tuple[int, list[int]]:
    """Return how many places there are along some axes together, and which of them each device has."""
    coordinates = mesh.coordinates()
    count, numbers = 1, [0] * len(coordinates)
    for axis in re.finditer(_AXIS, axes):
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
    """Return the shardings of a function's arguments or results: Shardy's if there is one, else GSPMD's, else None.

    Args:
        attributes: those of each value.
        types: the type of each.
        symbol: finds the attributes of a named op of the module.
    """

    def of(attributes: Mapping[str, Any], type_: ValueType) -> Sharding | None:
        if not isinstance(type_, TensorType):
            return None
        if "sdy.sharding" in attributes:
            text = getattr(attributes["sdy.sharding"], "text", str(attributes["sdy.sharding"]))
            return parse_sdy(text, lambda name: parse_mesh(symbol(name)["mesh"].text))[0]
        if "mhlo.sharding" in attributes:
            return parse_gspmd(attributes["mhlo.sharding"], type_.rank)
        return None

    return list(map(of, attributes, types))


def _numbers(text: str) -> Shape:
    return tuple(int(part) for part in text.split(",") if part.strip())
