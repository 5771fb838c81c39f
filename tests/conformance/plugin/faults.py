"""A fault of the tiny plugin for each check: a function, and what is wrong with its results."""

from __future__ import annotations

from faulty_plugin import Change, WrongResult, counts, fails, later, returns, succeeds

from pjrt.capi import raw

OTHER = raw.Struct("PJRT_NamedValue", name=b"twice", type=1, value=1)
TWICE = lambda _: [OTHER, OTHER]  # noqa: E731
NOT_TEXT = b"\xff\xfe"
DESCRIPTION = "PJRT_DeviceDescription_"
TOPOLOGY = "PJRT_TopologyDescription_"
MANAGER = "PJRT_AsyncHostToDeviceTransferManager_"
ASSIGNMENT = "PJRT_Client_DefaultDeviceAssignment"
LOOKUP = "PJRT_Client_LookupDevice"
LOCAL = "PJRT_Client_LookupAddressableDevice"


def _lists_one_device_less(right: raw.Result, _: int) -> raw.Result:
    devices = list(right.fields["devices"] or ())
    return WrongResult(right, right.error, {**right.fields, "devices": devices[1:]})


def _writes_behind(right: raw.Result, _: int) -> raw.Result:
    return WrongResult(right, right.error, right.fields, b"\x07" * len(right.struct_bytes))


