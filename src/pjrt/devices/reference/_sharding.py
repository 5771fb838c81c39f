"""Shardings: how a value is spread over the partitions, as GSPMD (``mhlo.sharding``) and Shardy (``sdy.sharding``)
spell it.

Both come down to the same: the value is cut into tiles along its dimensions, and each partition holds one of them. A
value that is unreduced is a sum besides: each partition holds a tile of one of its terms.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.types import TensorType, ValueType

Array = Any
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sharding:
    """Tiles of a value.

    Args:
        tiles: how many there are along each dimension; () for a value that everyone has whole.
        places: for each partition the position of its tile, dimension by dimension.
        terms: for each partition the number of the term that it has a tile of; () for a value that is no sum.
    """

    tiles: Shape = ()
    places: tuple[Shape, ...] = ()
    terms: Shape = ()

    @property
    def is_replicated(self) -> bool:
        """Whether everyone has the whole value."""
        return math.prod(self.tiles) == 1 and not self.terms

    def shard_shape(self, shape: Shape) -> Shape:
        """The shape of a tile; the last one of a dimension that does not divide evenly is padded."""
        if self.is_replicated:
            return shape
        return tuple(-(-size // count) for size, count in zip(shape, self.tiles, strict=True))

    def cut(self, value: Array, partition: int) -> Array:
        """The tile of a partition. Of a sum the first term is the value, and the others are zero."""
        if self.is_replicated:
            return value
        sizes = self.shard_shape(value.shape)
        if self.terms and self.terms[partition]:
            return np.zeros(sizes, value.dtype)
        place = self.places[partition]
        tile = value[tuple(slice(i * size, (i + 1) * size) for i, size in zip(place, sizes, strict=True))]
        if tile.shape == sizes:
            return tile
        padded = np.zeros(sizes, value.dtype)
        padded[tuple(slice(0, size) for size in tile.shape)] = tile
        return padded

    def put_together(self, shards: Sequence[Array], shape: Shape) -> Array:
        """The whole value, of this shape, from the tiles of all partitions."""
        sizes = self.shard_shape(shape)
        whole = tuple(size * count for size, count in zip(sizes, self.tiles, strict=True))
        terms = self.terms or (0,) * len(self.places)
        found: dict[int, Array] = {}
        for term, place, shard in zip(terms, self.places, shards, strict=True):
            if term not in found:
                found[term] = np.empty(whole, shard.dtype)
            found[term][tuple(slice(i * size, (i + 1) * size) for i, size in zip(place, sizes, strict=True))] = shard
        total = functools.reduce(np.add, (found[term] for term in sorted(found)))
        return total[tuple(slice(0, size) for size in shape)]

    def to_proto(self) -> bytes:
        """The sharding as a serialized ``xla.OpSharding``."""
        if self.is_replicated:
            return b"\x08\x00"  # of the type REPLICATED
        count = max(self.terms, default=0) + 1
        copies = len(self.places) // (math.prod(self.tiles) * count)
        if count == len(self.places):
            return b"\x08\x06"  # of the type UNREDUCED
        terms = self.terms or (0,) * len(self.places)
        order = sorted(range(len(self.places)), key=lambda partition: (self.places[partition], terms[partition]))
        tiled = b"\x08\x03"  # of the type OTHER
        if count > 1:  # the kinds of the last dimensions: UNREDUCED, and REPLICATED if there are copies
            kinds = (6,) if copies == 1 else (6, 0)
            dimensions = (*self.tiles, count, copies)[: len(self.tiles) + len(kinds)]
            return tiled + _packed(3, dimensions) + _packed(4, order) + _packed(8, kinds)
        dimensions = self.tiles if copies == 1 else (*self.tiles, copies)
        replicated_last = b"" if copies == 1 else b"\x30\x01"
        return tiled + _packed(3, dimensions) + _packed(4, order) + replicated_last


REPLICATED = Sharding()

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
    places: list[Shape] = [()] * grid.size
    terms = [0] * grid.size
    for place, device in np.ndenumerate(grid):
        places[int(device)] = tuple(int(i) for i in place[:rank])
        terms[int(device)] = int(
            np.ravel_multi_index([place[d] for d in summed], [tiles[d] for d in summed]) if summed else 0
        )
    return Sharding(tiles[:rank], tuple(places), tuple(terms) if any(terms) else ())


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
    """How many places there are along some axes together, and which of them each device has."""
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


def _packed(field: int, numbers: Sequence[int]) -> bytes:
    """A packed repeated field of a protocol buffer."""
    content = b"".join(map(_varint, numbers))
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
