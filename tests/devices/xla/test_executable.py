"""The facts about an executable, and executables as bytes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from protobuf_fields import bytes_field, varint_field

import pjrt
from pjrt.api.compile_options import Partitioning
from pjrt.stablehlo.encodings import hlo_proto

X = np.arange(4, dtype=np.float32)

TWO_RESULTS = """
module @pair {
  func.func public @main(%x: tensor<2x3xf32>, %n: tensor<i32>) -> (tensor<3x2xf32>, tensor<i32>) {
    %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    return %0, %n : tensor<3x2xf32>, tensor<i32>
  }
}
"""


def test_types(client: pjrt.Client) -> None:
    loaded = client.compile(TWO_RESULTS)
    for executable in (loaded, loaded.executable):
        assert executable.name == "pair"
        assert executable.platform_name == "cpu"
        assert (executable.num_replicas, executable.num_partitions, executable.num_outputs) == (1, 1, 2)
        assert executable.output_element_types == [pjrt.ElementType.F32, pjrt.ElementType.S32]
        assert executable.output_shapes == [(3, 2), ()]
        assert executable.output_memory_kinds == executable.parameter_memory_kinds == ["device", "device"]
        assert executable.parameter_layouts == [pjrt.TiledLayout((1, 0)), pjrt.TiledLayout(())]
        assert executable.output_layouts == [pjrt.TiledLayout((1, 0)), pjrt.TiledLayout(())]
        assert executable.output_shardings is None
        assert executable.parameter_shardings is None
    assert not isinstance(loaded.executable, pjrt.LoadedExecutable)


def test_costs(add: pjrt.LoadedExecutable) -> None:
    assert add.cost_analysis()["flops"] == 4
    assert add.cost_analysis()["bytes accessed"] == 48
    stats = add.memory_stats()
    assert (stats.argument_size_in_bytes, stats.output_size_in_bytes, stats.alias_size_in_bytes) == (32, 16, 0)
    assert add.size_of_generated_code >= 0


def test_the_optimized_program(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    program = add.optimized_program()
    assert program.format == pjrt.ProgramFormat.HLO
    assert np.asarray(client.compile(program)(X, X)[0]).tolist() == [0, 2, 4, 6]
    assert "f32[4]{0} add(" in add.executable.optimized_text()  # type: ignore[attr-defined]


def test_serialization(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    blob = add.serialize()
    again = client.deserialize(blob)
    assert np.asarray(again(X, X)[0]).tolist() == [0, 2, 4, 6]
    assert again.fingerprint() == add.fingerprint()
    assert again.name == add.name
    elsewhere = client.deserialize(blob, pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment.of([3])))
    (result,) = elsewhere(X, X)
    assert result.device.id == 3
    with pjrt.client("cpu") as other:
        assert np.asarray(other.deserialize(blob)(X, X)[0]).tolist() == [0, 2, 4, 6]


def test_serialization_of_a_program_for_many_devices(client: pjrt.Client, programs: Any) -> None:
    options = pjrt.CompileOptions(num_replicas=4)
    blob = client.compile(programs.all_reduce, options).serialize()
    for again in (client.deserialize(blob, options), client.deserialize(blob)):
        rows = again.execute([[client.buffer_from_host(X, device=d)] for d in client.devices])
        assert np.asarray(rows[3][0]).tolist() == [0, 4, 8, 12]
    with pytest.raises(pjrt.InvalidArgumentError, match="is for 4 replicas × 1 partitions, the options are for 2"):
        client.deserialize(blob, pjrt.CompileOptions(num_replicas=2))


def test_bytes_of_xla_alone(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    code = add.executable.jaxlib_executable.serialize()  # type: ignore[attr-defined]
    assert np.asarray(client.deserialize(code)(X, X)[0]).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("cut", [0, 1, 50, 2000])
def test_damaged_bytes(client: pjrt.Client, add: pjrt.LoadedExecutable, cut: int) -> None:
    blob = add.serialize()
    damaged = b"junk" if cut == 0 else blob[:-cut]
    with pytest.raises(
        pjrt.InvalidArgumentError, match=f"serialized by this version of XLA.*found {len(damaged)} bytes"
    ):
        client.deserialize(damaged)


def test_fingerprints(client: pjrt.Client, add: pjrt.LoadedExecutable, programs: Any) -> None:
    assert client.compile(programs.add).fingerprint() == add.fingerprint()
    assert client.compile(TWO_RESULTS).fingerprint() != add.fingerprint()


def test_compile_options_come_back(client: pjrt.Client, programs: Any) -> None:
    options = pjrt.CompileOptions(option_overrides={"xla_cpu_enable_fast_math": True})
    found = client.compile(programs.add, options).compile_options()
    assert found == options.completed(Partitioning())
    assert (found.num_replicas, found.num_partitions) == (1, 1)


UNEVEN = """
import sys
import pjrt

