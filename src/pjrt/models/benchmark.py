"""Benchmarks: how long a model takes on devices, side by side; the file of their times, and their page."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pjrt import ifrt
from pjrt.api.checks import expect_int
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError, PjrtError, naming
from pjrt.api.printable import html_table
from pjrt.api.program import Program
from pjrt.artifacts.saved_executable import SavedExecutable
from pjrt.models.binding import Argument
from pjrt.models.inputs import values_of
from pjrt.models.measurement import PERCENTILES, Latencies, Measurement, MemoryPeak, Plan, Workload
from pjrt.models.model import Device, Model, load_model, named_devices
from pjrt.models.model_file import ModelFile
from pjrt.models.output_path import check_output_path, writing
from pjrt.models.report.page import page

DEFAULT_SECONDS = 2.0
"""The time for each device if neither a duration nor a count is asked for."""

DEFAULT_ROUNDS = 5
"""The number of rounds; with fewer executions than that there is a round for each."""

MOST_IN_FLIGHT = 32
"""The most executions in flight of a program on several devices.

XLA's runtimes hold back more. With hundreds whose collectives wait for each other, XLA's CPU runtime ends the process.
"""


def bench(
    model: ModelFile | Program | SavedExecutable | str | bytes | os.PathLike[str],
    devices: Sequence[Device] = (None,),
    inputs: Sequence[Any] | Mapping[str, Any] | str = (),
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    count: int | None = None,
    seconds: float | None = None,
    warm_up: int | None = None,
    in_flight: int = 1,
    rounds: int = DEFAULT_ROUNDS,
    compile_options: CompileOptions | None = None,
    client_options: Mapping[str, Any] | None = None,
) -> Benchmark:
    """Measure a program on devices, side by side in interleaved rounds.

    Compiling, the first execution, transfers and executions are timed apart. An execution is timed from the call until
    all results are there. Arguments that the program donates are put on the devices again while the clock stands.

    Args:
        model: the path of a model file, or a program.
        devices: names of devices or clients; None is the default device. Clients stay the caller's.
        inputs: the arguments: texts such as ``random:0`` or ``x=FILE.npy``, as ``pjrt run --input`` takes them; or
            arrays, flat or nested as the model takes them, in a sequence or by name.
        shapes: shapes for texts such as ``random:0``, by a parameter's name or index, or sizes by symbol, where the
            model has dynamic shapes.
        count: the executions on each device.
        seconds: the time for the executions on each device, instead of a count.
        warm_up: the executions on each device that are not measured; by default those of about 0.3 seconds.
        in_flight: how many executions are under way at the same time when the throughput is measured.
        rounds: the number of rounds: in each all devices are measured one after the other, so that what disturbs the
            machine for a while disturbs all of them.
        compile_options: the compile options; they win over the program.
        client_options: options of the clients that are made.

    Returns:
        The benchmark. Devices that cannot compile or run the program are in ``errors``.

    Raises:
        NotFoundError: there is no such file or device.
        InvalidArgumentError: an input does not fit the program, or an option is out of range.
        PjrtError: no device runs the program, or a client cannot be made; the message names the device.
    """
    plan = plan_of(count, seconds, warm_up, in_flight, rounds)
    file = ModelFile.of(model)
    named = named_devices(devices)
    if not named:
        raise InvalidArgumentError("expected at least one device to measure, found none")
    arguments = values_of(file, inputs, shapes)
    origin = time.perf_counter_ns()
    errors: dict[str, PjrtError] = {}
    with contextlib.ExitStack() as stack:
        subjects: list[_Subject] = []
        for label, device in named:
            with naming(label):
                options = dict(client_options or {}) if isinstance(device, str) else {}
                loaded = stack.enter_context(load_model(file, device, compile_options=compile_options, **options))
                fitted = loaded.fitted(arguments)
            with _noting(errors, label):
                subjects.append(_Subject(label, loaded, fitted, plan, origin))
        for number in range(plan.rounds):
            for subject in subjects:
                if subject.label in errors:
                    continue
                with _noting(errors, subject.label):
                    if number == 0:
                        subject.measurement.warm_up()
                    subject.measurement.run_round(number)
        measured = [subject for subject in subjects if subject.label not in errors]
        if not measured:
            raise next(iter(errors.values()))
        return Benchmark(
            _name_of(file, measured[0]), plan.rounds, tuple(each.results() for each in measured), dict(errors)
        )


@contextlib.contextmanager
def _noting(errors: dict[str, PjrtError], label: str) -> Iterator[None]:
    """Note the error of a device by its label, in place of raising it."""
    try:
        with naming(label):
            yield
    except PjrtError as error:
        errors[label] = error


@dataclass(frozen=True)
class Ratio:
    """The time of a device as a multiple of the first device's time.

    Attributes:
        median: the ratio of the medians.
        low: the least ratio of the medians of one round.
        high: the greatest ratio of the medians of one round.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class DeviceBenchmark:
    """The times of a program on one device, or on as many devices of a client as it needs.

    Attributes:
        label: the device's name, with a number if the name was given several times.
        platform_name: the platform.
        platform_version: the platform's version.
        device_kind: the kind of its devices.
        num_devices: the number of devices that the program runs on.
        compile_seconds: the time of compiling.
        first_run_seconds: the time of the first execution, which may include work that is done once.
        put: the copies of all arguments from the host to the devices.
        execute: the executions, one at a time, from the call until all results are there.
        fetch: the copies of all results from the devices to the host.
        argument_bytes: the bytes of the arguments.
        result_bytes: the bytes of the results.
        in_flight: the number of executions in flight for ``pipelined`` and ``throughput``.
        pipelined: the executions with several in flight, each from its call; empty with one in flight.
        throughput: executions a second, with ``in_flight`` of them in flight, without transfers.
        memory_peak: the most memory in use; None where neither the device nor the system reports it.
        operations: the number of operations of the program as the device runs them; None where it has no fallback, or
            does not report what the fallback runs.
        fallback: the number of operations that the fallback runs, by name.
    """

    label: str
    platform_name: str
    platform_version: str
    device_kind: str
    num_devices: int
    compile_seconds: float
    first_run_seconds: float
    put: Latencies
    execute: Latencies
    fetch: Latencies
    argument_bytes: int
    result_bytes: int
    in_flight: int
    pipelined: Latencies
    throughput: float
    memory_peak: MemoryPeak | None
    operations: int | None = None
    fallback: Mapping[str, int] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Latencies]:
        """The measured times by the names of the parts, without parts that were not measured."""
        parts = {"put": self.put, "execute": self.execute, "pipelined": self.pipelined, "fetch": self.fetch}
        return {name: latencies for name, latencies in parts.items() if latencies.count}

    def ratio_to(self, first: DeviceBenchmark) -> Ratio:
        """Return this device's time of an execution as a multiple of another's."""
        rounds = [
            self.execute.of_round(number).median / first.execute.of_round(number).median
            for number in range(int(self.execute.rounds.max()) + 1)
        ]
        return Ratio(self.execute.median / first.execute.median, min(rounds), max(rounds))

    def as_dict(self) -> dict[str, Any]:
        """Return the results without the raw times, for ``--json``."""
        peak = self.memory_peak
        return {
            "device": self.label,
            "platform": self.platform_name,
            "platform_version": self.platform_version,
            "device_kind": self.device_kind,
            "num_devices": self.num_devices,
            "compile_seconds": self.compile_seconds,
            "first_run_seconds": self.first_run_seconds,
            "argument_bytes": self.argument_bytes,
            "result_bytes": self.result_bytes,
            **{name: latencies.as_dict() for name, latencies in self.parts.items()},
            "in_flight": self.in_flight,
            "executions_per_second": self.throughput,
            "memory_peak_bytes": None if peak is None else peak.nbytes,
            "memory_peak_of": None if peak is None else peak.source,
            "operations": self.operations,
            "fallback": dict(self.fallback),
        }


