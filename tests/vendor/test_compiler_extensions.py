"""The TPU plugin without a TPU: phases, topologies, executables, several slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Ask = Callable[..., dict[str, Any]]

pytestmark = [pytest.mark.vendor, pytest.mark.usefixtures("libtpu")]

MATMUL = """
module @matmul {
  func.func public @main(%a: tensor<256x128xf32>, %b: tensor<128x64xf32>) -> tensor<256x64xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<256x128xf32>, tensor<128x64xf32>) -> tensor<256x64xf32>
    return %0 : tensor<256x64xf32>
  }
}
"""


def test_from_a_program_to_an_executable_phase_by_phase(ask: Ask) -> None:
    body = """
plugin = pjrt.load_plugin("tpu")
compiler = plugin.topology("v5e:2x2").phase_compiler()
optimize, lower, lower_shared, link = compiler.phase_names[:4]
parts = list(compiler.run(program, optimize))
def read_by(phase):
    return [part for part in parts if phase in part.consumer_phases]
shared = [part for part in read_by(lower_shared) if part.format == "dedup_hlo"]
common = [part for part in read_by(lower_shared) if part.format != "dedup_hlo"]
lowered = list(compiler.run(read_by(lower), lower))
for part in shared:
    lowered += compiler.run([part, *common], lower_shared)
parts += [pjrt.PartialProgram.from_proto(part.to_proto()) for part in lowered]
linked = {part.name: part.code for part in compiler.run(read_by(link), link)}
executable = plugin.tpu_executable(linked["pjrt_executable"])
found = dict(phases=compiler.phase_names, linked=sorted(linked), flops=executable.cost_analysis()["flops"],
    module=b"matmul" in executable.hlo_module().code, format=executable.hlo_module().format,
    target=len(executable.target_arguments()), stats=len(executable.memory_stats()))
for name, use in {"other": lambda: compiler.run(parts[:1], "polish"), "empty": lambda: compiler.run([], optimize),
                  "junk": lambda: plugin.tpu_executable(b"junk").target_arguments()}.items():
    try: use()
    except pjrt.InvalidArgumentError as error: found[name] = error.message
"""
    found = ask(body, program=MATMUL)
    assert found["phases"][0] == "phase1_hlo_opts"
    assert found["linked"] == ["executable_metadata", "pjrt_executable"]
    assert found["flops"] == pytest.approx(2 * 256 * 128 * 64, rel=0.05)
    assert (found["module"], found["format"]) == (True, "hlo_with_config")
    assert min(found["target"], found["stats"]) > 10
    assert "not by polish" in found["other"]
    assert "no programs" in found["empty"]
    assert found["junk"]


TOPOLOGIES = [("v4:2x2x2", 8, 16, 2), ("v5e:4x4", 16, 16, 1), ("v5p:2x2x1", 4, 4, 1), ("v6e:16x16", 256, 256, 1)]


@pytest.mark.parametrize(("name", "chips", "devices", "devices_per_chip"), TOPOLOGIES, ids=[t[0] for t in TOPOLOGIES])
def test_what_a_topology_is_made_of(ask: Ask, name: str, chips: int, devices: int, devices_per_chip: int) -> None:
    body = """
topology = pjrt.topology("tpu", name)
tpu = topology.tpu
for property in ("chip_count", "device_count", "process_count", "core_count", "cores_per_chip", "devices_per_chip",
        "chips_per_process", "chip_bounds", "process_ids", "routing_strategy", "is_subslice",
        "cores_per_process", "devices_per_process", "process_bounds", "chips_per_process_bounds",
        "is_enhanced_barrier_enabled", "has_limited_ici_connectivity"):
    found[property] = getattr(tpu, property)
