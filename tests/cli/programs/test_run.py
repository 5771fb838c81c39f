"""``pjrt run``: whole arrays, names, devices, and files of every kind."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from in_process import pjrt

import pjrt as package

NAMED = """
func.func @main(%x: tensor<2xf32> loc("params['w']"), %y: tensor<f32> loc("scale"))
    -> (tensor<2xf32> {jax.result_info = "result['a']['x']"}, tensor<f32> {jax.result_info = "result['b'][0]"}) {
  %0 = stablehlo.broadcast_in_dim %y, dims = [] : (tensor<f32>) -> tensor<2xf32>
  %1 = stablehlo.multiply %x, %0 : tensor<2xf32>
  return %1, %y : tensor<2xf32>, tensor<f32>
}
"""
SHARDED = """
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%x: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} loc("x"))
      -> (tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.add %x, %x : tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }
}
"""


def run(folder: Path, *arguments: str, command: str = "run") -> subprocess.CompletedProcess[str]:
    return pjrt(command, *arguments, folder=folder)


def test_results_have_the_names_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "named.mlir").write_text(NAMED)
    done = run(tmp_path, "named.mlir", "-i", "w=[1,2]", "-i", "scale=3", "-o", "out.npz", "-d", "reference")
    assert done.returncode == 0, done.stderr
    assert "result['a']['x']  f32[2] [3, 6]" in done.stdout
    with np.load(tmp_path / "out.npz") as written:
        assert sorted(written) == ["result['a']['x']", "result['b'][0]"]
        np.testing.assert_array_equal(written["result['a']['x']"], [3, 6])
    done = run(tmp_path, "named.mlir", "-i", "ones", "-o", "out.safetensors", "-d", "reference", "--json")
    assert [each["name"] for each in json.loads(done.stdout)["results"]] == ["result['a']['x']", "result['b'][0]"]
    from safetensors.numpy import load_file

    assert sorted(load_file(tmp_path / "out.safetensors")) == ["result['a']['x']", "result['b'][0]"]


def test_a_type_that_safetensors_lacks_is_an_error(tmp_path: Path) -> None:
    constant = "%0 = stablehlo.constant dense<3> : tensor<2xi4>"
    program = f"func.func @main() -> tensor<2xi4> {{\n {constant}\n return %0 : tensor<2xi4>\n}}"
    (tmp_path / "small.mlir").write_text(program)
    done = run(tmp_path, "small.mlir", "-o", "out.safetensors", "-d", "reference")
    assert done.returncode == 2
    assert "--output out.safetensors: a .safetensors file cannot hold these results (s4)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_saved_executable_is_run(tmp_path: Path) -> None:
    with package.client("cpu", num_devices=2) as client:
        package.save_executable(client.compile(SHARDED), tmp_path / "model.bin", program=SHARDED)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.save(tmp_path / "x.npy", x)
    done = run(tmp_path, "model.bin", "-d", "cpu", "-i", "x=x.npy", "-o", "y.npy")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), 2 * x)
    done = run(tmp_path, "model.bin", "-d", "reference", "-i", "zeros")
    assert done.returncode == 2
    assert "compiled for platform name 'cpu', the client has 'reference'" in done.stderr


def test_a_saved_executable_without_its_program(tmp_path: Path) -> None:
    with package.client("cpu", num_devices=2) as client:
        package.save_executable(client.compile(SHARDED), tmp_path / "model.bin")
    done = run(tmp_path, "model.bin", "-i", "zeros")
    assert done.returncode == 2
    assert "it was saved without its program" in done.stderr


@pytest.mark.parametrize("file", ["none.mlir", "folder"])
def test_no_model(tmp_path: Path, file: str) -> None:
    (tmp_path / "folder").mkdir()
    done = run(tmp_path, file)
    assert done.returncode == 2
    assert file in done.stderr
    assert "Traceback" not in done.stderr


DYNAMIC = """
func.func @main(%x: tensor<?x2xf32> loc("x"), %y: tensor<?x2xf32> loc("y")) -> tensor<?x2xf32> {
  %0 = stablehlo.add %x, %y : tensor<?x2xf32>
  return %0 : tensor<?x2xf32>
}
"""


def test_dynamic_shapes(tmp_path: Path) -> None:
    (tmp_path / "dynamic.mlir").write_text(DYNAMIC)
    reference = ("-d", "reference", "--json")
    done = run(tmp_path, "dynamic.mlir", "-i", "zeros", "--shape", "x=3x2", "--shape", "1=3x2", *reference)
    assert json.loads(done.stdout)["results"][0]["shape"] == [3, 2], done.stderr
    done = run(tmp_path, "dynamic.mlir", "-i", "x=[[1,2]]", "-i", "y=[[1,2]]", *reference)
    assert json.loads(done.stdout)["results"][0]["shape"] == [1, 2], done.stderr
    done = run(tmp_path, "dynamic.mlir", "-i", "zeros", *reference)
    assert done.returncode == 2
    assert "give it by --shape, or give a file" in done.stderr


def test_too_few_devices_are_reported_before_compiling(tmp_path: Path) -> None:
    (tmp_path / "sharded.mlir").write_text(SHARDED)
    done = run(tmp_path, "sharded.mlir", "-i", "zeros", "-O", "num_devices=1")
    assert done.returncode == 2
    assert "1 replicas × 2 partitions need 2 devices, the client of 'cpu' has 1" in done.stderr


def test_a_saved_executable_is_inspected(tmp_path: Path) -> None:
    with package.client("cpu", num_devices=2) as client:
        executable = client.compile(SHARDED)
        package.save_executable(executable, tmp_path / "model.bin", program=SHARDED)
        package.save_executable(executable, tmp_path / "bare.bin")
    shown = run(tmp_path, "model.bin", command="inspect").stdout
    assert "compiled for  cpu, cpu" in shown
    assert re.search(r"0 +x +f32\[4,2\] +2 × 1 parts +\[2, 2\]", shown)
    facts = json.loads(run(tmp_path, "model.bin", "--json", command="inspect").stdout)
    assert facts["arguments"][0]["shard_shape"] == [2, 2]
    assert facts["num_partitions"] == 2
    assert "saved without its program" in run(tmp_path, "bare.bin", command="inspect").stdout
    assert run(tmp_path, "model.bin", "--text", command="inspect").returncode == 2


INFEED = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %t = stablehlo.create_token : !stablehlo.token
  %0:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
  %1 = stablehlo.add %x, %0#0 : tensor<2xf32>
  return %1 : tensor<2xf32>
}
"""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("run", "-d", "cpu"), "the device has no infeed outfeed, which stablehlo.infeed needs"),
        (("run", "-d", "reference"), "no command gives any"),
        (("bench", "-d", "reference"), "no command gives any"),
        (("compare", "-d", "reference", "-d", "cpu"), "no command gives any"),
    ],
    ids=["cpu", "reference", "bench", "compare"],
)
def test_a_program_that_nobody_feeds_is_refused(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    (tmp_path / "fed.mlir").write_text(INFEED)
    command, *rest = arguments
    done = run(tmp_path, "fed.mlir", "-i", "ones", *rest, command=command)
    assert done.returncode == 2
    assert reason in done.stderr


@pytest.mark.parametrize("element", ["f32", "f16", "complex<f32>"])
def test_what_is_not_finite_is_counted(tmp_path: Path, element: str) -> None:
    program = tmp_path / "logarithm.mlir"
    type_ = f"tensor<4x{element}>"
    program.write_text(
        f"func.func @main(%x: {type_}) -> {type_} {{ %0 = stablehlo.log %x : {type_} return %0 : {type_} }}"
    )
    types = {"f32": np.float32, "f16": np.float16, "complex<f32>": np.complex64}
    values = np.array([-1, 0, 1, np.nan], types[element])
    np.save(tmp_path / "x.npy", values)
    odd = "1 NaN, 1 infinite of 4" if "complex" in element else "2 NaN, 1 infinite of 4"
    command = ("run", program, "-d", "reference", "-i", tmp_path / "x.npy")
    done = pjrt(*command)
    assert (done.returncode, odd in done.stdout) == (0, True), done.stdout + done.stderr
    assert pjrt(*command, "--fail-on-nan").returncode == 1
    (result,) = json.loads(pjrt(*command, "--json").stdout)["results"]
    assert (result["nan"], result["infinite"]) == ((1, 1) if "complex" in element else (2, 1))
    assert pjrt("run", program, "-d", "reference", "-i", "ones", "--fail-on-nan").returncode == 0


def test_differences_that_are_no_errors(tmp_path: Path) -> None:
    """An element that is NaN or infinite in one array only has no error: it is counted beside the errors."""
    program = tmp_path / "same.mlir"
    program.write_text("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    np.save(tmp_path / "x.npy", np.array([1, 2, np.nan, np.inf], np.float32))
    np.save(tmp_path / "expected.npy", np.array([1, np.nan, 3, 4], np.float32))
    done = pjrt("run", program, "-d", "reference", "-i", tmp_path / "x.npy", "--expect", tmp_path / "expected.npy")
    assert done.returncode == 1
    assert "3 differ (2 NaN, 1 infinite in one only)" in done.stdout


FUNCTIONS = """
func.func @double(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = call @twice(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func VISIBILITY @square(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func private @twice(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_function_that_is_not_main(tmp_path: Path, device: str) -> None:
    (tmp_path / "one.mlir").write_text(FUNCTIONS.replace("VISIBILITY", "private"))
    (tmp_path / "two.mlir").write_text(FUNCTIONS.replace("VISIBILITY", ""))

    def printed(file: str, *arguments: str) -> str:
        return run(tmp_path, file, "-d", device, "-i", "[3, 4]", *arguments).stdout.partition("\n")[0]

    assert printed("one.mlir").endswith("f32[2] [6, 8]")
    assert printed("two.mlir", "--entry", "square").endswith("f32[2] [9, 16]")
    assert printed("two.mlir", "--entry", "double").endswith("f32[2] [6, 8]")
    assert printed("one.mlir", "--entry", "twice").endswith("f32[2] [6, 8]")
    none = run(tmp_path, "two.mlir", "-d", device, "-i", "zeros")
    assert none.stderr == (
        "pjrt: error: two.mlir: expected a function main or one public function to run, found double, square; choose "
        "one with --entry NAME, or with pjrt.stablehlo.with_entry\n"
    )
    wrong = run(tmp_path, "two.mlir", "-d", device, "-i", "zeros", "--entry", "sqare")
    assert wrong.stderr == "pjrt: error: two.mlir: expected one of double, square, twice to run, found 'sqare'\n"


def test_main_beside_a_chosen_function_is_still_called(tmp_path: Path) -> None:
    text = FUNCTIONS.replace("VISIBILITY", "private").replace("@twice", "@main").replace("private @main", "@main")
    (tmp_path / "calls_main.mlir").write_text(text)
    done = run(tmp_path, "calls_main.mlir", "-i", "[3, 4]", "--entry", "double")
    assert done.stdout.startswith("result_0   f32[2] [6, 8]"), done.stderr


def test_a_file_that_states_its_function_has_no_other(tmp_path: Path) -> None:
    (tmp_path / "one.mlir").write_text(FUNCTIONS.replace("VISIBILITY", "private"))
    assert run(tmp_path, "one.mlir", "-t", "cpu", "-o", "one.bin", command="compile").returncode == 0
    done = run(tmp_path, "one.bin", "-i", "zeros", "--entry", "double")
    assert "one.bin: expected a program of MLIR to choose 'double' of, found: saved executable" in done.stderr


def test_a_file_that_is_overwritten_is_named(tmp_path: Path) -> None:
    (tmp_path / "named.mlir").write_text(NAMED)
    arguments = ("named.mlir", "-d", "reference", "-i", "ones", "-o", "results.npz")
    assert run(tmp_path, *arguments).stderr == ""
    warning = "pjrt: warning: --output results.npz: the file is there already, and is overwritten\n"
    assert run(tmp_path, *arguments).stderr == warning


def test_inputs_that_are_called_like_another_one_get_a_warning(tmp_path: Path) -> None:
    program = """func.func @main(%x: tensor<2xf32> loc("x"), %y: tensor<2xf32> loc("y"), %n: tensor<2xi32> loc("n"))
        -> tensor<2xf32> { %0 = stablehlo.subtract %x, %y : tensor<2xf32> return %0 : tensor<2xf32> }"""
    (tmp_path / "sub.mlir").write_text(program)
    for name in ("x", "y", "z"):
        np.save(tmp_path / f"{name}.npy", np.ones(2, np.float32))
    np.savez(tmp_path / "all.npz", x=np.ones(2, np.float32), y=np.ones(2, np.float32))

    def warnings(*inputs: str) -> str:
        options = [part for each in (*inputs, "n=[1,2]") for part in ("-i", each)]
        done = run(tmp_path, "sub.mlir", "-d", "reference", *options)
        assert done.returncode == 0, done.stderr
        return done.stderr

    swapped = (
        "pjrt: warning: argument 0 (x): f32[2] is given 'y', which is the name of argument 1 (y): f32[2]; are they "
        "swapped?\n"
        "pjrt: warning: argument 1 (y): f32[2] is given 'x', which is the name of argument 0 (x): f32[2]; are they "
        "swapped?\n"
    )
    assert warnings("y.npy", "x.npy") == swapped
    for command, devices in (("bench", ("-d", "reference")), ("compare", ("-d", "reference", "-d", "cpu"))):
        inputs = ("-i", "y.npy", "-i", "x.npy", "-i", "n=[1,2]")
        done = run(tmp_path, "sub.mlir", *devices, *inputs, command=command)
        assert done.stderr == swapped, done.stderr
    assert warnings("x=all.npz:y", "y=all.npz:x") == swapped
    assert warnings("y.npy", "z.npy") == swapped.splitlines(keepends=True)[0]
    assert warnings("x.npy", "y.npy") == ""
    assert warnings("x.npy", "y=x.npy") == ""  # one array for both
    assert warnings("all.npz") == warnings("z.npy", "[3,4]") == ""


def test_identifiers_beyond_the_rows_of_a_table_get_a_warning(tmp_path: Path) -> None:
    (tmp_path / "rows.mlir").write_text("""
        func.func @main(%t: tensor<8x2xf32> loc("table"), %ids: tensor<3xi32> loc("ids"), %n: tensor<3xi32> loc("n"))
            -> tensor<3x2xf32> {
          %rows = call @take(%t, %ids) : (tensor<8x2xf32>, tensor<3xi32>) -> tensor<3x2xf32>
          return %rows : tensor<3x2xf32>
        }
        func.func private @take(%table: tensor<8x2xf32>, %ids: tensor<3xi32>) -> tensor<3x2xf32> {
          %i = stablehlo.reshape %ids : (tensor<3xi32>) -> tensor<3x1xi32>
          %r = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],
            collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>}>
            : (tensor<8x2xf32>, tensor<3x1xi32>) -> tensor<3x2xf32>
          return %r : tensor<3x2xf32>
        }""")
    given = ("rows.mlir", "-d", "reference", "-i", "n=[99,99,99]", "-i", "random:0")
    warning = "pjrt: warning: argument 1 (ids): s32[3] chooses among 8 rows: expected 0 to 7, found "
    assert f"{warning}8; " in run(tmp_path, *given, "-i", "ids=[0,8,7]").stderr
    assert f"{warning}-9; " in run(tmp_path, *given, "-i", "ids=[0,-9,7]").stderr
    assert run(tmp_path, *given, "-i", "ids=[0,-8,7]").stderr == ""