FAULTS: dict[str, tuple[str, Change]] = {
    "official.plugin_attributes": ("PJRT_Plugin_Attributes", returns(attributes=TWICE)),
    "official.error_to_status": ("PJRT_Plugin_Attributes", fails()),
    "official.platform_name": ("PJRT_Client_PlatformName", returns(platform_name=b"")),
    "official.client_process_index": ("PJRT_Client_ProcessIndex", returns(process_index=1)),
    "official.client_devices": (f"{DESCRIPTION}Id", returns(id=-1)),
    "official.client_addressable_devices": ("PJRT_Client_Devices", _lists_one_device_less),
    "official.lookup_device": (LOOKUP, fails("NOT_FOUND")),
    "official.lookup_addressable_device": ("PJRT_Device_LocalHardwareId", returns(local_hardware_id=3)),
    "official.lookup_device_negative_id": (LOOKUP, fails("NOT_FOUND")),
    "official.lookup_device_out_of_range_id": (LOOKUP, succeeds()),
    "official.get_default_device_assignment_nominal": (ASSIGNMENT, fails("INVALID_ARGUMENT")),
    "official.get_default_device_assignment_buffer_too_small": (ASSIGNMENT, fails("INVALID_ARGUMENT")),
    "official.device_id": (f"{DESCRIPTION}Id", returns(id=1)),
    "official.device_process_index": (f"{DESCRIPTION}ProcessIndex", returns(process_index=1)),
    "official.device_is_addressable": ("PJRT_Device_IsAddressable", returns(is_addressable=False)),
    "official.device_local_hardware_id": ("PJRT_Device_LocalHardwareId", returns(local_hardware_id=1)),
    "official.device_description_and_memory_descriptions": ("PJRT_MemoryDescription_Kind", returns(kind_id=0)),
    "official.compile_invalid_option": ("PJRT_Client_Compile", fails("INTERNAL")),
    "official.compile_invalid_program_format": ("PJRT_Client_Compile", fails("UNIMPLEMENTED")),
    "official.compile_with_shared_topology": ("PJRT_Compile", fails()),
    "official.compile_with_client": ("PJRT_Compile", returns(executable=0)),
    "official.buffer_transfer_immutable_until_transfer_completes": ("PJRT_Event_Await", fails()),
    "official.buffer_is_deleted": ("PJRT_Buffer_IsDeleted", returns(is_deleted=False)),
    "official.buffer_on_device_size_in_bytes": (
        "PJRT_Buffer_OnDeviceSizeInBytes", returns(on_device_size_in_bytes=0)
    ),
    "official.buffer_ready_event": ("PJRT_Event_IsReady", returns(is_ready=False)),
    "official.buffer_to_host_buffer_no_host_layout": ("PJRT_Event_Await", later(fails("DATA_LOSS"))),
    "official.buffer_increase_and_decrease_reference_count": (
        "PJRT_Buffer_DecreaseExternalReferenceCount", fails()
    ),
    "official.buffer_decrease_reference_count_returns_error": (
        "PJRT_Buffer_DecreaseExternalReferenceCount", fails("FAILED_PRECONDITION")
    ),
    "official.buffer_opaque_device_memory_data_pointer": (
        "PJRT_Buffer_OpaqueDeviceMemoryDataPointer", returns(device_memory_ptr=None)
    ),
    "official.gpu.create_view_of_device_buffer": ("PJRT_Client_CreateViewOfDeviceBuffer", fails()),
    "official.gpu.copy_raw_to_host": ("PJRT_Buffer_CopyRawToHost", fails()),
    "official.gpu.copy_raw_to_host_with_invalid_offset": ("PJRT_Buffer_CopyRawToHost", fails("OUT_OF_RANGE")),
    "official.gpu.get_compiled_memory_stats": (
        "PJRT_Executable_GetCompiledMemoryStats", returns(temp_size_in_bytes=-1)
    ),
    "official.gpu.get_num_outputs[add]": ("PJRT_Executable_NumOutputs", returns(num_outputs=2)),
    "official.gpu.get_device_assignment": (f"{DESCRIPTION}Id", returns(id=5)),
    "official.gpu.create_and_destroy_execute_context": ("PJRT_ExecuteContext_Create", returns(context=0)),
    "official.gpu.dma_map_and_unmap": ("PJRT_Client_DmaUnmap", fails("NOT_FOUND")),
    "official.gpu.create_and_set_event": ("PJRT_Event_IsReady", returns(is_ready=True)),
    "official.gpu.topology_get_default_layout": (
        "PJRT_Layouts_MemoryLayout_Serialize", returns(serialized_bytes=b"")
    ),
    "official.gpu.ffi_type_register": ("PJRT_FFI_Type_Register", returns(type_id=lambda number: number + 1)),
    "official.gpu.transfer_manager_set_buffer_error": (f"{MANAGER}BufferCount", returns(buffer_count=2)),
    "official.gpu.transfer_manager_transfer_raw_data": (f"{MANAGER}BufferSize", returns(buffer_size=4)),
    "client.destroy.order[first_first]": ("PJRT_Client_Destroy", fails()),
    "client.destroy.null": ("PJRT_Client_Destroy", fails("INVALID_ARGUMENT")),
    "client.create.again": ("PJRT_Client_Devices", later(returns(devices=None))),
    "client.create.in_threads": ("PJRT_Client_Create", later(fails())),
    "client.create.without_options": ("PJRT_Client_Create", later(fails(message=""))),
    "client.create.unknown_option[bool]": ("PJRT_Client_Create", later(fails("INVALID_ARGUMENT", ""))),
    "client.create.options_are_copied": ("PJRT_Client_Devices", fails()),
    "client.create.without_key_value_store[kv_put_callback]": ("PJRT_Client_Create", later(fails(message=""))),
    "client.lookup_device.each_id": (LOOKUP, returns(device=lambda device: device + 8)),
    "client.lookup_device.absent_id[-1]": (LOOKUP, succeeds()),
    "client.lookup_device.next_id": (LOOKUP, fails("OUT_OF_RANGE")),
    "client.lookup_device.same_pointer": (
        LOOKUP, lambda right, number: WrongResult(right, None, {"device": right.device + number})
    ),
    "client.lookup_addressable_device.each_id": (LOCAL, returns(addressable_device=0)),
    "client.lookup_addressable_device.absent_id[12345]": (LOCAL, fails("NOT_FOUND")),
    "client.getters.stable[PlatformVersion]": ("PJRT_Client_PlatformVersion", counts()),
    "client.getters.of_each_client": ("PJRT_Client_Devices", returns(devices=[1, 2])),
    "client.platform_name.text": ("PJRT_Client_PlatformName", returns(platform_name=NOT_TEXT)),
    "client.platform_version.text": ("PJRT_Client_PlatformVersion", returns(platform_version=NOT_TEXT)),
    "client.process_index.of_addressable_devices": ("PJRT_Client_ProcessIndex", returns(process_index=7)),
    "client.addressable_devices.agree_with_devices": (
        "PJRT_Device_IsAddressable", later(returns(is_addressable=False))
    ),
    "client.devices.null_free": ("PJRT_Device_GetDescription", returns(device_description=0)),
    "client.default_device_assignment.one_device": (ASSIGNMENT, returns(default_assignment=[99, 0])),
    "client.default_device_assignment.all_devices": (ASSIGNMENT, returns(default_assignment=[0, 0, 0])),
    "client.default_device_assignment.partitions": (ASSIGNMENT, fails("INVALID_ARGUMENT")),
    "client.default_device_assignment.larger_buffer": (ASSIGNMENT, returns(default_assignment=[0] * 9)),
    "client.default_device_assignment.too_small[3x5 in 14]": (ASSIGNMENT, fails("INVALID_ARGUMENT")),
    "client.default_device_assignment.overflow": (ASSIGNMENT, succeeds()),
    "client.default_device_assignment.not_positive[0x1]": (ASSIGNMENT, succeeds(default_assignment=[0] * 5)),
    "client.update_global_process_info.state[kError]": ("PJRT_Client_UpdateGlobalProcessInfo", fails()),
    "client.update_global_process_info.none": ("PJRT_Client_UpdateGlobalProcessInfo", fails()),
    "device.create_async_tracking_event.description[empty]": ("PJRT_Device_CreateAsyncTrackingEvent", fails()),
    "device.create_async_tracking_event.several": (
        "PJRT_Device_CreateAsyncTrackingEvent",
        lambda right, _: WrongResult(right, None, {"event": 64}),
    ),
    "device.poison_execution.unknown_launch": ("PJRT_Device_PoisonExecution", returns(poisoned=True)),
    "device.clear_memory_stats.peak": (
        "PJRT_Device_MemoryStats",
        returns(peak_bytes_in_use=1 << 30, peak_bytes_in_use_is_set=True, bytes_in_use=1 << 31),
    ),
    "device_description.getters.stable[Kind]": (f"{DESCRIPTION}Kind", counts()),
    "device.getters.stable[LocalHardwareId]": ("PJRT_Device_LocalHardwareId", counts()),
    "device_description.id.unique": (f"{DESCRIPTION}Id", returns(id=0)),
    "device_description.texts[ToString]": (f"{DESCRIPTION}ToString", returns(to_string=b"")),
    "device_description.debug_string.distinct": (f"{DESCRIPTION}DebugString", returns(debug_string=b"a device")),
    "device_description.kind.size": (f"{DESCRIPTION}Kind", returns(device_kind_size=0)),
    "device_description.attributes.types": (f"{DESCRIPTION}Attributes", returns(attributes=TWICE)),
    "device.get_attributes.types": ("PJRT_Device_GetAttributes", returns(attributes=TWICE)),
    "device.get_attributes.independent": ("PJRT_Device_GetAttributes", returns(attributes=[OTHER], num_attributes=1)),
    "device.local_hardware_id.unique": ("PJRT_Device_LocalHardwareId", returns(local_hardware_id=0)),
    "device.get_description.own": ("PJRT_Device_GetDescription", returns(device_description=64)),
    "device_description.coordinates": (
        f"{DESCRIPTION}Attributes",
        lambda right, number: WrongResult(
            right,
            None,
            {"attributes": [raw.Struct("PJRT_NamedValue", name=b"coords", type=2, value=[0] * (number + 1))]},
        ),
    ),
    "error.destroy.null": ("PJRT_Error_Destroy", fails()),
    "error.code.known": ("PJRT_Error_GetCode", returns(code=0)),
    "error.message.text": ("PJRT_Error_Message", returns(message=NOT_TEXT, message_size=2)),
    "error.lives_until_destroyed": (
        "PJRT_Error_GetCode", lambda right, number: WrongResult(right, None, {"code": number})
    ),
    "error.independent": ("PJRT_Error_Message", returns(message=b"")),
    "error.outlives_the_client": ("PJRT_Error_Message", returns(message=None)),
    "error.names_what_was_wrong": (LOOKUP, succeeds()),
    "error.in_threads": (LOOKUP, fails(message="")),
    "error.destroyed_in_another_thread": ("PJRT_Client_Devices", fails()),
    "error.for_each_payload.texts": ("PJRT_Error_ForEachPayload", fails()),
    "error.for_each_payload.user_arg": ("PJRT_Client_CreateErrorBuffer", fails()),
    "memory.getters.stable[Kind_Id]": ("PJRT_Memory_Kind_Id", counts()),
    "memory.texts[Kind]": ("PJRT_Memory_Kind", returns(kind=NOT_TEXT)),
    "memory.id.unique": ("PJRT_Memory_Id", returns(id=0)),
    "memory.debug_string.distinct": ("PJRT_Memory_DebugString", returns(debug_string=b"a memory")),
    "memory.kind_id.follows_kind": ("PJRT_Memory_Kind_Id", returns(kind_id=1)),
    "memory.devices.both_directions": ("PJRT_Memory_AddressableByDevices", _lists_one_device_less),
    "memory.devices.not_empty": ("PJRT_Memory_AddressableByDevices", returns(devices=None)),
    "client.addressable_memories.of_devices": (
        "PJRT_Client_AddressableMemories", returns(addressable_memories=lambda memories: memories[1:])
    ),
    "device.default_memory.is_addressable": ("PJRT_Device_DefaultMemory", returns(memory=64)),
    "memory_descriptions.agree_with_memories": ("PJRT_MemoryDescription_Kind", returns(kind_id=lambda kind: kind + 1)),
    "plugin.initialize.again": ("PJRT_Plugin_Initialize", later(fails("ALREADY_EXISTS"))),
    "plugin.initialize.in_a_thread": ("PJRT_Plugin_Initialize", fails()),
    "plugin.attributes.types": (
        "PJRT_Plugin_Attributes",
        returns(attributes=[raw.Struct("PJRT_NamedValue", name=b"stablehlo_current_version", type=1, value=1)]),
    ),
    "plugin.attributes.stablehlo_versions": (
        "PJRT_Plugin_Attributes",
        returns(
            attributes=[
                raw.Struct("PJRT_NamedValue", name=b"stablehlo_current_version", type=2, value=[1, 0, 0]),
                raw.Struct("PJRT_NamedValue", name=b"stablehlo_minimum_version", type=2, value=[1, 2, 0]),
            ]
        ),
    ),
    "plugin.attributes.lifetime": ("PJRT_Plugin_Attributes", returns(attributes=[OTHER], num_attributes=1)),
    "struct_size.too_short[PJRT_Client_PlatformName]": ("PJRT_Client_PlatformName", _writes_behind),
    "struct_size.too_short[PJRT_Event_Await]": ("PJRT_Event_Await", succeeds()),
    "struct_size.too_short[PJRT_Error_Message]": ("PJRT_Error_Message", _writes_behind),
    "struct_size.right_and_longer[PJRT_Client_Devices]": ("PJRT_Client_Devices", later(fails("INVALID_ARGUMENT"))),
    "struct_size.of_an_older_caller[PJRT_Device_MemoryStats]": ("PJRT_Device_MemoryStats", _writes_behind),
    "struct_size.of_programs": ("PJRT_Client_Compile", succeeds()),
    "topology.getters.stable[Attributes]": (f"{TOPOLOGY}Attributes", counts()),
    "topology.of_client.platform": (f"{TOPOLOGY}PlatformName", returns(platform_name=b"other")),
    "topology.of_client.platform_version": (f"{TOPOLOGY}PlatformVersion", returns(platform_version=NOT_TEXT)),
    "topology.of_client.devices": (f"{TOPOLOGY}GetDeviceDescriptions", returns(descriptions=lambda each: each[:1])),
    "topology.of_client.descriptions": (f"{DESCRIPTION}Attributes", returns(attributes=TWICE)),
    "topology.of_client.same": (
        "PJRT_Client_TopologyDescription",
        lambda right, number: WrongResult(right, None, {"topology": right.topology + number}),
    ),
    "topology.of_client.goes_with_it": ("PJRT_Client_Destroy", fails()),
    "topology.attributes.types": (f"{TOPOLOGY}Attributes", returns(attributes=TWICE)),
    "topology.destroy.null": (f"{TOPOLOGY}Destroy", fails()),
    "topology.create.by_name": (f"{TOPOLOGY}GetDeviceDescriptions", returns(descriptions=None)),
    "topology.create.several": (
        f"{DESCRIPTION}Id", lambda right, number: WrongResult(right, None, {"id": number})
    ),
    "topology.create.without_client": (
        f"{DESCRIPTION}Id", lambda right, number: WrongResult(right, None, {"id": number})
    ),
    "topology.create.unknown_name": (f"{TOPOLOGY}Create", fails(message="")),
    "topology.create.unknown_option": (f"{TOPOLOGY}Create", fails(message="")),
    "topology.serialize.bytes": (
        f"{TOPOLOGY}Serialize",
        lambda right, number: WrongResult(right, None, {**right.fields, "serialized_bytes": b"%d" % number}),
    ),
    "topology.serialize.independent": (f"{TOPOLOGY}Serialize", returns(serialized_bytes=b"?")),
    "topology.deserialize.round_trip": (f"{TOPOLOGY}GetDeviceDescriptions", later(returns(descriptions=None))),
    "topology.deserialize.damaged[noise]": (f"{TOPOLOGY}Deserialize", succeeds()),
    "topology.fingerprint.same": (
        f"{TOPOLOGY}Fingerprint", lambda right, number: WrongResult(right, None, {"fingerprint": number})
    ),
    "topology.memory_space_kind_ids.agree": (f"{TOPOLOGY}GetMemorySpaceKindIds", returns(memory_space_kind_ids=[9])),
    "topology.canonical_shape.each_kind": (
        f"{TOPOLOGY}MakeCanonicalShapeForMemorySpace", returns(serialized_shape=b"")
    ),
}  # fmt: skip
"""For each check a function, and what is wrong with it."""
