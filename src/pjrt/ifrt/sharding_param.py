"""Sharding parameters: IFRT's own notation for tilings over a mesh (``xla::ifrt::ShardingParam``)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.checks import expect, expect_int
from pjrt.api.device import Device
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import expect_shape
from pjrt.ifrt.device_list import DeviceList
from pjrt.ifrt.hlo_sharding import HloSharding
from pjrt.ifrt.sharding import Shape
from pjrt.stablehlo.shardings.sharding import Sharding as Tiling

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