@dataclass(frozen=True)
class Benchmark:
    """The results of a benchmark.

    Attributes:
        program: the program's name or file.
        rounds: the number of rounds, in each of which all devices were measured one after the other.
        devices: the results of each device that ran the program, in the order of the call.
        errors: the errors of the other devices, by label.
    """

    program: str
    rounds: int
    devices: tuple[DeviceBenchmark, ...]
    errors: Mapping[str, PjrtError] = field(default_factory=dict)

    def ratios(self) -> tuple[Ratio, ...]:
        """Return each device's time of an execution as a multiple of the first device's."""
        return tuple(each.ratio_to(self.devices[0]) for each in self.devices)

    def as_dict(self) -> dict[str, Any]:
        """Return the results without the raw times, for ``--json``."""
        devices = [
            {**each.as_dict(), "ratio": {"median": ratio.median, "low": ratio.low, "high": ratio.high}}
            for each, ratio in zip(self.devices, self.ratios(), strict=True)
        ]
        errors = {label: {"code": each.code.name, "message": each.message} for label, each in self.errors.items()}
        return {"program": self.program, "rounds": self.rounds, "devices": devices, "errors": errors}

    def _repr_html_(self) -> str:
        rows: list[Sequence[object]] = []
        for each, ratio in zip(self.devices, self.ratios(), strict=True):
            times = [f"{seconds * 1e3:.4g} ms" for seconds in (each.execute.median, each.execute.percentile(99))]
            rows.append([each.label, *times, f"{each.throughput:.4g}", f"{ratio.median:.3g}"])
        rows += [[label, "failed", error.message, "", ""] for label, error in self.errors.items()]
        return html_table(self.program, rows, ("device", "median", "99%", "a second", "ratio"))


