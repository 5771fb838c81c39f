"""The messages about arrays (``ifrt_service.proto``)."""

from __future__ import annotations

from pjrt.api.protobuf import MessageTable

# message: {field: (number, type) or (number, type, oneof)}; a type in brackets is repeated.
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
    },
    "CopyToHostBufferResponse": {},
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
