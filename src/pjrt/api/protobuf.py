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
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
}


def message_classes(
    package: str, messages: Mapping[str, Mapping[str, tuple[int, str]]], *, unions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the class of each message.

    Args:
        package: a name for all of them, which no other call uses.
        messages: for each message its fields: the number and the type. A type in brackets is repeated; one that is not
            a scalar's is the name of a message.
        unions: messages of which only one field is set at a time, with the name of that ``oneof``.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        message.field.extend(_describe(package, *field) for field in fields.items())
        if unions and name in unions:
            message.oneof_decl.add(name=unions[name])
            for member in message.field:
                member.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _describe(package: str, name: str, number_and_type: tuple[int, str]) -> _Field:
    number, kind = number_and_type
    field = _Field(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("["):
        field.label = _Field.LABEL_REPEATED
        kind = kind[1:-1]
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"
    return field
