"""Values of a recording: how each is written into its bytes, and read from them.

A value describes itself, so that a file can be read whatever version of the C API its reader knows. The layer that
records (``capi/layer/library``) writes the same bytes in C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pjrt.capi.raw.struct import Struct

NULL, FALSE, TRUE, NUMBER, NEGATIVE, REAL, TEXT, BLOB, LEFT_OUT, LIST, STRUCT, HANDLE, POINTER, FUNCTION = range(14)
"""The first byte of a value."""


@dataclass(frozen=True, slots=True)
class Handle:
    """An object of the plugin: its kind, such as ``PJRT_Buffer``, and its number among all handles of the recording."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind.removeprefix('PJRT_')}#{self.number}"


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that the recording holds once, however often they occur; ``Recording.data`` returns them."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Host data that was not recorded: its size in bytes. A replay fills it with a seed."""

    size: int


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address in the recorded process. It stands for itself only: two equal addresses were the same memory."""

    address: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function that one side gave the other to call: its type, and its number among those of the recording."""

    kind: str
    number: int


class Reader:
    """A reader of values from the bytes of one record.

    Raises:
        ValueError: the bytes end inside a value, or are none.
    """

    def __init__(self, data: bytes | memoryview, names: Mapping[int, str], at: int = 0) -> None:
        self._data, self._names, self._at = data, names, at

    def number(self) -> int:
        """Read an unsigned number: seven bits a byte, the lowest first."""
        value = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 63:
                raise ValueError("a number ends behind the record")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def name(self) -> str:
        """Read a name, which an earlier record gave a number."""
        number = self.number()
        if number not in self._names:
            raise ValueError(f"no name has the number {number}")
        return self._names[number]

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError(f"{size} bytes end behind the record")
        return bytes(self._data[begin : self._at])

    @property
    def at(self) -> int:
        """The number of bytes that were read."""
        return self._at

    def rest(self) -> bytes:
        """Read all bytes that are left."""
        return self.take(len(self._data) - self._at)

    def struct(self) -> Struct:
        """Read a struct."""
        value = self.struct_or_null()
        if value is None:
            raise ValueError("expected a struct, found null")
        return value

    def struct_or_null(self) -> Struct | None:
        """Read a struct, or ``None`` where there is none."""
        value = self.value()
        if value is not None and not isinstance(value, Struct):
            raise ValueError(f"expected a struct, found {value!r}")
        return value

    def value(self, depth: int = 0) -> Any:
        """Read a value."""
        if depth > 32:
            raise ValueError("values are nested more than 32 deep")
        tag = self.take(1)[0]
        if tag in _SIMPLE:
            return _SIMPLE[tag]
        if tag == NUMBER:
            return self.number()
        if tag == NEGATIVE:
            return -1 - self.number()
        if tag == REAL:
            return struct.unpack("<d", self.take(8))[0]
        if tag == TEXT:
            return self.take(self.number())
        if tag == BLOB:
            return Blob(self.number(), self.number())
        if tag == LEFT_OUT:
            return LeftOut(self.number())
        if tag == LIST:
            return [self.value(depth + 1) for _ in range(self._count())]
        if tag == STRUCT:
            kind = self.name()
            return Struct(kind, {self.name(): self.value(depth + 1) for _ in range(self._count())})
        if tag == HANDLE:
            return Handle(self.name(), self.number())
        if tag == POINTER:
            return Pointer(self.number())
        if tag == FUNCTION:
            return Function(self.name(), self.number())
        raise ValueError(f"{tag} begins no value")

    def _count(self) -> int:
        count = self.number()
        if count > len(self._data) - self._at:  # each element has a byte at least
            raise ValueError(f"{count} elements end behind the record")
        return count


_SIMPLE = {NULL: None, FALSE: False, TRUE: True}


class Writer:
    """A writer of values into the bytes of one record."""

    def __init__(self, name_number: Callable[[str], int]) -> None:
        """Begin a record.

        Args:
            name_number: a function that returns the number of a name, and writes it into the file before its first use.
        """
        self.data = bytearray()
        self._name_number = name_number

    def number(self, value: int) -> None:
        """Write an unsigned number."""
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def name(self, name: str) -> None:
        """Write a name."""
        self.number(self._name_number(name))

    def value(self, value: Any) -> None:
        """Write a value."""
        if value is None:
            self.data.append(NULL)
        elif isinstance(value, bool):
            self.data.append(TRUE if value else FALSE)
        elif isinstance(value, int):
            self._tagged(NUMBER, value) if value >= 0 else self._tagged(NEGATIVE, -1 - value)
        elif isinstance(value, float):
            self.data.append(REAL)
            self.data += struct.pack("<d", value)
        elif isinstance(value, bytes):
            self._tagged(TEXT, len(value))
            self.data += value
        elif isinstance(value, Blob):
            self._tagged(BLOB, value.number)
            self.number(value.size)
        elif isinstance(value, LeftOut):
            self._tagged(LEFT_OUT, value.size)
        elif isinstance(value, list):
            self._tagged(LIST, len(value))
            for each in value:
                self.value(each)
        elif isinstance(value, Struct):
            self.data.append(STRUCT)
            self.name(value.kind)
            self.number(len(value.fields))
            for name, each in value.fields.items():
                self.name(name)
                self.value(each)
        elif isinstance(value, Pointer):
            self._tagged(POINTER, value.address)
        else:
            self.data.append(HANDLE if isinstance(value, Handle) else FUNCTION)
            self.name(value.kind)
            self.number(value.number)

    def _tagged(self, tag: int, number: int) -> None:
        self.data.append(tag)
        self.number(number)


def handles_in(value: Any) -> list[Handle]:
    """Return the handles in a value, those inside of lists and structs too."""
    if isinstance(value, Handle):
        return [value]
    if isinstance(value, list):
        return [handle for each in value for handle in handles_in(each)]
    if isinstance(value, Struct):
        return handles_in(list(value.fields.values()))
    return []


def functions_in(value: Any) -> list[Function]:
    """Return the functions in a value, those inside of lists and structs too."""
    if isinstance(value, Function):
        return [value]
    if isinstance(value, list):
        return [function for each in value for function in functions_in(each)]
    if isinstance(value, Struct):
        return functions_in(list(value.fields.values()))
    return []
