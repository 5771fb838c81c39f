"""Measurements: a workload on one device, the times of its runs, and their distribution."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pjrt import ifrt, system
from pjrt.api.buffer import Buffer
from pjrt.api.device import Device
from pjrt.api.errors import UnimplementedError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions
from pjrt.models.binding import Argument
from pjrt.models.model import Model

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
"""The percentiles that the commands print."""

Nanoseconds = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Latencies:
    """The times of repeated work.

    Attributes:
        nanoseconds: the time of each repetition, in their order.
        begins: the nanoseconds from the start of the measurement to the begin of each repetition; empty if they were
            not recorded.
        rounds: the number of the round, from 0, in which each repetition ran; empty if there were no rounds.
    """

    nanoseconds: Nanoseconds
    begins: Nanoseconds = field(default_factory=lambda: np.zeros(0, np.int64))
    rounds: Nanoseconds = field(default_factory=lambda: np.zeros(0, np.int64))

    @staticmethod
    def of(nanoseconds: Sequence[int], begins: Sequence[int] = (), rounds: Sequence[int] = ()) -> Latencies:
        """Return the latencies in sequences of whole nanoseconds."""
        return Latencies(*(np.asarray(values, np.int64) for values in (nanoseconds, begins, rounds)))

    @property
    def count(self) -> int:
        """The number of repetitions."""
        return len(self.nanoseconds)

    @property
    def median(self) -> float:
        """The median in seconds."""
        return self.percentile(50)

    @property
    def minimum(self) -> float:
        """The shortest time in seconds."""
        return float(self.nanoseconds.min()) / 1e9

    @property
    def maximum(self) -> float:
        """The longest time in seconds."""
        return float(self.nanoseconds.max()) / 1e9

    @property
    def mean(self) -> float:
        """The mean in seconds."""
        return float(self.nanoseconds.mean()) / 1e9

    @property
    def total(self) -> float:
        """The sum in seconds."""
        return float(self.nanoseconds.sum()) / 1e9

    def percentile(self, percent: float) -> float:
        """Return a percentile in seconds, interpolated between two times as ``numpy.percentile`` does."""
        return float(np.percentile(self.nanoseconds, percent)) / 1e9

    def of_round(self, number: int) -> Latencies:
        """Return the repetitions of one round."""
        chosen = self.rounds == number
        return Latencies(self.nanoseconds[chosen], self.begins[chosen], self.rounds[chosen])

    def as_dict(self) -> dict[str, float | int]:
        """Return the statistics by name, in seconds, for ``--json``; only the count if there was no repetition."""
        if not self.count:
            return {"count": 0}
        percentiles = {f"p{percent:g}_seconds".replace(".", "_"): self.percentile(percent) for percent in PERCENTILES}
        return {
            "count": self.count,
            "median_seconds": self.median,
            "mean_seconds": self.mean,
            "min_seconds": self.minimum,
            **percentiles,
            "max_seconds": self.maximum,
        }

    def histogram(self, bins: int) -> Histogram:
        """Return how many repetitions took how long, up to the 99th percentile; the longer ones are counted together.

        The longest times of a busy machine are far from all others: bins up to them would be empty.
        """
        last = self.percentile(99) * 1e9
        edges = np.linspace(float(self.nanoseconds.min()), max(last, float(self.nanoseconds.min()) + 1), bins + 1)
        counts, _ = np.histogram(self.nanoseconds, edges)
        longer = self.count - int(counts.sum())
        return Histogram(tuple(edges / 1e9), tuple(counts.tolist()), longer)

    def over_time(self, columns: int) -> list[tuple[float, float]]:
        """Return the median and the maximum of spans of the repetitions, in seconds; ``columns`` spans at most."""
        spans = np.array_split(self.nanoseconds, min(columns, self.count))
        return [(float(np.median(span)) / 1e9, float(span.max()) / 1e9) for span in spans if len(span)]


@dataclass(frozen=True)
class Histogram:
    """The number of repetitions in each range of times.

    Attributes:
        edges: the limits of the bins in seconds, one more than there are bins.
        counts: the number of repetitions in each bin.
        longer: the number of repetitions that took longer than the last limit.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    longer: int


