"""``pjrt bench``, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pjrt.cli import main

ADD = """func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A program in a file."""
    path = tmp_path / "add.mlir"
    path.write_text(ADD)
    return path


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments), "--warm-up", "1"])


def test_a_table_of_devices_with_ratios(path: Path) -> None:
    result = bench(path, "-i", "random:0", "-d", "cpu", "-d", "reference", "-n", 20)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["program", "add.mlir"] in lines
    assert ["measured", "20,", "20", "executions", "in", "5", "rounds"] in lines
    header = next(line for line in lines if line[:1] == ["execute"])
    assert header == ["execute", "50%", "90%", "99%", "99.9%", "max", "a", "second", "ratio", "in", "rounds"]
    rows = [line for line in lines if line[:1] in (["cpu"], ["reference"])]
    assert [row[0] for row in rows] == ["cpu", "reference", "cpu", "reference"]
    assert rows[0][-1] == "1"
    assert rows[1][-2] == "to"
    assert rows[2][-2:] == ["this", "process"]
    assert rows[3][-4:] == ["B", "of", "a", "device"]


def test_one_object(path: Path, tmp_path: Path) -> None:
    options = ("-d", "reference", "-n", 10, "--in-flight", 2, "--json", "--times", tmp_path / "t.npz")
    result = bench(path, "-i", "zeros", *options)
    assert result.exit_code == 0, result.output
    contents = json.loads(result.output)
    (device,) = contents["devices"]
    assert device["execute"]["count"] == 10
    assert device["in_flight"] == 2
    assert device["pipelined"]["count"] >= 10
    assert device["ratio"] == {"median": 1, "low": 1, "high": 1}
    assert device["memory_peak_of"] == "device"
    with np.load(tmp_path / "t.npz") as arrays:
        assert len(arrays["reference/execute/nanoseconds"]) == 10


def test_plots(path: Path) -> None:
    result = bench(path, "-i", "random:0", "-d", "reference", "-n", 30, "--plot")
    assert result.exit_code == 0, result.output
    _, plots = result.output.split("reference: executions by time")
    bars, columns = plots.split("reference: executions in their order")
    assert sum(int(line.split()[-1]) for line in bars.splitlines() if line.strip()) == 30
    assert "30 runs from left to right" in columns
    assert len(columns.strip().splitlines()[0].strip()) == 30


def test_a_page(path: Path, tmp_path: Path) -> None:
    result = bench(path, "-i", "zeros", "-d", "reference", "-n", 5, "--html", tmp_path / "times.html")
    assert result.exit_code == 0, result.output
    assert f"page  {tmp_path / 'times.html'}" in result.output
    assert (tmp_path / "times.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", 1, "--seconds", 1], "expected a count or a time"),
        (["-n", 0], "expected count to be at least 1"),
        (["--in-flight", 0], "expected in_flight to be at least 1"),
        (["--seconds", "nan"], "expected seconds above 0"),
        (["--times", "times.txt"], "ends in .json, .csv, .npz"),
        (["--times", "nowhere/times.csv"], "there is no folder"),
        (["--html", "nowhere/times.html"], "there is no folder"),
        (["-i", "0=zeros"], "without a value: argument 1"),
        (["-d", "nowhere", "-i", "zeros"], "there is no device called 'nowhere'"),
    ],
)
def test_bad_input_is_one_line(path: Path, arguments: list[object], message: str) -> None:
    result = bench(path, *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("pjrt: error: ")
    assert message in line


def test_a_device_that_cannot_run_the_program_has_a_row(path: Path, tmp_path: Path) -> None:
    device = tmp_path / "device.py"
    device.write_text(
        "import pjrt\n"
        "def strict(**options): return pjrt.StableHloClient('strict', compile=lambda *_: None, "
        "operations=['stablehlo.negate'], **options)\n"
        "def lenient(**options): return pjrt.StableHloClient('lenient', kernels={}, fallback='reference', **options)\n"
    )
    devices = ("-d", f"{device}:strict", "-d", "reference", "-d", f"{device}:lenient")
    result = bench(path, "-i", "zeros", *devices, "-n", 5, "--html", tmp_path / "times.html")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert [f"{device}:strict", "failed"] in lines
    assert any(line[:1] == [f"{device}:lenient"] and line[5:] for line in lines)
    assert "on the fallback" in result.output
    assert f"{device}:lenient: the fallback runs 1 stablehlo.add" in result.output
    assert "the device 'strict' does not run stablehlo.add" in result.output
    assert "does not run stablehlo.add" in (tmp_path / "times.html").read_text()
    alone = bench(path, "-i", "zeros", "-d", f"{device}:strict", "-n", 5)
    assert alone.exit_code == 2
    assert "does not run stablehlo.add" in alone.output
