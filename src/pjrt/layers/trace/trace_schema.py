"""The schema in a trace file: the functions of the ABI and the fields of their arguments, as the writer knew them."""

from __future__ import annotations

import enum
from collections.abc import Sized
from dataclasses import dataclass, field
from functools import cached_property

_NULLABLE, _CREATES, _FILLS, _INLINE = 1 << 0, 1 << 1, 1 << 7, 1 << 10
"""Some of the marks of a field; ``capi/layer/library/schema.h`` states all."""


class Direction(enum.IntEnum):
    """The direction of a field: set by the caller, by the function, or by both."""

    IN = 0
    OUT = 1
    IN_OUT = 2


@dataclass(frozen=True)
class FieldSchema:
    """A field of a struct of the C API."""

    name: str
    offset: int
    size: int
    kind: str
    direction: Direction
    element: str
    element_size: int
    type: int
    """The index of the enum, handle, struct or callback; -1 if the field is of none."""
    count: int
    """The index of the field with the number of elements; -1: one element, or unknown."""
    inner_count: int
    """The index of the field with the numbers of elements of inner arrays or texts; -1: it has none."""
    variant: int
    """For a member of a union: the value of the struct's enum that selects it; -1: no union."""
    marks: int

    @property
    def nullable(self) -> bool:
        """Whether null is a value that the ABI allows."""
        return bool(self.marks & _NULLABLE)

    @property
    def creates(self) -> bool:
        """Whether the function makes a new object and gives it to the caller here."""
        return bool(self.marks & _CREATES)

    @property
    def fills(self) -> bool:
        """Whether the function fills memory of the caller behind this pointer."""
        return bool(self.marks & _FILLS)

    @property
    def inline(self) -> bool:
        """Whether the field is an array inside of the struct."""
        return bool(self.marks & _INLINE)


@dataclass
class StructSchema:
    """A struct of the C API."""

    name: str
    size: int
    sized: bool
    """Whether it begins with ``struct_size``."""
    fields: list[FieldSchema] = field(default_factory=list)

    def field(self, name: str) -> int:
        """Return the index of the field of a name; -1 if there is none."""
        return self._indices.get(name, -1)

    @cached_property
    def shown(self) -> list[tuple[int, FieldSchema]]:
        """The fields that a reader looks for, with their indices: arrays have their counts with them."""
        hidden = {field.inner_count for field in self.fields}
        return [
            (index, field)
            for index, field in enumerate(self.fields)
            if index not in hidden and field.kind not in ("struct_size", "count") and not field.name.endswith("_is_set")
        ]

    @cached_property
    def switches(self) -> dict[int, int]:
        """For the fields that another one declares to be set or not: the index of that other one."""
        pairs = ((index, self.field(f"{field.name}_is_set")) for index, field in enumerate(self.fields))
        return {index: switch for index, switch in pairs if switch >= 0}

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {field.name: index for index, field in enumerate(self.fields)}


@dataclass(frozen=True)
class FunctionSchema:
    """A function of the table or of an extension, or a callback."""

    name: str
    index: int
    extension: int
    handle: int
    args: StructSchema


@dataclass
class Schema:
    """All functions, callbacks, structs, enums and handles."""

    enums: list[tuple[str, dict[int, str]]] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)
    structs: list[StructSchema] = field(default_factory=list)
    functions: list[FunctionSchema] = field(default_factory=list)
    callbacks: list[FunctionSchema] = field(default_factory=list)


def parse_schema(text: str) -> Schema:
    """Return the schema that a trace file begins with.

    Raises:
        ValueError: the text is damaged.
    """
    schema = Schema()
    kinds: list[str] = []
    struct: StructSchema | None = None
    functions: list[tuple[str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        letter, *words = line.split("\t")
        try:
            if letter == "K":
                kinds = words
            elif letter == "E":
                pairs = (word.rpartition("=") for word in words[1:])
                schema.enums.append((words[0], {int(value): name for name, _, value in pairs}))
            elif letter == "H":
                schema.handles.append(words[0])
            elif letter == "S":
                struct = StructSchema(words[0], int(words[1]), words[2] == "1")
                schema.structs.append(struct)
            elif letter == "A" and struct is not None:
                struct.fields.append(_field(words, kinds))
            elif letter in "FC":
                functions.append((letter, words))
        except (ValueError, IndexError) as error:
            raise ValueError(f"line {number} of the schema is damaged: {line[:80]!r}") from error
    for letter, words in functions:
        target = schema.functions if letter == "F" else schema.callbacks
        try:
            struct_index = int(words[4])
            args = schema.structs[struct_index] if struct_index >= 0 else StructSchema("", 0, False)
            target.append(FunctionSchema(words[0], len(target), int(words[1]), int(words[3]), args))
        except (ValueError, IndexError) as error:
            raise ValueError(f"the schema of the function {words[:1]} is damaged") from error
    for each in schema.structs:
        for field_ in each.fields:
            _check(schema, each, field_)
    return schema


def _check(schema: Schema, struct_: StructSchema, field_: FieldSchema) -> None:
    """Refuse a field whose references lead nowhere."""
    tables: dict[str, Sized] = {
        "enum": schema.enums,
        "struct": schema.structs,
        "struct_value": schema.structs,
        "handle": schema.handles,
    }
    table = tables.get(field_.element if field_.kind in ("array", "lists") else field_.kind, ())
    indices = (field_.count, field_.inner_count)
    if (table and field_.type >= len(table)) or max(indices) >= len(struct_.fields):
        raise ValueError(f"the schema of the field {field_.name} of {struct_.name} is damaged")


def _field(words: list[str], kinds: list[str]) -> FieldSchema:
    numbers = list(map(int, words[1:]))
    offset, size, kind, direction, element, element_size, type_, count, inner_count, variant, marks = numbers[:11]
    return FieldSchema(
        words[0],
        offset,
        size,
        kinds[kind],
        Direction(direction),
        kinds[element],
        element_size,
        type_,
        count,
        inner_count,
        variant,
        marks,
    )
