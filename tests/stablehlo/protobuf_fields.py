"""Fields of protobuf messages, written one by one: also those that no message would have."""

from __future__ import annotations

from collections.abc import Iterable


def varint_field(number: int, value: int) -> bytes:
    """Return a field that holds a number, 0 or more."""
    return _varint(number << 3) + _varint(value)


def bytes_field(number: int, content: bytes) -> bytes:
    """Return a field that holds a string, bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """Return a packed repeated field of numbers, 0 or more."""
    return bytes_field(number, b"".join(map(_varint, values)))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
