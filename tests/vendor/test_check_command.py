"""``pjrt check`` and ``pjrt capabilities`` for TPUs and GPUs that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vendor

ADD = """func.func @main(%x: tensor<8x128xTYPE>) -> tensor<8x128xTYPE> {
  %0 = stablehlo.add %x, %x : tensor<8x128xTYPE>
  return %0 : tensor<8x128xTYPE>
}
"""
PARTITIONED = """module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<8x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<f32> {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<8x128xf32>, tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}
"""
PROGRAMS = {
    "f32": ADD.replace("TYPE", "f32"),
    "bf16": ADD.replace("TYPE", "bf16"),
    "quantized": ADD.replace("TYPE", "!quant.uniform<i8:f32, 0.5>"),
    "dynamic": ADD.replace("8x128xTYPE", "?xf32"),
    "call": ADD.replace("TYPE", "f32").replace("add %x, %x :", "custom_call @nobody(%x) : (tensor<8x128xf32>) ->"),
    "partitioned": PARTITIONED,
}
TPU = ("-t", "tpu:v5e:2x2")


def pjrt(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pjrt", *map(str, arguments)],
        env=os.environ | {"COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def check(folder: Path, program: str, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    path = folder / f"{program}.mlir"
    path.write_text(PROGRAMS[program])
    done = pjrt("check", path, *arguments, "--json")
    assert done.returncode in (0, 1, 3), done.stderr
    return done.returncode, json.loads(done.stdout)["devices"][0]


@pytest.mark.parametrize(
    ("program", "code"), [("f32", 0), ("bf16", 0), ("quantized", 1), ("dynamic", 1), ("call", 1), ("partitioned", 0)]
)
def test_a_tpu_topology(libtpu: Path, tmp_path: Path, program: str, code: int) -> None:
    found, device = check(tmp_path, program, *TPU)
    # The compiler would end the process over dynamic shapes, so it is not asked.
    assert (found, device["effort"]) == (code, "types" if program == "dynamic" else "compile")
    # And it is so: compiling fails where this says no.
    compiled = pjrt("compile", tmp_path / f"{program}.mlir", *TPU)
    assert compiled.returncode == (0 if code == 0 else 2), compiled.stderr


def test_more_partitions_than_there_are_chips(libtpu: Path, tmp_path: Path) -> None:
    code, device = check(tmp_path, "partitioned", "-t", "tpu:v5e:1x1")
    assert (code, device["reasons"][0]["kind"], device["effort"]) == (1, "attribute", "types")


def test_the_compilers_place_is_told(libtpu: Path, tmp_path: Path) -> None:
    _, device = check(tmp_path, "call", *TPU)
    places = [place for reason in device["reasons"] for place in reason["locations"]]
    assert str(tmp_path / "call.mlir") in {place["file"] for place in places}
    assert {place["line"] for place in places} == {2}


@pytest.mark.parametrize(("program", "code"), [("f32", 0), ("call", 1)])
def test_a_gpu_by_the_description_of_its_hardware(
    cuda_plugin: Path, h100: Path, tmp_path: Path, program: str, code: int
) -> None:
    options = ("-t", "cuda:cuda", "-O", f"target_config=@{h100}", "-O", "topology=1x1x1")
    found, device = check(tmp_path, program, *options)
    assert (found, device["effort"]) == (code, "compile")


@pytest.mark.parametrize("name", ["cuda", "tpu"])
def test_without_hardware_it_stays_open(libtpu: Path, cuda_plugin: Path, tmp_path: Path, name: str) -> None:
    code, device = check(tmp_path, "f32", "-d", name)
    assert (code, device["verdict"]) == (3, "maybe")
    assert "its hardware is not here" in device["reasons"][-1]["message"]


def test_what_they_say_of_themselves(libtpu: Path, cuda_plugin: Path, h100: Path) -> None:
    tpu = json.loads(pjrt("capabilities", *TPU, "--json").stdout)["tpu:v5e:2x2"]
    assert tpu["num_devices"] == 4
    assert tpu["variants"]["tpu_generation"] == "v5 lite"
    assert tpu["features"]["aot_topologies"] is True
    assert "element_types" not in tpu
    options = ("-O", f"target_config=@{h100}", "-O", "topology=1x1x1")
    gpu = json.loads(pjrt("capabilities", "-t", "cuda:cuda", *options, "--json").stdout)["cuda:cuda"]
    assert gpu["variants"]["compute_capability"] == "9.0"
    assert gpu["variants"]["device_kind"] == "NVIDIA H100 80GB HBM3"
