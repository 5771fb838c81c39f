"""A program that is compiled and run stage by stage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt import stablehlo
from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import Device, MemorySpace
from pjrt.api.errors import PjrtError, ResourceExhaustedError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions, LoadedExecutable
from pjrt.api.program import Program
from pjrt.artifacts.compilation_cache import CompilationCache
from pjrt.models.offloading.stages import (
    Action,
    Dataflow,
    Demand,
    Memory,
    OffloadPlan,
    Schedule,
    Stage,
    StagePlan,
    Value,
    nbytes,
    resident_weights,
    stages_of,
)

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


# The run of the stages.

HostArray = np.ndarray[Any, Any]


class StageRunner:
    """Runs a staged program, one run at a time.

    Args:
        place: the client, the memory and how to use it.
        runs: the stages with their executables.
        schedule: the steps of a run.
        host: the weights.
        resident: the weights that stay on the device between runs.
        arguments: the position of each argument.
        last_use: the last stage that uses a value.
        results: the values to return.
    """

    def __init__(
        self,
        place: Placement,
        runs: Sequence[StageExecutable],
        schedule: Schedule,
        host: Mapping[Value, HostArray],
        resident: frozenset[Value],
        arguments: Mapping[Value, int],
        last_use: Mapping[Value, int],
        results: Sequence[Value],
    ) -> None:
        self._place = place
        self._runs = runs
        self._schedule = schedule
        self._host: Mapping[Value, HostArray | Buffer] = host
        self._kept = resident
        self._arguments = arguments
        self._last_use = last_use
        self._results = results
        self._resident: dict[Value, Buffer] = {}
        self._device = place.device
        if place.host_space is not None:
            self._host = {
                value: place.client.buffer_from_host(array, memory_space=place.host_space)
                for value, array in host.items()
            }

    def results(self, arguments: Mapping[int, HostArray | Buffer]) -> list[Buffer]:
        """Run the program on arguments by position; wait for its end, and return the results."""
        for value in self._kept - self._resident.keys():
            self._resident[value] = self._bring(value)
        owned: set[Buffer] = set()
        try:
            return self._run(arguments, owned)
        finally:
            # After an error the device may still use them; it frees their memory when it does not.
            for buffer in owned:
                buffer.delete()

    def release(self) -> None:
        """Free the memory of the weights that stay on the device."""
        for buffer in self._resident.values():
            buffer.delete()
        self._resident.clear()

    def delete(self) -> None:
        """Free all memory that is in use between runs: that of the host, too."""
        self.release()
        for array in self._host.values():
            if isinstance(array, Buffer):
                array.delete()

    def _run(self, arguments: Mapping[int, HostArray | Buffer], owned: set[Buffer]) -> list[Buffer]:
        """Run the program; ``owned`` has the buffers to delete at any time."""
        values = dict(self._resident)
        passed: dict[Value, Buffer] = {}
        for value, position in self._arguments.items():
            values[value] = self._put(value, arguments[position], owned)
        under_way: dict[int, Future[None]] = {}
        loaded = -1
        for action, index in self._schedule.steps:
            run = self._runs[index]
            if action is Action.LOAD:
                loaded = index
                for value in run.stage.weights:
                    if value not in values:
                        values[value] = self._bring(value)
                        owned.add(values[value])
                if not self._place.prefetch:
                    Future.all([values[value].ready() for value in run.stage.weights]).result()
            elif action is Action.RUN:
                futures: list[Future[None]] = []
                buffers = run.executable.execute_sharded(
                    [values[value] for value in run.stage.inputs], self._device, run.options, returned_futures=futures
                )
                owned.update(buffers)
                under_way[index] = futures[0]
                for value, buffer in zip(run.results, buffers, strict=True):
                    # A result that is an argument of the program, or a weight, is a buffer beside the one it came from.
                    (passed if value in run.stage.inputs else values)[value] = buffer
            else:
                under_way.pop(index).result()
                needed = {value for later in self._runs[index + 1 : loaded + 1] for value in later.stage.weights}
                done = [value for value in run.stage.weights if value not in needed and value not in self._kept]
                done += [
                    value
                    for value in dict.fromkeys((*run.stage.inputs, *run.results))
                    if value not in self._host and self._last_use.get(value, -1) <= index
                ]
                for value in done:
                    buffer = values.pop(value)
                    owned.discard(buffer)
                    buffer.delete()
        return self._returned(values | passed, owned)

    def _put(self, value: Value, argument: HostArray | Buffer, owned: set[Buffer]) -> Buffer:
        if isinstance(argument, Buffer):
            if self._last_use[value] < len(self._runs):  # donated
                owned.add(argument)
            return argument
        # The caller waits until the end, so the array does not change before.
        semantics = HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES
        buffer = self._place.client.buffer_from_host(argument, memory_space=self._place.space, semantics=semantics)
        owned.add(buffer)
        return buffer

    def _bring(self, value: Value) -> Buffer:
        source = self._host[value]
        if isinstance(source, Buffer):
            return source.copy_to(self._place.space)
        semantics = HostBufferSemantics.IMMUTABLE_ZERO_COPY
        return self._place.client.buffer_from_host(source, memory_space=self._place.space, semantics=semantics)

    def _returned(self, values: Mapping[Value, Buffer], owned: set[Buffer]) -> list[Buffer]:
        returned: list[Buffer] = []
        for value in self._results:
            buffer = values[value]
            if buffer in returned:
                buffer = buffer.copy_to(self._place.space)
            owned.discard(buffer)
            returned.append(buffer)
        return returned


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a staged program, and the memory that it may use.

    Attributes:
        client: the client.
        device: the device.
        space: the memory of the device.
        memory_limit: the most bytes that may be in use there.
        host_space: the memory that the weights wait in; None for that of the process.
        prefetch: whether weights come while earlier stages run.
        options: the compile options of each stage, for one device.
        cache: the cache of executables on disk; None compiles in any case.
    """

    client: Client
    device: Device
    space: MemorySpace
    memory_limit: int
    host_space: MemorySpace | None
    prefetch: bool
    options: CompileOptions
    cache: CompilationCache | None

    def compile(self, program: Program) -> LoadedExecutable:
        """Return a program compiled and loaded on the device."""
        if self.cache is None:
            return self.client.compile(program, self.options)
        return self.cache.compile(self.client, program, self.options)


