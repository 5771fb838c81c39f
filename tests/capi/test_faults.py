"""Every function of a plugin can fail, with every code: the error arrives unchanged, is freed, and nothing leaks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiny import TinyProgram
from tiny.control import Control
from waiting import wait_until

import pjrt
from pjrt.api.client import Client
from pjrt.api.key_value_store import ProcessInfo, ProcessState

X = np.arange(4, dtype=np.float32)
SPEC = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
CODES = [code for code in pjrt.StatusCode if code is not pjrt.StatusCode.OK]


class Things:
    """One of everything that functions are called on, made before a fault is switched on."""

    def __init__(self, plugin: pjrt.Plugin, client: Client, adder: pjrt.Program) -> None:
        self.plugin = plugin
        self.client = client
        self.adder = adder
        self.device = client.devices[0]
        self.memory = self.device.default_memory_space
        self.buffer = client.buffer_from_host(X)
        self.loaded = client.compile(adder)
        self.executable = self.loaded.executable
        self.topology = plugin.topology("2x2")
        self.manager = client.create_buffers_for_async_host_to_device([SPEC])
        self.memory_to_map, self.mapped = bytearray(64), bytearray(64)
        client.dma_map(self.mapped)
        self.filled = client.buffer_from_host(X)


CALLS: dict[str, Callable[[Things], Any]] = {
    "AsyncHostToDeviceTransferManager_AddMetadata": lambda t: t.manager.add_metadata({"a": 1}),
    "AsyncHostToDeviceTransferManager_BufferCount": lambda t: t.manager.buffer_count,
    "AsyncHostToDeviceTransferManager_BufferSize": lambda t: t.manager.buffer_size(0),
    "AsyncHostToDeviceTransferManager_Device": lambda t: t.manager.device,
    "AsyncHostToDeviceTransferManager_RetrieveBuffer": lambda t: t.manager.retrieve_buffer(0),
    "AsyncHostToDeviceTransferManager_SetBufferError": lambda t: t.manager.set_buffer_error(0, pjrt.AbortedError("x")),
    "AsyncHostToDeviceTransferManager_TransferData": lambda t: t.manager.transfer_data(0, X),
    "AsyncHostToDeviceTransferManager_TransferLiteral": lambda t: t.manager.transfer_literal(0, X),
    "Buffer_Bitcast": lambda t: t.buffer.bitcast(pjrt.ElementType.S32, (4,)),
    "Buffer_CopyRawToHost": lambda t: t.buffer.copy_raw_to_host(bytearray(16)),
    "Buffer_CopyRawToHostFuture": lambda t: t.buffer.copy_raw_to_host_future(pjrt.Future.completed(bytearray(16))),
    "Buffer_CopyToDevice": lambda t: t.buffer.copy_to(t.client.devices[1]),
    "Buffer_CopyToMemory": lambda t: t.buffer.copy_to(t.device.memory_space("pinned_host")),
    "Buffer_Delete": lambda t: t.buffer.delete(),
    "Buffer_Device": lambda t: t.buffer.device,
    "Buffer_Dimensions": lambda t: t.buffer.shape,
    "Buffer_DonateWithControlDependency": lambda t: t.buffer.donate_with_control_dependency(
        pjrt.Future.completed(None)
    ),
    "Buffer_DynamicDimensionIndices": lambda t: t.buffer.dynamic_dimensions,
    "Buffer_ElementType": lambda t: t.buffer.element_type,
    "Buffer_GetMemoryLayout": lambda t: t.buffer.layout,
    "Buffer_IncreaseExternalReferenceCount": lambda t: t.buffer.external_reference(),
    "Buffer_IsDeleted": lambda t: t.buffer.is_deleted,
    "Buffer_IsOnCpu": lambda t: t.buffer.is_on_cpu,
    "Buffer_Memory": lambda t: t.buffer.memory_space,
    "Buffer_OnDeviceSizeInBytes": lambda t: t.buffer.on_device_size,
    "Buffer_OpaqueDeviceMemoryDataPointer": lambda t: t.buffer.external_reference(),
    "Buffer_ReadyEvent": lambda t: t.buffer.ready(),
    "Buffer_ToHostBuffer": lambda t: t.buffer.to_host(),
    "Buffer_UnpaddedDimensions": lambda t: t.buffer.unpadded_shape,
    "Buffer_UnsafePointer": lambda t: t.buffer.unsafe_pointer(),
    "Client_AddressableMemories": lambda t: t.client.memory_spaces,
    "Client_BufferFromHostBuffer": lambda t: t.client.buffer_from_host(X),
    "Client_Compile": lambda t: t.client.compile(t.adder),
    "Client_CreateAliasBuffer": lambda t: t.client.create_alias_buffer(SPEC),
    "Client_CreateBuffersForAsyncHostToDevice": lambda t: t.client.create_buffers_for_async_host_to_device([SPEC]),
    "Client_CreateErrorBuffer": lambda t: t.client.create_error_buffer(pjrt.AbortedError("x"), SPEC),
    "Client_CreateUninitializedBuffer": lambda t: t.client.create_uninitialized_buffer(SPEC),
    "Client_CreateViewOfDeviceBuffer": lambda t: t.client.create_view_of_device_buffer(X.ctypes.data, SPEC),
    "Client_DefaultDeviceAssignment": lambda t: t.client.default_device_assignment(1, 2),
    "Client_DmaMap": lambda t: t.client.dma_map(t.memory_to_map),
    "Client_DmaUnmap": lambda t: t.client.dma_unmap(t.mapped),
    "Client_Load": lambda t: t.client.load(t.executable),
    "Client_ProcessIndex": lambda t: t.client.process_index,
    "Client_TopologyDescription": lambda t: t.client.topology,
    "Client_UpdateGlobalProcessInfo": lambda t: t.client.update_global_process_info(
        [ProcessInfo(0, 1, ProcessState.CONNECTED)]
    ),
    "Compile": lambda t: t.topology.compile(t.adder),
    "DeviceDescription_Attributes": lambda t: t.device.description.attributes,
    "DeviceDescription_DebugString": lambda t: t.device.description.debug_string,
    "Device_AddressableMemories": lambda t: t.client.devices[1].memory_spaces,
    "Device_ClearMemoryStats": lambda t: t.device.clear_memory_stats(),
    "Device_CreateAsyncTrackingEvent": lambda t: t.device.create_async_tracking_event("x"),
    "Device_DefaultMemory": lambda t: t.client.devices[1].default_memory_space,
    "Device_LocalHardwareId": lambda t: t.device.local_hardware_id,
    "Device_MemoryStats": lambda t: t.device.memory_stats(),
    "Device_PoisonExecution": lambda t: t.device.poison_execution(7, pjrt.AbortedError("x")),
    "ExecuteContext_Create": lambda t: t.client.create_execute_context(),
    "Executable_DeserializeAndLoad": lambda t: t.client.deserialize(b"x"),
    "Executable_GetCompileOptions": lambda t: t.executable.compile_options(),
    "Executable_GetCompiledMemoryStats": lambda t: t.executable.memory_stats(),
    "Executable_GetCostAnalysis": lambda t: t.executable.cost_analysis(),
    "Executable_Name": lambda t: t.executable.name,
    "Executable_NumPartitions": lambda t: t.executable.num_partitions,
    "Executable_NumReplicas": lambda t: t.executable.num_replicas,
    "Executable_OptimizedProgram": lambda t: t.executable.optimized_program(),
    "Executable_OutputDimensions": lambda t: t.executable.output_shapes,
    "Executable_OutputElementTypes": lambda t: t.executable.output_element_types,
    "Executable_OutputMemoryKinds": lambda t: t.executable.output_memory_kinds,
    "Executable_ParameterMemoryKinds": lambda t: t.executable.parameter_memory_kinds,
    "Executable_Serialize": lambda t: t.executable.serialize(),
    "Executable_SizeOfGeneratedCodeInBytes": lambda t: t.executable.size_of_generated_code,
    "LoadedExecutable_AddressableDevices": lambda t: t.loaded.addressable_devices,
    "LoadedExecutable_Delete": lambda t: t.loaded.delete(),
    "LoadedExecutable_Execute": lambda t: t.loaded.execute_sharded([t.buffer, t.filled], t.device),
    "LoadedExecutable_GetDeviceAssignment": lambda t: t.loaded.device_assignment,
    "LoadedExecutable_GetExecutable": lambda t: t.client.compile(t.adder),
    "LoadedExecutable_IsDeleted": lambda t: t.loaded.is_deleted,
    "Memory_AddressableByDevices": lambda t: t.memory.devices,
    "Memory_DebugString": lambda t: t.memory.debug_string,
    "Memory_Kind_Id": lambda t: t.memory.kind_id,
    "TopologyDescription_Attributes": lambda t: t.topology.attributes,
    "TopologyDescription_Create": lambda t: t.plugin.topology("2x2"),
    "TopologyDescription_Deserialize": lambda t: t.plugin.deserialize_topology(b"x"),
    "TopologyDescription_Fingerprint": lambda t: t.topology.fingerprint(),
    "TopologyDescription_GetDeviceDescriptions": lambda t: t.topology.device_descriptions,
    "TopologyDescription_GetMemorySpaceKindIds": lambda t: t.topology.memory_space_kind_ids,
    "TopologyDescription_MakeCanonicalShapeForMemorySpace": lambda t: t.topology.make_canonical_shape(
        pjrt.ElementType.F32, (4,), memory_space_kind_id=0
    ),
    "TopologyDescription_PlatformVersion": lambda t: t.topology.platform_version,
    "TopologyDescription_Serialize": lambda t: t.topology.serialize(),
}

# A code for each function, so that every code is met and every function fails; all codes for a few functions below.
PAIRS = [(name, CODES[index % len(CODES)]) for index, name in enumerate(CALLS)]


def fails_with(control: Control, things: Things, function: str, code: pjrt.StatusCode) -> None:
    """Checks one function's failure: the class, code, message and payload of the error."""
    control.fault_payload("type.test/why", "because")
    control.fault(function, int(code), f"{function} has no luck")
    try:
        with pytest.raises(pjrt.PjrtError) as caught:
            CALLS[function](things)
    finally:
        control.clear()
    assert caught.value.code is code
    assert f"{function} has no luck" in caught.value.message
    assert caught.value.payloads["type.test/why"] == b"because"
    assert type(caught.value) is type(pjrt.PjrtError.of(int(code), ""))


