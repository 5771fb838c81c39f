"""Structs of the C API in memory, made from the values of a recording."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError
from pjrt.capi.layer.schema import STRUCTS, Field
from pjrt.host_memory.aligned import aligned_empty
from pjrt.layers.recording.recorded_value import Blob, Function, Handle, LeftOut, Pointer, Struct

_FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}
_SIGNED = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}
_SPARE = 64
"""Room for further results, in elements: the program of another plugin may have more of them."""

_NUMBERS = frozenset({"STRUCT_SIZE", "COUNT", "SIGNED", "UNSIGNED", "ENUM"})


class Context(Protocol):
    """The state of a replay that structs need."""

    def address(self, handle: Handle) -> int:
        """Return the address of a handle, as the plugin returned it."""

    def memory(self, pointer: Pointer) -> int:
        """Return the address that stands for one of the recorded process."""

    def known_memory(self, pointer: Pointer) -> int:
        """Return the same; 0 if there is none."""

    def function(self, function: Function) -> int:
        """Return the address of a function to give to the plugin."""

    def data(self, value: Any) -> bytes | memoryview | None:
        """Return the bytes of a text or of a blob."""


class Memory:
    """Memory that a call is given; it lives as long as this object."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def allocate(self, size: int) -> int:
        """Return the address of new memory of zeros, aligned as host arrays are."""
        array = aligned_empty((max(size, 1),), np.dtype(np.uint8))
        array.fill(0)
        self._kept.append(array)
        return int(array.ctypes.data)

    def copy(self, data: bytes | memoryview) -> int:
        """Return the address of a copy of some bytes, with a zero behind them."""
        address = self.allocate(len(data) + 1)
        if len(data):
            ctypes.memmove(address, np.frombuffer(data, np.uint8).ctypes.data, len(data))
        return address

    def keep(self, array: np.ndarray[Any, Any]) -> int:
        """Keep an array, and return its address."""
        self._kept.append(array)
        return int(array.ctypes.data)


