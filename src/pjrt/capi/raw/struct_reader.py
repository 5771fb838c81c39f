"""Structs of the C API that a plugin has written, read into Python values."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from pjrt.abi.schema import FUNCTIONS, STRUCTS, Field
from pjrt.capi.raw.numbers import FLOATS, NUMBERS, load, load_number
from pjrt.capi.raw.struct import Struct

_MAX_COUNT = 1 << 32
"""The number of elements that a count is cut to: a plugin may have left the field unset."""


class StructReader:
    """A reader of structs that a plugin has written.

    Handles, functions and pointers are addresses; a null pointer is ``None``. A subclass may give them other values.

    Args:
        num_outputs: the number of elements of lists whose number no field has: the results of a program.
    """

    def __init__(self, num_outputs: int = 0) -> None:
        self._num_outputs = num_outputs

    def handle(self, kind: str, address: int) -> Any:
        """Return the value for a handle."""
        return address

    def pointer(self, address: int) -> Any:
        """Return the value for a function, or for an address that is not looked into."""
        return address

    def read(self, kind: str, address: int, names: Iterable[str] | None = None) -> Struct:
        """Read the named fields of a struct, or all."""
        if kind == "PJRT_NamedValue":
            return self._named_value(address)
        if kind == "PJRT_Buffer_MemoryLayout":
            return self._layout(address)
        spec = STRUCTS[kind]
        chosen = spec.fields if names is None else [name for name in names if name in spec.fields]
        values = {name: self.field(address, kind, spec.fields[name]) for name in chosen}
        return Struct(kind, values)

    def field(self, base: int, kind: str, field: Field) -> Any:
        """Read one field of the struct at an address."""
        at = base + field.offset
        if field.kind == "ARRAY":
            begin = at if "INLINE" in field.marks else load(at)
            count = self._count(base, kind, field)
            if not begin:
                return None
            if count is None:
                return self.pointer(begin)
            sizes = load(base + STRUCTS[kind].fields[field.inner_count].offset) if field.inner_count else 0
            return [
                self._element(
                    begin + i * field.element_size, field.element, field.element_size, field,
                    load(sizes + 8 * i) if sizes else None,
                )
                for i in range(count)
            ]  # fmt: skip
        if field.kind == "LISTS":
            begin = load(at)
            if not begin:
                return None
            count, inner = self._number(base, kind, field.count), self._num_outputs
            return [
                [self._element(load(begin + 8 * i) + 8 * j, field.element, 8, field, None) for j in range(inner)]
                for i in range(count)
            ]
        size = self._number(base, kind, field.count) if field.count else None
        return self._element(at, field.kind, field.size, field, size)

    def _number(self, base: int, kind: str, name: str) -> int:
        field = STRUCTS[kind].fields[name]
        return load_number(base + field.offset, field.size, signed=False)

    def _count(self, base: int, kind: str, field: Field) -> int | None:
        if "INLINE" in field.marks:
            return field.size // field.element_size
        if field.count:
            return min(self._number(base, kind, field.count), _MAX_COUNT)
        if kind == FUNCTIONS["PJRT_Executable_OutputDimensions"].args:
            ranks = self.field(base, kind, STRUCTS[kind].fields["dim_sizes"])
            return int(sum(ranks or []))
        return None

    def _element(self, at: int, kind: str, size: int, field: Field, count: int | None) -> Any:
        if kind in NUMBERS:
            return load_number(at, size, signed=kind != "UNSIGNED")
        if kind == "BOOL":
            return bool(ctypes.c_uint8.from_address(at).value)
        if kind == "FLOAT":
            return float(FLOATS[size].from_address(at).value)
        if kind == "STRUCT_VALUE":
            return self.read(field.type, at)
        address = load(at)
        if not address:
            return None
        if kind == "HANDLE":
            return self.handle(field.type, address)
        if kind in ("TEXT", "BYTES"):
            if count is None:
                return ctypes.string_at(address) if kind == "TEXT" else self.pointer(address)
            return ctypes.string_at(address, min(count, _MAX_COUNT))
        if kind == "STRUCT":
            return self.read(field.type, address)
        return self.pointer(address)

    def _named_value(self, at: int) -> Struct:
        spec = STRUCTS["PJRT_NamedValue"]
        by_number = {field.variant: field for field in spec.fields.values() if field.variant >= 0}
        number = self._number(at, spec.name, "type")
        field = by_number.get(number)
        value = None if field is None else self.field(at, spec.name, field)
        return Struct(
            spec.name, {"name": self.field(at, spec.name, spec.fields["name"]), "type": number, "value": value}
        )

    def _layout(self, at: int) -> Struct:
        spec = STRUCTS["PJRT_Buffer_MemoryLayout"]
        number = self._number(at, spec.name, "type")
        begin = at + spec.fields["tiled"].offset
        if number != 0:
            strides = STRUCTS["PJRT_Buffer_MemoryLayout_Strides"]
            values = self.field(begin, strides.name, strides.fields["byte_strides"])
            return Struct(spec.name, {"type": number, "byte_strides": values})
        tiles = STRUCTS["PJRT_Buffer_MemoryLayout_Tiled"]
        sizes = self.field(begin, tiles.name, tiles.fields["tile_dim_sizes"]) or []
        dims = load(begin + tiles.fields["tile_dims"].offset)
        return Struct(
            spec.name,
            {
                "type": number,
                "minor_to_major": self.field(begin, tiles.name, tiles.fields["minor_to_major"]),
                "tile_dim_sizes": sizes,
                "tile_dims": [load(dims + 8 * i) for i in range(sum(sizes))] if dims else None,
            },
        )


def read_struct(kind: str, address: int) -> Struct:
    """Return a struct of the C API at an address, such as one that a callback is given."""
    return StructReader().read(kind, address)