PROGRAM = '''
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%%x: tensor<%(rows)dx3xf32> {mhlo.sharding = "{%(before)s}"})
      -> (tensor<f32>, tensor<%(rows)dx3xf32> {mhlo.sharding = "{%(after)s}"}) {
    %%0 = stablehlo.add %%x, %%x : tensor<%(rows)dx3xf32>
    %%1 = stablehlo.constant dense<1.0> : tensor<f32>
    return %%1, %%0 : tensor<f32>, tensor<%(rows)dx3xf32>
  }
}
'''
TILES, PAIRS, WHOLE = "devices=[4,1]<=[4]", "devices=[2,1,2]<=[4] last_tile_dim_replicate", "replicated"
client = pjrt.client("cpu", num_devices=4)
for rows, before, after in (
    (6, TILES, TILES), (6, TILES, WHOLE), (8, WHOLE, TILES), (6, WHOLE, PAIRS), (7, PAIRS, PAIRS)
):
    code = PROGRAM % {"rows": rows, "before": before, "after": after}
    executable = client.compile(pjrt.Program(code.encode()), pjrt.CompileOptions(num_partitions=4)).executable
    try:
        client.deserialize(executable.serialize()).delete()
        print("loaded")
    except pjrt.UnimplementedError as error:
        print(error.message)
"""


def test_shardings_are_tiles_however_xla_notes_them() -> None:
    """XLA before jaxlib 0.12 reports them over the axes of a mesh where the options of a newer JAX ask for those."""
    text = """
    sdy.mesh @mesh = <["x"=2, "y"=2]>
    func.func @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y", "x"}]>})
        -> (tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) {
      %0 = stablehlo.tanh %x : tensor<6x4xf32>
      return %0 : tensor<6x4xf32>
    }"""
    defaults = hlo_proto._debug_options(hlo_proto.with_debug_options(b""))
    newer = bytes_field(3, bytes_field(3, defaults + varint_field(452, 1)))  # xla_enable_hlo_sharding_v3
    with pjrt.client("cpu", num_devices=4) as client:
        plain = client.compile(text, pjrt.CompileOptions(num_partitions=4))
        noted = client.compile(text, pjrt.CompileOptions(num_partitions=4, base=newer))
        assert noted.output_shardings == plain.output_shardings
        assert noted.parameter_shardings == plain.parameter_shardings


def test_results_in_uneven_shards_are_not_serialized() -> None:
    """XLA ends the process over them; uneven shards of parameters are none of its trouble."""
    done = subprocess.run([sys.executable, "-c", UNEVEN], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    refusal = "XLA cannot serialize this executable of the device 'cpu': result 1 of shape"
    advice = "which do not divide it evenly. Compile it where it runs, or choose a sharding that divides the result"
    assert done.stdout.splitlines() == [
        f"{refusal} (6, 3) is cut into [4, 1] tiles, {advice}",
        *["loaded"] * 3,
        f"{refusal} (7, 3) is cut into [2, 1] tiles, {advice}",
    ]
