"""``pjrt compare``, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pjrt.cli import main

MODEL = """func.func @main(%x: tensor<4xf32> loc("x")) -> (tensor<4xf32> {jax.result_info = "result"}) {
  %0 = stablehlo.cosine %x : tensor<4xf32>
  %1 = stablehlo.tanh %0 : tensor<4xf32> loc("model.py":7:3)
  %2 = stablehlo.add %1, %x : tensor<4xf32>
  return %2 : tensor<4xf32>
}"""
WRONG = """
import os
import numpy as np
from pjrt.devices.reference.client import ReferenceClient

class Wrong(ReferenceClient):
    platform_name = property(lambda self: "wrong")

def spoil(step, inputs, outputs):
    if step.name == "stablehlo.tanh":
        outputs[0][...] *= np.float32(1.5)

def crash(step, inputs, outputs):
    if step.name == "stablehlo.tanh":
        print("out of order", flush=True)
        os.abort()

def wrong(**options):
    return Wrong(trace=spoil, **options)

def crashing(**options):
    return Wrong(trace=crash, **options)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and two wrong devices, which is the working directory."""
    (tmp_path / "model.mlir").write_text(MODEL)
    (tmp_path / "wrong.py").write_text(WRONG)
    np.save(tmp_path / "x.npy", np.array([0.5, 1.0, 1.5, 2.0], np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compare(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def test_devices_that_agree(folder: Path) -> None:
    result = compare("model.mlir", "-d", "cpu", "-d", "reference", "-i", "random:0", "--in-process")
    assert result.exit_code == 0, result.output
    assert "cpu agrees, compared with reference" in result.output
    (row,) = [line.split() for line in result.output.splitlines() if line.split()[:1] == ["cpu"] and "f32[4]" in line]
    assert row[:4] == ["cpu", "result", "f32[4]", "agrees"]


def test_a_device_that_differs_and_the_case(folder: Path) -> None:
    devices = ("-d", "cpu", "-d", "wrong.py:wrong", "-d", "reference")
    result = compare("model.mlir", *devices, "-i", "x.npy", "--save-case", "bug", "--in-process")
    assert result.exit_code == 1, result.output
    for part in (
        "4 differ",
        "cpu, wrong.py:wrong do not all agree, compared with reference",
        "the odd one out: wrong.py:wrong",
        "stablehlo.tanh differs: wrong.py:wrong and reference give different results on the same inputs",
        "at model.py:7:3, in the function main",
    ):
        assert part in result.output
    # The command in the case shows the difference again, from any folder.
    command = (folder / "bug" / "command.txt").read_text().split()
    assert command[:2] == ["pjrt", "compare"]
    arguments = [part.replace("program.mlir", str(folder / "bug" / "program.mlir")) for part in command[2:]]
    arguments = [part.replace("0=0.npy", f"0={folder / 'bug' / '0.npy'}") for part in arguments]
    again = compare(*arguments, "--in-process")
    assert again.exit_code == 1, again.output
    assert "stablehlo.tanh differs" in again.output


@pytest.mark.full
def test_a_crash_is_a_finding(folder: Path) -> None:
    result = compare("model.mlir", "-d", "wrong.py:crashing", "-d", "reference", "-i", "x.npy", "--json")
    assert result.exit_code == 1, result.output
    content = json.loads(result.output)
    assert "crashed: SIGABRT; it printed 'out of order'" in content["errors"]["wrong.py:crashing"]["message"]
    first = content["first_differences"]["wrong.py:crashing"]
    assert (first["cause"], first["name"]) == ("failure", "stablehlo.tanh")


def test_expected_results(folder: Path) -> None:
    x = np.load("x.npy")
    np.savez("expected.npz", result_0=np.tanh(np.cos(x)) + x)
    right = compare("model.mlir", "-d", "cpu", "-i", "x.npy", "--expect", "expected.npz", "--in-process")
    assert right.exit_code == 0, right.output
    assert "cpu agrees, compared with the expected results" in right.output
    default = compare("model.mlir", "-i", "x.npy", "--expect", "expected.npz", "--in-process", "--json")
    assert default.exit_code == 0, default.output
    assert json.loads(default.output)["devices"] == ["cpu"]
    wrong = compare("model.mlir", "-d", "wrong.py:wrong", "-i", "x.npy", "--expect", "expected.npz", "--in-process")
    assert wrong.exit_code == 1, wrong.output


def test_tolerances_and_no_search(folder: Path) -> None:
    options = ("model.mlir", "-d", "wrong.py:wrong", "-d", "reference", "-i", "x.npy", "--in-process", "--json")
    result = compare(*options, "--no-first")
    assert result.exit_code == 1
    assert json.loads(result.output)["first_differences"] == {}
    result = compare(*options, "--rtol", "0.5")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["agrees"] is True


def test_of_many_results_the_worst_are_shown(folder: Path) -> None:
    types = ", ".join(["tensor<4xf32>"] * 30)
    body = f"func.func @main(%x: tensor<4xf32>) -> ({types}) {{ %0 = stablehlo.tanh %x : tensor<4xf32>\n"
    (folder / "many.mlir").write_text(f"{body} return {'%x, ' * 29}%0 : {types}\n }}")
    devices = ("-d", "wrong.py:wrong", "-d", "reference")
    result = compare("many.mlir", *devices, "-i", "x.npy", "--in-process", "--no-first")
    assert "result_29" in result.output
    assert "10 more results, 1 of all 30 differ" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model.mlir", "-d", "cpu", "-i", "x.npy"), "expected two devices or more to compare"),
        (("none.mlir", "-d", "cpu", "-d", "reference"), "none.mlir"),
        (("model.mlir", "-d", "cpu", "-d", "nonesuch", "-i", "x.npy"), "nonesuch"),
        (("model.mlir", "-d", "cpu", "-i", "x.npy", "--expect", "none.npz"), "--expect none.npz: expected a file"),
        (("model.mlir", "-d", "cpu", "-d", "reference", "-i", "x.npy", "--rtol", "-1"), "expected rtol to be a number"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    result = compare(*arguments, "--in-process")
    assert result.exit_code == 2, result.output
    assert message in result.output


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments])


def test_run_with_expected_results(folder: Path) -> None:
    assert run("model.mlir", "-i", "x.npy", "-d", "reference", "-o", "expected.npz").exit_code == 0
    result = run("model.mlir", "-i", "x.npy", "-d", "cpu", "--expect", "expected.npz")
    assert result.exit_code == 0, result.output
    assert "agrees" in result.output
    result = run("model.mlir", "-i", "x.npy", "-d", "wrong.py:wrong", "--expect", "expected.npz")
    assert result.exit_code == 1, result.output
    assert "4 differ" in result.output
    result = run(
        "model.mlir", "-i", "x.npy", "-d", "wrong.py:wrong", "--expect", "expected.npz", "--json", "--rtol", "1"
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["expected"][0]["agrees"] is True
