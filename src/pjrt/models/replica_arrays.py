"""Arrays of replicas: whole arrays in and out of a program that runs several times, each replica on its own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import pjrt.ifrt
from pjrt.stablehlo.shardings.sharding import REPLICATED, Sharding

Array = np.ndarray[Any, Any]


def put(executable: pjrt.ifrt.LoadedExecutable, index: int, value: Array) -> pjrt.ifrt.Array:
    """Return an argument on all devices: each replica gets the same value, cut over the replica's partitions.

    Args:
        executable: the executable.
        index: the position of the argument.
        value: the whole argument of one replica.
    """
    return put_each(executable, index, [value] * executable.pjrt_executable.num_replicas)


def put_each(executable: pjrt.ifrt.LoadedExecutable, index: int, values: Sequence[Array]) -> pjrt.ifrt.Array:
    """Return an argument on all devices: each replica gets its own value, cut over the replica's partitions.

    Args:
        executable: the executable.
        index: the position of the argument.
        values: the whole argument of each replica.
    """
    if executable.pjrt_executable.num_replicas == 1:
        return executable.client.make_array(values[0], executable.parameter_specs[index].sharding)
    tiling = _tiling(executable.pjrt_executable, "parameter_shardings", index)
    ids = executable.pjrt_executable.addressable_device_logical_ids
    shape = tiling.shard_shape(values[0].shape)
    shards = [np.ascontiguousarray(tiling.cut(values[row], partition)).reshape(shape) for row, partition in ids]
    return executable.client.make_array_from_host_buffer_shards(executable.parameter_specs[index], shards)


def values_of_replicas(executable: pjrt.ifrt.LoadedExecutable, index: int, result: pjrt.ifrt.Array) -> list[Array]:
    """Return the whole value of a result, one for each replica; wait for it.

    Args:
        executable: the executable.
        index: the position of the result.
        result: the result.
    """
    lower = executable.pjrt_executable
    if lower.num_replicas == 1:
        return [np.asarray(result)]
    tiling = _tiling(lower, "output_shardings", index)
    at = dict(zip(lower.addressable_device_logical_ids, result.buffers, strict=True))
    if tiling.is_replicated:
        return [np.asarray(at[replica, 0]) for replica in range(lower.num_replicas)]
    return [
        tiling.put_together(
            [np.asarray(at[replica, partition]) for partition in range(lower.num_partitions)], result.shape
        )
        for replica in range(lower.num_replicas)
    ]


def named_by_replica(names: Sequence[str], columns: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """Return the results of all replicas by name; those of several have ``_of_replica_0`` behind the name.

    Args:
        names: the names of the results.
        columns: the value of each result on each replica.
    """
    return {
        f"{name}_of_replica_{number}" if len(column) > 1 else name: array
        for name, column in zip(names, columns, strict=True)
        for number, array in enumerate(column)
    }


def _tiling(executable: Any, name: str, index: int) -> Sharding:
    shardings = getattr(executable, name)
    return REPLICATED if shardings is None else Sharding.from_proto(shardings[index], executable.num_partitions)
