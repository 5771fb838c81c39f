"""Call every function of an exported table through the loader, and print the answer of each, as JSON.

The table that is loaded is a copy whose functions note that they were called, and go on to the exported ones.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bare import NAME, BareClient

import pjrt
from pjrt.api.loaded_executable import ExecuteOptions, RecvCallback

FACTS = json.loads((Path(__file__).parents[1] / "abi" / "data" / "pjrt_c_abi.json").read_text())
FUNCTIONS: list[str] = FACTS["api"]
HEADER = 40
"""The bytes of a PJRT_Api before its functions: struct_size, extension_start and the version."""

Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
X = np.zeros(2, np.float32)
SPEC = pjrt.ShapeSpec((2,), pjrt.ElementType.F32)


class Noted:
    """A copy of a table that notes which functions are called."""

    def __init__(self, address: int) -> None:
        size = HEADER + 8 * len(FUNCTIONS)
        self._memory = ctypes.create_string_buffer(ctypes.string_at(address, size), size)
        self._kept: list[Any] = []
        self.called: set[str] = set()
        slots = (ctypes.c_void_p * len(FUNCTIONS)).from_buffer(self._memory, HEADER)
        for index, name in enumerate(FUNCTIONS):
            slots[index] = self._noting(name, Function(slots[index]))

    @property
    def capsule(self) -> Any:
        """The table as ``load_capsule`` takes it."""
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._kept.append(name := b"pjrt_c_api")
        return new(ctypes.addressof(self._memory), name, None)

    def call(self, name: str, arguments: Arguments) -> None:
        """Call a function that no Python name reaches.

        Raises:
            PjrtError: the function returned an error; it has the same code.
        """
        error = self._function(name)(arguments.address)
        if error:
            code = Arguments("PJRT_Error_GetCode_Args", {"error": error})
            self._function("PJRT_Error_GetCode")(code.address)
            raise pjrt.PjrtError.of(pjrt.StatusCode(code["code"] & 0xFFFFFFFF), f"the answer of {name}")

    def _function(self, name: str) -> Any:
        slots = (ctypes.c_void_p * len(FUNCTIONS)).from_buffer(self._memory, HEADER)
        return Function(slots[FUNCTIONS.index(name)])

    def _noting(self, name: str, original: Any) -> int:
        def note(arguments: int) -> Any:
            self.called.add(name)
            return original(arguments)

        self._kept.append(made := Function(note))
        return ctypes.cast(made, ctypes.c_void_p).value or 0


class Arguments:
    """An argument struct whose fields are all of eight bytes, or of four at its end."""

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self._fields = [field for field, *_ in FACTS["structs"][name]]
        self._values = (ctypes.c_uint64 * len(self._fields))()
        self._values[0] = 8 * len(self._fields)
        for field, value in fields.items():
            self._values[self._fields.index(field)] = value
        self.address = ctypes.addressof(self._values)

    def __getitem__(self, field: str) -> int:
        return self._values[self._fields.index(field)]


def outcome(call: Callable[[], object]) -> str:
    """Return ``works``, or the error."""
    try:
        call()
    except pjrt.PjrtError as error:
        return f"{error.code.name}: {error.message}"
    return "works"


class Caller:
    """Calls of the functions, by what reaches them in Python; of one client after the other."""

    def __init__(self, noted: Noted, made: list[BareClient]) -> None:
        self.noted = noted
        self.made = made
        self.plugin = pjrt.capi.load_capsule(noted.capsule, NAME)

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return the call that reaches each function: on a client that returns nothing, and on one that returns hollow
        objects."""
        client = self.plugin.client()
        device, space, topology = client.devices[0], client.memory_spaces[0], client.topology
        executable = client.compile("func.func @main() { return }")
        buffer, inner = client.buffer_from_host(X), executable.executable
        future = buffer.ready()
        generous = self.plugin.client(generous=True)
        transfers = generous.create_buffers_for_async_host_to_device([SPEC] * 3)
        alias = generous.create_alias_buffer(SPEC)[1]
        streams: list[Any] = []
        received = threading.Event()
        memory = bytearray(8)
        give = RecvCallback(1, lambda stream: (streams.append(stream), received.set()))
        options = ExecuteOptions(recv_callbacks=[[give]])
        outcome(lambda: generous.compile("func.func @main() { return }").execute([[]], options))
        assert received.wait(60)
        self.made[1].pending.set_result(None)
        event = Arguments("PJRT_Event_Create_Args", {})

        def drop(make: Callable[[], object]) -> Callable[[], object]:
            return lambda: [make()].clear()

        def settle() -> None:
            future.add_done_callback(lambda _: None)
            self.made[0].pending.set_result(None)
            assert future.result(60) is None
            assert future.exception() is None

        def on_event(name: str, **more: int) -> Callable[[], object]:
            """Return the calls of the functions for callers that make events, and of the one that waits in C."""
            return lambda: self.noted.call(name, Arguments(f"{name}_Args", {"event": event["event"], **more}))

        def failing() -> None:
            with pytest.raises(pjrt.NotFoundError) as caught:
                client.lookup_device(7)
            assert (caught.value.code, dict(caught.value.payloads)) == (pjrt.StatusCode.NOT_FOUND, {})

        return {
            "Error_Destroy": failing,
            "Error_Message": failing,
            "Error_GetCode": failing,
            "Error_ForEachPayload": failing,
            "Plugin_Initialize": lambda: self.plugin.name,
            "Plugin_Attributes": lambda: self.plugin.attributes,
            "Event_IsReady": lambda: future.done(),
            "Event_OnReady": settle,
            "Event_Create": lambda: self.noted.call("PJRT_Event_Create", event),
            "Event_Set": on_event("PJRT_Event_Set", error_code=0),
            "Event_Await": on_event("PJRT_Event_Await"),
            "Event_Error": on_event("PJRT_Event_Error"),
            "Event_Destroy": on_event("PJRT_Event_Destroy"),
            "Client_Create": lambda: client,
            "Client_PlatformName": lambda: client.platform_name,
            "Client_ProcessIndex": lambda: client.process_index,
            "Client_PlatformVersion": lambda: client.platform_version,
            "Client_Devices": lambda: client.devices,
            "Client_AddressableDevices": lambda: client.addressable_devices,
            "Client_LookupDevice": lambda: client.lookup_device(0),
            "Client_LookupAddressableDevice": lambda: client.lookup_addressable_device(0),
            "Client_AddressableMemories": lambda: client.memory_spaces,
            "Client_Compile": lambda: executable,
            "Client_DefaultDeviceAssignment": lambda: client.default_device_assignment(1, 1),
            "Client_BufferFromHostBuffer": lambda: buffer,
            "Client_TopologyDescription": lambda: topology,
            "Client_CreateViewOfDeviceBuffer": lambda: client.create_view_of_device_buffer(64, SPEC),
            "Client_CreateBuffersForAsyncHostToDevice": lambda: client.create_buffers_for_async_host_to_device([SPEC]),
            "Client_DmaMap": lambda: client.dma_map(bytearray(8)),
            "Client_DmaUnmap": lambda: [generous.dma_map(memory), generous.dma_unmap(memory)],
            "Client_CreateUninitializedBuffer": lambda: client.create_uninitialized_buffer(SPEC),
            "Client_UpdateGlobalProcessInfo": lambda: client.update_global_process_info([]),
            "Client_CreateAliasBuffer": lambda: client.create_alias_buffer(SPEC),
            "Client_FulfillAliasBuffer": lambda: alias.fulfill(generous.buffer_from_host(X)),
            "Client_CreateErrorBuffer": lambda: client.create_error_buffer(pjrt.InternalError("x"), SPEC),
            "Client_Load": lambda: client.load(inner),
            "DeviceDescription_Id": lambda: device.description.id,
            "DeviceDescription_ProcessIndex": lambda: device.description.process_index,
            "DeviceDescription_Attributes": lambda: device.description.attributes,
            "DeviceDescription_Kind": lambda: device.description.kind,
            "DeviceDescription_DebugString": lambda: device.description.debug_string,
            "DeviceDescription_ToString": lambda: str(device.description),
            "Device_GetDescription": lambda: device.description,
            "Device_IsAddressable": lambda: device.is_addressable,
            "Device_LocalHardwareId": lambda: device.local_hardware_id,
            "Device_AddressableMemories": lambda: device.memory_spaces,
            "Device_DefaultMemory": lambda: device.default_memory_space,
            "Device_MemoryStats": lambda: device.memory_stats(),
            "Device_PoisonExecution": lambda: device.poison_execution(1, pjrt.InternalError("x")),
            "Device_CreateAsyncTrackingEvent": lambda: device.create_async_tracking_event("x"),
            "Device_GetAttributes": lambda: device.attributes,
            "Device_ClearMemoryStats": lambda: device.clear_memory_stats(),
            "AsyncTrackingEvent_Destroy": lambda: generous.devices[0].create_async_tracking_event("x").close(),
            "Memory_Id": lambda: space.id,
            "Memory_Kind": lambda: space.kind,
            "Memory_DebugString": lambda: space.debug_string,
            "Memory_ToString": lambda: str(space),
            "Memory_AddressableByDevices": lambda: space.devices,
            "Memory_Kind_Id": lambda: space.kind_id,
            "Executable_Name": lambda: inner.name,
            "Executable_NumReplicas": lambda: inner.num_replicas,
            "Executable_NumPartitions": lambda: inner.num_partitions,
            "Executable_NumOutputs": lambda: inner.num_outputs,
            "Executable_SizeOfGeneratedCodeInBytes": lambda: inner.size_of_generated_code,
            "Executable_GetCostAnalysis": lambda: inner.cost_analysis(),
            "Executable_OutputMemoryKinds": lambda: inner.output_memory_kinds,
            "Executable_OptimizedProgram": lambda: inner.optimized_program(),
            "Executable_Serialize": lambda: inner.serialize(),
            "Executable_OutputElementTypes": lambda: inner.output_element_types,
            "Executable_OutputDimensions": lambda: inner.output_shapes,
            "Executable_Fingerprint": lambda: inner.fingerprint(),
            "Executable_GetCompiledMemoryStats": lambda: inner.memory_stats(),
            "Executable_GetCompileOptions": lambda: inner.compile_options(),
            "Executable_ParameterMemoryKinds": lambda: inner.parameter_memory_kinds,
            "Executable_DeserializeAndLoad": lambda: client.deserialize(inner.serialize()),
            "Executable_Destroy": drop(lambda: client.compile("func.func @main() { return }").executable),
            "LoadedExecutable_Destroy": drop(lambda: client.compile("func.func @main() { return }")),
            "LoadedExecutable_GetExecutable": lambda: executable.executable,
            "LoadedExecutable_AddressableDevices": lambda: executable.addressable_devices,
            "LoadedExecutable_Delete": lambda: client.compile("func.func @main() { return }").delete(),
            "LoadedExecutable_IsDeleted": lambda: executable.is_deleted,
            "LoadedExecutable_Execute": lambda: executable.execute([[]]),
            "LoadedExecutable_Fingerprint": lambda: executable.fingerprint(),
            "LoadedExecutable_GetDeviceAssignment": lambda: executable.device_assignment,
            "LoadedExecutable_AddressableDeviceLogicalIds": lambda: executable.addressable_device_logical_ids,
            "Buffer_Destroy": drop(lambda: client.buffer_from_host(X)),
            "Buffer_ElementType": lambda: buffer.element_type,
            "Buffer_Dimensions": lambda: buffer.shape,
            "Buffer_UnpaddedDimensions": lambda: buffer.unpadded_shape,
            "Buffer_DynamicDimensionIndices": lambda: buffer.dynamic_dimensions,
            "Buffer_GetMemoryLayout": lambda: buffer.layout,
            "Buffer_OnDeviceSizeInBytes": lambda: buffer.on_device_size,
            "Buffer_Device": lambda: buffer.device,
            "Buffer_Memory": lambda: buffer.memory_space,
            "Buffer_Delete": lambda: client.buffer_from_host(X).delete(),
            "Buffer_IsDeleted": lambda: buffer.is_deleted,
            "Buffer_CopyToDevice": lambda: buffer.copy_to(device),
            "Buffer_CopyToMemory": lambda: buffer.copy_to(space),
            "Buffer_ToHostBuffer": lambda: buffer.to_host(),
            "Buffer_IsOnCpu": lambda: buffer.is_on_cpu,
            "Buffer_ReadyEvent": lambda: future,
            "Buffer_UnsafePointer": lambda: buffer.unsafe_pointer(),
            "Buffer_IncreaseExternalReferenceCount": lambda: buffer.external_reference(),
            "Buffer_OpaqueDeviceMemoryDataPointer": lambda: generous.buffer_from_host(X).external_reference(),
            "Buffer_DecreaseExternalReferenceCount": drop(lambda: generous.buffer_from_host(X).external_reference()),
            "Buffer_CopyRawToHost": lambda: buffer.copy_raw_to_host(bytearray(8)),
            "Buffer_CopyRawToHostFuture": lambda: buffer.copy_raw_to_host_future(pjrt.Future.completed(bytearray(8))),
            "Buffer_DonateWithControlDependency": lambda: buffer.donate_with_control_dependency(
                pjrt.Future.completed(None)
            ),
            "Buffer_Bitcast": lambda: client.buffer_from_host(X).bitcast(pjrt.ElementType.S32, (2,)),
            "CopyToDeviceStream_AddChunk": lambda: streams[0].add_chunk(bytes(4)),
            "CopyToDeviceStream_TotalBytes": lambda: streams[0].total_bytes,
            "CopyToDeviceStream_GranuleSize": lambda: streams[0].granule_size,
            "CopyToDeviceStream_CurrentBytes": lambda: streams[0].current_bytes,
            "CopyToDeviceStream_Destroy": streams.clear,
            "ExecuteContext_Create": lambda: client.create_execute_context(),
            "ExecuteContext_Destroy": lambda: generous.create_execute_context().close(),
            "TopologyDescription_Create": lambda: self.plugin.topology("x"),
            "TopologyDescription_Deserialize": lambda: self.plugin.deserialize_topology(topology.serialize()),
            "TopologyDescription_Destroy": drop(lambda: self.plugin.topology("")),
            "TopologyDescription_PlatformName": lambda: topology.platform_name,
            "TopologyDescription_PlatformVersion": lambda: topology.platform_version,
            "TopologyDescription_GetDeviceDescriptions": lambda: topology.device_descriptions,
            "TopologyDescription_Serialize": lambda: topology.serialize(),
            "TopologyDescription_Attributes": lambda: topology.attributes,
            "TopologyDescription_Fingerprint": lambda: topology.fingerprint(),
            "TopologyDescription_GetMemorySpaceKindIds": lambda: topology.memory_space_kind_ids,
            "TopologyDescription_MakeCanonicalShapeForMemorySpace": lambda: topology.make_canonical_shape(
                pjrt.ElementType.F32, (2,), memory_space_kind_id=0
            ),
            "Compile": lambda: topology.compile("func.func @main() { return }"),
            "AsyncHostToDeviceTransferManager_Device": lambda: transfers.device,
            "AsyncHostToDeviceTransferManager_BufferCount": lambda: transfers.buffer_count,
            "AsyncHostToDeviceTransferManager_BufferSize": lambda: transfers.buffer_size(0),
            "AsyncHostToDeviceTransferManager_RetrieveBuffer": lambda: transfers.retrieve_buffer(0),
            "AsyncHostToDeviceTransferManager_TransferData": lambda: transfers.transfer_data(0, X),
            "AsyncHostToDeviceTransferManager_TransferLiteral": lambda: transfers.transfer_literal(1, X),
            "AsyncHostToDeviceTransferManager_SetBufferError": lambda: transfers.set_buffer_error(
                2, pjrt.InternalError("x")
            ),
            "AsyncHostToDeviceTransferManager_AddMetadata": lambda: transfers.add_metadata({}),
            "AsyncHostToDeviceTransferManager_Destroy": lambda: transfers.close(),
            "Client_Destroy": lambda: [client.close(), generous.close()],
        }


def main() -> None:
    """Call all functions; print for each whether it was called, and the outcome."""
    made: list[BareClient] = []

    def make(generous: bool = False) -> BareClient:
        made.append(BareClient(generous))
        return made[-1]

    noted = Noted(pjrt.export(make, name=NAME).address)
    answers = {f"PJRT_{name}": outcome(call) for name, call in Caller(noted, made).calls().items()}
    print(json.dumps({name: [name in noted.called, answers.get(name, "not tried")] for name in FUNCTIONS}))
    sys.stdout.flush()
    os._exit(0)  # the copy of the table is Python's, and must not be called when Python ends


if __name__ == "__main__":
    main()
