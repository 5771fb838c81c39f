"""Pieces of host buffers: messages with one field of bytes.

The few bytes before the data are read and written here, because protobuf would copy the data once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError

CHUNK_BYTES = 1 << 20
"""The length of a piece; that of jaxlib's client."""

_DATA_FIELD = b"\x0a"  # field 1, of a length that follows
_MAX_HEADER = 11


def pieces(data: memoryview) -> Iterator[bytes]:
    """Yield the messages with the pieces of a host buffer; an empty one is an empty piece."""
    for start in range(0, max(data.nbytes, 1), CHUNK_BYTES):
        yield piece(data[start : start + CHUNK_BYTES])


def piece(data: memoryview) -> bytes:
    """Return the message with a piece of a host buffer."""
    length, header = data.nbytes, bytearray(_DATA_FIELD)
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return b"".join((header, data))


def piece_data(message: bytes) -> np.ndarray[Any, Any]:
    """Return the data in a message with a piece of a host buffer.

    Raises:
        InvalidArgumentError: the message has something else, or its length is wrong.
    """
    if not message:
        return np.empty(0, np.uint8)
    position, length, shift = 1, 0, 0
    while True:
        if message[:1] != _DATA_FIELD or position >= min(len(message), _MAX_HEADER):
            raise InvalidArgumentError("expected a message with one field of bytes, found another one")
        byte = message[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if position + length != len(message):
        raise InvalidArgumentError(f"expected {length} bytes in a message, found {len(message) - position}")
    return np.frombuffer(message, np.uint8, length, position)
