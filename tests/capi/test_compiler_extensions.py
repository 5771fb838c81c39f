"""The extensions that are used without a client: phases, TPU topologies and executables, several slices."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tiny import TinyProgram
from tiny.control import Control

import pjrt
from pjrt.capi import LoadedPlugin


@pytest.fixture
def topology(plugin: LoadedPlugin, tiny_control: Control) -> Iterator[pjrt.TopologyDescription]:
    """Four by two chips of two processes; what the plugin was told wrongly, or what is left of the test, fails it."""
    tiny_control.collect()
    made = plugin.topology("4x2", num_processes=2)
    before, violations = tiny_control.live(), tiny_control.violations
    tiny_control.strict()
    yield made
    tiny_control.clear()
    assert tiny_control.violations == violations, tiny_control.last_violation
    assert tiny_control.left_over(before) == {}


@pytest.fixture
def code() -> pjrt.Program:
    """A program for the tiny plugin."""
    program = TinyProgram("double")
    x = program.parameter("f32[4]")
    return pjrt.Program(program.result(program.let("add", x, x)).code, format="tiny")


# Phases.


def test_a_program_is_compiled_phase_by_phase(topology: pjrt.TopologyDescription, code: pjrt.Program) -> None:
    compiler = topology.phase_compiler()
    assert compiler.phase_names == ("parse", "optimize", "lower", "link")
    assert repr(compiler) == "<PluginPhaseCompiler of 4 phases>"
    (parsed,) = compiler.run(code, "parse")
    assert (parsed.format, parsed.producer_phase, parsed.consumer_phases) == ("tiny", "parse", ("optimize",))
    assert (parsed.version, parsed.name, parsed.code) == ("1", "main", b"parse:\n" + code.code)
    body, facts = compiler.run([parsed], "optimize", pjrt.CompileOptions(num_replicas=2))
    assert facts.code.startswith(b"devices=8 options=")
    (lowered,) = compiler.run([body], ["lower"])
    (linked,) = compiler.run([lowered, facts], "link")
    assert linked.name == "executable"
    assert linked.code.startswith(b"link:\nlower:\noptimize:\nparse:")
    assert linked.code.endswith(facts.code)


def test_several_phases_run_one_after_the_other(topology: pjrt.TopologyDescription, code: pjrt.Program) -> None:
    compiler = topology.phase_compiler()
    at_once = compiler.run(code, ["parse", "optimize"])
    assert at_once == compiler.run(compiler.run(code, ["parse"]), ["optimize"])
    assert [part.name for part in at_once] == ["body", "facts"]


def test_parts_go_to_a_file_and_back(topology: pjrt.TopologyDescription, code: pjrt.Program) -> None:
    compiler = topology.phase_compiler()
    parts = compiler.run(code, ["parse", "optimize"])
    again = [pjrt.PartialProgram.from_proto(part.to_proto()) for part in parts]
    assert tuple(again) == parts
    assert topology.phase_compiler().run(again[:1], "lower") == compiler.run(parts[:1], "lower")


def test_a_part_is_given_only_to_a_phase_that_reads_it(topology: pjrt.TopologyDescription, code: pjrt.Program) -> None:
    compiler = topology.phase_compiler()
    parts = compiler.run(code, ["parse", "optimize"])
    with pytest.raises(pjrt.InvalidArgumentError, match="'facts' of optimize is read by link, not by lower"):
        compiler.run(parts, "lower")
    with pytest.raises(pjrt.InvalidArgumentError, match="at least one phase"):
        compiler.run(code, [])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"pjrt\.PartialProgram"):
        compiler.run([b"part"], "lower")  # type: ignore[list-item]
    with pytest.raises(pjrt.InvalidArgumentError, match="phase lower was given nothing"):
        compiler.run([], "lower")
    with pytest.raises(pjrt.NotFoundError, match="no phase polish"):
        compiler.run(code, "polish")


@pytest.mark.parametrize(
    ("phase", "message"),
    [("broken", "a part of a program that cannot be read"), ("nowhere", "the parts of a program as 3 items at 0x0")],
)
def test_parts_that_cannot_be_read_are_the_plugins_fault(
    topology: pjrt.TopologyDescription, code: pjrt.Program, phase: str, message: str
) -> None:
    with pytest.raises(pjrt.InternalError, match=message):
        topology.phase_compiler().run(code, phase)


def test_a_phase_compiler_keeps_its_topology(plugin: LoadedPlugin, code: pjrt.Program) -> None:
    compiler = plugin.topology("3x1").phase_compiler()
    gc.collect()
    assert compiler.run(code, ["parse", "optimize"])[1].code.startswith(b"devices=3 ")
    with plugin.client(num_devices=2) as client:
        of_client = client.topology.phase_compiler()
        assert of_client.run(code, ["parse", "optimize"])[1].code.startswith(b"devices=2 ")
    with pytest.raises(pjrt.FailedPreconditionError, match="closed"):
        of_client.run(code, "parse")


@pytest.mark.parametrize(
    "fields", [{"code": "text"}, {"code": b"", "name": 3}, {"code": b"", "consumer_phases": "link"}]
)
def test_a_part_is_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="PartialProgram"):
        pjrt.PartialProgram(**fields)


# TPU topologies.


def test_how_much_there_is(topology: pjrt.TopologyDescription) -> None:
    tpu = topology.tpu
    assert (tpu.chip_count, tpu.core_count, tpu.device_count, tpu.process_count) == (8, 8, 8, 2)
    assert (tpu.cores_per_chip, tpu.devices_per_chip) == (1, 1)
    assert (tpu.chips_per_process, tpu.cores_per_process, tpu.devices_per_process) == (4, 4, 4)
    assert (tpu.chip_bounds, tpu.process_bounds, tpu.chips_per_process_bounds) == ((4, 2, 1), (2, 1, 1), (2, 2, 1))
    assert (tpu.is_subslice, tpu.is_enhanced_barrier_enabled, tpu.has_limited_ici_connectivity) == (False, True, True)
    assert (tpu.routing_strategy, tpu.process_ids) == ("grid", (0, 1))
    assert repr(tpu) == "<PluginTpuTopology of 4×2×1 chips>"


def test_where_it_is(topology: pjrt.TopologyDescription) -> None:
    tpu = topology.tpu
    for device in topology.device_descriptions:
        place, index = tpu.place_of_device(device.id)
        assert place[:2] == device.attributes["coords"]
        assert tpu.device_at(place, index) == tpu.chip_at(place) == device.id
        process, position = tpu.process_of_device(device.id)
        assert process == device.process_index
        assert tpu.devices_of_process(process)[position] == device.id
        assert tpu.process_of_chip(device.id) == (process, position)
    assert tpu.process_coords(1) == (1, 0, 0)
    assert tpu.is_reachable_over_limited_ici(0, 1)
    assert not tpu.is_reachable_over_limited_ici(0, 2)


def test_parts_of_it(plugin: LoadedPlugin, topology: pjrt.TopologyDescription) -> None:
    part = topology.tpu.subslice((1, 2, 1), (2, 1, 1))
    assert (part.tpu.is_subslice, part.tpu.chip_bounds, part.tpu.process_count) == (True, (2, 2, 1), 2)
    assert len(part.device_descriptions) == 4
    assert [topology.tpu.device_in_subslice(part, (2, 0, 0), device) for device in (4, 5, 6, 7)] == [0, 1, 2, 3]
    larger = topology.tpu.with_host_bounds((3, 1, 1))
    assert (larger.tpu.process_count, larger.tpu.chip_count) == (3, 12)
    with pytest.raises(pjrt.InvalidArgumentError, match="larger than the whole"):
        topology.tpu.subslice((4, 4, 1), (2, 1, 1))
    with pytest.raises(pjrt.InvalidArgumentError, match=r"device 3 on the chip at \(1, 1, 0\)"):
        topology.tpu.device_in_subslice(part, (2, 0, 0), 3)
    with pytest.raises(pjrt.InvalidArgumentError, match="a part of this topology"):
        topology.tpu.device_in_subslice("4x2", (0, 0, 0), 0)  # type: ignore[arg-type]


REFUSED: dict[str, Callable[[pjrt.TpuTopology], object]] = {
    "a chip that is not there": lambda tpu: tpu.process_of_chip(8),
    "a chip before the first": lambda tpu: tpu.process_of_chip(-1),
    "a device that is not there": lambda tpu: tpu.place_of_device(8),
    "a device before the first": lambda tpu: tpu.process_of_device(-1),
    "a place on a chip that is not there": lambda tpu: tpu.device_at((0, 0, 0), -1),
    "a link to nowhere": lambda tpu: tpu.is_reachable_over_limited_ici(0, 8),
    "coordinates outside": lambda tpu: tpu.chip_at((9, 9, 9)),
    "a process that is not there": lambda tpu: tpu.process_coords(2),
    "more than 32 bits": lambda tpu: tpu.devices_of_process(1 << 40),
    "hosts in one dimension": lambda tpu: tpu.with_host_bounds((2,)),
    "chips in four dimensions": lambda tpu: tpu.subslice((1, 1, 1, 1), (1, 1, 1)),
    "coordinates that are none": lambda tpu: tpu.chip_at("000"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_there_is_refused(topology: pjrt.TopologyDescription, what: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError):
        REFUSED[what](topology.tpu)


# TPU executables and the compiler's settings.


def test_what_an_executable_holds(plugin: LoadedPlugin, topology: pjrt.TopologyDescription, code: pjrt.Program) -> None:
    executable = topology.compile(code)
    for opened in (executable.tpu(), plugin.tpu_executable(executable.serialize())):
        assert (opened.target_arguments(), opened.memory_stats()) == (b"tiny target", b"tiny stats")
        assert opened.hlo_module() == pjrt.Program(b"tiny module", "hlo_with_config")
        assert opened.cost_analysis() == {"flops": len("tiny target") + len("tiny module")}
    broken = plugin.tpu_executable(b"nothing")
    for question in (broken.target_arguments, broken.hlo_module, broken.memory_stats, broken.cost_analysis):
        with pytest.raises(pjrt.InvalidArgumentError, match="7 bytes are no tiny executable"):
            question()


def test_the_settings_of_the_compiler(plugin: LoadedPlugin, topology: pjrt.TopologyDescription) -> None:
    environments = plugin.tpu_compilation_environments()
    assert (environments, plugin.tpu_compilation_environments(b"x")) == (b"default", b"given")
    assert (plugin.tpu_compiler_setting("warp"), plugin.tpu_compiler_setting("warp", environments)) == ("1", "9")
    with pytest.raises(pjrt.NotFoundError, match="no setting speed"):
        plugin.tpu_compiler_setting("speed")


# Several slices.


def test_several_slices(topology: pjrt.TopologyDescription) -> None:
    config = topology.multi_slice(3)
    assert (config.num_slices, config.slice_id, config.num_devices_per_slice) == (3, 0, {0: 8, 1: 8, 2: 8})
    assert config.serialize() == b"tiny slices 3 of 8"
    assert config.slice_and_device(config.global_device_id(2, 5)) == (2, 5)
    assert repr(config) == "<PluginMultiSliceConfig of 3 slices>"
    options = pjrt.CompileOptions(multi_slice_config=config.serialize())
    assert pjrt.CompileOptions.from_proto(options.to_proto()).multi_slice_config == config.serialize()
    with pytest.raises(pjrt.InvalidArgumentError, match="0 slices are too few"):
        topology.multi_slice(0)


# What is said of all of them.

USES: dict[str, Callable[[LoadedPlugin, pjrt.TopologyDescription, pjrt.Program], object]] = {
    "PhaseCompile_Get_Compiler": lambda plugin, topology, code: topology.phase_compiler(),
    "PhaseCompile_Get_PhaseNames": lambda plugin, topology, code: topology.phase_compiler().phase_names,
    "PhaseCompile_Run_Phase": lambda plugin, topology, code: topology.phase_compiler().run(code, ["parse", "optimize"]),
    "TpuTopology_ChipCount": lambda plugin, topology, code: topology.tpu.chip_count,
    "TpuTopology_CoreCount": lambda plugin, topology, code: topology.tpu.core_count,
    "TpuTopology_LogiDeviceCount": lambda plugin, topology, code: topology.tpu.device_count,
    "TpuTopology_ProcessCount": lambda plugin, topology, code: topology.tpu.process_count,
    "TpuTopology_ChipsPerProcess": lambda plugin, topology, code: topology.tpu.chips_per_process,
    "TpuTopology_CoreCountPerChip": lambda plugin, topology, code: topology.tpu.cores_per_chip,
    "TpuTopology_CoreCountPerProcess": lambda plugin, topology, code: topology.tpu.cores_per_process,
    "TpuTopology_LogiDeviceCountPerChip": lambda plugin, topology, code: topology.tpu.devices_per_chip,
    "TpuTopology_LogiDeviceCountPerProcess": lambda plugin, topology, code: topology.tpu.devices_per_process,
    "TpuTopology_ChipBounds": lambda plugin, topology, code: topology.tpu.chip_bounds,
    "TpuTopology_ProcessBounds": lambda plugin, topology, code: topology.tpu.process_bounds,
    "TpuTopology_ChipsPerProcessBounds": lambda plugin, topology, code: topology.tpu.chips_per_process_bounds,
    "TpuTopology_ProcessIds": lambda plugin, topology, code: topology.tpu.process_ids,
    "TpuTopology_ProcessCoordFromId": lambda plugin, topology, code: topology.tpu.process_coords(0),
    "TpuTopology_LogiDeviceIdsOnProcess": lambda plugin, topology, code: topology.tpu.devices_of_process(0),
    "TpuTopology_ChipIdFromCoord": lambda plugin, topology, code: topology.tpu.chip_at((0, 0, 0)),
    "TpuTopology_ProcIdAndIdxOnProcForChip": lambda plugin, topology, code: topology.tpu.process_of_chip(0),
    "TpuTopology_LogiDeviceIdFromChipCoordAndIdx": lambda plugin, topology, code: topology.tpu.device_at((0, 0, 0)),
    "TpuTopology_ChipCoordAndIdxForLogiDevice": lambda plugin, topology, code: topology.tpu.place_of_device(0),
    "TpuTopology_ProcIdAndIdxOnProcForLogiDevice": lambda plugin, topology, code: topology.tpu.process_of_device(0),
    "TpuTopology_GetRoutingStrategy": lambda plugin, topology, code: topology.tpu.routing_strategy,
    "TpuTopology_IsEnhancedBarrierEnabled": lambda plugin, topology, code: topology.tpu.is_enhanced_barrier_enabled,
    "TpuTopology_HasLimitedIciConnectivity": lambda plugin, topology, code: topology.tpu.has_limited_ici_connectivity,
    "TpuTopology_IsReachableOverLimitedIci": lambda plugin, topology, code: topology.tpu.is_reachable_over_limited_ici(
        0, 1
    ),
    "TpuTopology_IsSubsliceTopology": lambda plugin, topology, code: topology.tpu.is_subslice,
    "TpuTopology_Subslice": lambda plugin, topology, code: topology.tpu.subslice((1, 1, 1), (2, 1, 1)),
    "TpuTopology_SubsliceDeviceIdFromFullDeviceId": lambda plugin, topology, code: topology.tpu.device_in_subslice(
        topology, (0, 0, 0), 3
    ),
    "TpuTopology_ReplaceHostBounds": lambda plugin, topology, code: topology.tpu.with_host_bounds((1, 1, 1)),
    "TpuExecutable_GetTargetArguments": lambda plugin, topology, code: topology.compile(code).tpu().target_arguments(),
    "TpuExecutable_GetHloModuleWithConfig": lambda plugin, topology, code: topology.compile(code).tpu().hlo_module(),
    "TpuExecutable_GetCompiledMemoryStats": lambda plugin, topology, code: topology.compile(code).tpu().memory_stats(),
    "TpuExecutable_RunHloCostAnalysis": lambda plugin, topology, code: topology.compile(code).tpu().cost_analysis(),
    "TpuExecutable_SetTpuCompilationEnv": lambda plugin, topology, code: plugin.tpu_compilation_environments(b"x"),
    "TpuExecutable_GetTpuCompilationEnvFieldAsString": lambda plugin, topology, code: plugin.tpu_compiler_setting(
        "warp"
    ),
    "Megascale_CreateAoTConfig": lambda plugin, topology, code: topology.multi_slice(2),
    "Megascale_DeviceId_To_MegascaleId": lambda plugin, topology, code: topology.multi_slice(2).global_device_id(1, 1),
    "Megascale_MegascaleId_To_DeviceId": lambda plugin, topology, code: topology.multi_slice(2).slice_and_device(1001),
    "MultiSlice_Config_NumSlices": lambda plugin, topology, code: topology.multi_slice(2).num_slices,
    "MultiSlice_Config_SliceId": lambda plugin, topology, code: topology.multi_slice(2).slice_id,
    "MultiSlice_Config_NumDevicesPerSlice": lambda plugin, topology, code: (
        topology.multi_slice(2).num_devices_per_slice
    ),
    "MultiSlice_Config_Serialize": lambda plugin, topology, code: topology.multi_slice(2).serialize(),
}
"""Each function of these extensions, and what calls it."""


@pytest.mark.parametrize("function", USES)
def test_a_function_that_fails_says_why_and_leaves_nothing(
    plugin: LoadedPlugin,
    topology: pjrt.TopologyDescription,
    code: pjrt.Program,
    tiny_control: Control,
    function: str,
) -> None:
    with tiny_control.counted():
        USES[function](plugin, topology, code)
    assert tiny_control.calls(function) == 1
    tiny_control.fault(function, 8, "worn out")
    with pytest.raises(pjrt.ResourceExhaustedError, match="worn out"):
        USES[function](plugin, topology, code)


def test_a_configuration_that_cannot_be_freed_well_is_freed(
    topology: pjrt.TopologyDescription, tiny_control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda entry: said.append(str(entry.exc_value)))
    tiny_control.fault("MultiSlice_Config_Destroy", 13, "stuck")
    topology.multi_slice(2)
    gc.collect()
    assert said == ["INTERNAL: stuck"]
    assert tiny_control.live("multi_slice") == 0


EXTENSIONS = {"PhaseCompile": 9, "TpuTopology": 16, "TpuExecutable": 17, "Megascale": 18, "MultiSlice": 22}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_plugin_without_the_extension(tiny_copy: Callable[..., Control], code: pjrt.Program, name: str) -> None:
    control = tiny_copy(drop_extension=EXTENSIONS[name])
    plugin = pjrt.load_plugin(control.path)
    topology = plugin.topology("4x2", num_processes=2)
    assert name not in plugin.extensions
    first = next(use for function, use in USES.items() if function.startswith(f"{name}_"))
    with pytest.raises(pjrt.UnimplementedError, match=f"has no {name} extension"):
        first(plugin, topology, code)
    assert control.live("multi_slice") == 0


@pytest.mark.parametrize("function", ["TpuTopology_GetRoutingStrategy", "TpuExecutable_GetTargetArguments"])
def test_an_older_extension_without_the_function(
    tiny_copy: Callable[..., Control], code: pjrt.Program, function: str
) -> None:
    name = function.partition("_")[0]
    control = tiny_copy(short_extension=EXTENSIONS[name])
    plugin = pjrt.load_plugin(control.path)
    topology = plugin.topology("4x2", num_processes=2)
    with pytest.raises(pjrt.UnimplementedError, match=rf"{name} extension is an older one \(24 bytes\)"):
        USES[function](plugin, topology, code)


def test_an_older_phase_compiler_is_not_used(tiny_copy: Callable[..., Control]) -> None:
    plugin = pjrt.load_plugin(tiny_copy(short_extension=EXTENSIONS["PhaseCompile"]).path)
    with pytest.raises(pjrt.UnimplementedError, match="PhaseCompile extension is an older one"):
        plugin.topology("2").phase_compiler()


CONSTANT = """
func.func @main() -> tensor<f32> {
  %0 = stablehlo.constant dense<1.0> : tensor<f32>
  return %0 : tensor<f32>
}
"""


def test_devices_in_the_box_have_none_of_them() -> None:
    client = pjrt.client("reference")
    executable = client.compile(CONSTANT).executable
    for ask in (
        client.topology.phase_compiler,
        lambda: client.topology.tpu,
        lambda: client.topology.multi_slice(2),
        executable.tpu,
    ):
        with pytest.raises(pjrt.UnimplementedError, match="reference"):
            ask()
