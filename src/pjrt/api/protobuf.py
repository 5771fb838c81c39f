"""Protobuf messages from a table of their fields, such as the few that cross PJRT's C API.

Neither a compiler for ``.proto`` files nor generated code is needed. Fields that a table leaves out are kept by
protobuf as unknown fields, and written back.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from pjrt.api.checks import expect_bytes
from pjrt.api.errors import InvalidArgumentError

if TYPE_CHECKING:
    from google.protobuf.message import Message


_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "int32": _Field.TYPE_INT32,
    "uint32": _Field.TYPE_UINT32,
    "fixed64": _Field.TYPE_FIXED64,
    "sfixed64": _Field.TYPE_SFIXED64,
    "fixed32": _Field.TYPE_FIXED32,
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
}

FieldRow = tuple[int, str] | tuple[int, str, str]
"""The number and the type of a field, and the name of its ``oneof`` if it is in one."""

MessageTable = Mapping[str, Mapping[str, FieldRow]]
"""For each message its fields by name."""


def message_classes(package: str, messages: MessageTable) -> dict[str, Any]:
    """Return the class of each message.

    Args:
        package: a name for all of them, which no other call uses.
        messages: for each message its fields: the number, the type, and the name of the ``oneof`` of a field that is in
            one. A type in brackets is repeated; ``optional`` before a scalar's type makes ``HasField`` work; a type
            that is not a scalar's is the name of a message. An enumeration is an ``int32``, and a map is a repeated
            message with a ``key`` and a ``value``: both have the same bytes.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=_flat(name))
        message.field.extend(_describe(package, field, row[0], row[1]) for field, row in fields.items())
        unions = {field: row[2] for field, row in fields.items() if len(row) == 3}
        # Protobuf wants the oneof of each optional field after all others.
        unions |= {field.name: f"_{field.name}" for field in message.field if field.proto3_optional}
        names = list(dict.fromkeys(unions.values()))
        for union in names:
            message.oneof_decl.add(name=union)
        for field in message.field:
            if field.name in unions:
                field.oneof_index = names.index(unions[field.name])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{_flat(name)}"))
        for name in messages
    }


def _describe(package: str, name: str, number: int, kind: str) -> _Field:
    field = _Field(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("["):
        field.label = _Field.LABEL_REPEATED
        kind = kind[1:-1]
    elif kind.startswith("optional "):
        field.proto3_optional = True
        kind = kind.removeprefix("optional ")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{_flat(kind)}"
    return field


def _flat(name: str) -> str:
    """Return the name of a message inside another one, such as ``Outer.Inner``, as one that stands alone."""
    return name.replace(".", "_")


# Those that cross PJRT's C API.
_MESSAGES: MessageTable = {
    "ComputationDevice": {"replica_device_ids": (1, "[int64]")},
    "DeviceAssignmentProto": {
        "replica_count": (1, "int64"),
        "computation_count": (2, "int64"),
        "computation_devices": (3, "[ComputationDevice]"),
    },
    "OptionOverrideProto": {
        "string_field": (1, "string", "value"),
        "bool_field": (2, "bool", "value"),
        "int_field": (3, "int64", "value"),
        "double_field": (4, "double", "value"),
    },
    "OptionOverrideEntry": {"key": (1, "string"), "value": (2, "OptionOverrideProto")},
    "ExecutableBuildOptionsProto": {
        "device_ordinal": (1, "int64"),
        "num_replicas": (4, "int64"),
        "num_partitions": (5, "int64"),
        "use_spmd_partitioning": (6, "bool"),
        "use_auto_spmd_partitioning": (7, "bool"),
        "deduplicate_hlo": (8, "bool"),
        "device_assignment": (9, "DeviceAssignmentProto"),
        "alias_passthrough_params": (10, "bool"),
        "run_backend_only": (11, "bool"),
        "allow_spmd_sharding_propagation_to_output": (12, "[bool]"),
        "device_memory_size": (15, "int64"),
        "allow_spmd_sharding_propagation_to_parameters": (18, "[bool]"),
        "use_shardy_partitioner": (19, "bool"),
    },
    "CompileOptionsProto": {
        "parameter_is_tupled_arguments": (2, "bool"),
        "executable_build_options": (3, "ExecutableBuildOptionsProto"),
        "compile_portable_executable": (4, "bool"),
        "profile_version": (5, "int64"),
        "serialized_multi_slice_config": (6, "bytes"),
        "env_option_overrides": (7, "[OptionOverrideEntry]"),
    },
    "ProfileOptions": {
        "host_tracer_level": (2, "uint32"),
        "python_tracer_level": (4, "uint32"),
        "version": (5, "uint32"),
        "enable_hlo_proto": (7, "bool"),
    },
    "PjRtPartialProgramProto": {
        "program": (1, "bytes"),
        "program_format": (2, "string"),
        "producer_phase": (3, "string"),
        "consumer_phases": (4, "[string]"),
        "version": (5, "string"),
        "program_name": (6, "string"),
    },
}


def message_class(name: str) -> Any:
    """Return the class of a message that crosses PJRT's C API."""
    return _classes()[name]


def parse(name: str, serialized: bytes) -> Message:
    """Return a message that crosses PJRT's C API from its bytes.

    Raises:
        InvalidArgumentError: the bytes are not such a message.
    """
    parsed: Message = message_class(name)()
    serialized = expect_bytes(serialized, f"a serialized {name} as bytes")
    try:
        parsed.ParseFromString(serialized)
    except message.DecodeError as error:
        raise InvalidArgumentError(
            f"expected a serialized {name}, found {len(serialized)} bytes that are not one: {error}"
        ) from error
    return parsed


@functools.cache
def _classes() -> dict[str, Any]:
    return message_classes("pjrt.wire", _MESSAGES)
