"""Protocol buffers on the wire, as far as HLO protos are looked into without their generated classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pjrt.api.errors import DataLossError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int, int]
"""A field: its number, its wire type, and its value (a varint) or where its content begins and ends.

For ``VARINT`` the third is the value and the fourth is 0; for the others they are the two positions.
"""


def fields(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of the message between two positions, in order.

    Raises:
        DataLossError: the bytes are not a message, or end inside a field; the message says where.
    """
    position = begin
    stop = len(data) if end is None else end
    while position < stop:
        start = position
        key, position = _varint(data, position, stop)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise DataLossError(f"not a protocol buffer: a field numbered 0 at byte {start}")
        if kind == VARINT:
            value, position = _varint(data, position, stop)
            yield number, kind, value, 0
            continue
        if kind == BYTES:
            length, position = _varint(data, position, stop)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise DataLossError(f"not a protocol buffer: wire type {kind} at byte {start}")
        if length > stop - position:
            raise DataLossError(
                f"truncated protocol buffer: field {number} needs {length} bytes at byte {position}, "
                f"only {stop - position} follow"
            )
        yield number, kind, position, position + length
        position += length


def varint_field(number: int, value: int) -> bytes:
    """A field that holds a number, 0 or more."""
    return _encoded(number << 3 | VARINT) + _encoded(value)


def bytes_field(number: int, content: bytes) -> bytes:
    """A field that holds a string, bytes or a message."""
    return _encoded(number << 3 | BYTES) + _encoded(len(content)) + content


def packed(numbers: Sequence[int]) -> bytes:
    """Return the content of a packed repeated field of numbers, 0 or more."""
    return b"".join(map(_encoded, numbers))


def unpacked(content: bytes) -> tuple[int, ...]:
    """Return what ``packed`` was given.

    Raises:
        DataLossError: the bytes end inside a number.
    """
    numbers, position = [], 0
    while position < len(content):
        number, position = _varint(content, position, len(content))
        numbers.append(number)
    return tuple(numbers)


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise DataLossError(f"not a protocol buffer: a number of more than ten bytes before byte {position}")
    raise DataLossError(f"truncated protocol buffer: a number ends at byte {end}, before it is complete")
