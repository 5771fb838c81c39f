"""GPUs by name, compiled for by the real CUDA plugin on a machine without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pjrt.plugins.discovery import wheels

pytestmark = pytest.mark.vendor

Ask = Callable[..., dict[str, Any]]

GPUS = json.loads((wheels.VENDORS / "gpus" / "cuda.json").read_text())["gpus"]
NEEDS_CUDA_12 = ("p100", "v100")

PROGRAM = """
func.func @main(%a: tensor<1024x512xELEMENT>, %b: tensor<512x256xELEMENT>) -> tensor<1024x256xELEMENT> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<1024x512xELEMENT>, tensor<512x256xELEMENT>) -> tensor<1024x256xELEMENT>
  %1 = stablehlo.tanh %0 : tensor<1024x256xELEMENT>
  return %1 : tensor<1024x256xELEMENT>
}
"""


def test_every_gpu_of_this_cuda_is_compiled_for(ask: Ask, cuda_plugin: Path) -> None:
    body = """
for gpu in gpus:
    topology = pjrt.topology("cuda", gpu + ":1x1x2")
    device = topology.device_descriptions[0]
    row = [len(topology.device_descriptions), device.kind, device.memory_limit_in_bytes]
    for element in ("f32", "bf16"):
        row.append(topology.compile(program.replace("ELEMENT", element)).memory_stats().needed_in_bytes)
    found[gpu] = row
"""
    gpus = [gpu for gpu in GPUS if gpu not in NEEDS_CUDA_12]
    found = ask(body, gpus=gpus, program=PROGRAM)
    assert list(found) == gpus
    arguments_and_results = 1024 * 512 + 512 * 256 + 1024 * 256
    for gpu, (count, kind, memory, single, half) in found.items():
        assert (count, kind, memory) == (2, GPUS[gpu]["name"], GPUS[gpu]["memory_bytes"])
        assert 4 * arguments_and_results <= single < 64 << 20, gpu
        assert 2 * arguments_and_results <= half < 64 << 20, gpu


def test_the_size_of_a_cluster(ask: Ask, cuda_plugin: Path) -> None:
    body = """
topology = pjrt.topology("cuda", "h100:2x8")
found["devices"] = [(d.id, d.process_index) for d in topology.device_descriptions]
"""
    found = ask(body)
    assert [tuple(each) for each in found["devices"]] == [(n, n // 8) for n in range(16)]


def test_the_architecture_reaches_the_compiler(ask: Ask, cuda_plugin: Path) -> None:
    """The code of an H100 is for sm_90a, that of an A100 for sm_80."""
    body = """
import re
for gpu in ("h100", "a100"):
    code = pjrt.topology("cuda", gpu).compile(program).serialize()
    found[gpu] = sorted({each.decode() for each in re.findall(rb"sm_\\d+a?", code)})
"""
    found = ask(body, program=PROGRAM.replace("ELEMENT", "bf16"))
    assert found == {"h100": ["sm_90a"], "a100": ["sm_80"]}


@pytest.mark.parametrize("name", ["h999:1", "cuda", ""])
def test_the_known_gpus_are_listed(ask: Ask, cuda_plugin: Path, name: str) -> None:
    body = """
try: pjrt.topology("cuda", name)
except pjrt.InvalidArgumentError as error: found["error"] = error.message
"""
    message = ask(body, name=name)["error"]
    assert f"found {name!r}" in message
    assert "h100, h100-pcie, h200, b200" in message
    assert "slices x hosts x GPUs" in message


def test_the_facts_about_amds_gpus_are_read(ask: Ask, cuda_plugin: Path) -> None:
    """By the CUDA plugin, which reads the same message, though it cannot compile for them."""
    body = """
from pjrt.plugins.discovery.wheels import rocm_options
for gpu in ("mi250", "mi300x", "mi350x"):
    (device,) = pjrt.topology("cuda", "amd", **rocm_options(gpu)).device_descriptions
    found[gpu] = [device.kind, device.memory_limit_in_bytes]
"""
    assert ask(body)["mi300x"] == ["MI300X", 206141652992]
