"""The compiler: from a program to the function that the host runs, its costs and memory; and the capabilities."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pjrt import stablehlo
from pjrt.api.capability import Capabilities, Feature
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError
from pjrt.api.executable import CompiledMemoryStats
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.reference.core import mlir, registry
from pjrt.devices.reference.core.block import TOKEN, Block, Context, Environment, leaves, packed, unpacked
from pjrt.devices.reference.evaluator import Evaluator
from pjrt.devices.reference.numerics.element_types import BOOLEAN, EVERY
from pjrt.devices.reference.spmd import GatheredProgram, all_partitions, participants
from pjrt.host import Compiled, RunContext
from pjrt.stablehlo.facts.outline import Outline
from pjrt.stablehlo.facts.signatures import donations, memory_kinds, shape_spec, with_asked_layouts
from pjrt.stablehlo.ir.types import FutureType, TensorType, TupleType, ValueType
from pjrt.stablehlo.reading.parser import parse_module

if TYPE_CHECKING:
    from pjrt.stablehlo.transforms.partitioner import Partitioned


_VIEWS = frozenset({"stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.broadcast"})
"""Ops with results that usually take no memory of their own."""


def memory_stats(evaluator: Evaluator, aliased: Iterable[int]) -> CompiledMemoryStats:
    """Return the memory of one run: arguments, results, constants, and the most that steps hold at one time.

    Args:
        evaluator: the program.
        aliased: the numbers of the arguments whose memory goes to a result.
    """
    block = evaluator.region.block
    arguments, outputs = size_of(evaluator.arguments), size_of(evaluator.results)
    peak = _peak(block) + arguments
    return CompiledMemoryStats(
        generated_code_size_in_bytes=_constants(block),
        argument_size_in_bytes=arguments,
        output_size_in_bytes=outputs,
        alias_size_in_bytes=size_of(evaluator.arguments[number] for number in aliased),
        temp_size_in_bytes=max(peak - arguments - outputs, 0),
        peak_memory_in_bytes=peak,
        total_size_in_bytes=max(peak, arguments + outputs),
    )


def size_of(types: Iterable[ValueType]) -> int:
    """Return the bytes of values of some types; sizes that are not static count as nothing."""
    total = 0
    for type_ in types:
        if isinstance(type_, TensorType):
            total += math.prod(type_.sizes) * type_.dtype.itemsize if type_.is_static else 0
        elif isinstance(type_, TupleType | FutureType):
            total += size_of(type_.elements)
    return total


def _peak(block: Block) -> int:
    """Return the most bytes that the steps of a block, and of those inside, hold at one time; without its arguments."""
    held: dict[int, int] = {}
    now = most = 0
    for step, (*_, dead) in zip(block.steps, block.code, strict=True):
        inside = max((_peak(inner) for inner in step.blocks), default=0)
        new = 0 if step.name in _VIEWS else size_of(step.output_types)
        most = max(most, now + max(inside, new))
        for slot, type_ in zip(step.outputs, step.output_types, strict=True):
            held[slot] = 0 if step.name in _VIEWS else size_of([type_])
        now += new - sum(held.pop(slot, 0) for slot in dead)
    return most


def _constants(block: Block) -> int:
    """Return the bytes of all constants of a block and those inside, which a compiled program keeps."""
    own = sum(_held(value) for value in block.template if isinstance(value, np.ndarray | np.generic))
    return own + sum(_constants(inner) for step in block.steps for inner in step.blocks)


def _held(array: np.ndarray[Any, Any] | np.generic[Any]) -> int:
    """Return the bytes of an array in memory, where elements that a view repeats are there once."""
    sizes = (size if stride else min(size, 1) for size, stride in zip(array.shape, array.strides, strict=True))
    return int(array.itemsize * math.prod(sizes))


Execute = Callable[[Sequence[Any], Context], Sequence[Any]]
Loop = Callable[[Block, Environment], None]


def compile_program(
    program: Program,
    options: CompileOptions,
    evaluator_of: Callable[[Any], Evaluator],
    loop: Loop,
    *,
    vet: bool,
    allocations: bool = False,
) -> Compiled:
    """Compile a program for the reference device.

    Args:
        program: in any format that StableHLO's own tools read, or an HLO proto.
        options: replicas and partitions.
        evaluator_of: makes the evaluator of an MLIR module.
        loop: runs the steps.
        vet: parse binary programs in a subprocess first, for programs that may be damaged.
        allocations: whether arguments and results may be in memory of the device's own.

    Raises:
        UnimplementedError, InvalidArgumentError: as ``Evaluator``.
    """
    parsed = stablehlo.to_module(stablehlo.read(program), trusted=not vet)
    Outline.of(parsed).check()
    spmd = options.spmd and options.partitioning.num_partitions > 1
    partitioned = _partitioned(program, options) if spmd else None
    if partitioned is not None:
        parsed = partitioned.module
    try:
        with parsed as module:
            evaluator = evaluator_of(module)
            name = _name_of(module)
    except RecursionError as error:
        raise UnimplementedError(
            "the device 'reference' does not compile this program: its calls and regions are nested deeper than "
            "Python recurses"
        ) from error
    parameters, results = list(leaves(evaluator.arguments)), list(leaves(evaluator.results))
    parameter_specs, result_specs = _specs(parameters), _specs(results)
    execute: Execute = evaluator.run
    shardings: tuple[Sequence[bytes], Sequence[bytes]] | None = None
    gathered = None
    if partitioned is not None:
        shardings = partitioned.parameter_shardings, partitioned.result_shardings
    elif spmd and parameter_specs is not None and result_specs is not None:
        evaluator.result_shardings = parse_module(parsed, largest_constant=0).result_shardings(settled=True)
        gathered = GatheredProgram(evaluator, options.partitioning.num_partitions)
        execute, parameter_specs, result_specs = gathered.run, gathered.parameters, gathered.results
        shardings = (
            [s.to_proto() for s in gathered.argument_shardings],
            [s.to_proto() for s in gathered.result_shardings],
        )

    def run(execution: RunContext, *arrays: Any) -> list[Any]:
        context = Context.of(loop, execution)
        results = unpacked(execute(packed(evaluator.arguments, iter(arrays)), context))
        return [None if value is TOKEN else value for value in results]

    def run_plain(execution: RunContext, *arrays: Any) -> list[Any]:
        return evaluator.run_checked(arrays, Context.of(loop, execution))

    def run_closed(*arrays: Any) -> list[Any]:
        return evaluator.run_checked(arrays, Context(loop))

    # The host runtime checks arguments that were declared, and copies a result that anything else holds.
    is_plain = (
        None not in (parameter_specs, result_specs) and gathered is None and evaluator.is_plain and not allocations
    )
    if parameter_specs is not None:
        parameter_specs = with_asked_layouts(parameter_specs, evaluator.argument_attributes)
    if result_specs is not None:
        result_specs = with_asked_layouts(result_specs, evaluator.result_attributes)
    aliases, donated = donations(evaluator.argument_attributes)
    is_closed = is_plain and evaluator.is_closed
    return Compiled(
        run=run_closed if is_closed else run_plain if is_plain else run,
        outputs=result_specs,
        parameters=parameter_specs,
        parameter_names=lambda: _parameter_names(program, parameters),
        name=name,
        takes_context=not is_closed,
        participants=lambda place, replicas, partitions: participants(
            [*evaluator.meetings, *([all_partitions] if gathered is not None else [])],
            Context(loop, *place, replicas, partitions),
        ),
        takes_allocations=allocations,
        takes_rows=allocations,
        parameter_shardings=None if shardings is None else shardings[0],
        output_shardings=None if shardings is None else shardings[1],
        aliases=aliases,
        donated=donated,
        parameter_memory_kinds=memory_kinds(evaluator.argument_attributes),
        output_memory_kinds=memory_kinds(evaluator.result_attributes),
        cost=lambda: _cost(program if partitioned is None else partitioned.program),
        memory=None if gathered is not None else lambda: memory_stats(evaluator, aliases),
        optimized=None if partitioned is None else lambda: partitioned.optimized,
    )


def _cost(program: Program) -> dict[str, float]:
    """Return the cost of a program as it stands: one that XLA cannot partition counts as a whole."""
    from pjrt.stablehlo.analysis.cost_analysis import cost  # few programs are asked for it

    return cost(parse_module(stablehlo.to_module(stablehlo.read(program), trusted=True), largest_constant=1)).as_dict()


def _partitioned(program: Program, options: CompileOptions) -> Partitioned | None:
    """Return the program as XLA partitions it, or ``None`` where XLA cannot."""
    try:
        return stablehlo.partition(program, options)
    except UnimplementedError as error:
        _log.info("a program runs whole on each device, on gathered arguments: %s", error.message)
        return None


_log = logging.getLogger("pjrt")


def _name_of(module: Any) -> str:
    attributes = module.operation.attributes
    return str(attributes["sym_name"].value) if "sym_name" in attributes else "main"


def _parameter_names(program: Program, parameters: Sequence[ValueType]) -> list[str]:
    """Return the name of each parameter; empty where it is unknown, as that of a tuple's element."""
    names = [argument.name for argument in stablehlo.signature(stablehlo.read(program), trusted=True).arguments]
    return names if len(names) == len(parameters) else [""] * len(parameters)


