"""Recorded parts of sessions: requests, and the host buffers that came between them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("sessions.bin")
PART = 60
"""The number of events of a part."""

STORE = "store"
"""The kind of an event that is a host buffer."""

_HEADER = struct.Struct("<BQI")


class Event(NamedTuple):
    """A message of a client.

    Attributes:
        kind: the field of the request in ``IfrtRequest``, or ``STORE``.
        handle: the handle of a host buffer; 0 for a request.
        data: the request, or the bytes of the host buffer.
    """

    kind: str
    handle: int
    data: bytes


def write(parts: list[list[Event]]) -> None:
    """Write parts of sessions to the file."""
    with FILE.open("wb") as file:
        for part in parts:
            file.write(struct.pack("<H", len(part)))
            for event in part:
                name = event.kind.encode()
                file.write(_HEADER.pack(len(name), event.handle, len(event.data)) + name + event.data)


def read() -> list[list[Event]]:
    """Return the parts of sessions in the file."""
    data, position, parts = FILE.read_bytes(), 0, []
    while position < len(data):
        (count,) = struct.unpack_from("<H", data, position)
        position += 2
        part = []
        for _ in range(count):
            length, handle, size = _HEADER.unpack_from(data, position)
            start = position + _HEADER.size
            position = start + length + size
            part.append(Event(data[start : start + length].decode(), handle, data[start + length : position]))
        parts.append(part)
    return parts
