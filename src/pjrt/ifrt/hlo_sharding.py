"""Shardings that cut an array of any size by a rule, and meshes to write them by name.

A rule is XLA's ``OpSharding`` (``xla::ifrt::HloSharding``), or IFRT's own notation for tilings over a mesh
(``xla::ifrt::ShardingParam``).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.checks import expect, expect_int
from pjrt.api.device import Device
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import expect_shape
from pjrt.ifrt.sharding import DeviceList, IndexDomain, Shape, Sharding
from pjrt.stablehlo.ir.sharding import REPLICATED
from pjrt.stablehlo.ir.sharding import Sharding as Tiling
from pjrt.stablehlo.ir.sharding_parser import parse_gspmd, parse_mesh, parse_sdy


class HloSharding(Sharding):
    """An array cut into tiles, as XLA cuts the values of a program.

    Where a dimension does not divide evenly, the last tiles are short, or empty. The buffers of short tiles are padded
    to the shape of the others, because a program has one shape for all of its partitions.

    Args:
        devices: the devices; device ``i`` runs partition ``i``.
        tiling: how partitions share a value.
        memory_kind: the kind of memory; ``None`` is the devices' default.

    Raises:
        InvalidArgumentError: the tiling is for another number of devices.
    """

    __slots__ = ("tiling",)

    def __init__(
        self, devices: DeviceList | Iterable[Device], tiling: Tiling = REPLICATED, memory_kind: str | None = None
    ) -> None:
        super().__init__(devices, memory_kind)
        self.tiling = REPLICATED if tiling.is_replicated else tiling
        if self.tiling.places and len(self.tiling.places) != len(self.devices):
            raise InvalidArgumentError(
                f"expected a tiling for {len(self.devices)} devices, found one for {len(self.tiling.places)}: "
                f"{self.tiling}"
            )

    @staticmethod
    def from_proto(
        devices: DeviceList | Iterable[Device], serialized: bytes, memory_kind: str | None = None
    ) -> HloSharding:
        """Return the sharding of a serialized ``xla.OpSharding``, as executables report it.

        Raises:
            DataLossError: the bytes are damaged.
            UnimplementedError: the sharding does not tile or replicate.
        """
        devices = DeviceList.of(devices)
        return HloSharding(devices, Tiling.from_proto(serialized, len(devices)), memory_kind)

    @staticmethod
    def from_gspmd(
        devices: DeviceList | Iterable[Device], text: str, rank: int, memory_kind: str | None = None
    ) -> HloSharding:
        """Return the sharding that XLA writes as ``{devices=[4,2]<=[8]}``, as in ``mhlo.sharding``.

        Its spelling over the axes of a mesh is read, too: ``{mesh['x'=4,'y'=2], [{'x'}, {'y'}]}``.

        Args:
            devices: the devices.
            text: the sharding's text.
            rank: the number of dimensions of the arrays.
            memory_kind: the kind of memory; ``None`` is the devices' default.

        Raises:
            UnimplementedError: the text is not a sharding that tiles or replicates.
        """
        return HloSharding(devices, parse_gspmd(text, rank), memory_kind)

    @staticmethod
    def from_sdy(
        devices: DeviceList | Iterable[Device], text: str, mesh: str, memory_kind: str | None = None
    ) -> HloSharding:
        """Return the sharding that Shardy writes as ``#sdy.sharding<@mesh, [{"x"}, {}]>``, as in ``sdy.sharding``.

        Args:
            devices: the devices.
            text: the sharding's text.
            mesh: the text of its mesh, such as ``<["x"=4, "y"=2]>``.
            memory_kind: the kind of memory; ``None`` is the devices' default.

        Raises:
            InvalidArgumentError: the text has no sharding, or it names an axis that the mesh lacks.
        """
        axes = parse_mesh(mesh)
        try:
            (tiling,) = parse_sdy(text, lambda _: axes)
        except (KeyError, ValueError) as error:
            raise InvalidArgumentError(
                f"expected one sharding over the axes {list(axes.axes)} of {mesh}, found {text[:120]}"
            ) from error
        return HloSharding(devices, tiling, memory_kind)

    @property
    def is_fully_replicated(self) -> bool:
        return self.tiling.is_replicated

    def shard_shape(self, shape: Sequence[int]) -> Shape:
        shape = expect_shape(shape)
        return self.tiling_of_rank(len(shape)).shard_shape(shape)

    def all_index_domains(self, shape: Sequence[int]) -> tuple[IndexDomain, ...]:
        sizes = self.shard_shape(shape)
        if self.tiling.is_replicated:
            return (IndexDomain.whole(sizes),) * len(self.devices)
        tiling, domains = self.tiling_of_rank(len(sizes)), {}
        for place in set(tiling.places):
            begins = [min(i * size, whole) for i, size, whole in zip(place, sizes, shape, strict=True)]
            ends = [min((i + 1) * size, whole) for i, size, whole in zip(place, sizes, shape, strict=True)]
            lengths = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
            domains[place] = IndexDomain(tuple(begins), lengths)
        return tuple(domains[place] for place in tiling.places)

    def with_device_assignment(
        self, devices: DeviceList | Iterable[Device] | None = None, memory_kind: str | None = None
    ) -> HloSharding:
        moved, kind = self._moved(devices, memory_kind)
        return HloSharding(moved, self.tiling, kind)

    def tiling_of_rank(self, rank: int) -> Tiling:
        """Return the tiling for arrays of a rank; dimensions that it does not name are not cut.

        Raises:
            InvalidArgumentError: the tiling cuts more dimensions than there are.
        """
        if not self.tiling.is_replicated and len(self.tiling.tiles) > rank:
            raise InvalidArgumentError(
                f"{self} is for arrays of {len(self.tiling.tiles)} dimensions or more, found one of {rank}"
            )
        return self.tiling.of_rank(rank)

    def _partitioning(self) -> Any:
        return self._cut

    @functools.cached_property
    def _cut(self) -> Any:
        """The tiling without the dimensions at its end that are not cut: they say nothing."""
        tiles = self.tiling.tiles
        rank = max((number + 1 for number, count in enumerate(tiles) if count > 1), default=0)
        tiling = self.tiling
        return tiles[:rank], tuple(place[:rank] for place in tiling.places), tiling.terms, tiling.reduction

    def __repr__(self) -> str:
        if self.tiling.is_replicated:
            return f"HloSharding(replicated on {self.devices}, {self.memory_kind})"
        tiles = "×".join(map(str, self.tiling.tiles)) + " tiles"
        order = sorted(range(len(self.tiling.places)), key=self.tiling.places.__getitem__)
        if order != list(range(len(order))):  # without it, tilings that differ would look alike
            tiles += f" in the order {','.join(map(str, order))}"
        if self.tiling.terms:
            tiles += f", {self.tiling.num_terms} terms of a {self.tiling.reduction}"
        return f"HloSharding({tiles} on {self.devices}, {self.memory_kind})"


Axes = str | Sequence[str] | None
"""The axes of a mesh along which one dimension of an array is cut; ``None`` for none."""


class Mesh:
    """Devices in a grid whose axes have names, to write shardings by (Shardy's mesh).

    Args:
        devices: the devices, in the order of the grid: along the last axis first.
        axes: the size of each axis by its name.

    Raises:
        InvalidArgumentError: the sizes do not multiply to the number of devices.
    """

    __slots__ = ("axes", "devices")

    def __init__(self, devices: DeviceList | Iterable[Device], axes: Mapping[str, int]) -> None:
        self.devices = DeviceList.of(devices)
        self.axes = dict(axes)
        if math.prod(self.axes.values()) != len(self.devices):
            raise InvalidArgumentError(
                f"expected axes for {len(self.devices)} devices, found {self.axes} for {math.prod(self.axes.values())}"
            )

    def sharding(self, *dimensions: Axes, memory_kind: str | None = None) -> HloSharding:
        """Return the sharding of arrays whose dimensions are cut along axes.

        Args:
            dimensions: for each dimension of the array the axis along which it is cut, several of them, the one that
                varies slowest first, or ``None``. Without any, the array is replicated.
            memory_kind: the kind of memory; ``None`` is the devices' default.

        Raises:
            InvalidArgumentError: an axis is unknown or named twice.
        """
        named = [() if d is None else (d,) if isinstance(d, str) else tuple(d) for d in dimensions]
        used = [axis for names in named for axis in names]
        for axis in used:
            if axis not in self.axes or used.count(axis) > 1:
                raise InvalidArgumentError(f"expected each of the axes {list(self.axes)} at most once, found {used}")
        rest = [axis for axis in self.axes if axis not in used]
        order = [list(self.axes).index(axis) for axis in (*used, *rest)]
        grid = np.arange(len(self.devices)).reshape(tuple(self.axes.values())).transpose(order)
        tiles = [math.prod(self.axes[axis] for axis in names) for names in named]
        tiling = Tiling.of_grid(grid.reshape((*tiles, math.prod(self.axes[axis] for axis in rest))), len(tiles))
        return HloSharding(self.devices, tiling, memory_kind)

    def __repr__(self) -> str:
        return f"Mesh({self.axes} of {self.devices})"


_SPELLED = re.compile(r"^(?P<shards>\d+(?:x\d+)*)? ?to \[(?P<permutation>[\d, ]*)\] on (?P<sizes>\d+(?:x\d+)*)$")


@dataclass(frozen=True, slots=True)
class ShardingParam:
    """The number of shards along each dimension, and the axes of a mesh that the shards lie along.

    ``2x1x3 to [1,0] on 3x2`` cuts dimension 0 in two and dimension 2 in three. The six shards lie on the logical
    devices 0, 3, 1, 4, 2, 5: axis 0 of the mesh varies fastest in the numbers of the devices, and the permutation
    begins with the axis along which the shards of the first dimensions lie.

    Attributes:
        dim_shards: the number of shards along each dimension of the array.
        permutation: the axes of the mesh, from minor to major.
        axis_sizes: the size of each axis of the mesh.
    """

    dim_shards: tuple[int, ...]
    permutation: tuple[int, ...]
    axis_sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("dim_shards", "permutation", "axis_sizes"):
            numbers = tuple(expect_int(n, f"ShardingParam.{name} as whole numbers") for n in getattr(self, name))
            object.__setattr__(self, name, numbers)
        if not self.axis_sizes or sorted(self.permutation) != list(range(len(self.axis_sizes))):
            raise InvalidArgumentError(f"expected a permutation of the axes of a mesh, found {self}")
        if min((*self.dim_shards, *self.axis_sizes)) < 1:
            raise InvalidArgumentError(f"expected numbers of shards and sizes of axes from 1 up, found {self}")
        self._check_axes()

    def _check_axes(self) -> None:
        """Raise an error unless the shards of each dimension fill whole axes, one after the other."""
        axes = iter(self.permutation)
        for shards in self.dim_shards:
            filled = 1
            while filled < shards:
                axis = next(axes, None)
                if axis is None:
                    break
                filled *= self.axis_sizes[axis]
            if filled != shards:
                raise InvalidArgumentError(f"the shards of a dimension must fill whole axes of the mesh, found {self}")

    @staticmethod
    def parse(text: str) -> ShardingParam:
        """Return the parameter that a text such as ``2x1x3 to [1,0] on 3x2`` spells.

        Raises:
            InvalidArgumentError: the text is not of that form, or the shards do not fit the mesh.
        """
        match = _SPELLED.match(expect(text, str, "a sharding parameter as a str").strip())
        if match is None:
            raise InvalidArgumentError(f"expected a sharding parameter such as '2x1 to [0,1] on 2x3', found {text!r}")
        shards = tuple(int(n) for n in (match["shards"] or "").split("x") if n)
        permutation = tuple(int(n) for n in match["permutation"].split(",") if n.strip())
        return ShardingParam(shards, permutation, tuple(int(n) for n in match["sizes"].split("x")))

    @property
    def num_devices(self) -> int:
        """The number of devices of the mesh."""
        return math.prod(self.axis_sizes)

    def to_device_list(self) -> list[int]:
        """Return the logical device of each shard, the copies of a shard one after the other (``ToDeviceList``)."""
        strides = [math.prod(self.axis_sizes[:axis]) for axis in range(len(self.axis_sizes))]
        order = self.permutation[::-1]
        grid = np.zeros([self.axis_sizes[axis] for axis in order], int)
        for dimension, axis in enumerate(order):
            shape = [-1 if d == dimension else 1 for d in range(len(order))]
            grid = grid + (np.arange(self.axis_sizes[axis]) * strides[axis]).reshape(shape)
        return [int(number) for number in grid.ravel()]

    def to_tiling(self) -> Tiling:
        """Return the tiling as XLA has it."""
        copies = self.num_devices // math.prod(self.dim_shards)
        grid = np.array(self.to_device_list()).reshape((*self.dim_shards, copies))
        return Tiling.of_grid(grid, len(self.dim_shards))

    def __str__(self) -> str:
        shards, sizes = ("x".join(map(str, numbers)) for numbers in (self.dim_shards, self.axis_sizes))
        return f"{shards} to [{','.join(map(str, self.permutation))}] on {sizes}"


class ShardingParamSharding(HloSharding):
    """A sharding by a sharding parameter (``xla::ifrt::ShardingParamSharding``). Its shards are all of one shape.

    Args:
        devices: the devices; the logical device of the parameter is the position in this list.
        param: the parameter, or its text.
        memory_kind: the kind of memory; ``None`` is the devices' default.

    Raises:
        InvalidArgumentError: the mesh has another number of devices.
    """

    __slots__ = ("param",)

    def __init__(
        self, devices: DeviceList | Iterable[Device], param: ShardingParam | str, memory_kind: str | None = None
    ) -> None:
        self.param = ShardingParam.parse(param) if isinstance(param, str) else param
        devices = DeviceList.of(devices)
        if len(devices) != self.param.num_devices:
            raise InvalidArgumentError(
                f"expected {self.param.num_devices} devices for {self.param}, found {len(devices)}"
            )
        super().__init__(devices, self.param.to_tiling(), memory_kind)

    def shard_shape(self, shape: Sequence[int]) -> Shape:
        shape = expect_shape(shape)
        shards = self.param.dim_shards
        if len(shards) != len(shape) or any(size % count for size, count in zip(shape, shards, strict=True)):
            raise InvalidArgumentError(f"{self} cannot cut arrays of shape {list(shape)} into even shards")
        return super().shard_shape(shape)

    def with_device_assignment(
        self, devices: DeviceList | Iterable[Device] | None = None, memory_kind: str | None = None
    ) -> ShardingParamSharding:
        moved, kind = self._moved(devices, memory_kind)
        return ShardingParamSharding(moved, self.param, kind)

    def _partitioning(self) -> Any:
        return self.param

    def __repr__(self) -> str:
        return f"ShardingParamSharding({self.param} on {self.devices}, {self.memory_kind})"
