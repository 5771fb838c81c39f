"""Arguments and results without jaxlib: the same as jaxlib reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pjrt
from pjrt import stablehlo
from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo.facts.signatures import plainly_signed
from pjrt.stablehlo.reading.plain_signature import can_read, device_counts

PROGRAMS = {
    "one result": "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }",
    "no arguments and results": "module { func.func @main() { return } }",
    "several results": """
func.func public @main(%x: tensor<2x3xbf16>, %y: tensor<i1>)
    -> (tensor<i1> {jax.result_info = "result['a, b']"}, tensor<2x3xbf16>) {
  return %y, %x : tensor<i1>, tensor<2x3xbf16>
}""",
    "names, donations and placements": """
#loc1 = loc("weights['w']")
#loc2 = loc("ids")
module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  // func.func @main(%not: tensor<9xf64>) is a comment
  func.func private @other(%x: tensor<7xi32>) -> tensor<7xi32> { return %x : tensor<7xi32> }
  func.func public @main(
      %arg0: tensor<8x4xf32> {tf.aliasing_output = 1 : i32, mhlo.sharding = "{replicated}"} loc(#loc1),
      %arg1: tensor<complex<f32>> {jax.buffer_donor = true, mhlo.memory_kind = "pinned_host"} loc("x"),
      %arg2: tensor<?x3xui8> {mhlo.layout_mode = "{1,0}"} loc(#loc2))
      -> (tensor<complex<f32>>, tensor<8x4xf32> {jax.result_info = "result[0]", mhlo.sharding = "{replicated}"}) {
    return %arg1, %arg0 : tensor<complex<f32>>, tensor<8x4xf32>
  }
}""",
    "a token": """
func.func @main(%x: !stablehlo.token, %y: tensor<f8E4M3FN>) -> !stablehlo.token attributes {a = "b"} {
  return %x : !stablehlo.token
}""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_is_read_as_jaxlib_reads_it(name: str) -> None:
    program = pjrt.Program.of(PROGRAMS[name])
    assert can_read(program)
    assert plainly_signed(program) == stablehlo.signature(program)


@pytest.mark.parametrize("name", ["one result", "several results"])
def test_hlo_protos_are_read_as_jaxlib_reads_them(name: str) -> None:
    program = stablehlo.to_hlo(PROGRAMS[name])
    plain, whole = plainly_signed(program), stablehlo.signature(program)
    assert [each.type for each in plain.arguments] == [each.type for each in whole.arguments]
    assert [each.type for each in plain.results] == [each.type for each in whole.results]


def test_what_the_module_states_about_devices() -> None:
    code = "module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 2 : i32} { }"
    assert device_counts(pjrt.Program.of(code)) == (2, 4)
    assert device_counts(pjrt.Program.of(PROGRAMS["one result"])) == (1, 1)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("module { func.func @other() { return } }", "expected a function func.func @main"),
        ("func.func @main(%x: tensor<4xf32>", "expected the end of a bracket"),
        ("func.func @main(%x: tuple<tensor<f32>>) { return }", "jaxlib reads other types"),
        ("func.func @main(%x: tensor<4xf99>) { return }", "f99"),
    ],
)
def test_what_is_not_read_is_an_error(code: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        plainly_signed(pjrt.Program.of(code))


NEEDED = ("click", "filelock", "google", "markdown_it", "mdurl", "ml_dtypes", "numpy", "pygments", "rich")


@pytest.fixture
def without_jaxlib(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python whose path has what this package requires, and no jaxlib."""
    installed = Path(pytest.__file__).parents[1]
    for name in [*NEEDED, *(each.name for each in installed.glob("numpy.libs"))]:
        (tmp_path / name).symlink_to(installed / name)
    path = os.pathsep.join((str(tmp_path), str(Path(pjrt.__file__).parents[1])))
    return {**os.environ, "PYTHONPATH": path, "PJRT_CONFIG": os.devnull}


@pytest.mark.parametrize("suffix", ["mlir", "hlo"])
def test_inspect_without_jaxlib(without_jaxlib: dict[str, str], tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"program.{suffix}"
    code = PROGRAMS["several results"]
    file.write_bytes(code.encode() if suffix == "mlir" else stablehlo.to_hlo(code).code)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pjrt", "inspect", str(file)],
        env=without_jaxlib, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tensor<2x3xbf16>" in done.stdout
    assert "jaxlib is needed for more" in done.stderr


def test_bytecode_without_jaxlib_says_what_is_missing(without_jaxlib: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "program.stablehlo"
    file.write_bytes(stablehlo.serialize(PROGRAMS["one result"], "1.0.0").code)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pjrt", "inspect", str(file)],
        env=without_jaxlib, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode
    assert "pip install 'pjrt[xla]'" in done.stderr
