"""Shardings inside of programs: hints, which change no value, and the borders of parts that are written for one shard.

A program that is partitioned by its shardings runs whole on every device. Only between these borders each device has
its own shard, and collectives are real.
"""

from __future__ import annotations

from typing import Any

from pjrt.devices.reference.core.block import Environment, Kernel, context_of
from pjrt.devices.reference.core.context import Context
from pjrt.devices.reference.core.custom_calls import custom_call
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.spmd.replica_groups import Rendezvous
from pjrt.devices.reference.spmd.sharding_parser import Mesh, parse_gspmd, parse_mesh, parse_sdy
from pjrt.stablehlo.attributes import Opaque
from pjrt.stablehlo.sharding import REPLICATED, Sharding

Array = Any

BORDERS = frozenset({"sdy.manual_computation", "SPMDFullToShardShape", "SPMDShardToFullShape"})
"""The ops, and custom calls, that lead into a part for one shard, or out of it."""


@op(
    "sdy.sharding_constraint",
    "sdy.reshard",
    "sdy.propagation_barrier",
    "sdy.data_flow_edge",
    "sdy.func_data_flow_edge",
    "sdy.all_gather",
    "sdy.all_reduce",
    "sdy.all_slice",
    "sdy.all_to_all",
    "sdy.collective_permute",
    "sdy.reduce_scatter",
    "sdy.replicated_to_unreduced",
    "sdy.sharded_to_unreduced",
    quantized=True,
)
def hint(view: OpView) -> Kernel:
    """Says where a value is, or is to go: as a whole it stays the same."""
    return lambda value: value


@op("sdy.sharding_group", quantized=True)
def sharding_group(view: OpView) -> Kernel:
    """Says that values are to be sharded alike."""
    return lambda value: None


@op("sdy.constant", elementwise=True, quantized=True)
def constant(view: OpView) -> Kernel:
    """The value in the program."""
    value = view.constant()
    return lambda: value


@op("sdy.named_computation")
def named_computation(view: OpView) -> Kernel:
    """A computation with a name: runs it."""
    region = view.regions[0]
    single = len(view.results) == 1

    def run(environment: Environment, *values: Array) -> Any:
        results = region.run(environment, values)
        return results[0] if single else results

    return run


def mesh_of(view: OpView, name: str) -> Mesh:
    """The mesh of the module with a name."""
    return parse_mesh(view.symbol(name)["mesh"].text)


@op("sdy.manual_computation")
def manual_computation(view: OpView) -> Kernel:
    """A part for one shard: each device cuts its own out of the operands, and the results are put together again."""
    axes = [part.strip('" ') for part in _text(view, "manual_axes").partition("{")[2].rstrip("}> ").split(",")]

    def shardings(name: str, count: int) -> list[Sharding]:
        return parse_sdy(_text(view, name), lambda mesh: mesh_of(view, mesh), axes) if count else []

    inwards, outwards = shardings("in_shardings", len(view.operands)), shardings("out_shardings", len(view.results))
    region, rendezvous = view.regions[0], Rendezvous(view.name)
    shapes = [view.result(i).sizes for i in range(len(view.results))]

    def run(environment: Environment, *values: Array) -> Any:
        context = context_of(environment)
        _check_partitions(view, context, [*inwards, *outwards])
        mine = [s.cut(value, context.partition_id) for s, value in zip(inwards, values, strict=True)]
        made = region.run(environment, mine)
        results = _put_together(context, rendezvous, outwards, made, shapes)
        return results[0] if len(results) == 1 else results

    return run


def _text(view: OpView, name: str) -> str:
    value = view.attr(name)
    return value.text if isinstance(value, Opaque) else str(value)


def _check_partitions(view: OpView, context: Context, shardings: list[Sharding]) -> None:
    for sharding in shardings:
        if not sharding.is_replicated and len(sharding.places) != context.num_partitions:
            raise view.invalid(
                f"expected {len(sharding.places)} partitions, the program is run on {context.num_partitions}"
            )


def _put_together(
    context: Context,
    rendezvous: Rendezvous,
    shardings: list[Sharding],
    values: list[Array],
    shapes: list[tuple[int, ...]],
) -> list[Array]:
    """The whole values, from all partitions of this replica; those that everyone has are not exchanged."""
    if all(sharding.is_replicated for sharding in shardings):
        return values
    group = tuple((context.replica_id, partition) for partition in range(context.num_partitions))
    brought = rendezvous.exchange(context, group, values)
    return [
        value if sharding.is_replicated else sharding.put_together([shards[i] for shards in brought], shape)
        for i, (value, sharding, shape) in enumerate(zip(values, shardings, shapes, strict=True))
    ]


@custom_call("SPMDFullToShardShape")
def full_to_shard(view: OpView) -> Kernel:
    """Each device's shard of a whole value, by the sharding that the value was given before."""
    whole, shard = view.operand().sizes, view.result().sizes
    sharding = _restricted(view, _gspmd(view.source(0), len(whole)), whole, shard)

    def run(environment: Environment, value: Array) -> Array:
        context = context_of(environment)
        _check_partitions(view, context, [sharding])
        return sharding.cut(value, context.partition_id)

    return run


@custom_call("SPMDShardToFullShape")
def shard_to_full(view: OpView) -> Kernel:
    """The whole value from each device's shard."""
    shape = view.result().sizes
    sharding = _restricted(view, _gspmd(view.attributes, len(shape)), shape, view.operand().sizes)
    rendezvous = Rendezvous(view.name)

    def run(environment: Environment, value: Array) -> Array:
        context = context_of(environment)
        _check_partitions(view, context, [sharding])
        return _put_together(context, rendezvous, [sharding], [value], [shape])[0]

    return run


def _gspmd(attributes: Any, rank: int) -> Sharding:
    text = attributes.get("mhlo.sharding") if attributes is not None else None
    return REPLICATED if text is None else parse_gspmd(text, rank)


def _restricted(view: OpView, sharding: Sharding, whole: tuple[int, ...], shard: tuple[int, ...]) -> Sharding:
    """The sharding along the dimensions that are cut at this border; others are the partitioner's, who is not here."""
    if len(whole) != len(shard):
        raise view.invalid(f"expected a value and its shard of the same rank, found {len(whole)} and {len(shard)}")
    cut = [a != b for a, b in zip(whole, shard, strict=True)]
    if not any(cut) and not sharding.terms:
        return REPLICATED
    if not sharding.tiles:
        raise view.invalid(
            f"expected a sharding (mhlo.sharding) that cuts {list(whole)} to shards of {list(shard)}, found none"
        )
    return Sharding(
        tuple(count if c else 1 for count, c in zip(sharding.tiles, cut, strict=True)),
        tuple(tuple(i if c else 0 for i, c in zip(place, cut, strict=True)) for place in sharding.places),
        sharding.terms,
    )
