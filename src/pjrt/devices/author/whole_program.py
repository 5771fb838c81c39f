"""Sharded programs that XLA does not partition, on an author's device: run whole, on gathered arguments."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import PjrtError
from pjrt.devices.reference.core.block import Context, run_fast
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.spmd import MEETINGS, GatheredProgram, all_partitions, finder_of, participants
from pjrt.host import Compiled, RunContext
from pjrt.host.executable import ParticipantsFunction
from pjrt.stablehlo.ir.operation import ParsedProgram


class WholeProgram:
    """A program of whole values that an author's function computes, in the form that ``GatheredProgram`` runs."""

    def __init__(self, program: ParsedProgram, compiled: Compiled) -> None:
        self.arguments = program.entry.type.arguments
        self.results = program.entry.type.results
        self.argument_shardings = program.argument_shardings()
        self.result_shardings = program.result_shardings(settled=True)
        self.ops = frozenset(operation.name for operation in program.walk())
        self._compiled = compiled

    def run(self, args: Sequence[Any], context: Context) -> list[Any]:
        """Return the whole results for whole arguments."""
        compiled = self._compiled
        results = compiled.run(context.host, *args) if compiled.takes_context else compiled.run(*args)
        return list(results) if isinstance(results, (tuple, list)) else [results]


def on_gathered_arguments(program: ParsedProgram, compiled: Compiled, num_partitions: int) -> Compiled:
    """Return a program of several partitions: the author's function computes it for all of them.

    Args:
        program: the program, with whole values.
        compiled: the author's function for it.
        num_partitions: the number of partitions.
    """
    gathered = GatheredProgram(WholeProgram(program, compiled), num_partitions)

    def run(context: RunContext, *arrays: Any) -> list[Any]:
        return gathered.run(arrays, Context.of(run_fast, context))

    return dataclasses.replace(
        compiled,
        run=run,
        takes_context=True,
        participants=lambda place, replicas, partitions: participants(
            [all_partitions], Context(run_fast, *place, replicas, partitions)
        ),
        parameters=gathered.parameters,
        outputs=gathered.results,
        parameter_shardings=[sharding.to_proto() for sharding in gathered.argument_shardings],
        output_shardings=[sharding.to_proto() for sharding in gathered.result_shardings],
        aliases={},
        donated=(),
    )


def participants_of(program: ParsedProgram) -> ParticipantsFunction | None:
    """Return the function that tells who takes part in the collectives of a program; ``None`` if it has none."""
    finders = []
    for operation in program.walk():
        if operation.name in MEETINGS:
            with contextlib.suppress(PjrtError):
                along = program.device_groups(operation)
                listed = {} if along is None else {"replica_groups": np.array(along)}
                finders.append(finder_of(OpView(operation.name, (), (), {**operation.attributes, **listed})))
    if not finders:
        return None
    return lambda place, replicas, partitions: participants(finders, Context(run_fast, *place, replicas, partitions))
