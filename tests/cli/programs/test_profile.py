"""``pjrt run --profile``: the time per operation."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from pjrt.cli import main

PROGRAM = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  %1 = stablehlo.add %0, %x : tensor<4xf32>
  return %1 : tensor<4xf32>
}"""


def run(tmp_path: Path, *options: str) -> tuple[int, str]:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    found = CliRunner().invoke(main, ["run", str(path), "--input", "random:0", "--profile", *options])
    return found.exit_code, found.output


def test_a_table_of_time_per_op(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--device", "reference", "--repeat", "2")
    assert code == 0
    rows = {line.split()[-1]: line.split() for line in output.splitlines() if "stablehlo." in line}
    assert set(rows) == {"stablehlo.tanh", "stablehlo.add"}
    assert int(rows["stablehlo.tanh"][2]) >= 3


def test_for_machines(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--device", "reference", "--json")
    assert code == 0
    assert json.loads(output)["profile"]["stablehlo.add"]["calls"] >= 1


def test_a_device_that_does_not_tell(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--device", "cpu")
    assert code != 0
    assert "UNIMPLEMENTED: --profile: the device 'cpu' does not measure the time per operation" in output
    assert "--device reference" in output
