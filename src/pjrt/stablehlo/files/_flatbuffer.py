"""Flatbuffers from files: the library reads them, and each position is checked first.

A flatbuffer is tables that point forward to other tables, texts and vectors. The library trusts the offsets in it. Here
none is followed before it is known to lie inside the buffer. Tables may share what they point to, so a small file could
spell a huge structure: a budget of bytes that may be read, as many as the buffer has, bounds it. Real files share
nothing.
"""

from __future__ import annotations

from typing import Any

from flatbuffers import encode
from flatbuffers import number_types as kinds
from flatbuffers.table import Table as NativeTable

from pjrt.api.errors import DataLossError, InvalidArgumentError, PjrtError

UINT8, UINT16, UINT32 = kinds.Uint8Flags, kinds.Uint16Flags, kinds.Uint32Flags
INT8, INT16 = kinds.Int8Flags, kinds.Int16Flags

_OFFSET = 4
_FIRST_SLOT = 4
_LARGEST = 1 << 31
"""Flatbuffers have signed 32-bit offsets in them, so none is larger."""


class FlatBuffer:
    """The bytes of a flatbuffer, and how many of them may still be read.

    Attributes:
        code: the bytes.
        what: what they are, for messages.
        too_new: how much newer they are than what can be read, for messages; empty if they are not.
    """

    __slots__ = ("_left", "code", "too_new", "what")

    def __init__(self, code: bytes, what: str) -> None:
        if len(code) > _LARGEST:
            raise DataLossError(f"not a {what}: its {len(code)} bytes are more than a flatbuffer's largest, {_LARGEST}")
        self.code = code
        self.what = what
        self.too_new = ""
        self._left = len(code)

    @property
    def root(self) -> FlatTable:
        """The outermost table."""
        return FlatTable(self, self.target(0, "root"))

    def damaged(self, field: str, message: str) -> DataLossError:
        """Return the error of a field that cannot be."""
        return DataLossError(f"corrupt {self.what}: {field} {message}")

    def refused(self, field: str, message: str) -> PjrtError:
        """Return the error of a field that cannot be, though it lies where it should: damage, or a later format."""
        if not self.too_new:
            return self.damaged(field, message)
        return InvalidArgumentError(f"the {self.what} is too new: {field} {message}; {self.too_new}")

    def check(self, begin: int, size: int, field: str) -> None:
        """Check that a piece lies inside the buffer.

        Raises:
            DataLossError: it does not.
        """
        if begin < 0 or begin + size > len(self.code):
            raise self.damaged(field, f"is at the bytes {begin} to {begin + size} of only {len(self.code)}")

    def spend(self, size: int, field: str) -> None:
        """Count bytes as read.

        Raises:
            DataLossError: more bytes were read than the buffer has, so parts of it are read again and again.
        """
        self._left -= size
        if self._left < 0:
            raise self.damaged(field, "shares its contents with others until they are more than the file has")

    def number(self, position: int, kind: Any, field: str) -> int:
        """Return the number at a position."""
        self.check(position, kind.bytewidth, field)
        return int(encode.Get(kind.packer_type, self.code, position))

    def target(self, position: int, field: str) -> int:
        """Return where the offset at a position points."""
        target = position + self.number(position, UINT32, field)
        self.check(target, _OFFSET, field)
        return target


