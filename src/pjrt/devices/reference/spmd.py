"""Programs for several devices: replica groups, and partitioning by gathering.

A process is a pair of replica and partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.reference.core.block import Context
from pjrt.devices.reference.core.op_view import OpView
from pjrt.host.device_memory import on_host
from pjrt.host.processes import Collective, LaunchCollective
from pjrt.stablehlo.ir.attributes import Opaque
from pjrt.stablehlo.ir.sharding import REPLICATED, Sharding
from pjrt.stablehlo.ir.sharding_parser import parse_mesh, parse_mesh_axes
from pjrt.stablehlo.ir.types import TensorType, ValueType

Process = tuple[int, int]
Group = tuple[Process, ...]
GroupFinder = Callable[[Context], Group | None]
"""A function that returns the group of the running process, or None if it is in no group."""


def group_table(view: OpView, name: str = "replica_groups") -> list[list[int]]:
    """Return a table of numbers, with a row for each group; in the program -1 fills rows that are too short."""
    table = view.attr(name, None)
    if table is None:
        return []
    if isinstance(table, Opaque):
        along = parse_mesh_axes(table.text, lambda mesh: parse_mesh(view.symbol(mesh)["mesh"].text))
        if along is not None:
            return along
    if not isinstance(table, np.ndarray):
        raise view.unimplemented(f"expected a table of numbers as {name}, found {table}")
    if table.size == 0:
        return []
    return [[int(n) for n in row if n >= 0] for row in np.reshape(table, (len(table), -1) if table.ndim else (1, 1))]


def channel_of(view: OpView) -> int:
    """Return the number of the op's channel; 0 if it has none."""
    handle = view.attr("channel_handle", None)
    return 0 if handle is None else int(handle.handle)


def group_finder(view: OpView) -> GroupFinder:
    """Return the finder of the groups of all_reduce, all_gather and reduce_scatter."""
    rows, channel = group_table(view), channel_of(view)
    if view.attr("use_global_device_ids", False):
        if channel <= 0:
            raise view.invalid("expected a channel with use_global_device_ids, found none")
        return _finder(rows, _flattened, lambda c: c.num_replicas * c.num_partitions)
    if channel > 0:
        return _finder(rows, _cross_replica_and_partition, lambda c: c.num_replicas)
    return _finder(rows, _cross_replica, lambda c: c.num_replicas)


def channel_group_finder(rows: list[list[int]], channel: int) -> GroupFinder:
    """Return the finder of the groups of all_to_all, collective_broadcast and collective_permute.

    They are groups of partitions if the op has a channel, else of replicas.
    """
    if channel > 0:
        return _finder(rows, _cross_partition, lambda c: c.num_partitions)
    return _finder(rows, _cross_replica, lambda c: c.num_replicas)


_BY_CHANNEL = ("stablehlo.all_to_all", "stablehlo.collective_broadcast")
_BY_GROUP = ("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.reduce_scatter")
_OF_PARTITIONS = ("sdy.manual_computation", "SPMDShardToFullShape")

MEETINGS = frozenset(
    {"stablehlo.collective_permute", "stablehlo.cross-replica-sum", *_BY_CHANNEL, *_BY_GROUP, *_OF_PARTITIONS}
)
"""The ops and custom calls by which devices meet."""


def finder_of(view: OpView) -> GroupFinder:
    """Return the finder of the groups of one of ``MEETINGS``."""
    if view.name in _BY_GROUP:
        return group_finder(view)
    if view.name in _BY_CHANNEL:
        return channel_group_finder(group_table(view), channel_of(view))
    if view.name == "stablehlo.collective_permute":
        return channel_group_finder([], channel_of(view))
    if view.name == "stablehlo.cross-replica-sum":
        return channel_group_finder(group_table(view), 0)
    return all_partitions


def all_partitions(context: Context) -> Group:
    """Return the partitions of the running process's replica."""
    return tuple((context.replica_id, partition) for partition in range(context.num_partitions))


