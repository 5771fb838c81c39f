"""``pjrt compile`` for TPUs and GPUs that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pjrt
from pjrt.artifacts.saved_executable import SavedExecutable

pytestmark = pytest.mark.vendor

ROWS, INNER, COLUMNS = 1024, 512, 256

MATMUL = f"""
module @matmul {{
  func.func @main(%a: tensor<{ROWS}x{INNER}xf32>, %b: tensor<{INNER}x{COLUMNS}xf32>) -> tensor<{ROWS}x{COLUMNS}xf32> {{
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<{ROWS}x{INNER}xf32>, tensor<{INNER}x{COLUMNS}xf32>) -> tensor<{ROWS}x{COLUMNS}xf32>
    return %0 : tensor<{ROWS}x{COLUMNS}xf32>
  }}
}}
"""

GIB = 1 << 30

# The name, how many devices that is, their kind, and the memory of each, of which the runtime keeps a little.
TOPOLOGIES = [
    ("v4:2x2x1", 8, "TPU v4", 32 * GIB),
    ("v4:4x4x4", 128, "TPU v4", 32 * GIB),
    ("v5e:1x1", 1, "TPU v5 lite", 16 * GIB),
    ("v5e:2x2", 4, "TPU v5 lite", 16 * GIB),
    ("v5e:16x16", 256, "TPU v5 lite", 16 * GIB),
    ("v5p:2x2x1", 4, "TPU v5", 96 * GIB),
    ("v5p:4x4x4", 64, "TPU v5", 96 * GIB),
    ("v6e:1x1", 1, "TPU v6 lite", 32 * GIB),
    ("v6e:16x16", 256, "TPU v6 lite", 32 * GIB),
]


def compile_for(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pjrt", "compile", *map(str, arguments)],
        env=os.environ | {"COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def report(*arguments: str | Path) -> dict[str, Any]:
    done = compile_for(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write(folder: Path, text: str) -> Path:
    path = folder / "program.mlir"
    path.write_text(text)
    return path


def sharded(partitions: int, *, shardy: bool) -> str:
    """The product with both operands cut along the dimension that is summed over, so that an all-reduce is left."""
    stated = f"attributes {{mhlo.num_partitions = {partitions} : i32}}"
    if shardy:
        head = f'module @matmul {stated} {{\n sdy.mesh @mesh = <["x"={partitions}]>'
        first = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}'
        second = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
    else:
        head = f"module @matmul {stated} {{"
        first = f'{{mhlo.sharding = "{{devices=[1,{partitions}]<=[{partitions}]}}"}}'
        second = f'{{mhlo.sharding = "{{devices=[{partitions},1]<=[{partitions}]}}"}}'
    return (
        MATMUL.replace("module @matmul {", head)
        .replace(f"%a: tensor<{ROWS}x{INNER}xf32>", f"%a: tensor<{ROWS}x{INNER}xf32> {first}")
        .replace(f"%b: tensor<{INNER}x{COLUMNS}xf32>", f"%b: tensor<{INNER}x{COLUMNS}xf32> {second}")
    )


@pytest.mark.parametrize(("name", "devices", "kind", "memory"), TOPOLOGIES, ids=[name for name, *_ in TOPOLOGIES])
def test_one_device_of_a_slice(libtpu: Path, tmp_path: Path, name: str, devices: int, kind: str, memory: int) -> None:
    found = report(write(tmp_path, MATMUL), "-t", f"tpu:{name}")
    assert (found["platform"], found["device_kind"], found["num_devices"]) == ("tpu", kind, devices)
    assert 0.95 * memory < found["memory_limit_in_bytes"] < memory
    assert found["memory"]["argument_size_in_bytes"] == (ROWS * INNER + INNER * COLUMNS) * 4
    assert found["memory"]["output_size_in_bytes"] == ROWS * COLUMNS * 4
    assert found["memory_needed_in_bytes"] >= (ROWS * INNER + INNER * COLUMNS + ROWS * COLUMNS) * 4
    assert found["cost"]["flops"] == pytest.approx(2 * ROWS * INNER * COLUMNS, rel=0.05)
    assert found["cost"]["bytes accessed"] > 0


@pytest.mark.parametrize("shardy", [False, True], ids=["gspmd", "shardy"])
@pytest.mark.parametrize(("name", "partitions"), [("v4:2x2x1", 8), ("v5e:2x2", 4), ("v5p:2x2x1", 4), ("v6e:2x4", 8)])
def test_a_program_spread_over_the_slice(
    libtpu: Path, tmp_path: Path, name: str, partitions: int, shardy: bool
) -> None:
    program = write(tmp_path, sharded(partitions, shardy=shardy))
    found = report(program, "-t", f"tpu:{name}")
    assert found["num_partitions"] == partitions
    assert found["memory"]["argument_size_in_bytes"] == (ROWS * INNER + INNER * COLUMNS) * 4 // partitions
    assert found["cost"]["flops"] < 2 * ROWS * INNER * COLUMNS / partitions * 1.5


def test_a_trained_model(libtpu: Path) -> None:
    """The example that reads digits, whose weights are arguments; a TPU takes them padded to its tiles."""
    model = Path(__file__).parents[2] / "examples" / "digits" / "digits.stablehlo"
    found = report(model, "-t", "tpu:v6e:2x2")
    assert found["executable"] == "jit_classify"
    assert found["memory"]["output_size_in_bytes"] >= 360 * 10 * 4
    assert found["cost"]["flops"] > 1e8


def test_the_table(libtpu: Path, tmp_path: Path) -> None:
    out = tmp_path / "matmul.bin"
    done = compile_for(write(tmp_path, MATMUL), "-t", "tpu:v5e:2x2", "-o", out)
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0].strip(): line for line in done.stdout.replace("\n ", "\n").splitlines()}
    assert "4 × TPU v5 lite (tpu)" in lines["topology"]
    assert "1 of them" in lines["runs on"]
    assert "of 15.7 GiB" in lines["memory of each device"]
    assert "2.5 MiB" in lines["arguments"]
    assert "1.0 MiB" in lines["results"]
    assert "█" in lines["needed"]
    assert "<0.1%" in lines["needed"]
    assert "268 M" in lines["FLOPs"]
    saved = SavedExecutable.read(out)
    assert (saved.platform_name, saved.device_kind, saved.name) == ("tpu", "TPU v5 lite", "matmul")
    with pjrt.client("cpu") as client, pytest.raises(pjrt.FailedPreconditionError, match="platform name 'tpu', the"):
        pjrt.load_executable(client, out)


def test_a_program_that_does_not_fit_says_so(libtpu: Path, tmp_path: Path) -> None:
    large = MATMUL.replace(str(ROWS), "200000").replace(str(INNER), "100000")
    done = compile_for(write(tmp_path, large), "-t", "tpu:v5e:1x1")
    assert done.returncode == 2
    assert "RESOURCE_EXHAUSTED" in done.stderr
    assert "15.75G" in done.stderr


def test_a_slice_that_does_not_exist(libtpu: Path, tmp_path: Path) -> None:
    done = compile_for(write(tmp_path, MATMUL), "-t", "tpu:v99:2x2")
    assert done.returncode == 2
    assert "v99" in done.stderr


def test_a_compiler_flag_reaches_the_compiler(libtpu: Path, tmp_path: Path) -> None:
    done = compile_for(write(tmp_path, MATMUL), "-t", "tpu:v5e:1x1", "-C", "no_such_flag=1")
    assert done.returncode == 2
    assert "no_such_flag" in done.stderr


def test_a_gpu_by_the_description_of_its_hardware(cuda_plugin: Path, tmp_path: Path, h100: Path) -> None:
    found = report(write(tmp_path, MATMUL), "-t", "cuda:cuda", "-O", f"target_config=@{h100}", "-O", "topology=1x1x2")
    assert (found["device_kind"], found["num_devices"]) == ("NVIDIA H100 80GB HBM3", 2)
    assert found["memory"]["argument_size_in_bytes"] == (ROWS * INNER + INNER * COLUMNS) * 4


def test_a_program_that_does_not_fit_a_gpu_says_so(cuda_plugin: Path, tmp_path: Path, h100: Path) -> None:
    rows = 130_000
    add = "func.func @main(%x: TYPE, %y: TYPE) -> TYPE {\n  %0 = stablehlo.add %x, %y : TYPE\n  return %0 : TYPE\n}"
    program = write(tmp_path, add.replace("TYPE", f"tensor<{rows}x{rows}xf32>"))
    options = ("-t", "cuda:cuda", "-O", f"target_config=@{h100}", "-O", "topology=1x1x1")
    out = tmp_path / "large.bin"
    done = compile_for(program, *options, "-o", out)
    words = f"needs {3 * 4 * rows * rows} bytes of memory on each device, 239% of the 84942979072"
    assert (done.returncode, words in done.stderr, out.exists()) == (2, True, False), done.stderr
    assert "188.9 GiB" in done.stdout
    checked = subprocess.run(
        [sys.executable, "-m", "pjrt", "check", str(program), *map(str, options)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (checked.returncode, words in checked.stdout) == (1, True), checked


def test_a_table_over_vendors(libtpu: Path, cuda_plugin: Path, tmp_path: Path) -> None:
    """One row each, also for a slice that is larger than the program, and for one that is too small."""
    program = write(tmp_path, sharded(4, shardy=True))
    done = compile_for(program, "-t", "tpu:v5e:2x2,tpu:v5e:4x4,cuda:h100:4,tpu:v5e:1x1", "--json")
    assert done.returncode == 2
    square, large, gpus, small = json.loads(done.stdout)["topologies"]
    assert [each["fits"] for each in (square, large, gpus, small)] == [True, True, True, None]
    assert [each["num_devices"] for each in (square, large, gpus, small)] == [4, 16, 4, 1]
    assert square["memory"]["argument_size_in_bytes"] == large["memory"]["argument_size_in_bytes"]
    assert gpus["memory"]["argument_size_in_bytes"] == (ROWS * INNER + INNER * COLUMNS) * 4 // 4
    assert "need 4 devices, the topology has 1" in small["error"]["message"]


def test_what_does_not_fit_into_a_tpu_is_listed(libtpu: Path, cuda_plugin: Path, tmp_path: Path) -> None:
    """The numbers of the refusal are libtpu's own."""
    large = write(tmp_path, MATMUL.replace(str(ROWS), "200000").replace(str(INNER), "100000"))
    done = compile_for(large, "-t", "tpu:v5e:1x1,cuda:h100,cuda:a100-40gb", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    tpu, h100, a100 = report["topologies"]
    needed = (200000 * 100000 + 100000 * COLUMNS + 200000 * COLUMNS) * 4
    assert tpu["memory_needed_in_bytes"] == pytest.approx(needed, rel=0.01)
    assert tpu["memory_limit_in_bytes"] == round(15.75 * GIB)
    assert [each["fits"] for each in (tpu, h100, a100)] == [False, True, False]
    largest = report["counted"]["arrays"][0]
    assert (largest["shape"], largest["bytes"]) == ([200000, 100000], 200000 * 100000 * 4)
    assert report["counted"]["peak_memory_in_bytes"] == needed
