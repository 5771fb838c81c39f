"""The values of a traced call: its arguments and results as Python objects, by the schema of the trace file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pjrt.layers.trace.trace_records import Call, RecordedValue, Trace
from pjrt.layers.trace.trace_schema import Direction, FieldSchema, Schema, StructSchema

_DEEPEST = 12
_NOWHERE = 0xFFFF
"""The step to an element of a list, of which no values behind pointers are recorded."""
_POINTERS = ("handle", "pointer", "callback", "user_data", "extensions", "text", "struct", "array", "lists", "bytes")
_BEHIND_POINTERS = ("text", "struct", "array", "lists", "bytes")


class Address(int):
    """A handle or another pointer."""


class Name(str):
    """The name of a value of an enum."""


@dataclass(frozen=True)
class Text:
    """A text; ``total`` counts its bytes, of which a trace keeps the first ones."""

    text: str
    total: int


@dataclass(frozen=True)
class Memory:
    """Memory of the host with its size, whose contents a trace does not have."""

    address: int
    size: int


@dataclass(frozen=True)
class Elements:
    """An array; ``total`` counts its elements, of which a trace keeps the first ones."""

    items: list[Any]
    total: int


class Fields(dict[str, Any]):
    """A struct: its fields by name."""


@dataclass(frozen=True)
class Values:
    """The arguments and the results of a call, by the names of the fields."""

    arguments: Fields
    results: Fields


def values_of(trace: Trace, call: Call) -> Values:
    """Return the arguments and the results of a call.

    A call that failed or never returned has no results. Counts are left out: the arrays have them.
    """
    type_ = call.function.args
    reader = _StructReader(trace.schema, type_, call.args, {value.path: value for value in call.values}, ())
    arguments, results = Fields(), Fields()
    succeeded = not call.failed and call.end is not None
    for index, field in type_.shown:
        if reader.is_omitted(index, field):
            continue
        # Memory that the caller gives to be filled is an argument: its contents are not recorded.
        if field.direction != Direction.OUT and (not field.fills or field.kind == "bytes"):
            arguments[field.name] = reader.value(index, field)
        elif succeeded:
            results[field.name] = reader.value(index, field)
    return Values(arguments, results)


class _StructReader:
    """The fields of one struct: its bytes, and the values behind its pointers under a path."""

    def __init__(
        self,
        schema: Schema,
        type_: StructSchema,
        data: bytes,
        behind: Mapping[tuple[int, ...], RecordedValue],
        path: tuple[int, ...],
    ) -> None:
        self.schema = schema
        self.type = type_
        self.data = data
        self.behind = behind
        self.path = path
        known = len(data)
        if type_.sized and len(data) >= 8:
            known = min(known, struct.unpack_from("<Q", data)[0])
        self.known = known

    def is_omitted(self, index: int, field: FieldSchema) -> bool:
        """Whether the caller's struct does not have the field, or the field has nothing to show."""
        if field.offset + field.size > self.known:
            return True
        # A null pointer of the caller means that it leaves something out; a null result is worth a look.
        if field.kind in _POINTERS and field.direction == Direction.IN and not self._number(field):
            return field.kind in ("extensions", "user_data") or bool(self.path) or field.nullable
        switch = self.type.switches.get(index)
        if switch is not None:
            other = self.type.fields[switch]
            if other.offset + other.size > self.known or not self._number(other):
                return True
        return field.variant >= 0 and field.variant != self._discriminator()

    def _discriminator(self) -> int:
        enum_ = next((field for _, field in self.type.shown if field.kind == "enum"), None)
        return -1 if enum_ is None else self._number(enum_)

    def _number(self, field: FieldSchema) -> int:
        return int.from_bytes(self.data[field.offset : field.offset + field.size], "little")

    def fields(self) -> Fields:
        """Return all fields that are not omitted."""
        return Fields(
            (field.name, self.value(index, field))
            for index, field in self.type.shown
            if not self.is_omitted(index, field)
        )

    def value(self, index: int, field: FieldSchema) -> Any:
        """Return the value of a field."""
        kind = field.kind
        raw = self.data[field.offset : field.offset + field.size]
        if field.inline:
            return Elements([self._element(field, piece) for piece in _pieces(raw, field.element_size)], -1)
        if kind in ("handle", "pointer", "callback", "user_data", "extensions"):
            return Address(self._number(field))
        if kind == "struct_value":
            return self._inner(field.type, raw, (index, 0))
        if kind not in _BEHIND_POINTERS:
            return self._scalar(kind, field.type, raw)
        address = self._number(field)
        if not address:
            return Address(0)
        if kind == "bytes":
            size = self._number(self.type.fields[field.count]) if field.count >= 0 else 0
            return Memory(address, size) if field.count >= 0 else Address(address)
        if kind == "lists":
            return self._lists(index, field, address)
        value = self.behind.get((*self.path, index))
        if value is None:
            return self._lists(index, field, address) if field.element == "text" else Address(address)
        if kind == "text":
            return Text(value.data.decode(errors="replace"), value.total)
        if kind == "struct":
            return self._inner(field.type, value.data, (index, 0))
        items: list[Any] = []
        for i, piece in enumerate(_pieces(value.data, value.element_size)):
            if field.element == "struct_value" and field.type >= 0:
                items.append(self._inner(field.type, piece, (index, i)))
            else:
                items.append(self._element(field, piece))
        return Elements(items, value.total)

    def _lists(self, index: int, field: FieldSchema, address: int) -> Any:
        lists: list[Any] = []
        while value := self.behind.get((*self.path, index, len(lists))):
            if field.element == "text":
                lists.append(Text(value.data.decode(errors="replace"), value.total))
            else:
                pieces = _pieces(value.data, value.element_size)
                lists.append(Elements([self._element(field, piece) for piece in pieces], value.total))
        if not lists:
            return Address(address)
        total = self._number(self.type.fields[field.count]) if field.count >= 0 else len(lists)
        return Elements(lists, total)

    def _inner(self, type_: int, data: bytes, step: tuple[int, ...]) -> Any:
        path = (*self.path, *step)
        if type_ < 0 or len(path) > _DEEPEST:
            return Memory(1, len(data))
        return _StructReader(self.schema, self.schema.structs[type_], data, self.behind, path).fields()

    def _element(self, field: FieldSchema, data: bytes) -> Any:
        if field.element == "struct_value":
            return self._inner(field.type, data, (_NOWHERE, 0))
        return self._scalar(field.element, field.type, data)

    def _scalar(self, kind: str, type_: int, data: bytes) -> Any:
        if kind == "float" and len(data) in (4, 8):
            return struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
        number = int.from_bytes(data, "little", signed=kind in ("signed", "enum"))
        if kind == "bool":
            return bool(number)
        if kind == "enum" and type_ >= 0:
            return Name(self.schema.enums[type_][1].get(number, str(number)))
        return number if kind in ("signed", "unsigned", "count") else Address(number)


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data) - size + 1, size)] if size else []


def value_text(value: Any, address_text: Callable[[int], str] = hex) -> str:
    """Return a value as it is written in logs."""
    if isinstance(value, Address):
        return address_text(value) if value else "null"
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, Text):
        cut = "" if value.total <= len(value.text.encode()) else "…"
        return f'"{_printable(value.text)}{cut}"'
    if isinstance(value, Memory):
        return f"<{value.size} bytes>"
    if isinstance(value, Elements):
        items = [value_text(item, address_text) for item in value.items]
        return f"[{', '.join([*items, '…'] if value.total > len(items) else items)}]"
    if isinstance(value, Fields):
        return "{" + ", ".join(f"{name}={value_text(item, address_text)}" for name, item in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text.replace('"', '\\"'))