# The workload: one call of a model, made again and again, one by one or many at a time.

_Rows = list[list[Buffer]]
"""The buffers of an execution: a list for each device."""

_Call = tuple[_Rows, ExecuteOptions | None]
"""The arguments of an execution, and its options."""

_Execution = tuple[_Rows, list[Future[None]]]
"""The results of an execution on each device; the futures of its completion if the program has no results."""

_BATCHES = 8
"""The executions of a batch, as a multiple of those in flight: its begin and its end, when fewer are in flight, weigh
little.
"""


class Workload:
    """A model on its devices, and whole arguments for it.

    Each timed part waits for its results, and releases them after the clock has stopped.

    Args:
        model: the model.
        executable: an executable of the model.
        arguments: the arguments, as ``model.fitted`` returns them.
    """

    def __init__(self, model: Model, executable: ifrt.LoadedExecutable, arguments: Sequence[Argument]) -> None:
        self._model = model
        self._executable = executable
        self._hosts = [np.asarray(argument) for argument in arguments]
        self._placed: list[Argument] = list(self._hosts)
        self._kept_call: _Call | None = None
        self._donates = any(parameter.donated for parameter in model.parameters)

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of this process that the program runs on."""
        return self._executable.addressable_devices

    @property
    def num_argument_bytes(self) -> int:
        """The bytes of the whole arguments."""
        return sum(host.nbytes for host in self._hosts)

    @property
    def num_result_bytes(self) -> int:
        """The bytes of the whole results, without those whose shapes are known only after a run."""
        specs = filter(None, self._executable.output_specs)
        return sum(math.prod(spec.shape) * spec.element_type.dtype.itemsize for spec in specs)

    def put(self) -> int:
        """Put all arguments on the devices and return the nanoseconds until they are there."""
        with _without_collector():
            begin = time.perf_counter_ns()
            arrays = [each for each in self._put(self._hosts) if isinstance(each, ifrt.Array)]
            for array in arrays:
                array.ready().result()
            nanoseconds = time.perf_counter_ns() - begin
        for array in arrays:
            array.delete()
        return nanoseconds

    def execute(self) -> int:
        """Run the program once and return the nanoseconds until all results are there.

        Arguments that the last execution donated are put on the devices again before the clock starts.
        """
        call = self._next_call()
        with _without_collector():
            begin = time.perf_counter_ns()
            execution = self._start(call)
            _wait(execution)
            nanoseconds = time.perf_counter_ns() - begin
        del execution
        return nanoseconds

    def execute_batch(self, in_flight: int) -> tuple[int, list[int]]:
        """Run the program several times with several executions in flight.

        Results are released while the clock runs, as soon as they are there: all of them together may be too large.
        A program that donates arguments runs once for each execution in flight, with arguments of its own.

        Returns:
            The nanoseconds until the last result is there, and those of each execution from its call to its results.
        """
        if self._donates:
            batch = [self._call(self._with_fresh_donated()) for _ in range(in_flight)]
        else:
            batch = [self._next_call()] * (in_flight * _BATCHES)
        pending: deque[tuple[int, _Execution]] = deque()
        times = []

        def finish() -> None:
            start, execution = pending.popleft()
            _wait(execution)
            times.append(time.perf_counter_ns() - start)

        with _without_collector():
            begin = time.perf_counter_ns()
            for call in batch:
                if len(pending) == in_flight:
                    finish()
                pending.append((time.perf_counter_ns(), self._start(call)))
            while pending:
                finish()
            nanoseconds = time.perf_counter_ns() - begin
        return nanoseconds, times

    def fetch(self) -> int:
        """Run the program once, and return the nanoseconds that the copy of all its results to the host takes."""
        results = self._model.run(self._executable, self._arguments())
        for result in results:
            result.ready().result()
        with _without_collector():
            begin = time.perf_counter_ns()
            values = self._model.values(self._executable, results)
            nanoseconds = time.perf_counter_ns() - begin
        del values
        return nanoseconds

    def _put(self, arguments: Sequence[Argument]) -> list[Argument]:
        return self._model.placed(self._executable, arguments)

    def _arguments(self) -> list[Argument]:
        """Return the arguments on the devices; put those there that are not, or were donated."""
        self._placed = self._put(
            [
                host if isinstance(array, ifrt.Array) and array.is_deleted else array
                for host, array in zip(self._hosts, self._placed, strict=True)
            ]
        )
        return self._placed

    def _with_fresh_donated(self) -> list[Argument]:
        """Return the arguments on the devices, with new copies of those that the program donates."""
        pairs = zip(self._model.parameters, self._hosts, self._arguments(), strict=True)
        return self._put([host if parameter.donated else array for parameter, host, array in pairs])

    def _next_call(self) -> _Call:
        """Return the call with the arguments on the devices: the same one each time, unless the program donates."""
        if self._kept_call is None or self._donates:
            self._kept_call = self._call(self._arguments())
        return self._kept_call

    def _call(self, arguments: Sequence[Argument]) -> _Call:
        """Return the buffers of the arguments when they have their values, and how to execute."""
        arrays, options = self._model.program_arguments(self._executable, arguments)
        for array in arrays:
            array.ready().result()
        columns = [array.buffers for array in arrays]
        return [[column[number] for column in columns] for number in range(len(self.devices))], options

    def _start(self, call: _Call) -> _Execution:
        rows, options = call
        futures: list[Future[None]] = []
        asked = None if self._executable.output_specs else futures
        return self._executable.pjrt_executable.execute(rows, options, returned_futures=asked), futures


def _wait(execution: _Execution) -> None:
    """Wait for all results of an execution, or for its completion if it has none."""
    rows, futures = execution
    for row in rows:
        for result in row:
            result.ready().result()
    for future in futures:
        future.result()


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the collector of Python's reference cycles from running while the clock runs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# The measurement of a workload on one device, in rounds.

_WARM_UP_SECONDS = 0.3
_MOST_TRANSFERS = 20
"""The most transfers in a round: those of large arguments take much longer than an execution."""

_TRANSFERS_SHARE = 0.25
"""The part of a round's time after which no further transfers begin."""


