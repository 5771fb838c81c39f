"""Shardings over the axes of a mesh: XLA's third kind (``xla::NamedSharding``, "HloShardingV3"), and Shardy's."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
