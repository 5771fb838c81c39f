"""``pjrt run --profile`` and ``--timeline``: the time per operation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from pjrt.cli import main

PROGRAM = """module @tanhs {
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  %1 = stablehlo.add %0, %x : tensor<4xf32>
  return %1 : tensor<4xf32>
}}"""

LOOP = """module @loop {
func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %many = stablehlo.constant dense<50> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<64x64xf32>
    cond { %c = stablehlo.compare LT, %i, %many : (tensor<i32>, tensor<i32>) -> tensor<i1>
           stablehlo.return %c : tensor<i1> }
    do { %n = stablehlo.add %i, %one : tensor<i32>
         %p = stablehlo.dot %v, %v : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
         stablehlo.return %n, %p : tensor<i32>, tensor<64x64xf32> }
  return %r#1 : tensor<64x64xf32>
}}"""


def run(tmp_path: Path, *options: str, program: str = PROGRAM) -> tuple[int, str]:
    path = tmp_path / "program.mlir"
    path.write_text(program)
    found = CliRunner().invoke(main, ["run", str(path), "--input", "random:0", *options])
    return found.exit_code, found.output


def slices(path: Path) -> list[dict[str, Any]]:
    """Return the events of a timeline that last, after a check of what all of them have."""
    events = json.loads(path.read_text())["traceEvents"]
    named = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name"}
    found = [each for each in events if each["ph"] == "X"]
    assert found
    assert all(each["dur"] > 0 and each["ts"] >= 0 and (each["pid"], each["tid"]) in named for each in found)
    assert min(each["ts"] for each in found) == 0
    return found


def test_a_table_of_time_per_op(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--profile", "--device", "reference", "--repeat", "2")
    assert code == 0
    rows = {line.split()[-1]: line.split() for line in output.splitlines() if "stablehlo." in line}
    assert set(rows) == {"stablehlo.tanh", "stablehlo.add"}
    assert int(rows["stablehlo.tanh"][2]) >= 3


def test_for_machines(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--profile", "--device", "reference", "--json")
    assert code == 0
    assert json.loads(output)["profile"]["stablehlo.add"]["calls"] >= 1


def test_a_compiler_tells_what_it_merged(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--profile", "--device", "cpu", "--repeat", "2", "--json")
    assert code == 0
    ((name, entry),) = json.loads(output)["profile"].items()
    assert "fusion" in name
    assert entry["calls"] == 3
    assert entry["seconds"] > 0
    assert "tanh" in entry["merges"]
    assert "add" in entry["merges"]
    code, output = run(tmp_path, "--profile", "--device", "cpu")
    assert code == 0
    assert [name in line for line in output.splitlines()][-1], output


def test_the_time_of_a_loop_is_without_its_body(tmp_path: Path) -> None:
    timeline = tmp_path / "loop.json"
    code, output = run(tmp_path, "--profile", "-d", "cpu", "--timeline", str(timeline), "--json", program=LOOP)
    assert code == 0
    found = json.loads(output)
    assert found["timeline"] == str(timeline)
    profile = found["profile"]
    assert [e["calls"] for name, e in profile.items() if "dot" in name + e["merges"]] == [50]
    (loop,) = (entry for name, entry in profile.items() if name.startswith("while"))
    shown = [each for each in slices(timeline) if each["name"] in profile]
    assert {each["args"]["in"] for each in shown} == {"loop"}
    (whole,) = (each["dur"] / 1e6 for each in shown if each["name"].startswith("while"))
    inside = sum(each["dur"] for each in shown if each["name"].startswith(("ynn_fusion", "dot"))) / 1e6
    assert loop["seconds"] < whole - inside + 1e-9


def test_a_timeline_alone_prints_no_table(tmp_path: Path) -> None:
    timeline = tmp_path / "run.json"
    code, output = run(tmp_path, "--timeline", str(timeline), "--device", "reference")
    assert code == 0
    assert f"timeline   {timeline}" in output
    assert "us/call" not in output
    assert [each["name"] for each in slices(timeline)] == ["stablehlo.tanh", "stablehlo.add"]


def test_a_device_on_several_threads(tmp_path: Path) -> None:
    timeline = tmp_path / "run.json"
    sharded = PROGRAM.replace("module @tanhs {", "module @tanhs attributes {mhlo.num_replicas = 2 : i32} {")
    code, output = run(tmp_path, "--timeline", str(timeline), "--device", "reference", program=sharded)
    assert code == 0, output
    assert len({each["tid"] for each in slices(timeline)}) == 2


def test_a_device_that_does_not_tell(tmp_path: Path) -> None:
    device = tmp_path / "mydevice.py"
    device.write_text("import pjrt\n\ndef make(**options):\n    return pjrt.client('cpu', **options)\n")
    code, output = run(tmp_path, "--profile", "--device", f"{device}:make")
    assert code != 0
    assert f"UNIMPLEMENTED: --profile, --timeline: the device '{device}:make' has no profiler" in output
    assert "--device reference" in output


def test_a_timeline_is_a_json_file(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--timeline", str(tmp_path / "run.pb"))
    assert code != 0
    assert "expected a name that ends in .json" in output
