"""Executables: as bytes that load without the compiler, and compiled ahead of time for other hardware."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from iree_programs import CHOLESKY, DOUBLE, NUMBERS

import pjrt
from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.devices.iree.client import IreeClient
from pjrt.devices.iree.plugin import IreePlugin

pytestmark = pytest.mark.full

LOAD = """
import sys
from pathlib import Path
import numpy as np
import pjrt
from pjrt.devices.iree import compiler

def compile(code, flags):
    raise AssertionError("the program was compiled again")

from pjrt.devices.iree.client import PLACES
PLACES["subprocess"] = compile
folder = Path(sys.argv[1])
with pjrt.client("iree", driver=sys.argv[2]) as client:
    for name, arguments in (("executable", [np.array([[2, 1], [1, 3]], np.float32)]), ("numbers", [])):
        executable = client.deserialize((folder / name).read_bytes())
        np.save(folder / f"{name}.npy", np.asarray(executable(*arguments)[0]))
        assert client.deserialize(executable.serialize())
"""


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
def test_an_executable_loads_in_a_fresh_process_without_compiling(
    new_client: Callable[..., IreeClient], tmp_path: Path, driver: str
) -> None:
    file = tmp_path / "executable"
    client = new_client(driver=driver)
    file.write_bytes(client.compile(CHOLESKY).serialize())
    (tmp_path / "numbers").write_bytes(client.compile(NUMBERS).serialize())
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path), driver], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = np.exp(np.linalg.cholesky(np.array([[4, 2], [2, 6]])))
    np.testing.assert_allclose(np.load(tmp_path / "executable.npy"), expected, rtol=1e-6)
    np.testing.assert_array_equal(np.load(tmp_path / "numbers.npy"), [0, 1, 2])


def test_damaged_executables_are_refused(client: IreeClient) -> None:
    whole = client.compile(DOUBLE).serialize()
    with pytest.raises(InvalidArgumentError):
        client.deserialize(whole[:-1])
    with pytest.raises(DataLossError, match="compile the program again"):
        client.deserialize(whole[:-200] + bytes(200))


ELF, SPIRV, PTX = b"\x7fELF", b"\x03\x02\x23\x07", b".target sm_80"


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        ({"driver": "local-sync", "target_cpu": "skylake-avx512"}, ELF),
        ({"driver": "local-task", "target_triple": "aarch64-linux-gnu", "target_cpu": "cortex-a76"}, ELF),
        ({"driver": "cuda", "target_gpu": "sm_80"}, PTX),
        ({"driver": "hip", "target_gpu": "gfx942"}, ELF),
        ({"driver": "vulkan", "target_gpu": "rdna3"}, SPIRV),
    ],
    ids=lambda each: " ".join(each.values()) if isinstance(each, dict) else "",
)
def test_programs_are_compiled_for_other_hardware(options: dict[str, str], mark: bytes) -> None:
    topology = pjrt.topology("iree", "2", fallback=None, **options)
    assert len(topology.device_descriptions) == 2
    executable = topology.compile(DOUBLE)
    assert mark in executable.serialize()


def test_a_target_that_the_compiler_lacks_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"for the target: Unknown CUDA target 'h100'"):
        pjrt.topology("iree", driver="cuda", target_gpu="h100").compile(DOUBLE)


def machine(module: bytes) -> int:
    """Return the machine in the header of the first ELF file inside."""
    begin = module.index(ELF)
    return int.from_bytes(module[begin + 18 : begin + 20], "little")


def test_the_machine_is_that_of_the_triple() -> None:
    executable = pjrt.topology("iree", target_triple="aarch64-linux-gnu", driver="local-sync").compile(DOUBLE)
    assert machine(executable.serialize()) == 183  # EM_AARCH64


def test_an_executable_of_a_topology_loads_on_a_client(client: IreeClient) -> None:
    executable = IreePlugin().topology(driver="local-sync").compile(DOUBLE)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(client.load(executable)(x)[0]), 2 * x)


def test_an_executable_for_another_driver_is_refused(client: IreeClient) -> None:
    serialized = pjrt.topology("iree", driver="vulkan").compile(DOUBLE).serialize()
    executable = client.deserialize(serialized)
    with pytest.raises(InvalidArgumentError, match="of another target"):
        np.asarray(executable(np.zeros(4, np.float32))[0])


SORT = """
func.func @main(%x: tensor<4x4xf32>) -> tensor<16xf32> {
  %y = stablehlo.reshape %x : (tensor<4x4xf32>) -> tensor<16xf32>
  %z = "stablehlo.sort"(%y) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }) {dimension = 0 : i64, is_stable = true} : (tensor<16xf32>) -> tensor<16xf32>
  return %z : tensor<16xf32>
}"""

UPDATE = """
func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %i = stablehlo.constant dense<1> : tensor<i32>
  %u = stablehlo.constant dense<9.0> : tensor<2x2xf32>
  %y = stablehlo.dynamic_update_slice %x, %u, %i, %i
    : (tensor<4x4xf32>, tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}"""


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
@pytest.mark.parametrize("program", [SORT, UPDATE], ids=["sort", "update"])
def test_arguments_keep_their_values(driver: str, program: str) -> None:
    """IREE sorts and updates in the memory of arguments, so it is given copies."""
    x = np.random.default_rng(0).random((4, 4)).astype(np.float32)
    with pjrt.client("iree", driver=driver) as client:
        executable = client.compile(program)
        argument = client.buffer_from_host(x.copy())
        first = np.asarray(executable(argument)[0])
        np.testing.assert_array_equal(np.asarray(argument), x)
        np.testing.assert_array_equal(np.asarray(executable(argument)[0]), first)
        expected = np.sort(x, None) if program is SORT else np.asarray(pjrt.client("reference").compile(program)(x)[0])
        np.testing.assert_array_equal(first, expected)
