"""Programs for several devices: ``run``, ``check`` and ``compile`` give one answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from in_process import pjrt

from pjrt.stablehlo.encodings import jaxlib

SHARDY = """
module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%x: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %w: tensor<2xf32>)
      -> (tensor<f32>, tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0:2 = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}]>]
        out_shardings=[<@mesh, []>, <@mesh, [{"x"}, {}]>] manual_axes={"x"} (%a: tensor<2x2xf32>, %b: tensor<2xf32>) {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %part = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0, 1]
          : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
      %sum = "stablehlo.all_reduce"(%part) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%c: tensor<f32>, %d: tensor<f32>):
        %e = stablehlo.add %c, %d : tensor<f32>
        stablehlo.return %e : tensor<f32>
      }) : (tensor<f32>) -> tensor<f32>
      %row = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<2xf32>) -> tensor<2x2xf32>
      %scaled = stablehlo.multiply %a, %row : tensor<2x2xf32>
      sdy.return %sum, %scaled : tensor<f32>, tensor<2x2xf32>
    } : (tensor<8x2xf32>, tensor<2xf32>) -> (tensor<f32>, tensor<8x2xf32>)
    return %0#0, %0#1 : tensor<f32>, tensor<8x2xf32>
  }
}
"""
GSPMD = """
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<6x2xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}, %w: tensor<2xf32>)
      -> (tensor<f32>, tensor<6x2xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<6x2xf32>, tensor<f32>) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<2xf32>) -> tensor<6x2xf32>
    %2 = stablehlo.multiply %x, %1 : tensor<6x2xf32>
    return %0, %2 : tensor<f32>, tensor<6x2xf32>
  }
}
"""
HLO = """
HloModule sums, num_partitions=4
add {
  c = f32[] parameter(0)
  d = f32[] parameter(1)
  ROOT e = f32[] add(c, d)
}
ENTRY main {
  x = f32[8,2] parameter(0), sharding={mesh['x'=2,'y'=2], device_ids=(3,1,2,0), [{'y', 'x'}, {}]}
  w = f32[2] parameter(1), sharding={mesh['x'=2,'y'=2], device_ids=(3,1,2,0), [{}]}
  zero = f32[] constant(0)
  sum = f32[] reduce(x, zero), dimensions={0,1}, to_apply=add
  rows = f32[8,2] broadcast(w), dimensions={1}
  scaled = f32[8,2] multiply(x, rows)
  asked = f32[8,2] reshape(scaled), sharding={mesh['x'=2,'y'=2], device_ids=(3,1,2,0), [{'x'}, {'y'}]}
  ROOT results = (f32[], f32[8,2]) tuple(sum, asked)
}
"""
REPLICAS = """
module attributes {mhlo.num_replicas = 2 : i32} {
  func.func @main(%x: tensor<ui32>) -> tensor<ui32> {
    %0 = stablehlo.replica_id : tensor<ui32>
    %1 = stablehlo.add %x, %0 : tensor<ui32>
    return %1 : tensor<ui32>
  }
}
"""
DONATING = """
func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32> {jax.buffer_donor = true})
    -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("shardy", SHARDY), ("gspmd", GSPMD), ("replicas", REPLICAS), ("donating", DONATING)):
        (tmp_path / f"{name}.mlir").write_text(text)
    (tmp_path / "hlo.txt").write_text(HLO)
    return tmp_path


def test_uneven_shards_are_not_saved(folder: Path) -> None:
    done = pjrt("compile", "gspmd.mlir", "-t", "cpu:4", "-o", "x.bin", folder=folder)
    assert done.returncode != 0
    assert "result 1 of shape (6, 2) is cut into [4, 1] tiles, which do not divide it evenly" in done.stderr
    assert not (folder / "x.bin").exists()


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(("program", "rows"), [("shardy.mlir", 8), ("gspmd.mlir", 6), ("hlo.txt", 8)])
def test_what_check_says_can_run_is_compiled_and_run(folder: Path, device: str, program: str, rows: int) -> None:
    if program == "hlo.txt" and jaxlib.version() < (0, 10):
        pytest.skip("this XLA reads no shardings over a mesh")
    x, w = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), np.array([2, 3], np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "w.npy", w)
    four = ("-d", device, "-O", "num_devices=4")
    assert pjrt("check", program, *four, folder=folder).returncode == 0
    compiled = json.loads(pjrt("compile", program, "-t", f"{device}:4", "--json", folder=folder).stdout)
    assert compiled["num_partitions"] == 4
    # A quarter of x, of which the last ones are padded, and all of w.
    assert compiled["memory"]["argument_size_in_bytes"] == 2 * 2 * 4 + 2 * 4
    done = pjrt("run", program, *four, "-i", "x.npy", "-i", "w.npy", "-o", "out.npz", "--repeat", "2", folder=folder)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "out.npz") as file:
        found = dict(file)
    assert found["result_0"] == x.sum()
    np.testing.assert_array_equal(found["result_1"], x * w)


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_too_few_devices_are_too_few_for_all_three(folder: Path, device: str) -> None:
    two = ("-d", device, "-O", "num_devices=2")
    assert pjrt("check", "shardy.mlir", *two, folder=folder).returncode == 1
    for done in (
        pjrt("compile", "shardy.mlir", "-t", device, folder=folder),
        pjrt("run", "shardy.mlir", *two, "-i", "zeros", folder=folder),
    ):
        assert done.returncode == 2
        assert "1 replicas × 4 partitions need 4 devices" in done.stderr