def participants(finders: Iterable[GroupFinder], context: Context) -> list[Group]:
    """Return the groups of a process in all collectives of a program."""
    groups = (find(context) for find in finders)
    return [group for group in groups if group is not None]


def _finder(
    rows: list[list[int]],
    expand: Callable[[Sequence[int], Context], list[Group]],
    count: Callable[[Context], int],
) -> GroupFinder:
    """Return the finder that looks for the running process in all groups; no rows stand for one group of all."""

    def find(context: Context) -> Group | None:
        me = (context.replica_id, context.partition_id)
        for row in rows or [list(range(count(context)))]:
            for group in expand(row, context):
                if me in group:
                    _check(group, context)
                    return group
        return None

    return find


def _check(group: Group, context: Context) -> None:
    """Refuse a group with a process that there is not: on a client the others would wait for it.

    Raises:
        InvalidArgumentError: a number of the group is too large.
    """
    for replica, partition in group if context.host is not None else ():
        if replica >= context.num_replicas or partition >= context.num_partitions:
            raise InvalidArgumentError(
                f"a collective names replica {replica}, partition {partition}; the program has {context.num_replicas} "
                f"replicas × {context.num_partitions} partitions. Groups of an op with a channel are partitions; give "
                "it no channel for groups of replicas"
            )


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

    Every process comes to its ops in the same order, so each process numbers the rounds of one op by itself.

    Args:
        name: the name of the op.
        number: the op's number in the program.
    """

    def __init__(self, name: str, number: int = 0) -> None:
        self._place = (name, number)

    def exchange(self, context: Context, group: Group, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Return the values of all processes of a group, in the group's order; they must not be written to.

        Raises:
            DeadlineExceededError: a process does not come in time.
            AbortedError: a process failed.
            FailedPreconditionError: the program runs without a client, or its client has too few devices.
        """
        return self.collective(context, group, timeout=timeout).rendezvous(value)

    def collective(self, context: Context, group: Group, *, timeout: float | None = None) -> Collective:
        """Return the collective of the processes of a group, for one call of one of its methods.

        Raises:
            FailedPreconditionError: the program runs without a client, or its client has too few devices.
        """
        if group == ((context.replica_id, context.partition_id),):
            return LaunchCollective(lambda value: [value], 0)
        if context.host is None:
            raise FailedPreconditionError(
                f"{self._place[0]} needs {len(group)} processes: run the program on a client with as many devices"
            )
        collective: Collective = context.host.collective(self._key(context), participants=group, timeout=timeout)
        return collective

    def together(self, context: Context, group: Group, value: Any, work: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Let the last process of a group do some work on the values of all; return this process's result."""
        return context.host.together(self._key(context), value, work, group)

    def _key(self, context: Context) -> tuple[str, int, int]:
        rounds: dict[Any, int] = context.values.setdefault("rendezvous", {})
        number = rounds[self._place] = rounds.get(self._place, 0) + 1
        return (*self._place, number)


# Programs that XLA cannot partition run whole on gathered arguments, with results cut by shardings. Where such a
# program has parts for one shard, or collectives, every device runs it, and they exchange values there. Else all would
# do the same, so one device runs it for all.

_FOREVER = 1e9
"""Seconds to wait for the device that runs the program for all: if it fails, the launch ends."""

_PER_DEVICE = MEETINGS | {
    "SPMDFullToShardShape",
    "stablehlo.partition_id",
    "stablehlo.replica_id",
    "stablehlo.infeed",
    "stablehlo.outfeed",
    "stablehlo.send",
    "stablehlo.recv",
}
"""Ops and custom calls that each device must run itself."""


class WholeProgram(Protocol):
    """A program of whole values, such as an ``Evaluator``."""

    @property
    def arguments(self) -> Sequence[ValueType]:
        """The types of the arguments."""

    @property
    def results(self) -> Sequence[ValueType]:
        """The types of the results."""

    @property
    def argument_shardings(self) -> Sequence[Sharding | None]:
        """The sharding of each argument; None where the program states none."""

    @property
    def result_shardings(self) -> Sequence[Sharding | None]:
        """The sharding of each result; None where the program states none."""

    @property
    def ops(self) -> Collection[str]:
        """The names of all ops and custom calls."""

    def run(self, args: Sequence[Any], context: Context) -> list[Any]:
        """Return the results."""


class GatheredProgram:
    """A program with shardings, for a number of partitions.

    ``parameters`` and ``results`` are the types of one device's shards, ``argument_shardings`` and ``result_shardings``
    the shardings; values without one in the program are replicated.

    Raises:
        InvalidArgumentError: a sharding is over another number of partitions.
    """

    def __init__(self, evaluator: WholeProgram, num_partitions: int) -> None:
        self._evaluator = evaluator
        self.argument_shardings = _checked(evaluator.argument_shardings, evaluator.arguments, num_partitions)
        self.result_shardings = _checked(evaluator.result_shardings, evaluator.results, num_partitions)
        self.parameters = _shards(self.argument_shardings, evaluator.arguments)
        self.results = _shards(self.result_shardings, evaluator.results)
        shardings = [*evaluator.argument_shardings, *evaluator.result_shardings]
        self._one_for_all = _PER_DEVICE.isdisjoint(evaluator.ops) and any(s is not None for s in shardings)
        self._gathering, self._scattering = Rendezvous("the arguments"), Rendezvous("the results")

    def run(self, args: Sequence[Any], context: Context) -> list[Any]:
        """Return this device's shards of the results, from its shards of the arguments."""
        group = all_partitions(context)
        whole = self._gather([on_host(arg) for arg in args], context, group)
        if self._one_for_all:
            own = self._evaluator.run(whole, context) if context.partition_id == 0 else None
            results = self._scattering.exchange(context, group, own, timeout=_FOREVER)[0]
        else:
            results = self._evaluator.run(whole, context)
        return [
            np.array(s.cut(value, context.partition_id))
            for value, s in zip(results, self.result_shardings, strict=True)
        ]

    def _gather(self, args: Sequence[Any], context: Context, group: Any) -> list[Any]:
        if all(sharding.is_replicated for sharding in self.argument_shardings):
            return list(args)
        contributions = self._gathering.exchange(context, group, args, timeout=_FOREVER)
        if self._one_for_all and context.partition_id != 0:
            return []
        return [
            arg if sharding.is_replicated else sharding.put_together([row[i] for row in contributions], _sizes(type_))
            for i, (arg, sharding, type_) in enumerate(
                zip(args, self.argument_shardings, self._evaluator.arguments, strict=True)
            )
        ]


def _checked(shardings: Sequence[Sharding | None], types: Sequence[ValueType], num_partitions: int) -> list[Sharding]:
    """Return the shardings; replicated where the program states none.

    Raises:
        InvalidArgumentError: one is over another number of partitions.
    """
    checked = []
    for sharding, type_ in zip(shardings, types, strict=True):
        if sharding is None or sharding.is_replicated or not isinstance(type_, TensorType):
            sharding = REPLICATED
        elif len(sharding.places) != num_partitions:
            raise InvalidArgumentError(
                f"expected shardings over the {num_partitions} partitions of the program, found one over "
                f"{len(sharding.places)} for a value of type {type_}"
            )
        checked.append(sharding)
    return checked


def _sizes(type_: ValueType) -> tuple[int, ...]:
    assert isinstance(type_, TensorType)  # nothing else is sharded
    return type_.sizes


def _shards(shardings: Sequence[Sharding], types: Sequence[ValueType]) -> list[ShapeSpec]:
    specs = []
    for sharding, type_ in zip(shardings, types, strict=True):
        specs.append(ShapeSpec(sharding.shard_shape(_sizes(type_)), type_.element))  # type: ignore[union-attr]
    return specs
