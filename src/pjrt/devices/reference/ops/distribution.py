"""Collectives among the devices of a launch, and channels between them and to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.reference.core.block import Environment, Kernel, context_of
from pjrt.devices.reference.core.context import Context
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.reducers import Reducer
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.core.values import TOKEN
from pjrt.devices.reference.numerics.element_types import BOOLEAN, compute_dtype
from pjrt.devices.reference.spmd.replica_groups import (
    Group,
    Rendezvous,
    channel_group_finder,
    channel_of,
    group_finder,
    group_table,
)
from pjrt.stablehlo.types import TensorType

Array = Any


@op("stablehlo.replica_id", environment=True, foldable=False)
def replica_id(view: OpView) -> Kernel:
    """Which replica this is."""
    return lambda environment: np.uint32(context_of(environment).replica_id)


@op("stablehlo.partition_id", environment=True, foldable=False)
def partition_id(view: OpView) -> Kernel:
    """Which partition this is."""
    return lambda environment: np.uint32(context_of(environment).partition_id)


def _required(group: Group | None, view: OpView, context: Context) -> Group:
    if group is None:
        raise InvalidArgumentError(
            f"{view.name}: replica {context.replica_id}, partition {context.partition_id} is in none of its groups"
        )
    return group


def _reduced(view: OpView) -> Any:
    """The function that combines what a group brings, in the group's order, for each operand."""
    reducers = [Reducer(view.regions[0], [view.results[i]]) for i in range(len(view.results))]

    def run(environment: Environment, brought: Sequence[Sequence[Array]]) -> list[Array]:
        results = []
        for i, reducer in enumerate(reducers):
            total = reducer.open([brought[0][i]])
            for values in brought[1:]:
                total = reducer.combine(environment, total, reducer.open([values[i]]))
            results += reducer.close(total)
        return results

    return run


@op("stablehlo.all_reduce")
def all_reduce(view: OpView) -> Kernel:
    """Combines the values of a group's processes; everyone gets the result."""
    find, rendezvous, reduced = group_finder(view), Rendezvous(view.name), _reduced(view)
    single = len(view.results) == 1

    def run(environment: Environment, *values: Array) -> Any:
        context = context_of(environment)
        group = _required(find(context), view, context)
        results = reduced(environment, rendezvous.exchange(context, group, values))
        return results[0] if single else results

    return run


@op("stablehlo.cross-replica-sum", environment=True, foldable=False)
def cross_replica_sum(view: OpView) -> Kernel:
    """The sum over a group of replicas."""
    find, rendezvous = channel_group_finder(group_table(view), 0), Rendezvous(view.name)
    element = view.operand().element
    add, wide = np.logical_or if element in BOOLEAN else np.add, compute_dtype(element)

    def run(environment: Environment, value: Array) -> Array:
        context = context_of(environment)
        brought = rendezvous.exchange(context, _required(find(context), view, context), value)
        total = brought[0].astype(wide)
        for other in brought[1:]:
            total = add(total, other.astype(wide))
        return total.astype(element.dtype)

    return run


@op("stablehlo.reduce_scatter")
def reduce_scatter(view: OpView) -> Kernel:
    """Combines the values of a group's processes; each gets its part of the result."""
    find, rendezvous, reduced = group_finder(view), Rendezvous(view.name), _reduced(view)
    dimension = view.attr("scatter_dimension")

    def run(environment: Environment, value: Array) -> Array:
        context = context_of(environment)
        group = _required(find(context), view, context)
        brought = rendezvous.exchange(context, group, value)
        (total,) = reduced(environment, [[part] for part in _parts_for(brought, dimension, group, context)])
        return total

    return run


def _parts_for(brought: Sequence[Array], dimension: int, group: Group, context: Context) -> list[Array]:
    """Of each value the part that is this process's."""
    me = group.index((context.replica_id, context.partition_id))
    return [np.split(value, len(group), dimension)[me] for value in brought]


@op("stablehlo.all_gather", environment=True, foldable=False)
def all_gather(view: OpView) -> Kernel:
    """Puts the values of a group's processes side by side; everyone gets the result."""
    find, rendezvous, dimension = group_finder(view), Rendezvous(view.name), view.attr("all_gather_dim")
    single = len(view.results) == 1

    def run(environment: Environment, *values: Array) -> Any:
        context = context_of(environment)
        brought = rendezvous.exchange(context, _required(find(context), view, context), values)
        results = [np.concatenate(parts, dimension) for parts in zip(*brought, strict=True)]
        return results[0] if single else results

    return run


@op("stablehlo.all_to_all", environment=True, foldable=False)
def all_to_all(view: OpView) -> Kernel:
    """Cuts each process's value into as many parts as there are processes; each gets its part of everyone's."""
    find, rendezvous = channel_group_finder(group_table(view), channel_of(view)), Rendezvous(view.name)
    split, concat = view.attr("split_dimension"), view.attr("concat_dimension")
    single = len(view.results) == 1

    def run(environment: Environment, *values: Array) -> Any:
        context = context_of(environment)
        group = _required(find(context), view, context)
        brought = rendezvous.exchange(context, group, values)
        results = [
            np.concatenate(_parts_for(operand, split, group, context), concat) for operand in zip(*brought, strict=True)
        ]
        return results[0] if single else results

    return run


