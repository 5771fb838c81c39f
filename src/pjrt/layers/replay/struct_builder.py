"""Structs of the C API in memory, made from the values of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError
from pjrt.capi.layer.schema import STRUCTS, Field
from pjrt.capi.raw.memory import Memory
from pjrt.capi.raw.numbers import store
from pjrt.capi.raw.struct import Struct
from pjrt.capi.raw.struct_writer import StructWriter
from pjrt.layers.recording.recorded_value import Blob, Function, Handle, LeftOut, Pointer

_SPARE = 64
"""Room for further results, in elements: the program of another plugin may have more of them."""


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


class StructBuilder(StructWriter):
    """A maker of the argument structs of one call.

    Attributes:
        filled: the address and the size of the memory that the plugin fills, by the name of the field.
        num_outputs: the number of results of the program that runs.
    """

    def __init__(self, context: Context, num_outputs: int = 0) -> None:
        super().__init__()
        self.filled: dict[str, tuple[int, int]] = {}
        self.num_outputs = num_outputs
        self._context = context

    def build_recorded(self, struct: Struct) -> int:
        """Return the address of a recorded struct in new memory."""
        return self.build(struct.kind, struct.fields)

    def write(self, address: int, kind: str, fields: Mapping[str, Any]) -> None:
        """Write a recorded struct; fields that this version of the C API does not have are left out."""
        if kind == "PJRT_NamedValue":
            fields = {name: self._data(value) for name, value in fields.items()}
        elif kind != "PJRT_Buffer_MemoryLayout":
            fields = {name: value for name, value in fields.items() if name in STRUCTS[kind].fields}
            fields = {**fields, **self._sizes(kind, fields)}
        super().write(address, kind, fields)

    def write_field(self, at: int, field: Field, value: Any, fields: Mapping[str, Any]) -> None:
        """Write one field; for memory that the plugin fills, the address of new memory."""
        if "FILLS" in field.marks and isinstance(value, Pointer):
            store(at, self._to_fill(field, fields))
        else:
            super().write_field(at, field, value, fields)

    def address_of(self, value: Any, field: Field, fields: Mapping[str, Any]) -> int:
        """Return the address for a recorded value."""
        if isinstance(value, (bytes, Blob)):
            return self.memory.copy(self._context.data(value) or b"")
        if isinstance(value, LeftOut):
            return self.memory.allocate(value.size)
        if isinstance(value, Handle):
            return self._context.address(value)
        if isinstance(value, Function):
            return self._context.function(value)
        if not isinstance(value, Pointer):
            return super().address_of(value, field, fields)
        if field.kind == "BYTES":
            size = int(fields.get(field.count) or 0)
            return self._context.known_memory(value) or self.memory.allocate(size)
        if field.kind in ("USER_DATA", "TEXT"):
            # Such a text is in a struct that the plugin fills: it points to one of its own there. The recorded pointer,
            # and its size, may be what was in the framework's memory before.
            return self._context.known_memory(value)
        return self._context.memory(value) if field.kind == "POINTER" else 0

    def _sizes(self, kind: str, fields: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes of texts and bytes: what this plugin serialized may be longer or shorter than recorded."""
        specs = STRUCTS[kind].fields
        return {
            specs[name].count: len(self._context.data(value) or b"")
            for name, value in fields.items()
            if specs[name].count and isinstance(value, (bytes, Blob))
        }

    def _data(self, value: Any) -> Any:
        return bytes(self._context.data(value) or b"") if isinstance(value, (bytes, Blob)) else value

    def _to_fill(self, field: Field, fields: Mapping[str, Any]) -> int:
        """Return the address of memory for what the plugin writes."""
        count = int(fields.get(field.count) or 0)
        if field.kind == "LISTS":
            lists = self.memory.allocate(8 * count)
            for i in range(count):
                store(lists + 8 * i, self.memory.allocate(8 * (self.num_outputs + _SPARE)))
            return lists
        size = count * (field.element_size or 1)
        address = self.memory.allocate(size)
        self.filled[field.name] = address, size
        return address


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