class StructBuilder:
    """A maker of the argument structs of one call.

    Attributes:
        memory: the memory of the structs and of everything that they point to.
        filled: the address and the size of the memory that the plugin fills, by the name of the field.
        num_outputs: the number of results of the program that runs.
    """

    def __init__(self, context: Context, num_outputs: int = 0) -> None:
        self.memory = Memory()
        self.filled: dict[str, tuple[int, int]] = {}
        self.num_outputs = num_outputs
        self._context = context

    def build(self, struct: Struct) -> int:
        """Return the address of a struct in new memory."""
        address = self.memory.allocate(STRUCTS[struct.kind].size)
        self.write(address, struct)
        return address

    def write(self, address: int, struct: Struct) -> None:
        """Write a struct into memory of its size."""
        if struct.kind in _UNIONS:
            _UNIONS[struct.kind](self, address, struct.fields)
            return
        spec = STRUCTS[struct.kind]
        for name, value in struct.fields.items():
            field = spec.fields.get(name)
            if field is not None:
                self._field(address + field.offset, field, value, struct.fields)

    def _field(self, at: int, field: Field, value: Any, fields: Mapping[str, Any]) -> None:
        if "FILLS" in field.marks and isinstance(value, Pointer):
            _store(at, self._to_fill(field, fields))
        elif field.kind == "ARRAY":
            if isinstance(value, list):
                inline = "INLINE" in field.marks
                begin = at if inline else self.memory.allocate(len(value) * field.element_size)
                for i, each in enumerate(value):
                    self._element(
                        begin + i * field.element_size, field.element, field.element_size, each, fields, field
                    )
                if not inline:
                    _store(at, begin)
        elif field.kind == "LISTS":
            if isinstance(value, list):
                lists = self.memory.allocate(8 * len(value))
                for i, each in enumerate(value):
                    if each is None:
                        continue
                    begin = self.memory.allocate(len(each) * field.element_size)
                    _store(lists + 8 * i, begin)
                    for j, element in enumerate(each):
                        place = begin + j * field.element_size
                        self._element(place, field.element, field.element_size, element, fields, field)
                _store(at, lists)
        else:
            self._element(at, field.kind, field.size, value, fields, field)

    def _to_fill(self, field: Field, fields: Mapping[str, Any]) -> int:
        """Return the address of memory for what the plugin writes."""
        count = int(fields.get(field.count) or 0)
        if field.kind == "LISTS":
            lists = self.memory.allocate(8 * count)
            for i in range(count):
                _store(lists + 8 * i, self.memory.allocate(8 * (self.num_outputs + _SPARE)))
            return lists
        size = count * (field.element_size or 1)
        address = self.memory.allocate(size)
        self.filled[field.name] = address, size
        return address

    def _element(self, at: int, kind: str, size: int, value: Any, fields: Mapping[str, Any], field: Field) -> None:
        if value is None or kind == "EXTENSIONS":
            return
        if kind in _NUMBERS:
            _SIGNED[size].from_address(at).value = value if value < 1 << (8 * size - 1) else value - (1 << 8 * size)
        elif kind == "BOOL":
            ctypes.c_uint8.from_address(at).value = bool(value)
        elif kind == "FLOAT":
            _FLOATS[size].from_address(at).value = value
        elif isinstance(value, Struct):
            if kind == "STRUCT_VALUE":
                self.write(at, value)
            else:
                _store(at, self.build(value))
        elif isinstance(value, (bytes, Blob)):
            _store(at, self.memory.copy(self._context.data(value) or b""))
        elif isinstance(value, LeftOut):
            _store(at, self.memory.allocate(value.size))
        elif isinstance(value, Handle):
            _store(at, self._context.address(value))
        elif isinstance(value, Function):
            _store(at, self._context.function(value))
        elif isinstance(value, Pointer) and kind == "BYTES":
            size = int(fields.get(field.count) or 0)
            _store(at, self._context.known_memory(value) or self.memory.allocate(size))
        elif isinstance(value, Pointer) and kind in ("USER_DATA", "TEXT"):
            # Such a text is in a struct that the plugin fills: it points to one of its own there. The recorded pointer,
            # and its size, may be what was in the framework's memory before.
            _store(at, self._context.known_memory(value))
        elif isinstance(value, Pointer) and kind == "POINTER":
            _store(at, self._context.memory(value))

    def _int64s(self, at: int, values: Any) -> None:
        if values is not None:
            _store(at, self.memory.keep(np.array([*values, 0], np.int64)))

    def _named_value(self, at: int, fields: Mapping[str, Any]) -> None:
        spec = STRUCTS["PJRT_NamedValue"]
        place = {name: at + field.offset for name, field in spec.fields.items()}
        _store(place["struct_size"], spec.size)
        name, value = self._context.data(fields["name"]) or b"", fields["value"]
        _store(place["name"], self.memory.copy(name))
        _store(place["name_size"], len(name))
        _SIGNED[4].from_address(place["type"]).value = fields["type"]
        size = 1
        if isinstance(value, (bytes, Blob)):
            text = self._context.data(value) or b""
            _store(place["string_value"], self.memory.copy(text))
            size = len(text)
        elif isinstance(value, list):
            self._int64s(place["int64_array_value"], value)
            size = len(value)
        elif isinstance(value, bool):
            ctypes.c_uint8.from_address(place["bool_value"]).value = value
        elif isinstance(value, float):
            ctypes.c_float.from_address(place["float_value"]).value = value
        elif isinstance(value, int):
            _SIGNED[8].from_address(place["int64_value"]).value = value
        _store(place["value_size"], size)

    def _layout(self, at: int, fields: Mapping[str, Any]) -> None:
        spec = STRUCTS["PJRT_Buffer_MemoryLayout"]
        _store(at, spec.size)
        _SIGNED[4].from_address(at + spec.fields["type"].offset).value = fields["type"]
        tiled = fields["type"] == 0
        kind = "PJRT_Buffer_MemoryLayout_Tiled" if tiled else "PJRT_Buffer_MemoryLayout_Strides"
        begin = at + spec.fields["tiled"].offset
        place = {name: begin + field.offset for name, field in STRUCTS[kind].fields.items()}
        _store(begin, STRUCTS[kind].size)
        if not tiled:
            self._int64s(place["byte_strides"], fields["byte_strides"])
            _store(place["num_byte_strides"], len(fields["byte_strides"] or ()))
            return
        self._int64s(place["minor_to_major"], fields["minor_to_major"])
        _store(place["minor_to_major_size"], len(fields["minor_to_major"] or ()))
        self._int64s(place["tile_dim_sizes"], fields["tile_dim_sizes"])
        self._int64s(place["tile_dims"], fields["tile_dims"])
        _store(place["num_tiles"], len(fields["tile_dim_sizes"] or ()))


_UNIONS: Mapping[str, Callable[[StructBuilder, int, Mapping[str, Any]], None]] = {
    "PJRT_NamedValue": StructBuilder._named_value,
    "PJRT_Buffer_MemoryLayout": StructBuilder._layout,
}


def host_array(data: bytes | memoryview, struct: Struct, memory: Memory) -> int:
    """Return the address of the host array of a ``BufferFromHostBuffer``, with the strides that it had.

    Args:
        data: its elements, dense and in row-major order.
        struct: the call's arguments.
        memory: the memory to put it in.

    Raises:
        UnimplementedError: an element has a type of a later version.
    """
    fields = struct.fields
    dims, strides = fields.get("dims") or [], fields.get("byte_strides")
    if strides is None or not len(data):
        return memory.copy(data)
    dtype = np.dtype(f"V{element_size(fields['type'])}")
    low = sum(stride * (dim - 1) for dim, stride in zip(dims, strides, strict=True) if stride < 0)
    high = sum(stride * (dim - 1) for dim, stride in zip(dims, strides, strict=True) if stride > 0)
    span = np.zeros(high - low + dtype.itemsize, np.uint8)
    view = np.ndarray(tuple(dims), dtype, span, -low, tuple(strides))
    view[...] = np.frombuffer(data, dtype).reshape(dims)
    return int(memory.keep(span) - low)


def element_size(number: int) -> int:
    """Return the bytes of an element in host memory, where one of less than a byte takes a whole one."""
    try:
        return max(1, ElementType(number).dtype.itemsize)
    except (ValueError, TypeError) as error:
        raise UnimplementedError(f"elements of type {number} of PJRT_Buffer_Type cannot be laid out") from error


def _store(at: int, value: int) -> None:
    ctypes.c_uint64.from_address(at).value = value