@op("stablehlo.collective_broadcast", environment=True, foldable=False)
def collective_broadcast(view: OpView) -> Kernel:
    """Gives everyone of a group the first one's value; who is in no group gets zeros."""
    find, rendezvous = channel_group_finder(group_table(view), channel_of(view)), Rendezvous(view.name)

    def run(environment: Environment, value: Array) -> Array:
        context = context_of(environment)
        group = find(context)
        if group is None:
            return np.zeros_like(value)
        return rendezvous.exchange(context, group, value)[0]

    return run


@op("stablehlo.collective_permute", environment=True, foldable=False)
def collective_permute(view: OpView) -> Kernel:
    """Sends values along pairs of source and target; who is no target gets zeros."""
    pairs = {target: source for source, target in group_table(view, "source_target_pairs")}
    across_partitions = channel_of(view) > 0
    find, rendezvous = channel_group_finder([], channel_of(view)), Rendezvous(view.name)

    def run(environment: Environment, value: Array) -> Array:
        context = context_of(environment)
        brought = rendezvous.exchange(context, _required(find(context), view, context), value)
        source = pairs.get(context.partition_id if across_partitions else context.replica_id)
        return np.zeros_like(value) if source is None else brought[source]

    return run


@op("stablehlo.async_start")
def async_start(view: OpView) -> Kernel:
    """Begins a computation that ``async_done`` waits for; here it is done at once."""
    region = view.regions[0] if view.regions else view.function(view.attr("called_computation"))
    return lambda environment, *values: tuple(region.run(environment, values))


@op("stablehlo.async_done", quantized=True)
def async_done(view: OpView) -> Kernel:
    """What a computation that was begun has come to."""
    if len(view.results) == 1:
        return lambda future: future[0]
    return lambda future: future


def _host(view: OpView, context: Context) -> Any:
    if context.host is None:
        raise FailedPreconditionError(f"{view.name} speaks to the host: run the program on a client")
    return context.host


@op("stablehlo.send", environment=True, foldable=False)
def send(view: OpView) -> Kernel:
    """Sends values to the host, or to another device, by a channel."""
    to_host, channel = view.attr("is_host_transfer", False), channel_of(view)
    targets = {pair[0]: pair[1] for pair in group_table(view, "source_target_pairs")}

    def run(environment: Environment, *values: Array) -> Any:
        context = context_of(environment)
        host = _host(view, context)
        if to_host:
            for value in values[:-1]:
                host.send(channel, np.ascontiguousarray(value))
        elif not targets:
            host.post(("channel", channel), values[:-1])
        elif _flat_id(context) in targets:
            host.post(("channel", channel, targets[_flat_id(context)]), values[:-1])
        return TOKEN

    return run


@op("stablehlo.recv", environment=True, foldable=False)
def recv(view: OpView) -> Kernel:
    """Receives values from the host, or from another device, by a channel; zeros where nobody sends to this one."""
    from_host, channel = view.attr("is_host_transfer", False), channel_of(view)
    targets = {target for _, target in group_table(view, "source_target_pairs")}
    types = [t for t in view.results if isinstance(t, TensorType)]

    def run(environment: Environment, token: Any) -> Any:
        context = context_of(environment)
        host = _host(view, context)
        if from_host:
            return [*(host.receive(channel, ShapeSpec(t.sizes, t.element)) for t in types), TOKEN]
        if not targets:
            return [*host.take(("channel", channel)), TOKEN]
        if _flat_id(context) not in targets:
            return [*(np.zeros(t.sizes, t.dtype) for t in types), TOKEN]
        return [*host.take(("channel", channel, _flat_id(context))), TOKEN]

    if len(view.results) == 1:
        return lambda environment, token: run(environment, token)[0]
    return run


def _flat_id(context: Context) -> int:
    return context.replica_id * context.num_partitions + context.partition_id


@op("stablehlo.infeed", environment=True, foldable=False)
def infeed(view: OpView) -> Kernel:
    """The next values that the host feeds to this device."""
    types = [t for t in view.results if isinstance(t, TensorType)]

    def run(environment: Environment, token: Any) -> Any:
        fed = _host(view, context_of(environment)).infeed()
        values = [np.asarray(value) for value in (fed if isinstance(fed, list | tuple) else [fed])]
        fits = len(values) == len(types) and all(
            v.shape == t.sizes and v.dtype == t.dtype for v, t in zip(values, types, strict=True)
        )
        if not fits:
            found = ", ".join(f"{value.dtype}{list(value.shape)}" for value in values)
            raise InvalidArgumentError(
                f"expected {', '.join(map(str, types)) or 'nothing'} from the infeed, found {found}"
            )
        return [*values, TOKEN] if types else TOKEN

    return run


@op("stablehlo.outfeed", environment=True, foldable=False)
def outfeed(view: OpView) -> Kernel:
    """Feeds values to the host."""

    def run(environment: Environment, *values: Array) -> Any:
        arrays = [np.array(value) for value in values[:-1]]
        _host(view, context_of(environment)).outfeed(arrays[0] if len(arrays) == 1 else tuple(arrays))
        return TOKEN

    return run
