"""Named shardings: the axes of a mesh that cut each dimension of an array (JAX's ``NamedSharding`` without devices)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pjrt.api.errors import DataLossError
from pjrt.stablehlo.shardings.mesh_sharding import MOST_PARTITIONS, Axis, Mesh, MeshSharding
from pjrt.stablehlo.shardings.sharding import Sharding


@dataclass(frozen=True, slots=True)
class NamedSharding:
    """A sharding over a mesh that has only axes, and gets its devices when the program is run.

    Attributes:
        mesh: the name and the size of each axis.
        spec: for each dimension the axes that cut it, the coarsest first; dimensions at the end may be missing.
        unreduced: the axes along which each device has one term of a sum.
        reduced: the axes along which a sum was already added up.
        memory_kind: the kind of memory; empty if none is stated.
        axis_types: ``Auto``, ``Explicit`` or ``Manual`` for each axis.
    """

    mesh: tuple[tuple[str, int], ...]
    spec: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    memory_kind: str = ""
    axis_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = dict(self.mesh)
        cut = [axis for axes in self.spec for axis in axes]
        if len(sizes) != len(self.mesh) or not 1 <= self.num_devices <= MOST_PARTITIONS:
            raise DataLossError(f"expected a mesh of named axes with 1 to {MOST_PARTITIONS} devices, found {self.mesh}")
        used = [*cut, *self.unreduced]
        unknown = [axis for axis in (*used, *self.reduced) if axis not in sizes]
        if unknown or len(set(used)) != len(used):
            raise DataLossError(f"expected axes of the mesh {', '.join(sizes)}, each once, found {self.spec}")

    @property
    def num_devices(self) -> int:
        """The number of devices of the mesh."""
        return math.prod(size for _, size in self.mesh)

    def tiling(self, rank: int) -> Sharding:
        """Return the tiles of an array with this many dimensions, for the devices in the mesh's order.

        Raises:
            DataLossError: the sharding is for more dimensions.
        """
        if len(self.spec) > rank:
            raise DataLossError(f"expected a sharding of {rank} dimensions, found {self}")
        cuts = tuple(tuple(map(Axis, axes)) for axes in (*self.spec, *[()] * (rank - len(self.spec))))
        mesh = Mesh.of(dict(self.mesh))
        return Sharding.of_axes(MeshSharding(mesh, cuts, unreduced=tuple(map(Axis, self.unreduced))))

    def __str__(self) -> str:
        names = ["None" if not axes else repr(axes[0] if len(axes) == 1 else axes) for axes in self.spec]
        sums = [f"unreduced={{{', '.join(map(repr, self.unreduced))}}}"] if self.unreduced else []
        return f"P({', '.join(names + sums)}) over {', '.join(f'{name}={size}' for name, size in self.mesh)}"
