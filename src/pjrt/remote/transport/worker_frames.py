"""Frames between a server and the process of a client: what goes through the two sockets of a session.

One has the requests of the client on the one way, as they came, and the responses on the other. The other socket has
packets about host buffers, with their bytes in pieces. The server trusts nothing that comes from the process.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from pjrt.api.errors import DataLossError
from pjrt.remote.protocol.messages import wire

REQUEST = struct.Struct("<Q")
"""Before each request: its length."""

RESPONSE = struct.Struct("<QHHfIIQ")
"""Before each response: the fields of ``Response``, but for the length in place of the message."""

KINDS = [
    field.name.removesuffix("_request")
    for field in wire.IfrtRequest.DESCRIPTOR.fields
    if field.name.endswith("_request")
]
"""The kinds of requests by their numbers in a ``Response``; a higher number is a kind that nobody knows."""

UNCOUNTED = 0xFFFF
"""The number of a response that is not counted: what the server counts comes before it."""

PACKET = struct.Struct("<BxxxIQQQ")
"""Before each packet: the fields of ``Packet``, but for the length in place of the data."""

LONGEST_PACKET = 1 << 21
"""The most data of a packet from the process."""


class Response(NamedTuple):
    """A response, or what the server counts about a request.

    Attributes:
        message: the response; empty if the frame is only for what the server counts.
        kind: the number of the kind of request, or ``UNCOUNTED``.
        status: the status code.
        seconds: the time from the request to the response.
        arrays: the arrays of the session now.
        executables: its executables.
        bytes: the memory that counts.
    """

    message: bytes
    kind: int
    status: int
    seconds: float
    arrays: int
    executables: int
    bytes: int


def response_frame(response: Response) -> bytes:
    """Return a response as the stream has it."""
    return RESPONSE.pack(len(response.message), *response[1:]) + response.message


class Frames:
    """The frames of a stream, of which parts have come.

    Args:
        head: the form of what is before each.
        longest: the longest content of a frame that may come.
        field: the field of the head that is the length of the content.
    """

    def __init__(self, head: struct.Struct, longest: int, field: int = 0) -> None:
        self._head, self._longest, self._field = head, longest, field
        self._received = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[tuple[int, ...], bytes]]:
        """Yield the head and the content of each frame that is complete by what has come.

        Raises:
            DataLossError: a frame is longer than it may be.
        """
        self._received += data
        start, end, size = 0, len(self._received), self._head.size
        while end - start >= size:
            fields = self._head.unpack_from(self._received, start)
            length = fields[self._field]
            if length > self._longest:
                raise DataLossError(f"expected a message of at most {self._longest} bytes, found one of {length}")
            stop = start + size + length
            if end < stop:
                break
            yield fields, bytes(memoryview(self._received)[start + size : stop])
            start = stop
        del self._received[:start]


class Kind(enum.IntEnum):
    """What a packet is about: those up to ``DELETE`` go to the process, the others come from it."""

    EXPECT = 1
    PIECE = 2
    ABANDON = 3
    PROGRESS = 4
    STORE = 5
    LOOKUP = 6
    DELETE = 7
    ANSWER = 8
    HANG_UP = 9


class Packet(NamedTuple):
    """A packet about a host buffer.

    Attributes:
        kind: what it is about.
        call: the number of a request, for its answer; 0 where there is none.
        handle: the host buffer; in what comes from the process the status code.
        size: the length of the host buffer; for a piece, and for a look-up, where the piece begins.
        data: the piece, or the text of an error.
    """

    kind: int
    call: int
    handle: int
    size: int
    data: Any = b""

    @property
    def head(self) -> bytes:
        """What goes before the data."""
        return PACKET.pack(self.kind, self.call, self.handle, self.size, memoryview(self.data).nbytes)