found["coords"] = [(tpu.place_of_device(d.id)[0], d.attributes["coords"]) for d in topology.device_descriptions]
found["ids"] = [(tpu.device_at(*tpu.place_of_device(d.id)), d.id) for d in topology.device_descriptions]
found["processes"] = [(tpu.process_of_device(d.id)[0], d.process_index) for d in topology.device_descriptions]
found["of_process"] = sorted(d for process in tpu.process_ids for d in tpu.devices_of_process(process))
found["corner"] = [tpu.chip_at([n - 1 for n in tpu.chip_bounds]), tpu.process_of_chip(0), tpu.process_coords(0)]
"""
    found = ask(body, name=name)
    assert (found["chip_count"], found["device_count"], found["devices_per_chip"]) == (chips, devices, devices_per_chip)
    assert found["process_count"] * found["chips_per_process"] == chips
    assert found["core_count"] == chips * found["cores_per_chip"]
    assert found["cores_per_process"] == found["chips_per_process"] * found["cores_per_chip"]
    x, y, z = found["chip_bounds"]
    assert x * y * z == chips
    bounds = zip(found["process_bounds"], found["chips_per_process_bounds"], strict=True)
    assert [a * b for a, b in bounds] == found["chip_bounds"]
    assert found["process_ids"] == list(range(found["process_count"]))
    assert all(told == described for told, described in found["coords"])
    assert all(told == described for told, described in found["ids"])
    assert found["of_process"] == list(range(devices))
    assert all(told == described for told, described in found["processes"])
    assert found["corner"] == [chips - 1, [0, 0], [0, 0, 0]]
    assert found["routing_strategy"]
    assert found["is_subslice"] is False


def test_parts_of_a_topology_and_what_would_end_the_process(ask: Ask) -> None:
    body = """
topology = pjrt.topology("tpu", "v5e:4x4")
tpu = topology.tpu
part = tpu.subslice((2, 2, 1), (1, 2, 1))
other = tpu.with_host_bounds((1, 1, 1))
found = dict(part=part.tpu.chip_bounds, is_part=part.tpu.is_subslice, other=other.tpu.chip_count,
    devices=[tpu.device_in_subslice(part, (0, 0, 0), device) for device in (0, 1, 4, 5)])
found["compiled"] = part.compile(program).name
for what, use in {"chip": lambda: tpu.process_of_chip(-1), "device": lambda: tpu.place_of_device(1 << 20),
        "index": lambda: tpu.device_at((0, 0, 0), -1), "outside": lambda: tpu.device_in_subslice(part, (0, 0, 0), 15),
        "dimensions": lambda: tpu.subslice((1, 1, 1), (1, 1, 1, 1)),
        "chips": lambda: tpu.subslice((0, 0, 0), (1, 1, 1)),
        "coordinates": lambda: tpu.chip_at((9, 9, 9))}.items():
    try: use()
    except pjrt.InvalidArgumentError as error: found[what] = error.message
"""
    found = ask(body, program=MATMUL)
    assert (found["part"], found["is_part"], found["other"], found["devices"]) == ([2, 4, 1], True, 4, [0, 1, 2, 3])
    assert found["compiled"] == "matmul"
    for what in ("chip", "device", "index", "outside", "dimensions", "chips", "coordinates"):
        assert found[what]


def test_what_a_compiled_program_holds_and_how_it_is_compiled(ask: Ask) -> None:
    body = """
plugin = pjrt.load_plugin("tpu")
executable = plugin.topology("v5e:2x2").compile(program)
opened = executable.tpu()
setting = "xla_tpu_enable_latency_hiding_scheduler"
found = dict(same=opened.cost_analysis()["flops"] == executable.cost_analysis()["flops"],
    optimized=opened.hlo_module().code == executable.optimized_program().code,
    setting=plugin.tpu_compiler_setting(setting),
    again=plugin.tpu_compiler_setting(setting, plugin.tpu_compilation_environments()))
try: plugin.tpu_compiler_setting("nonsense")
except pjrt.PjrtError as error: found["error"] = error.message
"""
    found = ask(body, program=MATMUL)
    assert found["same"]
    assert found["setting"] == found["again"] == "true"
    assert "nonsense" in found["error"]


def test_compiling_for_two_slices(ask: Ask) -> None:
    body = """
topology = pjrt.topology("tpu", "v5e:2x2")
slices = topology.multi_slice(2)
options = pjrt.CompileOptions(num_replicas=8, multi_slice_config=slices.serialize())
found = dict(slices=slices.num_slices, here=slices.slice_id, devices=slices.num_devices_per_slice,
    pair=slices.slice_and_device(slices.global_device_id(1, 2)), name=topology.compile(program, options).name)
for what, use in {"one": lambda: topology.compile(program, pjrt.CompileOptions(num_replicas=8)),
                  "none": lambda: topology.multi_slice(0)}.items():
    try: use()
    except pjrt.InvalidArgumentError as error: found[what] = error.message
"""
    found = ask(body, program=MATMUL)
    assert (found["slices"], found["here"], found["devices"]) == (2, 0, {"0": 4, "1": 4})
    assert (found["pair"], found["name"]) == ([1, 2], "matmul")
    assert found["one"]
    assert found["none"]