@dataclass(frozen=True)
class MemoryPeak:
    """The most memory in use while a program was executed.

    Attributes:
        nbytes: the bytes.
        source: ``device``: the statistics of the device's allocator, the largest of all devices; ``process``: the
            resident memory of this process, which holds everything else in it too.
    """

    nbytes: int
    source: str


@dataclass(frozen=True)
class Plan:
    """The amount of work to measure on each device.

    Attributes:
        count: the executions in all rounds; None to measure for ``seconds``.
        seconds: the time of all rounds, where there is no count.
        warm_up: the executions before the first round; None for as many as fit into a short time, at least one.
        rounds: the number of rounds.
        in_flight: the number of executions in flight.
    """

    count: int | None
    seconds: float
    warm_up: int | None
    rounds: int
    in_flight: int

    @property
    def round_seconds(self) -> float | None:
        """The time of one of the measured parts in one round; None if a count decides."""
        return None if self.count is not None else self.seconds / self.rounds / (1 + (self.in_flight > 1))

    def count_of(self, number: int) -> int | None:
        """Return the executions of one round; None if a time decides."""
        return None if self.count is None else self.count // self.rounds + (number < self.count % self.rounds)


@dataclass
class Series:
    """The times of one part of the work, while they are measured."""

    times: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def add(self, nanoseconds: int, begin: int, round_number: int) -> None:
        """Add one time."""
        self.times.append(nanoseconds)
        self.begins.append(begin)
        self.rounds.append(round_number)

    def latencies(self) -> Latencies:
        """Return the times as they are now."""
        return Latencies.of(self.times, self.begins, self.rounds)


