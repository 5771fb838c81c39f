"""Sharded programs that XLA cannot partition: run whole on gathered arguments, with results cut by shardings.

The results are those of a partitioned program. Where the program has parts for one shard, or collectives, every device
runs the whole program, and they exchange values there. Else all would do the same, so one device runs it for all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.reference.core.context import Context
from pjrt.devices.reference.spmd.replica_groups import MEETINGS, Rendezvous, all_partitions
from pjrt.host.device_memory.allocation import on_host
from pjrt.stablehlo.shardings.sharding import REPLICATED, Sharding
from pjrt.stablehlo.types import TensorType, ValueType

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
