"""Benchmarks: what is measured, how often, on which devices; never how fast it is."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.host import Compiled, HostClient
from pjrt.models.benchmark import MOST_IN_FLIGHT, write_times
from pjrt.models.measurement import Workload

ADD = """func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
DONATING = ADD.replace("%x: tensor<4xf32>", "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}")
SHARDED = """module attributes {mhlo.num_partitions = 2 : i32} {
  func.func @main(%x: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<f32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}"""
X = np.arange(4, dtype=np.float32)


class Recorder:
    """A device that records each run of its one program, x + y, when it ends."""

    def __init__(self, *, work: int = 0) -> None:
        self.ended = 0
        self.may_end = threading.Event()
        self.may_end.set()
        spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)

        def run(*arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
            np.sort(np.arange(work, 0, -1))
            self.may_end.wait(timeout=60)
            self.ended += 1
            return [arrays[0] + arrays[1]]

        def compile_(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
            return Compiled(run=run, parameters=[spec, spec], outputs=[spec])

        self.client = HostClient("recorder", compile=compile_)


def test_a_count_is_exact_in_every_part() -> None:
    recorder = Recorder()
    benchmark = pjrt.bench(ADD, [recorder.client], [X, X], count=12, warm_up=3, rounds=5)
    (device,) = benchmark.devices
    assert device.execute.count == 12
    assert [device.execute.of_round(number).count for number in range(5)] == [3, 3, 2, 2, 2]
    assert recorder.ended == 1 + 3 + 12 + device.fetch.count
    assert 5 <= device.put.count <= 100
    assert 5 <= device.fetch.count <= 100
    assert not device.pipelined.count
    assert device.in_flight == 1
    assert (device.argument_bytes, device.result_bytes) == (32, 16)
    assert device.throughput == pytest.approx(12 / device.execute.total)


def test_fewer_executions_than_rounds_are_a_round_each() -> None:
    benchmark = pjrt.bench(ADD, ["reference"], [X, X], count=2, warm_up=0)
    assert benchmark.rounds == 2
    assert benchmark.devices[0].execute.rounds.tolist() == [0, 1]


def test_a_time_gives_every_round_an_execution() -> None:
    benchmark = pjrt.bench(ADD, ["reference"], [X, X], seconds=1e-6, warm_up=0, rounds=4)
    assert set(benchmark.devices[0].execute.rounds.tolist()) == {0, 1, 2, 3}


def test_an_execution_ends_with_its_results() -> None:
    """The clock of an asynchronous device must not stop when the call returns."""
    recorder = Recorder(work=500_000)
    model = pjrt.load_model(ADD, recorder.client)
    workload = Workload(model, model.compile(), [X, X])
    workload.execute()
    assert recorder.ended == 1
    workload.execute_batch(2)
    assert recorder.ended == 1 + 16


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_donated_arguments_are_put_on_the_device_again(device: str, in_flight: int) -> None:
    benchmark = pjrt.bench(DONATING, [device], [X, X], count=10, warm_up=1, in_flight=in_flight, rounds=2)
    (measured,) = benchmark.devices
    assert measured.execute.count == 10
    # A batch of a program that donates has as many executions as are in flight.
    assert measured.pipelined.count == (12 if in_flight == 3 else 0)
    assert measured.throughput > 0


def test_several_executions_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three in flight the third call comes before the first result."""
    recorder = Recorder()
    recorder.may_end.clear()
    model = pjrt.load_model(ADD, recorder.client)
    executable = model.compile()
    ended_at_calls: list[int] = []
    executable_class = type(executable.pjrt_executable)
    execute = executable_class.execute

    def watched(*arguments: Any, **options: Any) -> Any:
        ended_at_calls.append(recorder.ended)
        if len(ended_at_calls) == 3:
            recorder.may_end.set()
        return execute(*arguments, **options)

    monkeypatch.setattr(executable_class, "execute", watched)
    workload = Workload(model, executable, [X, X])
    workload.execute_batch(3)
    assert ended_at_calls[:3] == [0, 0, 0], "a call waited for a result"
    assert len(ended_at_calls) == 24
    for number, ended in enumerate(ended_at_calls):
        assert ended >= number - 2, "more than three in flight"


def test_devices_are_side_by_side_with_ratios_to_the_first() -> None:
    benchmark = pjrt.bench(ADD, ["cpu", "reference", "cpu"], [X, X], count=20, warm_up=1)
    assert [device.label for device in benchmark.devices] == ["cpu", "reference", "cpu (2)"]
    assert [device.platform_name for device in benchmark.devices] == ["cpu", "reference", "cpu"]
    first, second, _ = benchmark.ratios()
    assert (first.median, first.low, first.high) == (1, 1, 1)
    medians = [device.execute.median for device in benchmark.devices]
    assert second.median == pytest.approx(medians[1] / medians[0])
    assert second.low <= second.high
    # Interleaved: each device's second round begins after every device's first.
    for device in benchmark.devices:
        begins = device.execute.of_round(1).begins
        assert all(begins.min() > other.execute.of_round(0).begins.max() for other in benchmark.devices)


def test_a_program_of_several_partitions_runs_on_as_many_devices() -> None:
    benchmark = pjrt.bench(SHARDED, ["cpu", "reference"], [X], count=4, warm_up=0, in_flight=2)
    assert [device.num_devices for device in benchmark.devices] == [2, 2]


def test_each_replica_has_its_device() -> None:
    replicated = f"module attributes {{mhlo.num_replicas = 2 : i32}} {{\n{ADD}\n}}"
    (device,) = pjrt.bench(replicated, ["reference"], [X, X], count=3, warm_up=0, in_flight=2).devices
    assert device.num_devices == 2


def test_a_saved_executable_is_measured(tmp_path: Path) -> None:
    with pjrt.client("cpu") as client:
        pjrt.save_executable(client.compile(ADD), tmp_path / "add.bin", program=ADD)
    (device,) = pjrt.bench(tmp_path / "add.bin", ["cpu"], [X, X], count=3, warm_up=0).devices
    assert (device.execute.count, device.result_bytes) == (3, 16)


def test_memory_is_the_devices_or_else_the_processes() -> None:
    benchmark = pjrt.bench(ADD, ["reference", "cpu"], [X, X], count=3, warm_up=0)
    reference, cpu = (device.memory_peak for device in benchmark.devices)
    assert reference is not None
    assert reference.source == "device"
    # Two arguments and a result; the thread of the device may release the last result a little later.
    assert reference.nbytes in (48, 64)
    assert cpu is not None
    assert cpu.source == "process"
    assert cpu.nbytes > 10_000_000


@pytest.mark.parametrize(
    "inputs", ["random:0", ["random:0"], ["0=zeros", "1=random:1"], [X, [1, 2, 3, 4]], {"x": X, "y": X}]
)
def test_inputs_are_texts_or_arrays(inputs: Any) -> None:
    named = ADD.replace("f32>,", 'f32> loc("x"),').replace("f32>)", 'f32> loc("y"))')
    assert pjrt.bench(named, ["reference"], inputs, count=1).devices[0].execute.count == 1


def test_a_program_without_arguments_and_results() -> None:
    benchmark = pjrt.bench("func.func @main() {\n return\n}", ["reference"], count=3, warm_up=0)
    assert benchmark.devices[0].execute.count == 3
    assert benchmark.devices[0].result_bytes == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "expected count to be at least 1, found 0"),
        ({"count": 1.5}, "count as a whole number"),
        ({"count": 1, "seconds": 1}, "expected a count or a time, found both"),
        ({"seconds": 0}, "expected seconds above 0"),
        ({"seconds": float("nan")}, "expected seconds above 0"),
        ({"warm_up": -1}, "expected warm_up to be at least 0"),
        ({"in_flight": 0}, "expected in_flight to be at least 1"),
        ({"rounds": 0}, "expected rounds to be at least 1"),
        ({"devices": []}, "expected at least one device"),
        ({"devices": "cpu"}, "expected a list of devices"),
        ({"inputs": [X]}, "expected 2 arguments"),
        ({"inputs": ["0=zeros"]}, "without a value: argument 1"),
        ({"inputs": {"x": X}}, "expected arguments by position"),
        ({"inputs": [X, X[:3]]}, "argument 1"),
        ({"devices": ["nowhere"]}, "nowhere: there is no device"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pjrt.PjrtError, match=message):
        pjrt.bench(ADD, **{"devices": ["reference"], "inputs": [X, X], **options})


def test_too_many_executions_in_flight_on_several_devices() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected at most 32 executions in flight"):
        pjrt.bench(SHARDED, ["reference"], [X], in_flight=MOST_IN_FLIGHT + 1)


SORT = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.sine %0 : tensor<4xf32>
  %2 = stablehlo.negate %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}"""


def negating(name: str, fallback: str | None) -> pjrt.Client:
    """A device of one operation."""

    def compile_(program: Any, options: pjrt.CompileOptions) -> Any:
        return lambda x: -x

    return pjrt.StableHloClient(name, compile=compile_, operations=["stablehlo.negate"], fallback=fallback)


def test_a_device_that_cannot_run_the_program_is_an_error_beside_the_others() -> None:
    devices = [negating("strict", None), "reference", negating("lenient", "reference")]
    benchmark = pjrt.bench(SORT, devices, [X], count=3)
    assert [device.label for device in benchmark.devices] == ["reference", "lenient"]
    assert benchmark.ratios()[0].median == 1
    (error,) = benchmark.errors.values()
    assert error.message.startswith("strict: ")
    assert "stablehlo.sort" in error.message
    plain = benchmark.as_dict()
    assert plain["errors"] == {"strict": {"code": "UNIMPLEMENTED", "message": error.message}}
    reference, lenient = plain["devices"]
    assert (reference["operations"], reference["fallback"]) == (None, {})
    assert (lenient["operations"], lenient["fallback"]) == (3, {"stablehlo.sine": 1, "stablehlo.sort": 1})


def test_a_device_that_fails_while_it_runs_is_an_error_beside_the_others() -> None:
    runs = 0

    def run(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        nonlocal runs
        runs += 1
        if runs > 4:
            raise ValueError("overheated")
        return x + y

    spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    hot = HostClient("hot", compile=lambda *_: Compiled(run=run, parameters=[spec, spec], outputs=[spec]))
    benchmark = pjrt.bench(ADD, [hot, "reference"], [X, X], count=20, warm_up=1)
    assert [device.label for device in benchmark.devices] == ["reference"]
    assert "overheated" in benchmark.errors["hot"].message


def test_a_device_that_fails_is_named() -> None:
    unsupported = """func.func @main() {
      "stablehlo.custom_call"() {call_target_name = "nothing", has_side_effect = true} : () -> ()
      return
    }"""
    with pytest.raises(pjrt.PjrtError, match=r"^[A-Z_]*: reference: "):
        pjrt.bench(unsupported, ["reference"])


def names_of(devices: Sequence[Any]) -> list[str]:
    return [device.label for device in devices]


@pytest.fixture(scope="module")
def benchmark() -> Any:
    """A short benchmark of two devices, one of them with several executions in flight."""
    return pjrt.bench(ADD, ["cpu", "reference"], [X, X], count=6, warm_up=0, in_flight=2, rounds=2)


def test_times_as_lines(benchmark: Any, tmp_path: Path) -> None:
    write_times(benchmark, tmp_path / "times.csv")
    with (tmp_path / "times.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for device in benchmark.devices:
        for part, latencies in device.parts.items():
            chosen = [row for row in rows if (row["device"], row["part"]) == (device.label, part)]
            assert [int(row["nanoseconds"]) for row in chosen] == latencies.nanoseconds.tolist()
            assert [int(row["round"]) for row in chosen] == latencies.rounds.tolist()
            assert [int(row["begin_nanoseconds"]) for row in chosen] == latencies.begins.tolist()


def test_times_as_an_object(benchmark: Any, tmp_path: Path) -> None:
    write_times(benchmark, tmp_path / "times.json")
    contents = json.loads((tmp_path / "times.json").read_text())
    assert [each["device"] for each in contents["devices"]] == names_of(benchmark.devices)
    times = contents["devices"][1]["times"]["execute"]
    assert times["nanoseconds"] == benchmark.devices[1].execute.nanoseconds.tolist()
    assert contents["devices"][0]["execute"]["count"] == 6


def test_times_as_arrays(benchmark: Any, tmp_path: Path) -> None:
    write_times(benchmark, tmp_path / "times.npz")
    with np.load(tmp_path / "times.npz") as arrays:
        np.testing.assert_array_equal(arrays["cpu/put/nanoseconds"], benchmark.devices[0].put.nanoseconds)
        assert {name.split("/")[1] for name in arrays} == {"put", "execute", "pipelined", "fetch"}


def test_times_need_a_file_of_a_known_kind(benchmark: Any, tmp_path: Path) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"ends in \.json, \.csv, \.npz"):
        write_times(benchmark, tmp_path / "times.txt")
    with pytest.raises(pjrt.NotFoundError, match="there is no folder"):
        write_times(benchmark, tmp_path / "nowhere" / "times.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(pjrt.InvalidArgumentError, match="found a folder"):
        write_times(benchmark, tmp_path / "folder.csv")
