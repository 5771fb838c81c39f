"""The messages around each request and response, and those about the whole client (``ifrt_service.proto``)."""

from __future__ import annotations

from pjrt.api.protobuf import FieldRow, MessageTable
from pjrt.remote.protocol.messages.extensions import OWN_KINDS

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


# message: {field: (number, type) or (number, type, oneof)}; a type in brackets is repeated.
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
