"""Executables that were compiled without the GPU, and memory as predicted beside memory as measured.

``PJRT_TEST_AHEAD`` names a folder of executables that ``compile_ahead.py`` wrote on another machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import pjrt

SIDE = 1024
PROGRAM = f"""
func.func @main(%x: tensor<{SIDE}x{SIDE}xf32>, %y: tensor<{SIDE}x{SIDE}xf32>) -> tensor<{SIDE}x{SIDE}xf32> {{
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
    : (tensor<{SIDE}x{SIDE}xf32>, tensor<{SIDE}x{SIDE}xf32>) -> tensor<{SIDE}x{SIDE}xf32>
  %1 = stablehlo.tanh %0 : tensor<{SIDE}x{SIDE}xf32>
  return %1 : tensor<{SIDE}x{SIDE}xf32>
}}"""


def check(executable: pjrt.LoadedExecutable) -> None:
    """Check the program's result."""
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((SIDE, SIDE), np.float32) / 32 for _ in range(2))
    (result,) = executable(x, y)
    np.testing.assert_allclose(np.asarray(result), np.tanh(x @ y), atol=5e-3)  # GPUs may multiply in tf32


def test_compiled_for_a_topology_and_loaded(client: pjrt.Client, gpu: str, is_gpu: bool) -> None:
    topology = pjrt.topology("cuda", "h200:1x1x1") if is_gpu else pjrt.topology(gpu, "1")
    check(client.deserialize(topology.compile(PROGRAM).serialize()))


def test_compiled_elsewhere(client: pjrt.Client) -> None:
    folder = os.environ.get("PJRT_TEST_AHEAD")
    if not folder:
        pytest.skip("no executables of another machine: PJRT_TEST_AHEAD is not set")
    check(client.deserialize((Path(folder) / "program.executable").read_bytes()))


def test_memory_as_predicted(client: pjrt.Client, capsys: pytest.CaptureFixture[str]) -> None:
    executable = client.compile(PROGRAM)
    stats = executable.memory_stats()
    device = client.addressable_devices[0]
    x = client.buffer_from_host(np.ones((SIDE, SIDE), np.float32))
    executable(x, x)[0].ready().result()
    before = device.memory_stats()
    (result,) = executable(x, x)
    result.ready().result()
    after = device.memory_stats()
    measured = after.bytes_in_use - before.bytes_in_use
    with capsys.disabled():
        in_use = f"in use: {before.bytes_in_use} to {after.bytes_in_use}, peak {after.peak_bytes_in_use}"
        print(f"\npredicted: {stats}\n{in_use}")
    assert measured >= stats.output_size_in_bytes == result.on_device_size
    assert measured <= stats.peak_memory_in_bytes + (1 << 20)
