"""Staged programs: a program that runs stage by stage on a device that cannot hold its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt import stablehlo
from pjrt.api.buffer import Buffer
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import Device, MemorySpace
from pjrt.api.errors import ResourceExhaustedError
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import Program
from pjrt.artifacts.compilation_cache import CompilationCache
from pjrt.models.offloading.dataflow import Dataflow
from pjrt.models.offloading.offload_plan import OffloadPlan, StagePlan
from pjrt.models.offloading.schedule import Demand, Memory, Schedule, resident_weights
from pjrt.models.offloading.stage_executables import compiled
from pjrt.models.offloading.stage_runner import StageRunner
from pjrt.models.offloading.stages import Stage, Value, nbytes, stages_of

HostArray = np.ndarray[Any, Any]


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