class StagedProgram:
    """A program in stages, compiled and loaded.

    Args:
        program: the program, with static shapes.
        weights: the values of arguments of its entry function, by their position. They must not change.
        donated: the positions of the other arguments that the program may use up.
        place: the place.

    Attributes:
        plan: the stages and the memory that they need.

    Raises:
        ResourceExhaustedError: a stage that cannot be divided needs more memory than the limit.
        UnimplementedError: the program has effects that are not results.
    """

    def __init__(
        self, program: Program, weights: Mapping[int, HostArray], donated: frozenset[int], place: Placement
    ) -> None:
        line = stablehlo.straighten(program, weights.keys())
        main = stablehlo.parse(line.program, trusted=True).entry
        sources = dict(zip(main.arguments, line.sources, strict=True))
        self._names = {value: source.name for value, source in sources.items()}
        on_host = [s.argument is None or s.argument in weights for s in line.sources]
        flow = Dataflow(main, frozenset(index for index, is_weight in enumerate(on_host) if is_weight))
        host = {value: sources[value].of(weights) for value in flow.weights}
        positions = {value: sources[value].argument for value in flow.arguments}
        self._arguments = {value: position for value, position in positions.items() if position is not None}
        self._limit = place.memory_limit
        self._check_weights(host)
        cutter = stablehlo.Cutter(line.program, trusted=True)
        donations = {value for value, position in self._arguments.items() if position in donated}
        try:
            self._compile(flow, cutter, place, host, donations, temporaries=False)
        except ResourceExhaustedError:
            # Smaller stages may fit; they are not the first choice, because more values leave a stage.
            self._compile(flow, cutter, place, host, donations, temporaries=True)

    def _compile(
        self,
        flow: Dataflow,
        cutter: stablehlo.Cutter,
        place: Placement,
        host: Mapping[Value, HostArray],
        donations: set[Value],
        *,
        temporaries: bool,
    ) -> None:
        stages = stages_of(flow, self._limit, temporaries=temporaries)
        last_use = _last_uses(stages, flow, donations)

        def may_donate(stage: int, value: Value) -> bool:
            return value not in host and last_use.get(value) == stage

        self._runs = compiled(stages, cutter, place.compile, may_donate)
        demands = self._demands(last_use, flow.results)
        arguments = sum(map(nbytes, self._arguments))
        resident = resident_weights(demands, arguments, self._limit)
        memory = Memory(demands, arguments, resident)
        try:
            self._check_fits(memory, demands)
        except ResourceExhaustedError:
            self._unload()
            raise
        schedule = Schedule.of(memory, self._limit, prefetch=place.prefetch)
        self.plan = self._plan(schedule, memory, host, resident)
        self._run = StageRunner(place, self._runs, schedule, host, resident, self._arguments, last_use, flow.results)

    @property
    def name(self) -> str:
        """The name of the program of the first stage."""
        return self._runs[0].executable.name

    def run(self, arguments: Mapping[int, HostArray | Buffer]) -> list[Buffer]:
        """Run the program, and wait for its end. One thread at a time may do so.

        Args:
            arguments: the arguments that are not weights, by their position. A buffer is in the memory of the device;
                it is deleted if the program donates it.

        Returns:
            The results.
        """
        return self._run.results(arguments)

    def release(self) -> None:
        """Free the memory of the device that is in use between runs; the next run takes it again."""
        self._run.release()

    def delete(self) -> None:
        """Free the memory of the device and unload the executables."""
        self._run.delete()
        self._unload()

    def _unload(self) -> None:
        for executable in {run.executable for run in self._runs}:
            executable.delete()

    def _check_weights(self, host: Mapping[Value, HostArray]) -> None:
        for value in host:
            if nbytes(value) > self._limit:
                raise ResourceExhaustedError(
                    f"{self._label(value)}, is larger than the memory limit of {self._limit} bytes, and an operation "
                    "needs all of it on the device; give more memory, or divide the array in the program"
                )

    def _demands(self, last_use: Mapping[Value, int], results: Sequence[Value]) -> list[Demand[Value]]:
        begins = dict.fromkeys(self._arguments, -1)
        for index, run in enumerate(self._runs):
            begins.update(dict.fromkeys(run.stage.values, index))
        # A result that is returned twice is copied at the end.
        copies = sum(map(nbytes, results)) - sum(map(nbytes, set(results)))
        last = len(self._runs) - 1
        return [
            Demand(
                {value: nbytes(value) for value in run.stage.weights},
                run.result_bytes + (copies if index == last else 0),
                run.temporary_bytes,
                sum(nbytes(value) for value, begin in begins.items() if begin <= index < last_use.get(value, -1)),
            )
            for index, run in enumerate(self._runs)
        ]

    def _check_fits(self, memory: Memory[Value], demands: Sequence[Demand[Value]]) -> None:
        for index, (run, demand) in enumerate(zip(self._runs, demands, strict=True)):
            shortage = memory.alone(index) - self._limit
            if shortage <= 0:
                continue
            operations = run.stage.operations
            count = "1 operation" if len(operations) == 1 else f"{len(operations)} operations"
            place = f"{count} from {operations[0].name} at {operations[0].location}; " if operations else ""
            largest = max((*run.stage.inputs, *run.results), key=nbytes)
            raise ResourceExhaustedError(
                f"a stage of the program needs {shortage} bytes more than the memory limit of {self._limit} bytes: "
                f"{place}weights {sum(demand.weights.values())} bytes, arguments and activations "
                f"{memory.live_before(index)}, results {demand.results}, temporaries {demand.temporaries}. "
                f"The largest array is {self._label(largest)}. Give more memory, or smaller arguments"
            )

    def _label(self, value: Value) -> str:
        return f"{self._names.get(value, f'the value {value.name}')}, a {value.type} of {nbytes(value)} bytes"

    def _plan(
        self, schedule: Schedule, memory: Memory[Value], host: Mapping[Value, HostArray], resident: frozenset[Value]
    ) -> OffloadPlan:
        executables = list(dict.fromkeys(run.executable for run in self._runs))
        stages = tuple(
            StagePlan(
                operations=tuple(each.name for each in run.stage.operations),
                location=str(run.stage.operations[0].location) if run.stage.operations else "",
                weights=tuple(self._names[value] for value in run.stage.weights),
                weight_bytes=sum(nbytes(value) for value in run.stage.weights if value not in resident),
                live_bytes=memory.live_before(index),
                result_bytes=run.result_bytes,
                temporary_bytes=run.temporary_bytes,
                executable=executables.index(run.executable),
            )
            for index, run in enumerate(self._runs)
        )
        return OffloadPlan(
            stages,
            schedule.steps,
            self._limit,
            schedule.peak,
            sum(map(nbytes, host)),
            memory.resident_bytes,
        )


def _last_uses(stages: Sequence[Stage], flow: Dataflow, donated: set[Value]) -> dict[Value, int]:
    """Return the last stage that uses a value; the number of stages for those that stay when the program ends."""
    last_use: dict[Value, int] = {}
    for index, stage in enumerate(stages):
        last_use.update(dict.fromkeys(stage.inputs, index))
    stays = set(flow.results) | (set(flow.arguments) - donated)
    last_use.update(dict.fromkeys(stays, len(stages)))
    return last_use
