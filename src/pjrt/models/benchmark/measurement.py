"""The measurement of one program on one device, round by round."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pjrt import system
from pjrt.api.device import Device
from pjrt.api.errors import UnimplementedError
from pjrt.models.benchmark.latency import Latencies
from pjrt.models.benchmark.workload import Workload

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
