"""Protobuf messages from a table of their fields.

Neither a compiler for ``.proto`` files nor generated code is needed. Fields that a table leaves out are kept by
protobuf as unknown fields, and written back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