def plan_of(count: int | None, seconds: float | None, warm_up: int | None, in_flight: int, rounds: int) -> Plan:
    """Return the plan of a benchmark, with defaults for what is None.

    Raises:
        InvalidArgumentError: a number is out of range, or both a count and a time are given.
    """
    if count is not None and seconds is not None:
        raise InvalidArgumentError(f"expected a count or a time, found both: {count} executions and {seconds} seconds")
    for name, value, least in (
        ("count", count, 1),
        ("warm_up", warm_up, 0),
        ("in_flight", in_flight, 1),
        ("rounds", rounds, 1),
    ):
        if value is not None and expect_int(value, f"{name} as a whole number") < least:
            raise InvalidArgumentError(f"expected {name} to be at least {least}, found {value}")
    if seconds is not None and not 0 < seconds < 1e6:
        raise InvalidArgumentError(f"expected seconds above 0 and below a million, found {seconds}")
    return Plan(count, seconds or DEFAULT_SECONDS, warm_up, min(rounds, count or rounds), in_flight)


class _Subject:
    """One device of a benchmark."""

    def __init__(self, label: str, model: Model, fitted: Sequence[Argument], plan: Plan, origin: int) -> None:
        self.label = label
        self.model = model
        begin = time.perf_counter()
        self.executable = model.compile([argument.shape for argument in fitted])
        self.compile_seconds = time.perf_counter() - begin
        if self.executable.num_devices > 1 and plan.in_flight > MOST_IN_FLIGHT:
            raise InvalidArgumentError(
                f"expected at most {MOST_IN_FLIGHT} executions in flight of a program on several devices, found "
                f"{plan.in_flight}: runtimes on processors can block when more wait for each other"
            )
        self.workload = Workload(model, self.executable, fitted)
        self.measurement = Measurement(self.workload, plan, origin)
        self._in_flight = plan.in_flight

    def results(self) -> DeviceBenchmark:
        client, measurement = self.model.client, self.measurement
        operations, fallback = _fallback_of(self.executable)
        return DeviceBenchmark(
            label=self.label,
            platform_name=client.platform_name,
            platform_version=client.platform_version,
            device_kind=self.executable.devices[0].kind,
            num_devices=self.executable.num_devices,
            compile_seconds=self.compile_seconds,
            first_run_seconds=measurement.first_run_seconds,
            put=measurement.put.latencies(),
            execute=measurement.execute.latencies(),
            fetch=measurement.fetch.latencies(),
            argument_bytes=self.workload.num_argument_bytes,
            result_bytes=self.workload.num_result_bytes,
            in_flight=self._in_flight,
            pipelined=measurement.pipelined.latencies(),
            throughput=measurement.throughput,
            memory_peak=measurement.memory_peak,
            operations=operations,
            fallback=fallback,
        )