@pytest.mark.full
def test_devices_are_made_where_none_are_asked_for(folder: Path) -> None:
    assert pjrt("check", "shardy.mlir", "-d", "cpu", folder=folder).returncode == 0
    done = pjrt("run", "shardy.mlir", "-d", "cpu", "-i", "zeros", "--json", folder=folder)
    assert json.loads(done.stdout)["results"][1]["shape"] == [8, 2], done.stderr


@pytest.mark.full
def test_options_come_before_the_program(folder: Path) -> None:
    one = ("--num-partitions", "1")
    assert pjrt("check", "gspmd.mlir", "-d", "cpu", *one, folder=folder).returncode == 0
    assert (
        json.loads(pjrt("compile", "gspmd.mlir", "-t", "cpu", *one, "--json", folder=folder).stdout)["num_partitions"]
        == 1
    )
    done = pjrt("run", "gspmd.mlir", "-i", "zeros", *one, folder=folder)
    assert "f32[6,2]" in done.stdout, done


def test_results_of_replicas_stand_side_by_side(folder: Path) -> None:
    np.save(folder / "x.npy", np.uint32(5))
    done = pjrt("run", "replicas.mlir", "-O", "num_devices=2", "-i", "x.npy", "-o", "out.npz", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "result_0_of_replica_1  u32[] [6]" in done.stdout
    with np.load(folder / "out.npz") as file:
        found = dict(file)
    assert (found["result_0_of_replica_0"], found["result_0_of_replica_1"]) == (5, 6)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_program_that_uses_up_its_arguments_is_repeated(folder: Path, device: str) -> None:
    done = pjrt("run", "donating.mlir", "-d", device, "-i", "random:0", "--repeat", "3", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["repeats"] == 3


def inspected(folder: Path, name: str, *options: str) -> str:
    done = pjrt("inspect", name, *options, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_inspect_shows_the_mesh_and_the_parts(folder: Path) -> None:
    lines = [" ".join(line.split()) for line in inspected(folder, "shardy.mlir").splitlines()]
    assert "mesh x=4 (4 devices)" in lines
    assert "0 tensor<8x2xf32> x, - [2, 2]" in lines
    assert "1 tensor<2xf32> not stated" in lines
    facts = json.loads(inspected(folder, "shardy.mlir", "--json"))
    assert facts["meshes"] == {"mesh": {"axes": {"x": 4}, "devices": [0, 1, 2, 3]}}
    assert facts["arguments"][0]["shard_shape"] == [2, 2]
    assert facts["arguments"][0]["axes"] == [["x"], []]
    assert facts["arguments"][1]["sharding"] == ""


def test_inspect_shows_parts_without_a_mesh(folder: Path) -> None:
    lines = [" ".join(line.split()) for line in inspected(folder, "gspmd.mlir").splitlines()]
    assert "0 tensor<6x2xf32> 4 × 1 parts [2, 2], the last one padded" in lines
    facts = json.loads(inspected(folder, "gspmd.mlir", "--json"))
    assert facts["meshes"] == {}
    assert facts["results"][1]["parts"] == [4, 1]
    assert facts["results"][1]["copies"] == 1


def test_inspect_shows_the_shardings_of_a_saved_executable(folder: Path) -> None:
    done = pjrt("compile", "shardy.mlir", "-t", "cpu", "-O", "num_devices=4", "-o", "saved.bin", folder=folder)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in inspected(folder, "saved.bin").splitlines()]
    assert "argument name type sharding of each device notes" in lines
    assert "0 f32[8,2] 4 × 1 parts [2, 2]" in lines
    assert "1 f32[2] replicated [2]" in lines
    facts = json.loads(inspected(folder, "saved.bin", "--json"))
    assert facts["arguments"][0]["shard_shape"] == facts["results"][1]["shard_shape"] == [2, 2]
    assert (facts["arguments"][0]["parts"], facts["arguments"][0]["copies"]) == ([4, 1], 1)
    assert facts["arguments"][1]["shard_shape"] == [2]
