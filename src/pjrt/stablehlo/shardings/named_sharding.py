"""Shardings over the axes of a mesh, as newer versions of XLA serialize them (``xla.NamedShardingProto``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import UnimplementedError

Shape = tuple[int, ...]


def tiles_of(proto: Any, most_partitions: int) -> tuple[Shape, tuple[Shape, ...], Shape]:
    """Return the tiles along each dimension, the position of each partition's tile, and the number of its term.

    Args:
        proto: the ``NamedShardingProto``.
        most_partitions: the largest number of partitions that is taken for a serious one.

    Raises:
        ValueError: the numbers in the message contradict each other.
        UnimplementedError: the sharding is of a kind that does not cut a value into tiles.
    """
    if proto.manual_axes or proto.reduction_op or (proto.mesh.device_ids and not proto.mesh.axes):
        raise UnimplementedError("expected a sharding that replicates or tiles a value, or adds, found another one")
    mesh = _Mesh(proto.mesh, most_partitions)
    spread = [mesh.along(dimension.axes) for dimension in proto.dim_shardings]
    terms = mesh.along(proto.unreduced_axes)[1]
    places = np.array([numbers for _, numbers in spread], np.int64).reshape(len(spread), len(terms)).T
    return (
        tuple(count for count, _ in spread),
        tuple(map(tuple, places.tolist())),
        tuple(terms.tolist()) if terms.any() else (),
    )


class _Mesh:
    """The partitions in a grid of axes; raises ``ValueError`` if the message's numbers make no grid."""

    def __init__(self, proto: Any, most_partitions: int) -> None:
        self._sizes = [axis.size for axis in proto.axes]
        count = math.prod(self._sizes)
        if not 0 < count <= most_partitions or min(self._sizes, default=1) < 1:
            raise ValueError(f"a mesh of {self._sizes} partitions")
        partitions = np.array(proto.device_ids or range(count), np.int64)
        if proto.HasField("iota_transform"):
            transform = proto.iota_transform
            if math.prod(transform.reshape_dims) != count:
                raise ValueError(f"a mesh of {self._sizes} partitions from a grid of {list(transform.reshape_dims)}")
            partitions = np.arange(count).reshape(transform.reshape_dims).transpose(transform.transpose_perm).ravel()
        if sorted(partitions.tolist()) != list(range(count)):
            raise ValueError(f"expected each of {count} partitions once, found {partitions.tolist()[:20]}")
        self._coordinates = np.empty((len(self._sizes), count), np.int64)
        self._coordinates[:, partitions] = np.indices(self._sizes).reshape(len(self._sizes), count)

    def along(self, axes: Sequence[Any]) -> tuple[int, Any]:
        """Return how many places there are along axes together, or parts of them, the first being the coarsest, and
        which of them each partition has.
        """
        count, numbers = 1, np.zeros(self._coordinates.shape[1], np.int64)
        for axis in axes:
            index = axis.mesh_axis_index
            if not 0 <= index < len(self._sizes):
                raise ValueError(f"axis {index} of a mesh of {len(self._sizes)} axes")
            size, before = self._sizes[index], 1
            if axis.HasField("sub_axis_info"):
                size, before = axis.sub_axis_info.size, axis.sub_axis_info.pre_size
            if min(size, before) < 1 or self._sizes[index] % (size * before):
                raise ValueError(f"a part of {size} after {before} of an axis of {self._sizes[index]}")
            after = self._sizes[index] // (size * before)
            count *= size
            numbers = numbers * size + self._coordinates[index] // after % size
        return count, numbers