def _fallback_of(executable: ifrt.LoadedExecutable) -> tuple[int | None, dict[str, int]]:
    """Return the number of operations, and of those that the fallback runs by name, from the cost analysis."""
    try:
        costs = executable.pjrt_executable.cost_analysis()
    except PjrtError:
        return None, {}
    if "operations" not in costs:
        return None, {}
    prefix = "fallback "
    fallback = {key.removeprefix(prefix): int(n) for key, n in costs.items() if key.startswith(prefix)}
    return int(costs["operations"]), dict(sorted(fallback.items(), key=lambda item: (-item[1], item[0])))


def _name_of(file: ModelFile, subject: _Subject) -> str:
    return os.path.basename(file.source) or subject.executable.name


# The file of the times: each single one, for the tools of others.

SUFFIXES = (".json", ".csv", ".npz")
"""The suffixes of files of times."""

_FIELDS = ("rounds", "begins", "nanoseconds")


def write_times(benchmark: Benchmark, path: str | os.PathLike[str]) -> None:
    """Write every measured time, in nanoseconds.

    A ``.csv`` file has a line for each time. A ``.json`` file has the statistics too. A ``.npz`` file has arrays with
    names such as ``cpu/execute/nanoseconds``.

    Raises:
        InvalidArgumentError: the suffix is unsupported, or the file cannot be written.
        NotFoundError: the folder does not exist.
    """
    check_output_path(path, SUFFIXES)
    writers = {".json": _write_json, ".csv": _write_csv, ".npz": _write_npz}
    with writing(path):
        writers[Path(path).suffix](benchmark, Path(path))


def _parts(benchmark: Benchmark) -> Iterator[tuple[str, str, Latencies]]:
    for device in benchmark.devices:
        for part, latencies in device.parts.items():
            yield device.label, part, latencies


def _write_json(benchmark: Benchmark, path: Path) -> None:
    contents = benchmark.as_dict()
    for device, facts in zip(benchmark.devices, contents["devices"], strict=True):
        facts["times"] = {
            part: {name: getattr(latencies, name).tolist() for name in _FIELDS}
            for part, latencies in device.parts.items()
        }
    path.write_text(json.dumps(contents, indent=1) + "\n")


def _write_csv(benchmark: Benchmark, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["device", "part", "round", "begin_nanoseconds", "nanoseconds"])
        for label, part, latencies in _parts(benchmark):
            columns = (getattr(latencies, name).tolist() for name in _FIELDS)
            writer.writerows([label, part, *row] for row in zip(*columns, strict=True))


def _write_npz(benchmark: Benchmark, path: Path) -> None:
    arrays = {
        f"{label}/{part}/{name}": getattr(latencies, name)
        for label, part, latencies in _parts(benchmark)
        for name in _FIELDS
    }
    np.savez(path, allow_pickle=False, **arrays)


# The page: the devices side by side, with the distribution of their times.

_BINS = 40
_COLUMNS = 300
_CURVE = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 100)
"""The percentiles of the curve that compares the devices."""


def benchmark_page(benchmark: Benchmark) -> str:
    """Return the page of a benchmark as HTML."""
    data = {
        **benchmark.as_dict(),
        "percentiles": [*PERCENTILES],
        "plots": [_plots(device) for device in benchmark.devices],
    }
    return page(f"{benchmark.program} - pjrt bench", data, ("elements.js", "benchmark.js"))


def _plots(device: DeviceBenchmark) -> dict[str, Any]:
    return {
        "percentiles": [device.execute.percentile(percent) for percent in PERCENTILES],
        "curve": [[percent, device.execute.percentile(percent)] for percent in _CURVE],
        **{name: _plot(latencies) for name, latencies in device.parts.items()},
    }


def _plot(latencies: Latencies) -> dict[str, Any]:
    return {
        **dataclasses.asdict(latencies.histogram(_BINS)),
        "over_time": latencies.over_time(_COLUMNS),
        "count": latencies.count,
    }
