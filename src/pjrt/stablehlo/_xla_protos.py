"""The messages of XLA that are read or written here, stated by their field numbers (see ``api.protobuf``).

Names are bytes, not strings: of a string protobuf demands UTF-8, which XLA does not. protobuf is imported at first use,
because that takes 13 ms and most programs need none of these messages.
"""

from __future__ import annotations

import functools
from typing import Any

from pjrt.api.errors import DataLossError

# message: {field: (number, type)}; a type in brackets is repeated. Enums are written as int64.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "LayoutProto": {"minor_to_major": (1, "[int64]")},
    "ShapeProto": {
        "element_type": (2, "int64"),
        "dimensions": (3, "[int64]"),
        "tuple_shapes": (4, "[ShapeProto]"),
        "layout": (5, "LayoutProto"),
        "is_dynamic_dimension": (6, "[bool]"),
    },
    "SliceDimensions": {"start": (1, "int64"), "limit": (2, "int64"), "stride": (3, "int64")},
    "HloInstructionProto": {
        "name": (1, "bytes"),
        "opcode": (2, "bytes"),
        "shape": (3, "ShapeProto"),
        "slice_dimensions": (17, "[SliceDimensions]"),
        "custom_call_target": (28, "bytes"),
        "id": (35, "int64"),
        "operand_ids": (36, "[int64]"),
        "backend_config": (43, "bytes"),
        "custom_call_api_version": (77, "int64"),
        "collective_device_list": (87, "CollectiveDeviceListProto"),
        "mesh_axes_replica_group_list": (93, "MeshAxesReplicaGroupListProto"),
    },
    "CollectiveDeviceListProto": {"replica_groups": (1, "[ReplicaGroup]")},
    "ReplicaGroup": {"replica_ids": (1, "[int64]")},
    "MeshAxesReplicaGroupListProto": {"mesh": (1, "MeshProto"), "axes": (2, "[AxisRefProto]")},
    "HloComputationProto": {"instructions": (2, "[HloInstructionProto]"), "id": (5, "int64")},
    "ProgramShapeProto": {"parameters": (1, "[ShapeProto]"), "result": (2, "ShapeProto")},
    "HloModuleProto": {
        "computations": (3, "[HloComputationProto]"),
        "spmd_output_sharding": (12, "optional bytes"),
        "spmd_parameters_shardings": (14, "[bytes]"),
    },
    "HloModuleConfigProto": {
        "entry_computation_layout": (1, "bytes"),
        "replica_count": (4, "int64"),
        "num_partitions": (5, "int64"),
    },
    "HloModuleProtoWithConfig": {"hlo_module": (1, "bytes"), "config": (2, "HloModuleConfigProto")},
    "OpSharding": {
        "type": (1, "int64"),
        "tile_assignment_dimensions": (3, "[int64]"),
        "tile_assignment_devices": (4, "[int64]"),
        "tuple_shardings": (5, "[bytes]"),
        "replicate_on_last_tile_dim": (6, "bool"),
        "metadata": (7, "[OpMetadata]"),
        "last_tile_dims": (8, "[int64]"),
        "iota_reshape_dims": (9, "[int64]"),
        "iota_transpose_perm": (10, "[int64]"),
        "named_sharding": (14, "NamedShardingProto"),
    },
    "OpMetadata": {"op_type": (1, "bytes"), "op_name": (2, "bytes")},
    "NamedShardingProto": {
        "mesh": (2, "MeshProto"),
        "dim_shardings": (3, "[DimensionSharding]"),
        "replicated_axes": (4, "[AxisRefProto]"),
        "unreduced_axes": (5, "[AxisRefProto]"),
        "manual_axes": (7, "[AxisRefProto]"),
        "reduction_op": (8, "int64"),
    },
    "DimensionSharding": {"axes": (1, "[AxisRefProto]"), "is_closed": (2, "bool")},
    "AxisRefProto": {"mesh_axis_index": (1, "int64"), "sub_axis_info": (2, "SubAxis")},
    "SubAxis": {"pre_size": (1, "int64"), "size": (2, "int64")},
    "MeshProto": {
        "axes": (1, "[MeshAxis]"),
        "device_ids": (2, "[int64]"),
        "iota_transform": (3, "IotaTransform"),
    },
    "MeshAxis": {"name": (1, "bytes"), "size": (2, "int64")},
    "IotaTransform": {"reshape_dims": (1, "[int64]"), "transpose_perm": (2, "[int64]")},
}


def new(name: str, /, **fields: Any) -> Any:
    """Return a new message with these fields."""
    return _classes()[name](**fields)


def parse(name: str, serialized: bytes) -> Any:
    """Return the message that is serialized in the bytes.

    Raises:
        DataLossError: the bytes are not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        return _classes()[name].FromString(serialized)
    except DecodeError as error:
        raise DataLossError(f"expected a serialized {name}, found {len(serialized)} other bytes: {error}") from error


@functools.cache
def _classes() -> dict[str, Any]:
    from pjrt.api.protobuf import message_classes

    return message_classes("pjrt.xla", _MESSAGES)
