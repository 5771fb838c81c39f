"""The executables of stages: one for all stages whose operations are equal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pjrt import stablehlo
from pjrt.api.errors import PjrtError
from pjrt.api.loaded_executable import ExecuteOptions, LoadedExecutable
from pjrt.api.program import Program
from pjrt.models.offloading.stages import Stage, Value, nbytes

_log = logging.getLogger("pjrt.models")

Compile = Callable[[Program], LoadedExecutable]
"""Compiles a program and loads it on the device."""

MayDonate = Callable[[int, Value], bool]
"""Whether a stage, by its index, may use up a value."""


@dataclass(frozen=True, slots=True, eq=False)
class StageExecutable:
    """A stage with its executable.

    Attributes:
        stage: the stage.
        executable: the executable, which other stages may share.
        options: its execute options: inputs that are not used up, although the executable could.
        results: the values that the executable returns; not all of them need have a use.
        result_bytes: the bytes of results that need new memory.
        temporary_bytes: the bytes that it needs while it runs.
    """

    stage: Stage
    executable: LoadedExecutable
    options: ExecuteOptions | None
    results: tuple[Value, ...]
    result_bytes: int
    temporary_bytes: int


def compiled(
    stages: Sequence[Stage],
    cutter: stablehlo.Cutter,
    compile_: Compile,
    may_donate: MayDonate,
) -> list[StageExecutable]:
    """Compile the stages of a program, each kind of stage once.

    Raises:
        PjrtError: the device's compiler rejects a stage; the executables that were made are unloaded.
    """
    groups: dict[object, list[int]] = {}
    for index, stage in enumerate(stages):
        groups.setdefault(stage.key, []).append(index)
    runs: dict[int, StageExecutable] = {}
    try:
        for members in groups.values():
            runs.update(_group(stages, members, cutter, compile_, may_donate))
    except BaseException:
        for run in runs.values():
            run.executable.delete()
        raise
    return [runs[index] for index in range(len(stages))]


def _group(
    stages: Sequence[Stage],
    members: Sequence[int],
    cutter: stablehlo.Cutter,
    compile_: Compile,
    may_donate: MayDonate,
) -> dict[int, StageExecutable]:
    """Compile one program for stages of one key; it returns the results that any of them needs."""
    first = stages[members[0]]
    made = {index: stages[index].values for index in members}
    numbers = {index: {value: number for number, value in enumerate(made[index])} for index in members}
    needed = sorted({numbers[i][value] for i in members for value in stages[i].outputs if value in numbers[i]})
    passed = tuple(value for value in first.outputs if value not in numbers[members[0]])
    results = {index: (*(made[index][number] for number in needed), *passed) for index in members}
    aliases = _aliases(stages, members, results[members[0]][: len(needed)], may_donate)
    begin = time.perf_counter()
    cut = cutter.cut(results[members[0]], arguments=first.inputs, function="main", aliases=aliases)
    executable = compile_(cut.program)
    _log.info("compiled stages %s in %.3f s", ", ".join(map(str, members)), time.perf_counter() - begin)
    keeps_donation, temporaries = _measured(executable, first, aliases)
    runs = {}
    for index in members:
        stage = stages[index]
        kept = frozenset(number for number in aliases if not may_donate(index, stage.inputs[number]))
        donated = aliases.keys() - kept if keeps_donation else ()
        runs[index] = StageExecutable(
            stage,
            executable,
            ExecuteOptions(non_donatable_input_indices=kept) if kept else None,
            results[index],
            sum(map(nbytes, results[index])) - sum(nbytes(stage.inputs[number]) for number in donated),
            temporaries,
        )
    return runs


def _aliases(
    stages: Sequence[Stage], members: Sequence[int], results: Sequence[Value], may_donate: MayDonate
) -> dict[int, int]:
    """Return the result that takes over the memory of an input, for inputs that some member can use up."""
    free = list(range(len(results)))
    aliases: dict[int, int] = {}
    for number, value in enumerate(stages[members[0]].inputs):
        if any(may_donate(index, stages[index].inputs[number]) for index in members):
            match = next((place for place in free if results[place].type == value.type), None)
            if match is not None:
                free.remove(match)
                aliases[number] = match
    return aliases


def _measured(executable: LoadedExecutable, stage: Stage, aliases: Mapping[int, int]) -> tuple[bool, int]:
    """Return whether results take over the memory of donated inputs, and the bytes of temporaries, by the compiler.

    A device that states nothing may take new memory for all results, and the temporaries are as estimated.
    """
    try:
        stats = executable.memory_stats()
    except PjrtError:
        return False, stage.temporary_bytes
    donated = sum(nbytes(stage.inputs[number]) for number in aliases)
    return stats.alias_size_in_bytes >= donated, stats.temp_size_in_bytes