@pytest.mark.parametrize(("function", "code"), PAIRS, ids=[name for name, _ in PAIRS])
def test_a_function_that_fails(
    plugin: pjrt.Plugin,
    client: Client,
    adder: pjrt.Program,
    tiny_control: Control,
    function: str,
    code: pjrt.StatusCode,
) -> None:
    if code is pjrt.StatusCode.UNIMPLEMENTED and function == "Buffer_GetMemoryLayout":
        code = pjrt.StatusCode.INTERNAL  # the Layouts extension is asked then
    things = Things(plugin, client, adder)
    fails_with(tiny_control, things, function, code)
    del things
    tiny_control.collect()
    wait_until(lambda: tiny_control.live("error") == 0, "the end of all errors")


@pytest.mark.parametrize("code", CODES, ids=[code.name for code in CODES])
def test_every_code(
    plugin: pjrt.Plugin, client: Client, adder: pjrt.Program, tiny_control: Control, code: pjrt.StatusCode
) -> None:
    things = Things(plugin, client, adder)
    for function in (
        "LoadedExecutable_Execute",
        "Client_Compile",
        "Buffer_ToHostBuffer",
        "Client_BufferFromHostBuffer",
    ):
        fails_with(tiny_control, things, function, code)
    run = TinyProgram("failing")
    run.do("payload", "type.test/why", "because")
    run.do("fail", int(code), "it was told to")
    failing = client.compile(pjrt.Program(run.result(run.let("fill", "f32[4]", 1)).code, format="tiny"))
    (out,) = failing()
    for asked in (out.ready().exception(), out.to_host().exception()):
        assert asked is not None
        assert asked.code is code
        assert "it was told to" in asked.message
        assert asked.payloads["type.test/why"] == b"because"


