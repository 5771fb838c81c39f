"""Shardings: how a value is spread over the partitions of a program, by tiles or over the axes of a mesh.

The value is cut into tiles along its dimensions, and each partition holds one of them. A value that is unreduced is a
sum besides, or a maximum or minimum: each partition holds a tile of one of its terms.

Shardings over the axes of a mesh are XLA's third kind (``xla::NamedSharding``, "HloShardingV3"), and Shardy's.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pjrt.api.errors import DataLossError, InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.encodings import hlo_proto

MOST_PARTITIONS = 1 << 17
"""The largest number of partitions that is taken for a serious one."""

REDUCTIONS = ("sum", "max", "min")
"""How the terms of an unreduced value make the value, by the numbers of ``NamedShardingProto.ReductionOpProto``."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a mesh, or a part of it.

    Attributes:
        name: the axis.
        before: how many places the coarser parts of the axis have together (XLA's ``pre_size``).
        size: the places of the part; None for the whole axis.
    """

    name: str
    before: int = 1
    size: int | None = None

    def __str__(self) -> str:
        return f"'{self.name}'" if self.size is None else f"'{self.name}':({self.before}){self.size}"


@dataclass(frozen=True)
class Mesh:
    """Devices in a grid whose axes have names.

    Attributes:
        axes: the size of each axis by its name; empty for a mesh of one device.
        devices: the device at each place of the grid, along the last axis first.

    Raises:
        ValueError: the numbers make no grid of the devices.
    """

    axes: Mapping[str, int]
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        sizes = list(self.axes.values())
        count = math.prod(sizes)
        if not 0 < count <= MOST_PARTITIONS or min(sizes, default=1) < 1:
            raise ValueError(f"a mesh of {sizes} partitions")
        if len(self.devices) != count or (self.axes and sorted(self.devices) != list(range(count))):
            raise ValueError(f"expected each of {count} partitions once, found {list(self.devices)[:20]}")

    @staticmethod
    def of_proto(proto: Any) -> Mesh:
        """Return the mesh in a ``MeshProto``.

        Raises:
            ValueError: its numbers contradict each other.
        """
        axes = {axis.name.decode(errors="replace"): axis.size for axis in proto.axes}
        if len(axes) != len(proto.axes):
            raise ValueError(f"a mesh with an axis twice: {', '.join(axes)}")
        if not proto.HasField("iota_transform"):
            return Mesh.of(axes, proto.device_ids)
        return Mesh.of(axes, (), tuple(proto.iota_transform.reshape_dims), tuple(proto.iota_transform.transpose_perm))

    @staticmethod
    def of(
        axes: Mapping[str, int],
        devices: Sequence[int] = (),
        grid: tuple[int, ...] | None = None,
        order: tuple[int, ...] = (),
    ) -> Mesh:
        """Return the mesh of some axes.

        Args:
            axes: the size of each axis by its name.
            devices: the devices; by default those from 0 up.
            grid: the devices from 0 up lie in a grid of these sizes, which is transposed.
            order: its dimensions in their order after that.

        Raises:
            ValueError: the numbers make no grid of the devices.
        """
        count = math.prod(axes.values())
        if devices or not 0 < count <= MOST_PARTITIONS:
            return Mesh(axes, tuple(devices))
        if grid is None:
            return Mesh(axes, tuple(range(count)))
        if math.prod(grid) != count or min(grid, default=1) < 1:
            raise ValueError(f"a mesh of {list(axes.values())} partitions from a grid of {list(grid)}")
        return Mesh(axes, tuple(np.arange(count).reshape(grid).transpose(order or range(len(grid))).ravel().tolist()))

    @functools.cached_property
    def _coordinates(self) -> Any:
        """For each axis, the place along it of each device."""
        sizes = tuple(self.axes.values())
        coordinates = np.empty((len(sizes), len(self.devices)), np.int64)
        coordinates[:, list(self.devices) if sizes else [0]] = np.indices(sizes).reshape(len(sizes), -1)
        return coordinates

    def coordinates(self) -> list[dict[str, int]]:
        """Return, for each device, its place along each axis."""
        return [dict(zip(self.axes, places, strict=True)) for places in self._coordinates.T.tolist()]

    def size_of(self, axis: Axis) -> int:
        """Return how many places an axis has, or a part of one.

        Raises:
            ValueError: the mesh lacks the axis, or the axis has no such part.
        """
        whole = self.axes.get(axis.name)
        if whole is None:
            raise ValueError(f"axis {axis.name} of a mesh of the axes {', '.join(self.axes) or 'of one device'}")
        size = whole if axis.size is None else axis.size
        if min(size, axis.before) < 1 or whole % (size * axis.before):
            raise ValueError(f"a part of {size} after {axis.before} of an axis of {whole}")
        return size

    def along(self, axes: Iterable[Axis]) -> tuple[int, Any]:
        """Return how many places there are along axes together, the first being the coarsest, and which of them each
        device has.
        """
        count, numbers, names = 1, np.zeros(len(self.devices), np.int64), list(self.axes)
        for axis in axes:
            size = self.size_of(axis)
            after = self.axes[axis.name] // (size * axis.before)
            count *= size
            numbers = numbers * size + self._coordinates[names.index(axis.name)] // after % size
        return count, numbers

    def others(self, axes: Iterable[Axis]) -> list[Axis]:
        """Return what the mesh has beside some axes and parts of axes, in the order of the mesh.

        Raises:
            ValueError: the parts overlap.
        """
        others, used = [], sorted(axes, key=lambda axis: axis.before)
        for name, whole in self.axes.items():
            end = 1
            for axis in (axis for axis in used if axis.name == name):
                if axis.before % end:
                    raise ValueError(f"the axis {name} twice: {', '.join(map(str, used))}")
                if axis.before > end:
                    others.append(Axis(name, end, axis.before // end))
                end = axis.before * self.size_of(axis)
            if end < whole:
                others.append(Axis(name, end, whole // end) if end > 1 else Axis(name))
        return others

    def groups_along(self, axes: Sequence[Axis]) -> list[list[int]]:
        """Return the devices in groups that differ along some axes only, the first of these being the coarsest."""
        size, places = self.along(axes)
        count, groups = self.along(self.others(axes))
        table = np.empty((count, size), np.int64)
        table[groups, places] = np.arange(len(self.devices))
        return [[int(device) for device in group] for group in table]

    def __str__(self) -> str:
        """Return XLA's spelling, such as ``mesh['x'=4,'y'=2]``."""
        if not self.axes and self.devices != (0,):
            return f"single_device[device_id={self.devices[0]}]"
        axes = ",".join(f"'{name}'={size}" for name, size in self.axes.items())
        listed = "" if self.devices == tuple(range(len(self.devices))) else ",".join(map(str, self.devices))
        return f"mesh[{axes}]" + (f", device_ids=({listed})" if listed else "")


def axes_of(references: Iterable[Any], names: Sequence[str]) -> tuple[Axis, ...]:
    """Return the axes that messages (``AxisRefProto``) refer to.

    Args:
        references: the messages.
        names: the names of the mesh's axes.

    Raises:
        ValueError: the mesh lacks an axis.
    """
    axes = []
    for each in references:
        if not 0 <= each.mesh_axis_index < len(names):
            raise ValueError(f"axis {each.mesh_axis_index} of a mesh of {len(names)} axes")
        name, part = names[each.mesh_axis_index], each.sub_axis_info
        axes.append(Axis(name, part.pre_size, part.size) if each.HasField("sub_axis_info") else Axis(name))
    return tuple(axes)


Dimensions = tuple[tuple[Axis, ...], ...]


@dataclass(frozen=True, slots=True)
class MeshSharding:
    """How a value is spread over the axes of a mesh.

    Attributes:
        mesh: the mesh.
        dimensions: the axes that cut each dimension of the value, the coarsest first; none if it states no dimensions,
            and cuts none.
        open: the dimensions that may be cut further (``?``).
        replicated: axes along which the value must be repeated.
        unreduced: axes along which each device has a term of the value.
        reduction: how the terms make the value, one of ``REDUCTIONS``.
        manual: axes along which each device has a value of its own.
        device: the one device that has the value (XLA's ``maximal``); None for all others.

    Raises:
        ValueError: an axis is unknown, or used twice.
    """

    mesh: Mesh
    dimensions: Dimensions = ()
    open: frozenset[int] = frozenset()
    replicated: tuple[Axis, ...] = ()
    unreduced: tuple[Axis, ...] = ()
    reduction: str = "sum"
    manual: tuple[Axis, ...] = ()
    device: int | None = None

    def __post_init__(self) -> None:
        used = [axis for axes in self.dimensions for axis in axes]
        for axis in (*used, *self.replicated, *self.unreduced, *self.manual):
            self.mesh.size_of(axis)
        self.mesh.others((*used, *self.replicated, *self.unreduced, *self.manual))

    @staticmethod
    def of_proto(proto: Any) -> MeshSharding:
        """Return the sharding in a ``NamedShardingProto``.

        Raises:
            ValueError: the numbers in the message contradict each other.
        """
        mesh = Mesh.of_proto(proto.mesh)
        names = list(mesh.axes)

        if not 0 <= proto.reduction_op < len(REDUCTIONS):
            raise ValueError(f"a reduction with the number {proto.reduction_op}")
        return MeshSharding(
            mesh,
            tuple(axes_of(dimension.axes, names) for dimension in proto.dim_shardings),
            frozenset(number for number, each in enumerate(proto.dim_shardings) if not each.is_closed),
            axes_of(proto.replicated_axes, names),
            axes_of(proto.unreduced_axes, names),
            REDUCTIONS[proto.reduction_op],
            axes_of(proto.manual_axes, names),
            mesh.devices[0] if proto.mesh.device_ids and not names else None,
        )

    def check_spelling(self) -> None:
        """Check that axes are spelled as XLA does: it ends the process over a part that is no part.

        Raises:
            ValueError: a part is its whole axis or empty, two parts are one, or a set is not in the order of the mesh.
        """
        names = list(self.mesh.axes)
        for axes in (self.replicated, self.unreduced, self.manual):
            if list(axes) != sorted(axes, key=lambda axis: (names.index(axis.name), axis.before)):
                raise ValueError(f"a set of axes in another order than the mesh's: {', '.join(map(str, axes))}")
        for axes in (*self.dimensions, self.replicated, self.unreduced, self.manual):
            for axis in axes:
                if axis.size in (1, self.mesh.axes[axis.name]):
                    raise ValueError(f"a part of {axis.size} of an axis of {self.mesh.axes[axis.name]}")
            for axis, following in itertools.pairwise(axes):
                if (axis.name, axis.before * self.mesh.size_of(axis)) == (following.name, following.before):
                    raise ValueError(f"two parts that are one: {axis}, {following}")

    @property
    def spelled_axes(self) -> tuple[tuple[str, ...], ...]:
        """The axes of each dimension; ``x:(2)4`` is a part of the axis ``x``."""
        return tuple(tuple(str(axis).replace("'", "") for axis in axes) for axes in self.dimensions)

    def __str__(self) -> str:
        """Return XLA's spelling, such as ``{mesh['x'=4,'y'=2], [{'x'}, {}], unreduced={'y'}}``."""
        if self.device is not None:
            return f"{{single_device[device_id={self.device}]}}"

        def braced(axes: Iterable[Axis], more: str = "") -> str:
            return "{" + ", ".join([*map(str, axes), *filter(None, [more])]) + "}"

        kind = "" if self.reduction == "sum" else self.reduction
        sets = [("replicated", self.replicated, ""), ("unreduced", self.unreduced, kind), ("manual", self.manual, "")]
        parts = [f"{name}={prefix}{braced(axes)}" for name, axes, prefix in sets if axes]
        if self.dimensions or parts:
            cuts = [braced(axes, "?" if n in self.open else "") for n, axes in enumerate(self.dimensions)]
            parts = [f"[{', '.join(cuts)}]", *parts]
        return f"{{{self.mesh}, {', '.join(parts) or 'replicated'}}}"


Array = Any
Shape = tuple[int, ...]

# xla.OpSharding.Type, as far as it is known here.
_REPLICATED, _MAXIMAL, _OTHER, _MANUAL, _UNREDUCED = 0, 1, 3, 4, 6

_REDUCTION = b"sdy::reduction_op"
"""The ``op_type`` in the metadata by which XLA of 2026 tells that terms make a maximum or a minimum, and not a sum."""


@dataclass(frozen=True)
class Sharding:
    """Tiles of a value.

    Attributes:
        tiles: the number of tiles along each dimension; () for a value that every partition has whole.
        places: for each partition the position of its tile, dimension by dimension.
        terms: for each partition the number of the term that it has a tile of; () for a value that is no sum.
        reduction: how the terms make the value, one of ``REDUCTIONS``.

    Dimensions at the end that it does not name are not cut.
    """

    tiles: Shape = ()
    places: tuple[Shape, ...] = ()
    terms: Shape = ()
    reduction: str = "sum"

    @property
    def is_replicated(self) -> bool:
        """Whether every partition has the whole value."""
        return math.prod(self.tiles) == 1 and not self.terms

    @property
    def num_terms(self) -> int:
        """The number of terms of a sum; 1 for a value that is none."""
        return max(self.terms, default=0) + 1

    @property
    def copies(self) -> int:
        """The number of partitions that have the same tile."""
        return max(len(self.places) // (math.prod(self.tiles) * self.num_terms), 1)

    def shard_shape(self, shape: Shape) -> Shape:
        """Return the shape of a tile; the last one of a dimension that does not divide evenly is padded."""
        if self.is_replicated:
            return shape
        tiles = self.of_rank(len(shape)).tiles
        return tuple(-(-size // count) for size, count in zip(shape, tiles, strict=True))

    def of_rank(self, rank: int) -> Sharding:
        """Return the sharding of values of a rank, with a number of tiles for each dimension.

        Raises:
            InvalidArgumentError: it cuts more dimensions than there are.
        """
        more = rank - len(self.tiles)
        if self.is_replicated or not more:
            return self
        if more < 0:
            raise InvalidArgumentError(
                f"expected values of {len(self.tiles)} dimensions or more for a sharding of {self.tiles} tiles, found "
                f"one of {rank}"
            )
        places = tuple((*place, *(0,) * more) for place in self.places)
        return replace(self, tiles=(*self.tiles, *(1,) * more), places=places)

    def cut(self, value: Array, partition: int) -> Array:
        """Return the tile of a partition.

        Of a sum the first term is the value, and the others are zero; of a maximum or minimum each is the value.
        """
        if self.is_replicated:
            return value
        sizes = self.shard_shape(value.shape)
        if self.terms and self.terms[partition] and self.reduction == "sum":
            return np.zeros(sizes, value.dtype)
        place = self.of_rank(value.ndim).places[partition]
        tile = value[tuple(slice(i * size, (i + 1) * size) for i, size in zip(place, sizes, strict=True))]
        if tile.shape == sizes:
            return tile
        padded = np.zeros(sizes, value.dtype)
        padded[tuple(slice(0, size) for size in tile.shape)] = tile
        return padded

    def put_together(self, shards: Sequence[Array], shape: Shape) -> Array:
        """Return the whole value, of this shape, from the tiles of all partitions."""
        sizes, ranked = self.shard_shape(shape), self.of_rank(len(shape))
        whole = tuple(size * count for size, count in zip(sizes, ranked.tiles, strict=True))
        terms = self.terms or (0,) * len(self.places)
        sums: dict[int, Array] = {}
        for term, place, shard in zip(terms, ranked.places, shards, strict=True):
            if term not in sums:
                sums[term] = np.empty(whole, shard.dtype)
            sums[term][tuple(slice(i * size, (i + 1) * size) for i, size in zip(place, sizes, strict=True))] = shard
        total = functools.reduce(REDUCE[self.reduction], (sums[term] for term in sorted(sums)))
        return total[tuple(slice(0, size) for size in shape)]

    def to_proto(self) -> bytes:
        """Return the sharding as a serialized ``xla.OpSharding``."""
        if self.is_replicated:
            return b"\x08\x00"  # XLA writes the type also where it is 0
        count = self.num_terms
        kind = {"op_type": _REDUCTION, "op_name": self.reduction.upper().encode()}
        noted = {} if self.reduction == "sum" else {"metadata": [kind]}  # XLA before 2026 knows only sums
        if count == len(self.places):
            return _serialized(type=_UNREDUCED, **noted)
        copies = self.copies
        terms = self.terms or (0,) * len(self.places)
        order = sorted(range(len(self.places)), key=lambda partition: (self.places[partition], terms[partition]))
        tiled = {"type": _OTHER, "tile_assignment_devices": order, **noted}
        last = () if copies == 1 else (copies,)
        if count == 1:
            tiled["tile_assignment_dimensions"] = (*self.tiles, *last)
            return _serialized(replicate_on_last_tile_dim=bool(last), **tiled)
        kinds = (_UNREDUCED, _REPLICATED) if last else (_UNREDUCED,)
        return _serialized(tile_assignment_dimensions=(*self.tiles, count, *last), last_tile_dims=kinds, **tiled)

    def to_text(self) -> str:
        """Return GSPMD's spelling of the sharding, such as ``{devices=[2,2]0,1,2,3}``.

        Raises:
            UnimplementedError: the value is a sum.
        """
        if self.is_replicated:
            return "{replicated}"
        if self.terms:
            raise UnimplementedError("a sharding with terms of a sum has no spelling that all of XLA's versions read")
        copies = self.copies
        order = sorted(range(len(self.places)), key=self.places.__getitem__)
        dimensions = ",".join(map(str, self.tiles if copies == 1 else (*self.tiles, copies)))
        last = "" if copies == 1 else " last_tile_dim_replicate"
        return f"{{devices=[{dimensions}]{','.join(map(str, order))}{last}}}"

    @staticmethod
    def is_maximal(serialized: bytes) -> bool:
        """Whether a serialized ``xla.OpSharding`` leaves the whole value to one device.

        The others have an array of the same shape without the value. Such are the results of a call that one device of
        a program makes for all.
        """
        proto = hlo_proto.parse_message("OpSharding", serialized)
        if proto.HasField("named_sharding"):
            return bool(proto.named_sharding.mesh.device_ids) and not proto.named_sharding.mesh.axes
        return bool(proto.type == _MAXIMAL)

    @staticmethod
    def is_serialized(stated: bytes) -> bool:
        """Whether what a program states is a serialized ``xla.OpSharding``, as JAX has it for more than 100 devices.

        A message begins with a control character, and a text with a bracket.
        """
        return stated[:1].strip() != b"" and not b" " < stated[:1] < b"\x7f"

    @staticmethod
    def from_proto(serialized: bytes, num_partitions: int | None = None) -> Sharding:
        """Return the sharding that a serialized ``xla.OpSharding`` holds.

        Args:
            serialized: the message.
            num_partitions: the number of partitions, which some messages do not state.

        Raises:
            DataLossError: the bytes are no such message, or its numbers contradict each other.
            UnimplementedError: the sharding is of a kind that does not cut a value into tiles.
        """
        proto = hlo_proto.parse_message("OpSharding", serialized)
        try:
            if proto.HasField("named_sharding"):  # since XLA of 2026, in place of all other fields
                return _of_named(MeshSharding.of_proto(proto.named_sharding), proto.named_sharding.reduction_op)
            if proto.type == _REPLICATED:
                return REPLICATED
            if proto.type > _UNREDUCED or (proto.type == _MAXIMAL and len(proto.tile_assignment_devices) != 1):
                raise ValueError(f"kind {proto.type} with {len(proto.tile_assignment_devices)} devices")
            reduction = _reduction(proto.metadata)
            if proto.type == _UNREDUCED and num_partitions is not None:
                return Sharding.of_terms(num_partitions, reduction)
            last, dimensions = list(proto.last_tile_dims), tuple(proto.tile_assignment_dimensions)
            if proto.type != _OTHER or _MANUAL in last:
                raise UnimplementedError(
                    f"expected a sharding that replicates or tiles a value, found one of kind "
                    f"{proto.type}{' with manual parts' * (proto.type == _OTHER)}"
                )
            grid = _grid(proto, dimensions)
        except ValueError as error:
            raise DataLossError(f"corrupt sharding: {error}") from error
        rank = len(dimensions) - max(len(last), int(proto.replicate_on_last_tile_dim))
        summed = [rank + i for i, each in enumerate(last) if each == _UNREDUCED]
        if rank < 0:
            raise DataLossError(f"corrupt sharding: {len(dimensions)} dimensions, {len(last)} of which are no tiles")
        sharding = Sharding.of_grid(grid, rank, summed, reduction)
        return REPLICATED if sharding.is_replicated else sharding

    @staticmethod
    def of_axes(named: MeshSharding) -> Sharding:
        """Return the sharding over the axes of a mesh. Manual axes count as axes along which the value is repeated."""
        mesh = named.mesh
        spread = [mesh.along(axes) for axes in named.dimensions]
        numbers = np.array([places for _, places in spread], np.int64).reshape(len(spread), len(mesh.devices))
        terms = mesh.along(named.unreduced)[1]
        return Sharding(
            tuple(count for count, _ in spread),
            tuple(map(tuple, numbers.T.tolist())),
            *((_numbered(terms.tolist()), named.reduction) if terms.any() else ()),
        )

    @staticmethod
    def of_terms(num_partitions: int, reduction: str = "sum") -> Sharding:
        """Return the sharding of a value of which each partition has a whole term."""
        if num_partitions == 1:
            return REPLICATED
        return Sharding((), ((),) * num_partitions, tuple(range(num_partitions)), reduction)

    @staticmethod
    def of_grid(devices: Array, rank: int, summed: Sequence[int] = (), reduction: str = "sum") -> Sharding:
        """Return the sharding that places the partitions in a grid of tiles.

        Args:
            devices: the partition at each place of the grid.
            rank: how many of its dimensions, the first ones, are those of the value.
            summed: those of the others along which the terms of a sum lie; along the rest the value is repeated.
            reduction: how the terms make the value.
        """
        places: list[Shape] = [()] * devices.size
        terms = [0] * devices.size
        sizes = [devices.shape[d] for d in summed]
        for place, device in np.ndenumerate(devices):
            places[int(device)] = tuple(int(i) for i in place[:rank])
            terms[int(device)] = int(np.ravel_multi_index([place[d] for d in summed], sizes)) if summed else 0
        return Sharding(
            tuple(devices.shape[:rank]), tuple(places), *((_numbered(terms), reduction) if any(terms) else ())
        )


def _numbered(terms: Sequence[int]) -> Shape:
    """Return the number of each partition's term, in the order of the first partition that has it.

    Which term is which has no meaning, so equal shardings have equal numbers.
    """
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(term, len(numbers)) for term in terms)


def _of_named(named: MeshSharding, reduction: int) -> Sharding:
    is_manual = named.mesh.along(named.manual)[0] > 1
    if is_manual or named.device is not None or (reduction and not named.unreduced):
        raise UnimplementedError(f"expected a sharding that replicates or tiles a value, or adds, found {named}")
    sharding = Sharding.of_axes(named)
    return REPLICATED if sharding.is_replicated else sharding


def _reduction(metadata: Any) -> str:
    """Return the reduction that XLA notes in the metadata of a sharding.

    Raises:
        ValueError: it is none of ``REDUCTIONS``.
    """
    names = [each.op_name.decode(errors="replace").lower() for each in metadata if each.op_type == _REDUCTION]
    if any(name not in REDUCTIONS or name != names[0] for name in names):
        raise ValueError(f"a reduction by {', '.join(names)}")
    return names[0] if names else "sum"


REDUCE: Mapping[Any, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""The function of two terms for each of ``REDUCTIONS``."""


def _grid(proto: Any, dimensions: Shape) -> Array:
    """Return the partition at each place of the grid of tiles.

    Raises:
        ValueError: the numbers in the message make no grid.
    """
    iota = tuple(proto.iota_reshape_dims) or (len(proto.tile_assignment_devices),)
    if not 0 < math.prod(iota) == math.prod(dimensions) <= MOST_PARTITIONS or min(*iota, *dimensions) < 1:
        raise ValueError(f"a grid of {dimensions} tiles for partitions in a grid of {iota}")
    devices = np.array(proto.tile_assignment_devices or range(math.prod(iota)))
    if sorted(devices.tolist()) != list(range(devices.size)):
        raise ValueError(f"expected each of {devices.size} partitions once, found {devices.tolist()[:20]}")
    devices = devices.reshape(iota)
    return devices.transpose(tuple(proto.iota_transpose_perm) or range(devices.ndim)).reshape(dimensions)


def _serialized(**fields: Any) -> bytes:
    return bytes(hlo_proto.new_message("OpSharding", **fields).SerializeToString())


REPLICATED = Sharding()