def _specs(types: Sequence[ValueType]) -> list[ShapeSpec] | None:
    """Return the shapes, or ``None`` where one is unknown before the program runs."""
    specs = [spec for spec in map(shape_spec, types) if spec is not None]
    return specs if len(specs) == len(types) else None


_MOVING = """
broadcast_in_dim concatenate constant convert dynamic_slice dynamic_update_slice get_tuple_element optimization_barrier
pad reshape reverse slice transpose tuple while
"""
_TYPES: dict[str, frozenset[ElementType]] = {
    **{f"stablehlo.{name}": EVERY for name in _MOVING.split()},
    "func.call": EVERY,
    "stablehlo.case": frozenset({ElementType.S32}),
    "stablehlo.if": BOOLEAN,
    "stablehlo.select": BOOLEAN,
}
"""Ops that treat all element types alike, with those that their first operand can have."""

_HELD = frozenset(map(ElementType.of, filter(None, (getattr(ml_dtypes, name, None) for name in ("int1", "uint1")))))
"""Types that buffers can have, but that no op is defined on, if ml_dtypes has them."""

_FEATURES = {
    Feature.BOUNDED_DYNAMIC_SHAPES: True,
    Feature.COLLECTIVES: True,
    Feature.DYNAMIC_SHAPES: True,
    Feature.INFEED_OUTFEED: True,
    Feature.PARTITIONING: True,
    Feature.QUANTIZED_TYPES: True,
    Feature.SEND_RECV: True,
}


def capabilities(handlers: Collection[str]) -> Capabilities:
    """Return the capabilities of the device.

    Args:
        handlers: names of functions of the host that custom calls may call, besides the built-in ones.
    """
    return Capabilities(
        element_types=EVERY | _HELD,
        operations=operations(),
        custom_calls=frozenset({*registry.targets(), *handlers}),
        features=_FEATURES,
    )


@functools.cache
def operations() -> Mapping[str, frozenset[ElementType] | None]:
    """Return the operations of the interpreter by name, each with its element types, or None where they vary."""
    # Ops of CHLO that are not in the table may be expressed by others, in StableHLO's own pass.
    types: dict[str, frozenset[ElementType] | None] = dict.fromkeys(mlir.operations("chlo"))
    for rule in registry.rules():
        types[rule.name] = _TYPES.get(rule.name, rule.types)
    return types