class Measurement:
    """The times of one device.

    Attributes:
        first_run_seconds: the time of the first execution.
        put: the copies of the arguments to the devices.
        execute: the executions, one at a time.
        pipelined: the executions with several in flight.
        fetch: the copies of the results to the host.
        memory_peak: the most memory in use during the executions of the first round; None if nothing reports it.

    Args:
        workload: the program and its arguments.
        plan: the amount of work.
        origin: the time at which the benchmark began, by ``time.perf_counter_ns``.
    """

    def __init__(self, workload: Workload, plan: Plan, origin: int) -> None:
        self._workload = workload
        self._plan = plan
        self._origin = origin
        self.put, self.execute, self.pipelined, self.fetch = Series(), Series(), Series(), Series()
        self.memory_peak: MemoryPeak | None = None
        self._batch_seconds = 0.0
        self.first_run_seconds = workload.execute() / 1e9

    def warm_up(self) -> None:
        """Run the program without measuring it."""
        seconds = _WARM_UP_SECONDS if self._plan.warm_up is None else None
        for _ in _repetitions(self._plan.warm_up, seconds):
            self._workload.execute()

    def run_round(self, number: int) -> None:
        """Measure executions one at a time, then several in flight, then transfers."""
        count, seconds = self._plan.count_of(number), self._plan.round_seconds
        begin = time.perf_counter()
        # Transfers come last: they need memory for a second copy of the arguments.
        with self._watched_memory() if number == 0 else contextlib.nullcontext():
            self._measure(self.execute, self._workload.execute, number, count, seconds)
            if self._plan.in_flight > 1:
                self._measure_in_flight(number, count, seconds)
        share = (time.perf_counter() - begin) * _TRANSFERS_SHARE
        self._measure(self.put, self._workload.put, number, _MOST_TRANSFERS, share)
        self._measure(self.fetch, self._workload.fetch, number, _MOST_TRANSFERS, share)

    @property
    def throughput(self) -> float:
        """Executions a second, with as many in flight as planned."""
        if self._plan.in_flight == 1:
            return len(self.execute.times) / (sum(self.execute.times) / 1e9)
        return len(self.pipelined.times) / self._batch_seconds

    def _measure(
        self, series: Series, work: Callable[[], int], number: int, count: int | None, seconds: float | None
    ) -> None:
        for _ in _repetitions(count, seconds):
            begin = time.perf_counter_ns() - self._origin
            series.add(work(), begin, number)

    def _measure_in_flight(self, number: int, count: int | None, seconds: float | None) -> None:
        first = len(self.pipelined.times)
        for _ in _repetitions(None, seconds):
            begin = time.perf_counter_ns() - self._origin
            nanoseconds, times = self._workload.execute_batch(self._plan.in_flight)
            self._batch_seconds += nanoseconds / 1e9
            for each in times:
                self.pipelined.add(each, begin, number)
            if count is not None and len(self.pipelined.times) - first >= count:
                return

    @contextlib.contextmanager
    def _watched_memory(self) -> Iterator[None]:
        devices = self._workload.devices
        for device in devices:
            with contextlib.suppress(UnimplementedError):
                device.clear_memory_stats()
        system.reset_peak_resident_bytes()
        yield
        self.memory_peak = _peak_of(devices)


def _peak_of(devices: Sequence[Device]) -> MemoryPeak | None:
    peaks = []
    for device in devices:
        with contextlib.suppress(UnimplementedError):
            peaks.append(device.memory_stats().peak_bytes_in_use)
    reported = [peak for peak in peaks if peak is not None]
    if reported:
        return MemoryPeak(max(reported), "device")
    resident = system.peak_resident_bytes()
    return None if resident is None else MemoryPeak(resident, "process")


def _repetitions(count: int | None, seconds: float | None) -> Iterator[int]:
    """Yield numbers until the count is reached or the time has passed; at least one for a time."""
    deadline = None if seconds is None else time.perf_counter() + seconds
    for number in itertools.count():
        if number == count or (number and deadline is not None and time.perf_counter() > deadline):
            return
        yield number
