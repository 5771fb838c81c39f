"""The compiler: from a program to the function that the host runtime runs, with its types, shardings and aliases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt import stablehlo
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import UnimplementedError
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.reference.core.block import Block, Environment
from pjrt.devices.reference.core.context import Context
from pjrt.devices.reference.core.values import TOKEN, leaves, packed, unpacked
from pjrt.devices.reference.cost_analysis import costs
from pjrt.devices.reference.evaluator import Evaluator
from pjrt.devices.reference.memory_stats import memory_stats
from pjrt.devices.reference.spmd.by_gathering import GatheredProgram
from pjrt.devices.reference.spmd.replica_groups import all_partitions, participants
from pjrt.host import Compiled, RunContext
from pjrt.stablehlo.analysis.outline import Outline
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.shardings.partitioner import with_notes
from pjrt.stablehlo.signatures import donations, memory_kinds, shape_spec, with_asked_layouts
from pjrt.stablehlo.types import ValueType

if TYPE_CHECKING:
    from pjrt.stablehlo.shardings.partitioner import Partitioned

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
    gathered = notes = None
    if partitioned is not None:
        shardings, notes = (partitioned.parameter_shardings, partitioned.result_shardings), partitioned.notes
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

    if parameter_specs is not None:
        parameter_specs = with_asked_layouts(parameter_specs, evaluator.argument_attributes)
    if result_specs is not None:
        result_specs = with_asked_layouts(result_specs, evaluator.result_attributes)
    aliases, donated = donations(evaluator.argument_attributes)
    return Compiled(
        run=run,
        outputs=result_specs,
        parameters=parameter_specs,
        parameter_names=lambda: _parameter_names(program, parameters),
        name=name,
        takes_context=True,
        participants=lambda place, replicas, partitions: participants(
            [*evaluator.meetings, *([all_partitions] if gathered is not None else [])],
            Context(loop, *place, replicas, partitions),
        ),
        takes_allocations=allocations,
        parameter_shardings=None if shardings is None else shardings[0],
        output_shardings=None if shardings is None else shardings[1],
        aliases=aliases,
        donated=donated,
        parameter_memory_kinds=memory_kinds(evaluator.argument_attributes),
        output_memory_kinds=memory_kinds(evaluator.result_attributes),
        cost=lambda: costs(evaluator),
        memory=None if gathered is not None else lambda: memory_stats(evaluator, aliases),
        optimized=None if notes is None else lambda: with_notes(program, *notes),
    )


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
