"""The messages of the IFRT proxy protocol, stated by their field numbers, as classes: ``wire.InitRequest``.

An enumeration is a number here, a map is a list of keys and values, and a message that another package of ours reads
is its bytes: all three have the same serialized form as in the protocol's own schema.

The tables state ``message: {field: (number, type) or (number, type, oneof)}``; a type in brackets is repeated.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from google.protobuf.message import DecodeError

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.protobuf import FieldRow, MessageTable, message_classes

# The messages inside others: types, shapes, device lists, shardings, layouts, statuses, attributes.

VALUES: MessageTable = {
    "Any": {"type_url": (1, "string"), "value": (2, "bytes")},
    "StatusProto": {"code": (1, "int32"), "message": (2, "string"), "payload": (3, "[StatusProto.PayloadEntry]")},
    "StatusProto.PayloadEntry": {"key": (1, "string"), "value": (2, "bytes")},
    "Serialized": {"type_name": (1, "string"), "data": (2, "bytes")},
    "DTypeProto": {"version_number": (2, "int32"), "kind": (1, "int32")},
    "ShapeProto": {"version_number": (2, "int32"), "dims": (1, "[int64]")},
    "BoundedDynamicShapeTagProto": {"version_number": (2, "int32"), "is_dynamic_dims": (1, "[bool]")},
    "DynamicShapeProto": {
        "version_number": (3, "int32"),
        "shape": (1, "ShapeProto"),
        "bounded_dynamic_shape_tag": (2, "BoundedDynamicShapeTagProto", "tag"),
    },
    "DeviceListProto": {"version_number": (2, "int32"), "device_ids": (1, "[int32]")},
    "LayoutProto": {"serialized_layout": (1, "Serialized")},
    "ShardingProto": {"serialized_sharding": (1, "Serialized")},
    "ArraySpecProto": {
        "version_number": (5, "int32"),
        "dtype": (1, "DTypeProto"),
        "shape": (2, "ShapeProto"),
        "sharding": (3, "ShardingProto"),
        "layout": (4, "optional bytes"),
    },
    "AttributeMapProto": {"version_number": (2, "int32"), "attributes": (1, "[AttributeMapProto.AttributesEntry]")},
    "AttributeMapProto.Value": {
        "string_value": (1, "bytes", "value"),
        "bool_value": (2, "bool", "value"),
        "int64_value": (3, "sfixed64", "value"),
        "int64_list_value": (4, "AttributeMapProto.Value.Int64List", "value"),
        "float_value": (5, "float", "value"),
    },
    "AttributeMapProto.Value.Int64List": {"elements": (1, "[sfixed64]")},
    "AttributeMapProto.AttributesEntry": {"key": (1, "string"), "value": (2, "AttributeMapProto.Value")},
    "ByteStrides": {"strides": (1, "[int64]")},
    "StringArrayContents": {"strings": (1, "[bytes]")},
    "DeviceAssignmentProto": {
        "replica_count": (1, "int32"),
        "computation_count": (2, "int32"),
        "computation_devices": (3, "[DeviceAssignmentProto.ComputationDevice]"),
    },
    "DeviceAssignmentProto.ComputationDevice": {"replica_device_ids": (1, "[int64]")},
    "RemapPlanProto": {
        "version_number": (4, "int32"),
        "input_specs": (1, "[ArraySpecProto]"),
        "output_specs": (2, "[ArraySpecProto]"),
        "mappings": (3, "[RemapPlanProto.MappingProto]"),
        "input_devices_for_output": (5, "[RemapPlanProto.InputDevicesForOutput]"),
    },
    "RemapPlanProto.MappingProto": {
        "in_array": (1, "int32"),
        "out_array": (2, "int32"),
        "from_start": (3, "[int64]"),
        "from_end": (4, "[int64]"),
        "from_step": (5, "[int64]"),
        "to_start": (6, "[int64]"),
        "to_end": (7, "[int64]"),
        "to_step": (8, "[int64]"),
    },
    "RemapPlanProto.InputDevices": {"in_array": (1, "int32"), "device_list": (2, "DeviceListProto")},
    "RemapPlanProto.InputDevicesForOutput": {
        "out_array": (1, "int32"),
        "input_devices": (2, "[RemapPlanProto.InputDevices]"),
    },
    "SingleDeviceShardingProto": {
        "version_number": (3, "int32"),
        "device_id": (1, "int32"),
        "memory_kind": (2, "optional string"),
    },
    "OpaqueShardingProto": {
        "version_number": (3, "int32"),
        "devices": (1, "DeviceListProto"),
        "memory_kind": (2, "optional string"),
    },
    "ConcreteShardingProto": {
        "version_number": (7, "int32"),
        "devices": (1, "DeviceListProto"),
        "memory_kind": (4, "optional string"),
        "shape": (2, "ShapeProto", "shape_or_dynamic_shape"),
        "dynamic_shape": (5, "DynamicShapeProto", "shape_or_dynamic_shape"),
        "shard_shapes": (3, "[ShapeProto]"),
        "shard_dynamic_shapes": (6, "[DynamicShapeProto]"),
    },
    "ConcreteEvenShardingProto": {
        "version_number": (6, "int32"),
        "devices": (1, "DeviceListProto"),
        "memory_kind": (4, "optional string"),
        "shape": (2, "ShapeProto"),
        "shard_shape": (3, "ShapeProto"),
        "is_fully_replicated": (5, "bool"),
    },
    "ShardingParamProto": {
        "version_number": (4, "int32"),
        "dim_shards": (1, "[int64]"),
        "permutation": (2, "[int32]"),
        "axis_sizes": (3, "[int32]"),
        "unreduced_axes": (5, "[int32]"),
    },
    "ShardingParamShardingProto": {
        "version_number": (4, "int32"),
        "sharding_param": (1, "ShardingParamProto"),
        "devices": (2, "DeviceListProto"),
        "memory_kind": (3, "optional string"),
    },
    "HloShardingProto": {
        "version_number": (4, "int32"),
        "devices": (1, "DeviceListProto"),
        "memory_kind": (3, "optional string"),
        "xla_op_sharding": (2, "bytes"),
    },
    "XlaLayoutProto": {"minor_to_major": (1, "[int64]"), "tiles": (6, "[TileProto]")},
    "TileProto": {"dimensions": (1, "[int64]")},
    "CompactLayoutProto": {"version_number": (2, "int32"), "major_to_minor": (1, "[int32]")},
    "PjRtLayoutProto": {"version_number": (2, "int32"), "xla_layout": (1, "XlaLayoutProto")},
}


# The messages that are this package's own: calls of functions on the server, saved executables, and programs.

OWN_KINDS = {
    "call_function": 1000,
    "serialize_executable": 1001,
    "load_executable": 1002,
    "optimized_program": 1003,
}
"""The kinds of requests that the IFRT proxy protocol lacks, with the numbers of their fields."""

OWN_FIELDS: MessageTable = {
    "MakeArrayFromHostBufferRequest": {"inline": (1000, "optional bytes")},
    "CopyToHostBufferRequest": {"most_inline": (1000, "int64")},
    "CopyToHostBufferResponse": {"inline": (1000, "optional bytes")},
}
"""The fields that messages of the protocol have here beyond its own: the bytes of small arrays."""

EXTENSIONS: MessageTable = {
    "CallFunctionRequest": {
        "function": (1, "bytes"),
        "array_handles": (2, "[fixed64]"),
        "result_specs": (3, "[ArraySpecProto]"),
        "result_array_handles": (4, "[fixed64]"),
        "worker": (5, "int64"),
    },
    "CallFunctionResponse": {"result": (1, "bytes")},
    "SerializeExecutableRequest": {"loaded_executable_handle": (1, "fixed64")},
    "SerializeExecutableResponse": {"serialized_executable": (1, "bytes")},
    # A client keeps this message as the saved executable.
    "LoadExecutableRequest": {
        "program": (1, "Serialized"),
        "compile_options": (2, "Serialized"),
        "serialized_executable": (3, "bytes"),
    },
    "LoadExecutableResponse": {"compiled": (1, "CompileResponse")},
    # The protocol has the program as text, without what HLO text leaves out, such as the shardings that XLA notes.
    "OptimizedProgramRequest": {"loaded_executable_handle": (1, "fixed64")},
    "OptimizedProgramResponse": {"format": (1, "string"), "code": (2, "bytes")},
}


# The messages around each request and response, and those about the whole client (``ifrt_service.proto``).

KINDS = {
    "init": 2,
    "check_future": 3,
    "check_value_ready": 8,
    "make_array_from_host_buffer": 4,
    "make_arrays_from_host_buffer_shards": 25,
    "make_error_arrays": 26,
    "assemble_array_from_single_device_arrays": 5,
    "remap_arrays": 23,
    "bitcast_arrays": 34,
    "reshard_arrays": 33,
    "copy_to_host_buffer": 6,
    "disassemble_into_single_device_arrays": 7,
    "delete_array": 9,
    "copy_arrays": 24,
    "fully_replicated_shard": 20,
    "is_array_deleted": 11,
    "destruct_array": 12,
    "compile": 13,
    "loaded_executable_metadata": 14,
    "loaded_executable_execute": 15,
    "loaded_executable_fetch_execute_result": 32,
    "loaded_executable_cost_analysis": 28,
    "loaded_executable_human_readable_program_text": 29,
    "loaded_executable_delete": 16,
    "loaded_executable_is_deleted": 17,
    "loaded_executable_destruct": 18,
    "loaded_executable_mpmd_metadata": 30,
    "loaded_executable_mpmd_cost_analysis": 31,
    "loaded_host_callback_poll": 21,
    "loaded_host_callback_return": 22,
    "get_default_device_assignment": 19,
    "get_default_layout": 27,
}
"""The kinds of requests, with the number of their field in ``IfrtRequest`` and in ``IfrtResponse``."""


def _members(side: str) -> dict[str, FieldRow]:
    """Return the fields of all kinds: ``check_future`` has a ``check_future_request``, a ``CheckFutureRequest``."""
    return {
        f"{kind}_{side}": (number, f"{kind.title().replace('_', '')}{side.title()}", side)
        for kind, number in {**KINDS, **OWN_KINDS}.items()
    }


SESSION: MessageTable = {
    "IfrtProxyVersion": {"protocol_version": (1, "int32"), "ifrt_serdes_version_number": (2, "int32")},
    "IfrtRequest": {"request_metadata": (1, "RequestMetadata"), **_members("request")},
    "IfrtResponse": {"response_metadata": (1, "ResponseMetadata"), **_members("response")},
    "RequestMetadata": {"op_id": (1, "fixed64"), "user_context_id": (5, "fixed64"), "payloads": (4, "[Any]")},
    "ResponseMetadata": {
        "op_id": (1, "fixed64"),
        "status": (2, "StatusProto"),
        "seq_num": (3, "int64"),
        "destroyed_user_context_ids": (4, "[fixed64]"),
    },
    "InitRequest": {},
    "InitResponse": {
        "session_id": (8, "uint64"),
        "platform_name": (1, "string"),
        "platform_version": (2, "string"),
        "platform_id": (3, "uint64"),
        "process_index": (4, "uint64"),
        "runtime_type": (5, "string"),
        "all_devices": (6, "[InitResponse.Device]"),
        "primary_device_ids": (10, "[int32]"),
        "addressable_device_ids": (7, "[int32]"),
        "memories": (9, "[InitResponse.Memory]"),
        "client_attributes": (11, "AttributeMapProto"),
    },
    "InitResponse.Device": {
        "id": (1, "int32"),
        "local_device_id": (9, "int32"),
        "local_hardware_id": (2, "int32"),
        "platform_name": (11, "string"),
        "device_kind": (3, "string"),
        "default_memory_id": (7, "optional int32"),
        "memory_ids": (8, "[int32]"),
        "debug_string": (4, "string"),
        "to_string": (5, "string"),
        "attributes": (10, "AttributeMapProto"),
    },
    "InitResponse.Memory": {
        "id": (1, "int32"),
        "memory_space_kind": (2, "string"),
        "kind_id": (6, "int32"),
        "device_ids": (3, "[int32]"),
        "debug_string": (4, "string"),
        "to_string": (5, "string"),
    },
    "CheckFutureRequest": {"future_handle": (1, "fixed64")},
    "CheckFutureResponse": {},
    "GetDefaultDeviceAssignmentRequest": {"num_replicas": (1, "fixed64"), "num_partitions": (2, "fixed64")},
    "GetDefaultDeviceAssignmentResponse": {"device_assignment": (1, "DeviceAssignmentProto")},
    "GetDefaultLayoutRequest": {
        "dtype": (1, "DTypeProto"),
        "dims": (2, "[int64]"),
        "device_id": (3, "int32"),
        "memory_kind": (4, "string"),
    },
    "GetDefaultLayoutResponse": {"serialized_pjrt_layout": (1, "bytes")},
}


# The messages about arrays (``ifrt_service.proto``).

ARRAYS: MessageTable = {
    "CheckValueReadyRequest": {"value_handles": (1, "[fixed64]")},
    "CheckValueReadyResponse": {},
    "MakeArrayFromHostBufferRequest": {
        "dtype": (1, "DTypeProto"),
        "shape": (2, "ShapeProto"),
        "sharding": (3, "ShardingProto"),
        "layout": (7, "LayoutProto"),
        "host_buffer_handle": (4, "fixed64"),
        "byte_strides": (5, "ByteStrides"),
        "array_handle": (6, "optional fixed64"),
        **OWN_FIELDS["MakeArrayFromHostBufferRequest"],
    },
    "MakeArrayFromHostBufferResponse": {"array_handle": (1, "fixed64")},
    "MakeArraysFromHostBufferShardsRequest": {
        "specs": (1, "[MakeArraysFromHostBufferShardsRequest.MakeArraysFromHostBufferShardsSpec]"),
        "array_handles": (2, "[fixed64]"),
    },
    "MakeArraysFromHostBufferShardsRequest.HostBuffer": {
        "dtype": (1, "DTypeProto"),
        "shape": (2, "ShapeProto"),
        "host_buffer_handle": (3, "fixed64"),
        "byte_strides": (4, "ByteStrides"),
    },
    "MakeArraysFromHostBufferShardsRequest.ShardIndices": {"indices": (1, "[int64]")},
    "MakeArraysFromHostBufferShardsRequest.MakeArraysFromHostBufferShardsSpec": {
        "addressable_shard_indices": (1, "[MakeArraysFromHostBufferShardsRequest.ShardIndices]"),
        "host_buffers": (2, "[MakeArraysFromHostBufferShardsRequest.HostBuffer]"),
        "array_spec": (3, "ArraySpecProto"),
    },
    "MakeArraysFromHostBufferShardsResponse": {"array_handles": (1, "[fixed64]")},
    "MakeErrorArraysRequest": {
        "error": (1, "StatusProto"),
        "array_specs": (2, "[ArraySpecProto]"),
        "array_handles": (3, "[fixed64]"),
    },
    "MakeErrorArraysResponse": {"array_handles": (1, "[fixed64]")},
    "AssembleArrayFromSingleDeviceArraysRequest": {
        "shape": (1, "ShapeProto"),
        "sharding": (2, "ShardingProto"),
        "single_device_array_handles": (3, "[fixed64]"),
        "copy_semantics": (4, "int32"),
        "single_device_shard_semantics": (5, "optional int32"),
        "result_handle": (6, "fixed64"),
        "dtype": (7, "DTypeProto"),
    },
    "AssembleArrayFromSingleDeviceArraysResponse": {"array_handle": (1, "fixed64")},
    "RemapArraysRequest": {
        "plan": (1, "RemapPlanProto"),
        "array_handles": (2, "[fixed64]"),
        "copy_semantics": (3, "int32"),
        "result_handles": (4, "[fixed64]"),
    },
    "RemapArraysResponse": {"array_handles": (1, "[fixed64]")},
    "BitcastArraysRequest": {
        "array_handles": (1, "[fixed64]"),
        "array_specs": (2, "[ArraySpecProto]"),
        "copy_semantics": (3, "int32"),
        "result_handles": (4, "[fixed64]"),
    },
    "BitcastArraysResponse": {"array_handles": (1, "[fixed64]")},
    "ReshardArraysRequest": {
        "array_handles": (1, "[fixed64]"),
        "array_specs": (2, "[ArraySpecProto]"),
        "copy_semantics": (3, "int32"),
        "result_handles": (4, "[fixed64]"),
    },
    "ReshardArraysResponse": {"array_handles": (1, "[fixed64]")},
    "CopyToHostBufferRequest": {
        "array_handle": (2, "fixed64"),
        "byte_strides": (3, "ByteStrides"),
        "host_buffer_handle": (1, "fixed64"),
        **OWN_FIELDS["CopyToHostBufferRequest"],
    },
    "CopyToHostBufferResponse": OWN_FIELDS["CopyToHostBufferResponse"],
    "DisassembleIntoSingleDeviceArraysRequest": {
        "array_handle": (1, "fixed64"),
        "copy_semantics": (2, "int32"),
        "single_device_shard_semantics": (3, "optional int32"),
        "result_handles": (4, "[fixed64]"),
    },
    "DisassembleIntoSingleDeviceArraysResponse": {"array_handles": (1, "[fixed64]")},
    "CopyArraysRequest": {
        "array_handles": (1, "[fixed64]"),
        "device_ids": (2, "[int32]"),
        "memory_kind": (3, "optional string"),
        "copy_semantics": (4, "int32"),
        "result_handles": (5, "[fixed64]"),
    },
    "CopyArraysResponse": {"array_handles": (1, "[fixed64]")},
    "FullyReplicatedShardRequest": {
        "array_handle": (1, "fixed64"),
        "copy_semantics": (2, "int32"),
        "result_handle": (3, "fixed64"),
    },
    "FullyReplicatedShardResponse": {"array_handle": (1, "fixed64")},
    "DeleteArrayRequest": {"array_handle": (2, "[fixed64]")},
    "DeleteArrayResponse": {"deletion_future_handle": (1, "fixed64")},
    "IsArrayDeletedRequest": {"array_handle": (1, "fixed64")},
    "IsArrayDeletedResponse": {"deleted": (1, "bool")},
    "DestructArrayRequest": {"array_handle": (2, "[fixed64]")},
    "DestructArrayResponse": {},
}


# The messages about executables and host callbacks (``ifrt_service.proto``).

EXECUTABLES: MessageTable = {
    "CompileRequest": {
        "program": (1, "Serialized"),
        "compile_options": (2, "Serialized"),
        "host_callbacks": (3, "[bytes]"),
    },
    "CompileResponse": {
        "loaded_executable_handle": (1, "fixed64"),
        "loaded_host_callback_handles": (8, "[fixed64]"),
        "name": (2, "string"),
        "num_devices": (3, "int32"),
        "device_ids": (10, "[int32]"),
        "addressable_device_ids": (5, "[int32]"),
        "fingerprint_value": (6, "bytes", "fingerprint"),
        "fingerprint_error": (7, "StatusProto", "fingerprint"),
        "ready_future_handle": (9, "optional fixed64"),
    },
    "LoadedExecutableMetadataRequest": {"loaded_executable_handle": (1, "fixed64")},
    "LoadedExecutableMetadataResponse": {
        "parameter_shardings": (1, "LoadedExecutableMetadataResponse.ShardingList"),
        "output_shardings": (2, "LoadedExecutableMetadataResponse.ShardingList"),
        "parameter_layouts_list": (4, "LoadedExecutableMetadataResponse.LayoutList", "parameter_layouts"),
        "parameter_layouts_error": (5, "StatusProto", "parameter_layouts"),
        "output_layouts_list": (6, "LoadedExecutableMetadataResponse.LayoutList", "output_layouts"),
        "output_layouts_error": (7, "StatusProto", "output_layouts"),
        "output_memory_kinds": (3, "LoadedExecutableMetadataResponse.OutputMemoryKind"),
        "donated_input_indices": (
            8,
            "LoadedExecutableMetadataResponse.DonatedInputIndices",
            "donated_input_indices_oneof",
        ),
        "donated_input_indices_error": (9, "StatusProto", "donated_input_indices_oneof"),
        "compiled_memory_stats": (10, "CompiledMemoryStatsProto", "compiled_memory_stats_oneof"),
        "compiled_memory_stats_error": (11, "StatusProto", "compiled_memory_stats_oneof"),
        "size_of_generated_code_in_bytes": (12, "int64"),
    },
    "LoadedExecutableMetadataResponse.ShardingList": {"shardings": (1, "[bytes]")},
    "LoadedExecutableMetadataResponse.LayoutList": {"layouts": (1, "[XlaLayoutProto]")},
    "LoadedExecutableMetadataResponse.MemoryKindList": {"memory_kinds": (1, "[string]")},
    "LoadedExecutableMetadataResponse.OutputMemoryKind": {
        "status": (1, "StatusProto"),
        "memory_kind_lists": (2, "[LoadedExecutableMetadataResponse.MemoryKindList]"),
    },
    "LoadedExecutableMetadataResponse.DonatedInputIndices": {"donated_input_indices": (1, "[fixed32]")},
    "LoadedExecutableCostAnalysisRequest": {"loaded_executable_handle": (1, "fixed64")},
    "LoadedExecutableCostAnalysisResponse": {
        "status": (1, "StatusProto", "result"),
        "attributes": (2, "AttributeMapProto", "result"),
    },
    "LoadedExecutableHumanReadableProgramTextRequest": {"loaded_executable_handle": (1, "fixed64")},
    "LoadedExecutableHumanReadableProgramTextResponse": {
        "status": (1, "StatusProto", "result"),
        "human_readable_program_text": (2, "string", "result"),
    },
    "LoadedExecutableExecuteRequest": {
        "loaded_executable_handle": (1, "fixed64"),
        "args_handles": (2, "[fixed64]"),
        "execute_options": (3, "ExecuteOptionsProto"),
        "device_ids": (4, "[int32]"),
        "result_array_handle": (5, "[fixed64]"),
        "result_status_handle": (6, "fixed64"),
    },
    "LoadedExecutableExecuteResponse": {
        "status_handle": (1, "fixed64"),
        "outputs": (2, "[LoadedExecutableExecuteResponse.Output]"),
    },
    "LoadedExecutableExecuteResponse.Output": {
        "dtype": (1, "DTypeProto"),
        "shape": (2, "ShapeProto"),
        "sharding": (3, "ShardingProto"),
        "array_handle": (4, "fixed64"),
    },
    "LoadedExecutableFetchExecuteResultRequest": {"result_status_handle": (1, "fixed64")},
    "LoadedExecutableFetchExecuteResultResponse": {
        "device_time": (1, "[LoadedExecutableFetchExecuteResultResponse.DeviceTimeEntry]"),
    },
    "LoadedExecutableFetchExecuteResultResponse.DeviceTimeEntry": {"key": (1, "string"), "value": (2, "double")},
    "LoadedExecutableDeleteRequest": {"loaded_executable_handle": (1, "fixed64")},
    "LoadedExecutableDeleteResponse": {"future_handle": (1, "fixed64")},
    "LoadedExecutableIsDeletedRequest": {"loaded_executable_handle": (1, "fixed64")},
    "LoadedExecutableIsDeletedResponse": {"is_deleted": (1, "bool")},
    "LoadedExecutableDeleteOptionsProto": {"deletion_stream_id": (1, "int64")},
    "LoadedExecutableDestructRequest": {
        "loaded_executable_handle": (1, "fixed64"),
        "delete_options": (2, "LoadedExecutableDeleteOptionsProto"),
    },
    "LoadedExecutableDestructResponse": {},
    "LoadedExecutableMpmdMetadataRequest": {"mpmd_loaded_executable_handle": (1, "fixed64")},
    "LoadedExecutableMpmdMetadataResponse": {},
    "LoadedExecutableMpmdCostAnalysisRequest": {"loaded_executable_handle": (1, "fixed64")},
    "LoadedExecutableMpmdCostAnalysisResponse": {},
    "LoadedHostCallbackPollRequest": {
        "loaded_host_callback_handle": (1, "fixed64"),
        "operand_host_buffer_handle": (2, "fixed64"),
    },
    "LoadedHostCallbackPollResponse": {"host_callback_execution_handle": (1, "optional fixed64")},
    "LoadedHostCallbackReturnRequest": {
        "host_callback_execution_handle": (1, "fixed64"),
        "result_host_buffer_handle": (3, "fixed64", "result"),
        "error": (2, "StatusProto", "result"),
    },
    "LoadedHostCallbackReturnResponse": {},
    "ExecuteOptionsProto": {
        "version_number": (12, "int32"),
        "untuple_result": (2, "bool"),
        "launch_id": (3, "int32"),
        "non_donatable_input_indices": (7, "[int32]"),
        "fill_status": (9, "bool"),
        "execution_stream_id": (11, "int64"),
        "custom_options": (10, "AttributeMapProto"),
    },
    "XlaCompileOptionsProto": {
        "version_number": (3, "int32"),
        "compile_options": (1, "bytes"),
        "outputs_bundle_slice_sizes": (2, "[int32]"),
    },
    "CompiledMemoryStatsProto": {
        "generated_code_size_in_bytes": (1, "int64"),
        "argument_size_in_bytes": (2, "int64"),
        "output_size_in_bytes": (3, "int64"),
        "alias_size_in_bytes": (4, "int64"),
        "temp_size_in_bytes": (5, "int64"),
        "peak_memory_in_bytes": (14, "int64"),
        "total_size_in_bytes": (15, "int64"),
        "total_allocation_bytes": (16, "int64"),
        "indefinite_allocations": (17, "int64"),
        "peak_unpadded_heap_bytes": (18, "int64"),
        "host_generated_code_size_in_bytes": (7, "int64"),
        "host_argument_size_in_bytes": (8, "int64"),
        "host_output_size_in_bytes": (9, "int64"),
        "host_alias_size_in_bytes": (10, "int64"),
        "host_temp_size_in_bytes": (11, "int64"),
        "serialized_buffer_assignment": (13, "bytes"),
    },
    "XlaHostCallbackProto": {
        "operands": (1, "[XlaHostCallbackProto.ArgInfo]"),
        "results": (2, "[XlaHostCallbackProto.ArgInfo]"),
        "serialized_callback": (3, "Any"),
        "use_major_to_minor_data_layout_for_callbacks": (4, "bool"),
    },
    "XlaHostCallbackProto.ArgInfo": {"channel_id": (1, "uint32"), "shape": (2, "XlaShapeProto")},
    "XlaShapeProto": {
        "element_type": (2, "int32"),
        "dimensions": (3, "[int64]"),
        "is_dynamic_dimension": (6, "[bool]"),
        "tuple_shapes": (4, "[XlaShapeProto]"),
        "layout": (5, "XlaLayoutProto"),
    },
}


# The messages of the gRPC service itself: versions, sessions, host buffers (``grpc_ifrt_service.proto``).

TRANSPORT: MessageTable = {
    "GrpcGetVersionRequest": {"min_version": (1, "IfrtProxyVersion"), "max_version": (2, "IfrtProxyVersion")},
    "GrpcGetVersionResponse": {"version": (1, "IfrtProxyVersion")},
    "GrpcIfrtSessionMetadata": {"version": (1, "IfrtProxyVersion"), "initialization_data": (2, "AttributeMapProto")},
    "GrpcHostBufferStoreMetadata": {
        "session_id": (1, "fixed64"),
        "handle": (2, "fixed64"),
        "buffer_size": (3, "int64"),
    },
    "GrpcHostBufferStoreRequest": {"data": (1, "bytes")},
    "GrpcHostBufferStoreResponse": {},
    "GrpcHostBufferReadFromDiskRequest": {"metadata": (1, "GrpcHostBufferStoreMetadata")},
    "GrpcHostBufferReadFromDiskResponse": {},
    "GrpcHostBufferLookupRequest": {"session_id": (1, "fixed64"), "handle": (2, "fixed64")},
    "GrpcHostBufferLookupResponse": {"data": (1, "bytes")},
    "GrpcHostBufferDeleteRequest": {"session_id": (1, "fixed64"), "handle": (2, "fixed64")},
    "GrpcHostBufferDeleteResponse": {},
}


TABLE = {**VALUES, **SESSION, **ARRAYS, **EXECUTABLES, **EXTENSIONS, **TRANSPORT}
"""All messages; the name of a message inside another one has a dot, as ``InitResponse.Device``."""

wire: Any = SimpleNamespace(
    **{name.replace(".", "_"): kind for name, kind in message_classes("pjrt.remote", TABLE).items()}
)
"""The class of each message by its name; ``InitResponse.Device`` is ``wire.InitResponse_Device``."""


def parsed(kind: Any, serialized: Any) -> Any:
    """Return the message of a kind in bytes that somebody has sent.

    Raises:
        InvalidArgumentError: the bytes are not such a message.
    """
    try:
        return kind.FromString(serialized)
    except (DecodeError, TypeError) as error:
        raise InvalidArgumentError(f"expected a message of the kind {kind.DESCRIPTOR.name}, found {error}") from None