class FlatTable:
    """One table; its fields are read by their slot, the first being 0.

    Args:
        buffer: the flatbuffer.
        position: where the table begins.
        name: what it is, for messages.
    """

    __slots__ = ("_native", "_num_slots", "_size", "buffer", "name", "position")

    def __init__(self, buffer: FlatBuffer, position: int, name: str = "root") -> None:
        self.buffer = buffer
        self._native = NativeTable(buffer.code, position)
        self.name = name
        self.position = position
        buffer.check(position, _OFFSET, name)
        vtable = position - int(self._native.Get(kinds.SOffsetTFlags, position))
        size, self._size = (buffer.number(vtable + at, UINT16, name) for at in (0, 2))
        buffer.check(vtable, size, name)
        buffer.check(position, self._size, name)
        if size < _FIRST_SLOT or size % 2 or self._size < _OFFSET:
            raise buffer.damaged(name, f"has a table of fields of {size} bytes, and is {self._size} bytes long")
        buffer.spend(_OFFSET, name)
        self._num_slots = (size - _FIRST_SLOT) // 2

    def has(self, slot: int) -> bool:
        """Whether the field is there."""
        return self._offset(slot) != 0

    def has_beyond(self, slot: int) -> bool:
        """Whether a field behind this one is there: one that a later version of the format added."""
        return any(map(self.has, range(slot + 1, self._num_slots)))

    def number(self, slot: int, kind: Any, default: int = 0) -> int:
        """Return a number; ``default`` where the field is missing."""
        place = self._place(slot, kind.bytewidth)
        return default if place is None else self.buffer.number(place, kind, self._field(slot))

    def text(self, slot: int) -> str | None:
        """Return a text; None where the field is missing."""
        place = self._place(slot, _OFFSET)
        return None if place is None else self._text_at(place, self._field(slot))

    def content(self, slot: int) -> bytes | None:
        """Return a vector of bytes; None where the field is missing."""
        place = self._place(slot, _OFFSET)
        return None if place is None else self._bytes_at(place, self._field(slot))

    def table(self, slot: int, name: str) -> FlatTable | None:
        """Return a table; None where the field is missing."""
        place = self._place(slot, _OFFSET)
        return None if place is None else FlatTable(self.buffer, self.buffer.target(place, name), name)

    def tables(self, slot: int, name: str) -> list[FlatTable]:
        """Return the tables of a vector; none where the field is missing."""
        places = self._elements(slot, _OFFSET)
        return [
            FlatTable(self.buffer, self.buffer.target(place, f"{name}[{i}]"), f"{name}[{i}]")
            for i, place in enumerate(places)
        ]

    def texts(self, slot: int) -> tuple[str, ...]:
        """Return the texts of a vector; none where the field is missing."""
        field = self._field(slot)
        return tuple(self._text_at(place, field) for place in self._elements(slot, _OFFSET))

    def numbers(self, slot: int, kind: Any) -> tuple[int, ...]:
        """Return the numbers of a vector; none where the field is missing."""
        field = self._field(slot)
        return tuple(self.buffer.number(place, kind, field) for place in self._elements(slot, kind.bytewidth))

    def refused(self, message: str) -> PjrtError:
        """Return the error of a table that cannot be."""
        return self.buffer.refused(self.name, message)

    def _field(self, slot: int) -> str:
        return f"field {slot} of {self.name}"

    def _offset(self, slot: int) -> int:
        return int(self._native.Offset(_FIRST_SLOT + 2 * slot))

    def _place(self, slot: int, width: int) -> int | None:
        offset = self._offset(slot)
        if offset == 0:
            return None
        if offset < _OFFSET or offset + width > self._size:
            raise self.buffer.damaged(self._field(slot), f"is at byte {offset} of a table of {self._size} bytes")
        return self.position + offset

    def _elements(self, slot: int, width: int) -> range:
        """Return where the elements of a vector begin."""
        place, field = self._place(slot, _OFFSET), self._field(slot)
        if place is None:
            return range(0)
        begin, length = self._vector(place, width, field)
        return range(begin, begin + length * width, width)

    def _vector(self, place: int, width: int, field: str) -> tuple[int, int]:
        """Return where the elements begin, and how many there are."""
        target = self.buffer.target(place, field)
        length = self.buffer.number(target, UINT32, field)
        self.buffer.check(target + _OFFSET, length * width, field)
        self.buffer.spend(length * width, field)
        return target + _OFFSET, length

    def _bytes_at(self, place: int, field: str) -> bytes:
        begin, length = self._vector(place, 1, field)
        return self.buffer.code[begin : begin + length]

    def _text_at(self, place: int, field: str) -> str:
        content = self._bytes_at(place, field)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise self.buffer.damaged(field, f"is not UTF-8: {content[:40]!r}") from error