def test_an_event_that_fails_later(client: Client, tiny_control: Control) -> None:
    tiny_control.event_fault("Buffer_ToHostBuffer", 15, "lost on the way")
    with pytest.raises(pjrt.DataLossError, match="lost on the way"):
        client.buffer_from_host(X).to_host().result()


def test_an_unknown_code_is_told_as_it_is(client: Client, tiny_control: Control) -> None:
    tiny_control.fault("Buffer_ReadyEvent", 77, "odd")
    with pytest.raises(pjrt.UnknownError, match=r"odd.*77"):
        client.buffer_from_host(X).ready()


def test_an_execution_whose_argument_is_gone(client: Client, adder: pjrt.Program) -> None:
    executable = client.compile(adder)
    x, y = client.buffer_from_host(X), client.buffer_from_host(X)
    y.delete()
    with pytest.raises(pjrt.FailedPreconditionError, match="argument 1 of device 0 was deleted"):
        executable.execute_sharded([x, y], client.devices[0])


@pytest.mark.parametrize(
    "use",
    [
        lambda b: b.to_host(),
        lambda b: b.copy_to(b.client.devices[1]),
        lambda b: b.copy_raw_to_host(bytearray(16)),
        lambda b: b.external_reference(),
        lambda b: b.donate_with_control_dependency(pjrt.Future.completed(None)),
    ],
    ids=["to_host", "copy_to", "copy_raw_to_host", "external_reference", "donate"],
)
def test_a_use_after_delete(client: Client, use: Callable[[pjrt.Buffer], Any]) -> None:
    buffer = client.buffer_from_host(X)
    buffer.delete()
    buffer.delete()
    assert buffer.is_deleted
    assert buffer.shape == (4,)
    with pytest.raises(pjrt.FailedPreconditionError):
        _settled(use(buffer))


