"""Protobuf's wire format, read without copying, and written.

The protobuf library copies what it parses, weights and all, and takes 13 ms to import. A scan of the fields of a
message costs neither, and only the fields of interest are then given to the library (see ``_xla_protos``).
"""

from __future__ import annotations

from collections.abc import Iterator

from pjrt.api.errors import DataLossError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int, int]
"""A field: its number, its wire type, and its value (of a varint, then 0) or where its content begins and ends."""


def fields(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of the message between two positions, in order.

    Raises:
        DataLossError: the bytes are not a message, or end inside a field; the message says where.
    """
    position = begin
    stop = len(data) if end is None else end
    while position < stop:
        start = position
        key, position = varint(data, position, stop)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise DataLossError(f"not a protocol buffer: a field numbered 0 at byte {start}")
        if kind == VARINT:
            value, position = varint(data, position, stop)
            yield number, kind, value, 0
            continue
        if kind == BYTES:
            length, position = varint(data, position, stop)
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


def varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the number that begins at a position, and the position after it.

    Raises:
        DataLossError: the number is not complete, or longer than any.
    """
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


def message(number: int, content: bytes) -> bytes:
    """Return a field with a message, a string or bytes as its content."""
    return _encoded(number << 3 | BYTES) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
