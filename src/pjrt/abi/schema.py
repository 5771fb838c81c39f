"""The schema of the C API: for each function and each callback, the fields of its arguments.

It is generated from the ABI headers, as is its form in C; ``library/schema.h`` explains the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pjrt.abi.generated import schema as _gen_schema

ENUMS: Mapping[str, tuple[tuple[str, int], ...]] = MappingProxyType(_gen_schema.ENUMS)
"""Each enum: its names without the common prefix, and their values."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct: ``pjrt_field``.

    Attributes:
        name: its name in C.
        offset: its place in the struct, in bytes.
        size: its own size, in bytes.
        kind: how it is read: ``COUNT``, ``HANDLE``, ``TEXT``, ``ARRAY``, …
        direction: ``IN``, ``OUT`` or ``IN_OUT``.
        element: the kind of an element of an array, or of lists.
        element_size: the bytes of an element.
        type: the handle, enum, struct or callback that it is of.
        count: the field with the number of elements, or of bytes; empty where no field states it.
        inner_count: the field with the number of elements of each list, or with the sizes of the texts of an array.
        owner: the field with the owner of something borrowed; of user data, the field with its callback.
        variant: of a member of a union, the value of the enum with which it counts; otherwise -1.
        marks: ``CREATES``, ``DESTROYS``, ``FILLS``, ``NULLABLE``, …
    """

    name: str
    offset: int
    size: int
    kind: str
    direction: str
    element: str
    element_size: int
    type: str
    count: str
    inner_count: str
    owner: str
    variant: int
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct of the C API: ``pjrt_struct``.

    Attributes:
        name: its name in C.
        size: its size up to the end of the last field.
        fields: its fields by name, in their order.
    """

    name: str
    size: int
    fields: Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the table or of an extension, or a callback: ``pjrt_function``.

    Attributes:
        name: its name in C.
        index: its place among all functions, or among all callbacks.
        extension: the name of its extension; empty for the table.
        minor: the minor version that added it; 0 for the first, and for functions of extensions.
        result: ``NOTHING``, ``ERROR``, ``PROFILER_ERROR`` or ``OTHER``.
        handle: the field with the handle that it is a method of; empty where there is none.
        args: the name of the struct of its arguments.
    """

    name: str
    index: int
    extension: str
    minor: int
    result: str
    handle: str
    args: str


def _structs() -> Mapping[str, Struct]:
    structs = {}
    for name, (size, rows) in _gen_schema.STRUCTS.items():
        fields = [_field(*row) for row in rows]
        structs[name] = Struct(name, size, {field.name: field for field in fields})
    return structs


def _field(*row: Any) -> Field:
    return Field(*row)


def _functions(rows: tuple[tuple[str, str, int, str, str, str], ...]) -> Mapping[str, Function]:
    return {name: Function(name, index, *rest) for index, (name, *rest) in enumerate(rows)}  # type: ignore[arg-type]


STRUCTS = _structs()
"""Each struct by its name."""

FUNCTIONS = _functions(_gen_schema.FUNCTIONS)
"""Each function of the table and of extensions by its name, in the order of ``PJRT_FUNCTION_…``."""

CALLBACKS = _functions(_gen_schema.CALLBACKS)
"""Each callback by its name, in the order of ``PJRT_CALLBACK_…``."""

HANDLES: Mapping[str, str] = dict(_gen_schema.HANDLES)
"""Each kind of handle, and the function that destroys it; empty where there is none."""
