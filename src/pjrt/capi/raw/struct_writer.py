"""Structs of the C API in memory, made from Python values."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.abi.schema import ENUMS, STRUCTS, Field
from pjrt.abi.schema import Struct as StructSpec
from pjrt.api.errors import InvalidArgumentError
from pjrt.capi.raw.callback import address_of, callback
from pjrt.capi.raw.memory import Memory
from pjrt.capi.raw.numbers import FLOATS, NUMBERS, store, store_number
from pjrt.capi.raw.struct import Struct, named_value_type

_LAYOUT_KINDS = {0: "tiled", 1: "strides"}
_POINTERS = frozenset({"HANDLE", "TEXT", "BYTES", "POINTER", "USER_DATA", "STRUCT", "CALLBACK", "EXTENSIONS"})


class StructWriter:
    """A maker of the argument structs of one call.

    Attributes:
        memory: the memory of the structs and of everything that they point to.
    """

    def __init__(self) -> None:
        self.memory = Memory()

    def build(self, kind: str, fields: Mapping[str, Any]) -> int:
        """Return the address of a struct in new memory.

        Raises:
            InvalidArgumentError: the struct has no such field, or a value is of the wrong type.
        """
        size = fields.get("struct_size")
        # The bytes of a size that is stated are there, unless the number is nonsense on purpose.
        least = size if isinstance(size, int) and size < 1 << 20 else 0
        address = self.memory.allocate(max(STRUCTS[kind].size, least) + 8)
        self.write(address, kind, fields)
        return address

    def write(self, address: int, kind: str, fields: Mapping[str, Any]) -> None:
        """Write a struct into memory of its size, which is zero."""
        spec = STRUCTS[kind]
        fields = completed(kind, fields)
        for name, value in fields.items():
            try:
                self.write_field(address + spec.fields[name].offset, spec.fields[name], value, fields)
            except InvalidArgumentError:
                raise
            except (TypeError, KeyError, ValueError, ctypes.ArgumentError) as error:
                raise InvalidArgumentError(
                    f"{kind}.{name}: expected a value for a field of kind {spec.fields[name].kind}, found {value!r}"
                ) from error

    def write_field(self, at: int, field: Field, value: Any, fields: Mapping[str, Any]) -> None:
        """Write one field of a struct, of which these are all values."""
        if field.kind == "ARRAY" and "INLINE" in field.marks:
            self._elements(at, field, value, fields)
        elif field.kind == "ARRAY" and _is_list(value):
            begin = self.memory.allocate(len(value) * field.element_size)
            self._elements(begin, field, value, fields)
            store(at, begin)
        elif field.kind == "LISTS" and _is_list(value):
            lists = self.memory.allocate(8 * len(value))
            for i, each in enumerate(value):
                if _is_list(each):
                    begin = self.memory.allocate(len(each) * field.element_size)
                    self._elements(begin, field, each, fields)
                    store(lists + 8 * i, begin)
                else:
                    store(lists + 8 * i, self.address_of(each, field, fields))
            store(at, lists)
        elif field.kind in ("ARRAY", "LISTS"):
            store(at, self.address_of(value, field, fields))
        else:
            self._element(at, field.kind, field.size, value, field, fields)

    def _elements(self, begin: int, field: Field, values: Sequence[Any], fields: Mapping[str, Any]) -> None:
        for i, each in enumerate(values):
            self._element(begin + i * field.element_size, field.element, field.element_size, each, field, fields)

    def _element(self, at: int, kind: str, size: int, value: Any, field: Field, fields: Mapping[str, Any]) -> None:
        if kind in NUMBERS:
            store_number(at, size, _number(value, field))
        elif kind == "BOOL":
            store_number(at, 1, int(value or 0))
        elif kind == "FLOAT":
            FLOATS[size].from_address(at).value = value
        elif kind == "STRUCT_VALUE":
            if value is not None:
                self.write(at, field.type, _fields_of(value))
        elif kind == "STRUCT" and isinstance(value, (Struct, Mapping)):
            store(at, self.build(field.type, _fields_of(value)))
        elif kind == "CALLBACK" and callable(value):
            function = callback(field.type, value)
            self.memory.keep_object(function)
            store(at, address_of(function))
        elif kind in _POINTERS:
            store(at, self.address_of(value, field, fields))
        else:
            raise TypeError(kind)

    def address_of(self, value: Any, field: Field, fields: Mapping[str, Any]) -> int:
        """Return the address for a pointer: of a value that it points to, or a number that is one.

        Args:
            value: the value.
            field: the field with the pointer.
            fields: all values of its struct.
        """
        if value is None:
            return 0
        if isinstance(value, str):
            return self.memory.copy(value.encode())
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.memory.copy(bytes(value))
        if isinstance(value, np.ndarray):
            return self.memory.keep(value)
        if isinstance(value, ctypes._SimpleCData | ctypes.Array | ctypes.Structure):
            self.memory.keep_object(value)
            return ctypes.addressof(value)
        return int(value) & (1 << 64) - 1


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _number(value: Any, field: Field) -> int:
    if isinstance(value, str):
        names = dict(ENUMS[field.type])
        if value not in names:
            raise InvalidArgumentError(f"{field.name}: expected one of {', '.join(names)}, found {value!r}")
        return names[value]
    return int(value or 0)


def _fields_of(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Struct):
        return value.fields
    if isinstance(value, Mapping):
        return value
    raise TypeError(type(value))


def _counts(spec: StructSpec, fields: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of elements and bytes that follow from the values of other fields."""
    counts: dict[str, int] = {}
    for name, value in fields.items():
        field = spec.fields[name]
        if field.count and field.count not in fields:
            number = _length(value, field)
            if number is not None:
                counts[field.count] = number
        if field.kind == "LISTS" and field.inner_count and field.inner_count not in fields and value:
            longest = max((len(each) for each in value if _is_list(each)), default=None) if _is_list(value) else None
            if longest is not None:
                counts[field.inner_count] = longest
    return counts


