"""Who takes part in a collective: process groups, in the specification's four ways, and their meetings.

A process is a pair of replica and partition.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import FailedPreconditionError
from pjrt.devices.reference.core.context import Context
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.spmd.sharding_parser import Mesh, parse_mesh
from pjrt.stablehlo.attributes import Opaque

Process = tuple[int, int]
Group = tuple[Process, ...]
GroupFinder = Callable[[Context], Group | None]
"""Tells the group that the running process belongs to; None where it belongs to none."""

_numbers = itertools.count()


def group_table(view: OpView, name: str = "replica_groups") -> list[list[int]]:
    """A table of numbers, a row a group; -1 fills rows that are shorter than others."""
    table = view.attr(name, None)
    if table is None:
        return []
    if isinstance(table, Opaque) and (found := _MESH_AXES.match(table.text)) is not None:
        return _rows_along(parse_mesh(view.symbol(found["mesh"])["mesh"].text), _AXIS_NAME.findall(found["axes"]))
    if not isinstance(table, np.ndarray):
        raise view.unimplemented(f"expected a table of numbers as {name}, found {table}")
    if table.size == 0:
        return []
    return [[int(n) for n in row if n >= 0] for row in np.reshape(table, (len(table), -1) if table.ndim else (1, 1))]


# An axis that only a part of takes part in says so behind its name, and does not match.
_MESH_AXES = re.compile(
    r'#stablehlo\.replica_group_mesh_axes<mesh = @"?(?P<mesh>[^",]+)"?, '
    r'axes = \[(?P<axes>(?:#stablehlo\.axis_ref<name = "[^"]*">(?:, )?)*)\]>$'
)
_AXIS_NAME = re.compile(r'name = "([^"]*)"')


def _rows_along(mesh: Mesh, axes: Sequence[str]) -> list[list[int]]:
    """The devices of a mesh in groups that differ along some axes only, the first axis named being the slowest."""
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for device, place in enumerate(mesh.coordinates()):
        others = tuple(place[axis] for axis in mesh.axes if axis not in axes)
        groups.setdefault(others, []).append((tuple(place[axis] for axis in axes), device))
    return [[device for _, device in sorted(group)] for group in groups.values()]


def channel_of(view: OpView) -> int:
    """The number of the op's channel; 0 where it has none."""
    handle = view.attr("channel_handle", None)
    return 0 if handle is None else int(handle.handle)


def group_finder(view: OpView) -> GroupFinder:
    """The groups of all_reduce, all_gather and reduce_scatter: by their channel and ``use_global_device_ids``."""
    rows, channel = group_table(view), channel_of(view)
    if view.attr("use_global_device_ids", False):
        if channel <= 0:
            raise view.invalid("expected a channel with use_global_device_ids, found none")
        return _finder(rows, _flattened, lambda c: c.num_replicas * c.num_partitions)
    if channel > 0:
        return _finder(rows, _cross_replica_and_partition, lambda c: c.num_replicas)
    return _finder(rows, _cross_replica, lambda c: c.num_replicas)


def channel_group_finder(rows: list[list[int]], channel: int) -> GroupFinder:
    """The groups of all_to_all, collective_broadcast and collective_permute: of partitions with a channel, else of
    replicas.
    """
    if channel > 0:
        return _finder(rows, _cross_partition, lambda c: c.num_partitions)
    return _finder(rows, _cross_replica, lambda c: c.num_replicas)


def _finder(
    rows: list[list[int]],
    expand: Callable[[Sequence[int], Context], list[Group]],
    everyone: Callable[[Context], int],
) -> GroupFinder:
    """Looks for the running process in all groups; no rows stand for one with everyone."""

    def find(context: Context) -> Group | None:
        me = (context.replica_id, context.partition_id)
        for row in rows or [list(range(everyone(context)))]:
            for group in expand(row, context):
                if me in group:
                    return group
        return None

    return find


def _cross_replica(row: Sequence[int], context: Context) -> list[Group]:
    return [tuple((replica, partition) for replica in row) for partition in range(context.num_partitions)]


def _cross_partition(row: Sequence[int], context: Context) -> list[Group]:
    return [tuple((replica, partition) for partition in row) for replica in range(context.num_replicas)]


def _cross_replica_and_partition(row: Sequence[int], context: Context) -> list[Group]:
    return [tuple((replica, partition) for partition in range(context.num_partitions) for replica in row)]


def _flattened(row: Sequence[int], context: Context) -> list[Group]:
    return [tuple((n // context.num_partitions, n % context.num_partitions) for n in row)]


class Rendezvous:
    """The place where the processes of a group meet each time that they come to an op.

    Every process comes to its ops in the same order, so the meetings of one op are numbered by each process for itself.
    """

    def __init__(self, name: str) -> None:
        self._place = (name, next(_numbers))

    def exchange(self, context: Context, group: Group, value: Any, *, timeout: float | None = None) -> list[Any]:
        """The values that all of a group bring, in the group's order; they are not to be written to.

        Raises:
            DeadlineExceededError: somebody does not come in time.
            AbortedError: somebody failed.
            FailedPreconditionError: the program runs without the others.
        """
        if group == ((context.replica_id, context.partition_id),):
            return [value]
        if context.host is None:
            raise FailedPreconditionError(
                f"{self._place[0]} needs {len(group)} processes: run the program on a client with as many devices"
            )
        counts: dict[Any, int] = context.values.setdefault("meetings", {})
        count = counts[self._place] = counts.get(self._place, 0) + 1
        found: list[Any] = context.host.rendezvous((*self._place, count), value, participants=group, timeout=timeout)
        return found
