"""Programs that nobody partitioned: run whole, on the gathered arguments, and cut again by their shardings.

That gives what a partitioner's program gives. Where the program has parts for one shard, or collectives, every device
runs the whole, and they meet there. Where it has none they would all do the same, so one of them does it for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.reference.core.context import Context
from pjrt.devices.reference.evaluator import Evaluator
from pjrt.devices.reference.spmd.replica_groups import Rendezvous
from pjrt.stablehlo.sharding import REPLICATED, Sharding
from pjrt.stablehlo.types import TensorType, ValueType

_PATIENCE = 1e9
"""Seconds to wait for the device that works for all: however long that takes; if it fails the launch ends."""

_OWN_BUSINESS = frozenset(
    {
        "sdy.manual_computation",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "stablehlo.partition_id",
        "stablehlo.replica_id",
        "stablehlo.all_reduce",
        "stablehlo.all_gather",
        "stablehlo.all_to_all",
        "stablehlo.reduce_scatter",
        "stablehlo.collective_broadcast",
        "stablehlo.collective_permute",
        "stablehlo.cross-replica-sum",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.send",
        "stablehlo.recv",
    }
)
"""Ops and custom calls that each device must do for itself."""


class GatheredProgram:
    """A program with shardings, for a number of partitions.

    ``parameters`` and ``results`` are the types of one device's share, ``argument_shardings`` and ``result_shardings``
    how they are shared out; what the program does not say is replicated.
    """

    def __init__(self, evaluator: Evaluator, num_partitions: int) -> None:
        self._evaluator = evaluator
        self.argument_shardings = _checked(evaluator.argument_shardings, evaluator.arguments, num_partitions)
        self.result_shardings = _checked(evaluator.result_shardings, evaluator.results, num_partitions)
        self.parameters = _shares(self.argument_shardings, evaluator.arguments)
        self.results = _shares(self.result_shardings, evaluator.results)
        said = [*evaluator.argument_shardings, *evaluator.result_shardings]
        self._one_for_all = evaluator.ops.isdisjoint(_OWN_BUSINESS) and any(sharding is not None for sharding in said)
        self._gathering, self._scattering = Rendezvous("the arguments"), Rendezvous("the results")

    def run(self, args: Sequence[Any], context: Context) -> list[Any]:
        """The share of this device of the results, from its share of the arguments."""
        group = tuple((context.replica_id, partition) for partition in range(context.num_partitions))
        whole = self._gather(args, context, group)
        if self._one_for_all:
            mine = self._evaluator.run(whole, context) if context.partition_id == 0 else None
            results = self._scattering.exchange(context, group, mine, timeout=_PATIENCE)[0]
        else:
            results = self._evaluator.run(whole, context)
        return [
            np.array(s.cut(value, context.partition_id))
            for value, s in zip(results, self.result_shardings, strict=True)
        ]

    def _gather(self, args: Sequence[Any], context: Context, group: Any) -> list[Any]:
        if all(sharding.is_replicated for sharding in self.argument_shardings):
            return list(args)
        brought = self._gathering.exchange(context, group, args, timeout=_PATIENCE)
        if self._one_for_all and context.partition_id != 0:
            return []
        return [
            arg if sharding.is_replicated else sharding.put_together([row[i] for row in brought], _sizes(type_))
            for i, (arg, sharding, type_) in enumerate(
                zip(args, self.argument_shardings, self._evaluator.arguments, strict=True)
            )
        ]


def _checked(shardings: Sequence[Sharding | None], types: Sequence[ValueType], num_partitions: int) -> list[Sharding]:
    """The shardings; one for another number of partitions is taken for none."""
    return [
        sharding
        if sharding is not None and isinstance(type_, TensorType) and len(sharding.places) == num_partitions
        else REPLICATED
        for sharding, type_ in zip(shardings, types, strict=True)
    ]


def _sizes(type_: ValueType) -> tuple[int, ...]:
    assert isinstance(type_, TensorType)  # nothing else is sharded
    return type_.sizes


def _shares(shardings: Sequence[Sharding], types: Sequence[ValueType]) -> list[ShapeSpec]:
    specs = []
    for sharding, type_ in zip(shardings, types, strict=True):
        specs.append(ShapeSpec(sharding.shard_shape(_sizes(type_)), type_.element))  # type: ignore[union-attr]
    return specs
