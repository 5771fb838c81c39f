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
from pjrt.api.compile_options import CompileOptions, DeviceAssignment, OptionValue, Partitioning
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.topology import PartialProgram

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


# message: {field: (number, type)}; a type in brackets is repeated.
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
    "PjRtPartialProgramProto": {
        "program": (1, "bytes"),
        "program_format": (2, "string"),
        "producer_phase": (3, "string"),
        "consumer_phases": (4, "[string]"),
        "version": (5, "string"),
        "program_name": (6, "string"),
    },
}

_TOP_FIELDS = ("parameter_is_tupled_arguments", "compile_portable_executable", "profile_version")
_BUILD_FIELDS = (
    "device_ordinal",
    "num_replicas",
    "num_partitions",
    "use_auto_spmd_partitioning",
    "deduplicate_hlo",
    "alias_passthrough_params",
    "run_backend_only",
    "device_memory_size",
    "use_shardy_partitioner",
)
_BUILD_LISTS = ("allow_spmd_sharding_propagation_to_output", "allow_spmd_sharding_propagation_to_parameters")


def parse(name: str, serialized: bytes) -> Message:
    """Return the message ``name`` from its bytes.

    Raises:
        InvalidArgumentError: the bytes are not such a message.
    """
    parsed: Message = _classes()[name]()
    serialized = expect_bytes(serialized, f"a serialized {name} as bytes")
    try:
        parsed.ParseFromString(serialized)
    except message.DecodeError as error:
        raise InvalidArgumentError(
            f"expected a serialized {name}, found {len(serialized)} bytes that are not one: {error}"
        ) from error
    return parsed


def encode_device_assignment(assignment: DeviceAssignment) -> Any:
    """Return a ``DeviceAssignmentProto``: its rows are partitions (computations), with one id a replica in each."""
    return _classes()["DeviceAssignmentProto"](
        replica_count=assignment.num_replicas,
        computation_count=assignment.num_partitions,
        computation_devices=[
            _classes()["ComputationDevice"](replica_device_ids=[row[partition] for row in assignment.device_ids])
            for partition in range(assignment.num_partitions)
        ],
    )


def decode_device_assignment(proto: Any) -> DeviceAssignment:
    """Return the assignment in a ``DeviceAssignmentProto``."""
    columns = [list(column.replica_device_ids) for column in proto.computation_devices]
    if len(columns) != proto.computation_count or any(len(c) != proto.replica_count for c in columns):
        raise InvalidArgumentError(
            f"a DeviceAssignmentProto of {proto.replica_count} replicas × {proto.computation_count} computations must "
            f"list that many device ids, found {columns}"
        )
    return DeviceAssignment(tuple(zip(*columns, strict=True)))


def encode_compile_options(options: CompileOptions) -> bytes:
    """Return a serialized ``CompileOptionsProto``: the options over their ``base``; nothing is left to the program."""
    options = options.completed(Partitioning())
    proto: Any = parse("CompileOptionsProto", options.base)
    build = proto.executable_build_options
    for name in _TOP_FIELDS:
        setattr(proto, name, getattr(options, name))
    for name in _BUILD_FIELDS:
        setattr(build, name, getattr(options, name))
    for name in _BUILD_LISTS:
        del getattr(build, name)[:]
        getattr(build, name).extend(getattr(options, name))
    build.use_spmd_partitioning = options.spmd
    proto.serialized_multi_slice_config = options.multi_slice_config
    build.ClearField("device_assignment")
    if options.device_assignment is not None:
        build.device_assignment.CopyFrom(encode_device_assignment(options.device_assignment))
    del proto.env_option_overrides[:]
    for key, value in options.option_overrides.items():
        proto.env_option_overrides.add(key=key, value=_encode_override(value))
    return bytes(proto.SerializeToString(deterministic=True))


def decode_compile_options(serialized: bytes) -> CompileOptions:
    """Return the options in a serialized ``CompileOptionsProto``; the bytes become their ``base``."""
    proto: Any = parse("CompileOptionsProto", serialized)
    build = proto.executable_build_options
    fields: dict[str, Any] = {name: getattr(proto, name) for name in _TOP_FIELDS}
    fields |= {name: getattr(build, name) for name in _BUILD_FIELDS}
    fields |= {name: tuple(getattr(build, name)) for name in _BUILD_LISTS}
    # Proto3 leaves zeros out; a missing count is one.
    fields["num_replicas"] = max(build.num_replicas, 1)
    fields["num_partitions"] = max(build.num_partitions, 1)
    if not proto.HasField("executable_build_options"):
        fields["device_ordinal"] = -1
    if build.HasField("device_assignment"):
        fields["device_assignment"] = decode_device_assignment(build.device_assignment)
    overrides = {entry.key: _decode_override(entry.value) for entry in proto.env_option_overrides}
    return CompileOptions(
        **fields,
        use_spmd_partitioning=build.use_spmd_partitioning,
        multi_slice_config=proto.serialized_multi_slice_config,
        option_overrides=overrides,
        base=serialized,
    )


def encode_partial_program(part: PartialProgram) -> bytes:
    """Return the serialized ``PjRtPartialProgramProto`` of a part of a program."""
    proto = _classes()["PjRtPartialProgramProto"](
        program=part.code,
        program_format=part.format,
        producer_phase=part.producer_phase,
        consumer_phases=part.consumer_phases,
        version=part.version,
        program_name=part.name,
    )
    return bytes(proto.SerializeToString(deterministic=True))


def decode_partial_program(serialized: bytes) -> PartialProgram:
    """Return the part of a program in a serialized ``PjRtPartialProgramProto``."""
    proto: Any = parse("PjRtPartialProgramProto", serialized)
    return PartialProgram(
        code=proto.program,
        format=proto.program_format,
        producer_phase=proto.producer_phase,
        consumer_phases=tuple(proto.consumer_phases),
        version=proto.version,
        name=proto.program_name,
    )


def _encode_override(value: OptionValue) -> Any:
    override = _classes()["OptionOverrideProto"]
    if isinstance(value, bool):
        return override(bool_field=value)
    if isinstance(value, int):
        return override(int_field=value)
    if isinstance(value, float):
        return override(double_field=value)
    return override(string_field=value)


def _decode_override(proto: Any) -> OptionValue:
    case = proto.WhichOneof("value")
    if case is None:
        raise InvalidArgumentError("an option override in the CompileOptionsProto has no value")
    value: OptionValue = getattr(proto, case)
    return value


@functools.cache
def _classes() -> dict[str, Any]:
    return message_classes("pjrt.wire", _MESSAGES)
