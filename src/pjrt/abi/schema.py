"""The schema of the C API: for each function and each callback, the fields of its arguments.

It is read from a file that is generated from the ABI headers, as is its form in C (``generated/schema_tables.c``);
``pjrt_support/schema.h`` explains the words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct: ``pjrt_field``.

    Attributes:
        name: its name in C.
        offset: its place in the struct, in bytes.
        size: its own size, in bytes.
        kind: how it is read: ``COUNT``, ``HANDLE``, ``TEXT``, ``ARRAY``, …
        direction: ``IN``, ``OUT`` or ``IN_OUT``.
        type: the handle, enum, struct or callback that it is of.
        count: the field with the number of elements, or of bytes; empty where no field states it.
        marks: ``CREATES``, ``DESTROYS``, ``FILLS``, ``NULLABLE``, …
        element: the kind of an element of an array, or of lists.
        element_size: the bytes of an element.
        owner: the field with the owner of something borrowed; of user data, the field with its callback.
        inner_count: the field with the number of elements of each list, or with the sizes of the texts of an array.
        variant: of a member of a union, the value of the enum with which it counts; otherwise -1.
    """

    name: str
    offset: int
    size: int
    kind: str
    direction: str = "IN"
    type: str = ""
    count: str = ""
    marks: tuple[str, ...] = ()
    element: str = ""
    element_size: int = 0
    owner: str = ""
    inner_count: str = ""
    variant: int = -1


@dataclass(frozen=True)
class Struct:
    """A struct of the C API: ``pjrt_struct``.

    Attributes:
        name: its name in C.
        size: its size up to the end of the last field.
        rows: its fields as the file has them.
    """

    name: str
    size: int
    rows: tuple[list[Any], ...]

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """Its fields by name, in their order; made when they are first asked for, as most structs are not."""
        return {row[0]: _field(row) for row in self.rows}


def _field(row: list[Any]) -> Field:
    values: list[Any] = [tuple(each) if isinstance(each, list) else each for each in row]
    return Field(*values)


@dataclass(frozen=True)
class Function:
    """A function of the table or of an extension, or a callback: ``pjrt_function``.

    Attributes:
        name: its name in C.
        index: its place among all functions, or among all callbacks.
        extension: the name of its extension; empty for the table.
        minor: the minor version that added it; 0 for the first, and for functions of extensions.
        result: ``NOTHING``, ``ERROR``, ``PROFILER_ERROR`` or ``OTHER``.
        args: the name of the struct of its arguments.
    """

    name: str
    index: int
    extension: str
    minor: int
    result: str
    args: str

    @cached_property
    def handle(self) -> str:
        """The field with the handle that it is a method of, the first that the caller sets; empty if it has none."""
        fields = STRUCTS[self.args].fields.values()
        return next((field.name for field in fields if (field.kind, field.direction) == ("HANDLE", "IN")), "")


def _function(index: int, extension: str, name: str, minor: int = 0, result: str = "ERROR", args: str = "") -> Function:
    return Function(name, index, extension, minor, result, args or f"{name}_Args")


_FILE = json.loads((Path(__file__).parent / "generated" / "schema.json").read_text(encoding="utf-8"))

ENUMS: Mapping[str, tuple[tuple[str, int], ...]] = {
    name: tuple((each, value) for each, value in values) for name, values in _FILE["enums"].items()
}
"""Each enum: its names without the common prefix, and their values."""

EXTENSIONS: tuple[tuple[str, str], ...] = tuple(_FILE["extensions"].items())
"""Each kind of extension by its number: its name, and what it is about."""

HANDLES: Mapping[str, str] = _FILE["handles"]
"""Each kind of handle, and the function that destroys it; empty where there is none."""

STRUCTS: Mapping[str, Struct] = {
    name: Struct(name, size, tuple(rows)) for name, (size, *rows) in _FILE["structs"].items()
}
"""Each struct by its name."""

_ROWS = [(extension, row) for extension, rows in _FILE["functions"].items() for row in rows]

FUNCTIONS: Mapping[str, Function] = {row[0]: _function(i, extension, *row) for i, (extension, row) in enumerate(_ROWS)}
"""Each function of the table and of extensions by its name, in the order of ``PJRT_FUNCTION_…``."""

TABLE: tuple[Function, ...] = tuple(each for each in FUNCTIONS.values() if not each.extension)
"""The functions of ``PJRT_Api`` in order."""

CALLBACKS: Mapping[str, Function] = {
    name: _function(index, "", name, *row) for index, (name, row) in enumerate(_FILE["callbacks"].items())
}
"""Each callback by its name, in the order of ``PJRT_CALLBACK_…``."""
