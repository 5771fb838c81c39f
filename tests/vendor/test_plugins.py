"""Plugins of the TPU and CUDA wheels as they answer without their hardware."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ask = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.vendor

MATMUL = """
module @matmul {
  func.func public @main(%a: tensor<256x128xf32>, %b: tensor<128x64xf32>) -> tensor<256x64xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<256x128xf32>, tensor<128x64xf32>) -> tensor<256x64xf32>
    return %0 : tensor<256x64xf32>
  }
}
"""


COMPILE = """
plugin = pjrt.load_plugin("tpu")
topology = plugin.topology(name)
devices = topology.device_descriptions
executable = topology.compile(MATMUL)
stats = executable.memory_stats()
cost = executable.cost_analysis()
found = dict(
    devices=len(devices), kind=devices[0].kind, kinds=len({d.kind for d in devices}),
    coords=devices[0].attributes["coords"],
    platform=topology.platform_name, name=executable.name, argument=stats.argument_size_in_bytes,
    output=stats.output_size_in_bytes, code=stats.generated_code_size_in_bytes, flops=cost["flops"],
    serialized=len(executable.serialize()), shapes=executable.output_shapes, layout=str(executable.output_layouts[0]),
    optimized=executable.optimized_program().format, fingerprint=executable.fingerprint().hex(),
    again=topology.compile(MATMUL).fingerprint().hex(), limit=devices[0].attributes.get("device_memory_bytes_limit"),
    memories=[m.kind for m in devices[0].memory_space_descriptions],
)
"""

TPUS = [
    ("v4:2x2x1", 8, "TPU v4"),
    ("v5e:2x2", 4, "TPU v5 lite"),
    ("v5e:4x4", 16, "TPU v5 lite"),
    ("v5p:2x2x1", 4, "TPU v5"),
    ("v6e:2x2", 4, "TPU v6 lite"),
]


@pytest.mark.parametrize(("name", "devices", "kind"), TPUS, ids=[name for name, _, _ in TPUS])
def test_compiling_for_a_tpu_that_is_not_here(ask: Ask, libtpu: Path, name: str, devices: int, kind: str) -> None:
    found = ask(COMPILE, name=name, MATMUL=MATMUL)
    assert found["devices"] == devices
    assert (found["kind"], found["kinds"], found["platform"], found["name"]) == (kind, 1, "tpu", "matmul")
    assert found["flops"] == pytest.approx(2 * 256 * 128 * 64, rel=0.05)
    assert found["argument"] == (256 * 128 + 128 * 64) * 4
    assert found["output"] == 256 * 64 * 4
    assert found["shapes"] == [[256, 64]]
    assert found["layout"] in ("{1,0:T(8,128)}", "{0,1:T(8,128)}")
    assert found["code"] > 1000
    assert found["serialized"] > 1000
    assert found["fingerprint"] == found["again"]
    assert found["optimized"] == "hlo_with_config"
    assert found["memories"][0] == "device"


def test_what_the_tpu_plugin_says_of_itself(ask: Ask, libtpu: Path) -> None:
    body = """
plugin = pjrt.load_plugin("tpu")
found = dict(version=plugin.api_version, extensions=plugin.extensions)
found["stablehlo"] = plugin.attributes["stablehlo_current_version"]
"""
    found = ask(body, MATMUL=MATMUL)
    assert found["version"][0] == 0
    assert {"Layouts", "TpuTopology", "Megascale", "Shardings"} <= set(found["extensions"])
    assert found["stablehlo"] >= [1, 0, 0]


def test_a_topology_survives_serializing_and_a_wrong_one_is_refused(ask: Ask, libtpu: Path) -> None:
    body = """
plugin = pjrt.load_plugin("tpu")
topology = plugin.topology("v5e:2x2")
again = plugin.deserialize_topology(topology.serialize())
texts = [[str(d) for d in each.device_descriptions] for each in (topology, again)]
found = dict(same=again.fingerprint() == topology.fingerprint(), devices=len(texts[1]), texts=texts[0] == texts[1])
for name in ("v5e:99x99", "nonsense"):
    try: plugin.topology(name)
    except pjrt.PjrtError as error: found[name] = error.message
try: topology.compile("module { func.func @main() { return %x } }")
except pjrt.PjrtError as error: found["program"] = error.message
"""
    found = ask(body, MATMUL=MATMUL)
    assert (found["same"], found["devices"], found["texts"]) == (True, 4, True)
    assert found["v5e:99x99"]
    assert found["nonsense"]
    assert found["program"]


def test_descriptions_and_executables_outlive_their_topology(ask: Ask, libtpu: Path) -> None:
    body = """
plugin = pjrt.load_plugin("tpu")
import gc
executable = plugin.topology("v5e:2x2").compile(MATMUL)
descriptions = plugin.topology("v5e:2x2").device_descriptions
gc.collect()
found = dict(name=executable.name, attributes=list(descriptions[3].attributes), debug=descriptions[3].debug_string)
"""
    found = ask(body, MATMUL=MATMUL)
    assert found["name"] == "matmul"
    assert "coords" in found["attributes"]
    assert found["debug"]


def test_the_cuda_plugin_without_a_gpu(ask: Ask, cuda_plugin: Path) -> None:
    body = """
plugin = pjrt.load_plugin("cuda")
found = dict(version=plugin.api_version, extensions=plugin.extensions, errors=[])
for _ in range(2):
    try: plugin.client()
    except pjrt.FailedPreconditionError as error: found["errors"].append(error.message)
"""
    found = ask(body)
    assert {"FFI", "Stream", "Gpu_Custom_Call", "Custom_Partitioner"} <= set(found["extensions"])
    if not found["errors"]:
        pytest.skip("there is a GPU")
    assert len(found["errors"]) == 2
    assert all("No visible GPU devices" in text and str(cuda_plugin) in text for text in found["errors"])


def test_compiling_for_a_gpu_that_is_not_here(ask: Ask, cuda_plugin: Path, h100: Path) -> None:
    """By the description of its hardware, which a machine with such a GPU gives as its topology's ``target_config``."""
    body = """
plugin = pjrt.load_plugin("cuda")
topology = plugin.topology("cuda", target_config=target, topology="1x1x2")
executable = topology.compile(MATMUL)
stats = executable.memory_stats()
found = dict(devices=[d.kind for d in topology.device_descriptions], argument=stats.argument_size_in_bytes,
    output=stats.output_size_in_bytes, serialized=len(executable.serialize()), shapes=executable.output_shapes)
try: executable.cost_analysis()
except pjrt.UnimplementedError as error: found["cost"] = error.message
"""
    found = ask(body, target=h100.read_text(), MATMUL=MATMUL)
    assert found["devices"] == ["NVIDIA H100 80GB HBM3"] * 2
    assert found["argument"] == (256 * 128 + 128 * 64) * 4
    assert found["output"] == 256 * 64 * 4
    assert found["serialized"] > 1000
    assert found["shapes"] == [[256, 64]]
    assert "GetCostAnalysis" in found["cost"]


@pytest.mark.parametrize("name", ["tpu", "cuda"])
def test_a_vendors_plugin_is_loaded_once_in_a_process(ask: Ask, name: str) -> None:
    """The registry knows that it and its driver cannot be there twice."""
    body = """
from pjrt import plugins
plugin = plugins.load_plugin(name)
try:
    plugins.reload(name, force=True)
except pjrt.FailedPreconditionError as error:
    found["refused"] = error.message
found["same"] = plugins.load_plugin(name) is plugin
"""
    found = ask(body, name=name)
    assert "cannot be loaded twice in a process, for it and its driver have threads" in found["refused"]
    assert found["same"]
