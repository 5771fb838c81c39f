"""The checks of programs, executions and events: they pass on the tiny plugin, and fail where it has a fault.

``tests/conformance/mutants`` has faults that are built into the plugin; here a function or an event fails.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from tiny import Control

from pjrt.capi import raw
from pjrt.conformance.plugin.check import Failed, Tier, Unsupported, all_checks
from pjrt.conformance.plugin.contract.endurance.leaks import expect_no_growth
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.subject import Subject

PROGRAMS = str(Path(__file__).parent / "programs")
INTERNAL = 13

FAULTS = {
    "event.set.success": "Event_Set",
    "event.create.is_not_ready": "Event_IsReady",
    "event.await.twice": "Event_Await",
    "event.on_ready.before_set": "Event_OnReady",
    "compile.twice": "LoadedExecutable_Destroy",
    "compile.code_is_not_terminated": "Client_Compile",
    "compile_options.second_device": "LoadedExecutable_AddressableDevices",
    "compile_for_topology.without_client": "Compile",
    "compile_for_topology.loads": "Client_Load",
    "executable.name": "Executable_Name",
    "executable.fingerprint": "Executable_Fingerprint",
    "executable.output_dimensions": "Executable_OutputDimensions",
    "executable.output_memory_kinds": "Executable_OutputMemoryKinds",
    "optimized_program.size": "Executable_OptimizedProgram",
    "cost_analysis.properties": "Executable_GetCostAnalysis",
    "memory_stats.sizes": "Executable_GetCompiledMemoryStats",
    "loaded_executable.is_deleted": "LoadedExecutable_IsDeleted",
    "loaded_executable.device_assignment": "LoadedExecutable_GetDeviceAssignment",
    "serialization.loads_again": "Executable_DeserializeAndLoad",
    "execute.adds": "LoadedExecutable_Execute",
    "execute.in_flight": "Buffer_ToHostBuffer",
    "donation.result": "LoadedExecutable_Execute",
    "error_value.later": "AsyncHostToDeviceTransferManager_SetBufferError",
    "execute_options.launch_id[1]": "LoadedExecutable_Execute",
    "execute_context.destroy": "ExecuteContext_Destroy",
    "poison.pending_execution": "Device_PoisonExecution",
    "collectives.result[all_reduce_2]": "LoadedExecutable_Execute",
    "receive.value[one_chunk]": "CopyToDeviceStream_AddChunk",
    "threads.execute": "Buffer_Destroy",
    "teardown.another_client": "Client_Destroy",
}
"""A fault for each check: the function that fails."""


@pytest.fixture
def subject(tiny_library: Path) -> Subject:
    plugin = raw.load(tiny_library)
    return Subject(plugin, {"num_devices": 2}, Samples(PROGRAMS), str(tiny_library))


@pytest.mark.parametrize("name", FAULTS)
def test_a_check_passes_and_fails(name: str, subject: Subject, tiny_control: Control) -> None:
    check = all_checks()[name]
    check.run(subject)
    tiny_control.fault(FAULTS[name], INTERNAL, "on purpose")
    with pytest.raises(Failed, match=r"on purpose|CANCELLED"):
        check.run(subject)


def test_an_event_with_an_error_fails_a_check(subject: Subject, tiny_control: Control) -> None:
    check = all_checks()["execute.callback_of_the_event"]
    check.run(subject)
    tiny_control.event_fault("LoadedExecutable_Execute", INTERNAL, "on purpose")
    with pytest.raises(Failed, match="on purpose"):
        check.run(subject)


def test_an_unimplemented_function_is_unsupported(subject: Subject, tiny_control: Control) -> None:
    tiny_control.fault("Executable_Serialize", 12, "not here")
    with pytest.raises(Unsupported, match="Executable_Serialize"):
        all_checks()["serialization.bytes"].run(subject)


@pytest.mark.full
def test_memory_that_grows_fails_a_check(subject: Subject) -> None:
    memory = ctypes.CDLL(None)
    memory.malloc.restype = ctypes.c_void_p
    expect_no_growth(subject, lambda: memory.free(ctypes.c_void_p(memory.malloc(100))), rounds=2000)
    left: list[int] = []
    with pytest.raises(Failed, match="no memory to be left behind"):  # more than what earlier tests let go of meanwhile
        expect_no_growth(subject, lambda: left.append(memory.malloc(4000)), rounds=2000)
    for each in left:
        memory.free(ctypes.c_void_p(each))


def test_names_and_rules_are_whole() -> None:
    contract = [check for check in all_checks().values() if check.tier is Tier.CONTRACT]
    for check in contract:
        assert check.rule.endswith("."), check.name
    assert len(contract) > 400