def _settled(found: Any) -> Any:
    """The value of a future; anything else as it is."""
    return found.result() if isinstance(found, pjrt.Future) else found


def test_out_of_memory_tells_what_the_allocators_say(plugin: pjrt.Plugin) -> None:
    with plugin.client(num_devices=1, bytes_limit=1 << 20) as client:
        kept = client.buffer_from_host(np.zeros(1 << 19, np.uint8))
        with pytest.raises(pjrt.ResourceExhaustedError) as caught:
            client.buffer_from_host(np.zeros(1 << 20, np.uint8))
        assert b'"bytes_limit": 1048576' in caught.value.payloads["pjrt.allocator_stats"]
        assert b'"bytes_in_use": 524288' in caught.value.payloads["pjrt.allocator_stats"]
        assert b'"bytes_limit": 1048576' in caught.value.payloads["pjrt.client_options"]
        assert isinstance(caught.value, MemoryError)
        del kept


def test_a_destroy_that_fails_is_reported_and_raises_nothing(
    client: Client, tiny_control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    gc.collect()
    buffers = tiny_control.live("buffer")  # of other tests, which share the library
    buffer = client.buffer_from_host(X)
    tiny_control.fault("Buffer_Destroy", 13, "stuck", count=1)
    del buffer
    assert [str(entry.exc_value) for entry in lost] == ["INTERNAL: stuck"]
    wait_until(lambda: tiny_control.live("buffer") <= buffers, "the end of the buffer")


def test_an_alias_that_cannot_be_fulfilled_is_not_tried_twice(tiny_copy: Callable[..., Control]) -> None:
    # In a copy: the fault strikes before the plugin takes the handle, which is then lost, as the ABI has it.
    control = tiny_copy()
    with pjrt.load_plugin(control.path).client() as client:
        alias, fulfillment = client.create_alias_buffer(SPEC)
        control.fault("Client_FulfillAliasBuffer", 10, "no luck", count=1)
        with pytest.raises(pjrt.AbortedError, match="no luck"):
            fulfillment.fulfill(client.buffer_from_host(X))
        with pytest.raises(pjrt.FailedPreconditionError, match="fulfilled already"):
            fulfillment.fulfill(client.buffer_from_host(X))
        assert not alias.ready().done()