def _length(value: Any, field: Field) -> int | None:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, np.ndarray):
        return int(value.nbytes if field.element_size in (0, 1) else value.size)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return len(bytes(value))
    return len(value) if _is_list(value) else None


def completed(kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a struct with those that follow from them: its size, and the numbers of elements and bytes.

    Raises:
        InvalidArgumentError: the struct has no such field.
    """
    spec = STRUCTS[kind]
    fields = _long_form(kind, fields)
    for name in fields:
        if name not in spec.fields:
            raise InvalidArgumentError(
                f"expected a field of {kind} ({', '.join(spec.fields)}), found {name!r}; correct the name"
            )
    size = {"struct_size": spec.size} if "struct_size" in spec.fields else {}
    return {**size, **_counts(spec, fields), **fields}


def _long_form(kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a struct with a union as the header has them."""
    if kind == "PJRT_NamedValue" and "value" in fields:
        rest = {name: value for name, value in fields.items() if name != "value"}
        value = fields["value"]
        number = rest.setdefault("type", named_value_type(value))
        by_number = {each.variant: each for each in STRUCTS[kind].fields.values() if each.variant >= 0}
        member = by_number.get(number)
        size = len(value.encode() if isinstance(value, str) else value) if number in (0, 2) and value else 1
        rest.setdefault("value_size", 0 if number in (0, 2) and not value else size)
        return rest if member is None or value is None else {**rest, member.name: value}
    if kind == "PJRT_Buffer_MemoryLayout" and not fields.keys() <= STRUCTS[kind].fields.keys():
        rest = {name: value for name, value in fields.items() if name in STRUCTS[kind].fields}
        inner = {name: value for name, value in fields.items() if name not in STRUCTS[kind].fields}
        number = rest.setdefault("type", 1 if "byte_strides" in inner else 0)
        if number == 0 and inner.get("tile_dim_sizes") is None:
            inner = {name: value for name, value in inner.items() if name not in ("tile_dims", "tile_dim_sizes")}
        return {**rest, _LAYOUT_KINDS.get(number, "tiled"): inner}
    return fields
