"""Shardings inside of programs: hints, which change no value, and the borders of parts that are written for one shard.

A program with shardings runs whole on every device. Only between these borders each device has its own shard, and
collectives exchange values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pjrt.devices.reference.core.block import Context, Environment, Kernel, context_of, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import custom_call, op
from pjrt.devices.reference.spmd import Rendezvous, all_partitions
from pjrt.stablehlo.ir.attributes import Opaque
from pjrt.stablehlo.ir.sharding import REPLICATED, Mesh, Sharding
from pjrt.stablehlo.ir.sharding_parser import parse_gspmd, parse_mesh, parse_sdy

Array = Any


_HINTS = """
all_gather all_reduce all_slice all_to_all collective_permute data_flow_edge func_data_flow_edge propagation_barrier
reduce_scatter replicated_to_unreduced reshard sharded_to_unreduced sharding_constraint
"""


@op(*(f"sdy.{name}" for name in _HINTS.split()), quantized=True)
def hint(view: OpView) -> Kernel:
    """Return the value: the op is a hint where it is, or is to go."""
    return lambda value: value


@op("sdy.sharding_group", quantized=True)
def sharding_group(view: OpView) -> Kernel:
    """Do nothing: the op is a hint to shard values alike."""
    return lambda value: None


@op("sdy.constant", elementwise=True, quantized=True)
def constant(view: OpView) -> Kernel:
    """Return the value in the program."""
    value = view.constant()
    return lambda: value


@op("sdy.named_computation", quantized=True)
def named_computation(view: OpView) -> Kernel:
    """Run a computation that has a name."""
    region = view.regions[0]
    return lambda environment, *values: one_or_all(region.run(environment, values))


def mesh_of(view: OpView, name: str) -> Mesh:
    """Return the mesh of the module with a name."""
    return parse_mesh(view.symbol(name)["mesh"].text)


@op("sdy.manual_computation", quantized=True)
def manual_computation(view: OpView) -> Kernel:
    """Run a part for one shard: each device cuts its own out of the operands, and puts the results together again."""
    axes = [part.strip('" ') for part in _text(view, "manual_axes").partition("{")[2].rstrip("}> ").split(",")]

    def shardings(name: str, count: int) -> list[Sharding]:
        return parse_sdy(_text(view, name), lambda mesh: mesh_of(view, mesh), axes) if count else []

    inwards, outwards = shardings("in_shardings", len(view.operands)), shardings("out_shardings", len(view.results))
    region, rendezvous = view.regions[0], Rendezvous(view.name, view.meeting(all_partitions))
    shapes = [view.result(i).sizes for i in range(len(view.results))]

    def run(environment: Environment, *values: Array) -> Any:
        context = context_of(environment)
        _check_partitions(view, context, [*inwards, *outwards])
        mine = [s.cut(value, context.partition_id) for s, value in zip(inwards, values, strict=True)]
        return one_or_all(_put_together(context, rendezvous, outwards, region.run(environment, mine), shapes))

    return run


def _text(view: OpView, name: str) -> str:
    value = view.attr(name)
    return value.text if isinstance(value, Opaque) else str(value)


def _check_partitions(view: OpView, context: Context, shardings: list[Sharding]) -> None:
    for sharding in shardings:
        if not sharding.is_replicated and len(sharding.places) != context.num_partitions:
            raise view.invalid(f"expected {len(sharding.places)} partitions, found {context.num_partitions}")


def _put_together(
    context: Context,
    rendezvous: Rendezvous,
    shardings: list[Sharding],
    values: list[Array],
    shapes: list[tuple[int, ...]],
) -> list[Array]:
    """Return the whole values, from all partitions of this replica; replicated ones are not exchanged."""
    if all(sharding.is_replicated for sharding in shardings):
        return values
    group = all_partitions(context)
    contributions = rendezvous.exchange(context, group, values)
    return [
        value if sharding.is_replicated else sharding.put_together([shards[i] for shards in contributions], shape)
        for i, (value, sharding, shape) in enumerate(zip(values, shardings, shapes, strict=True))
    ]


@custom_call("SPMDFullToShardShape")
def full_to_shard(view: OpView) -> Kernel:
    """Return each device's shard of a whole value, by the sharding of the op that made the value."""
    whole, shard = view.operand().sizes, view.result().sizes
    sharding = _restricted(view, _gspmd(view.source(0), len(whole)), whole, shard)

    def run(environment: Environment, value: Array) -> Array:
        context = context_of(environment)
        _check_partitions(view, context, [sharding])
        return sharding.cut(value, context.partition_id)

    return run


@custom_call("SPMDShardToFullShape")
def shard_to_full(view: OpView) -> Kernel:
    """Return the whole value from each device's shard."""
    shape = view.result().sizes
    sharding = _restricted(view, _gspmd(view.attributes, len(shape)), shape, view.operand().sizes)
    rendezvous = Rendezvous(view.name, view.meeting(all_partitions))

    def run(environment: Environment, value: Array) -> Array:
        context = context_of(environment)
        _check_partitions(view, context, [sharding])
        return _put_together(context, rendezvous, [sharding], [value], [shape])[0]

    return run


def _gspmd(attributes: Any, rank: int) -> Sharding:
    text = attributes.get("mhlo.sharding") if attributes is not None else None
    return REPLICATED if text is None else parse_gspmd(text, rank)


def _restricted(view: OpView, sharding: Sharding, whole: tuple[int, ...], shard: tuple[int, ...]) -> Sharding:
    """Return the sharding along the dimensions that are cut at this border; a partitioner would cut the others."""
    cut = [a != b for a, b in zip(whole, shard, strict=True)]
    if not any(cut) and not sharding.terms:
        return REPLICATED
    if not sharding.tiles:
        raise view.invalid(
            f"expected a sharding (mhlo.sharding) that cuts {list(whole)} to shards of {list(shard)}, found none"
        )
    return replace(
        sharding,
        tiles=tuple(count if c else 1 for count, c in zip(sharding.tiles, cut, strict=True)),
        places=tuple(tuple(i if c else 0 for i, c in zip(place, cut, strict=True)) for place in sharding.places),
    )
