"""A header field that is added to each request of an HTTP/2 connection, while its bytes pass by.

Frames are read as far as needed (RFC 9113): the block of a request's header fields may go on in CONTINUATION frames, so
one more such frame carries the new field. The field is never indexed (RFC 7541, section 6.2.3), so the tables of both
ends stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from pjrt.api.errors import InvalidArgumentError

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER = 9
_HEADERS, _CONTINUATION = 1, 9
_END_HEADERS = 4
_LARGEST_FRAME = 16384  # that every receiver accepts


class MetadataInserter:
    """The connection of one client, which gets more header fields in each request.

    Args:
        metadata: the names and values of the fields; without any, all bytes pass unchanged.
    """

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._block = b"".join(_literal(name.encode("ascii"), value.encode("ascii")) for name, value in metadata)
        if len(self._block) > _LARGEST_FRAME:
            raise InvalidArgumentError(f"expected at most {_LARGEST_FRAME} bytes of metadata, found {len(self._block)}")
        self._preface = _PREFACE
        self._header = b""
        self._left = 0  # bytes of the frame's payload that have not come yet
        self._addition = b""  # the frame to add after them

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """Yield the bytes to send for some bytes of the client.

        Raises:
            InvalidArgumentError: the client does not speak HTTP/2.
        """
        if not self._block:
            yield data
            return
        rest = memoryview(data)
        if self._preface:
            begin = bytes(rest[: len(self._preface)])
            if not self._preface.startswith(begin):
                raise InvalidArgumentError("expected a gRPC client, which speaks HTTP/2 in the clear")
            self._preface = self._preface[len(begin) :]
            yield begin
            rest = rest[len(begin) :]
        while rest:
            if self._left:
                part = rest[: self._left]
                self._left -= len(part)
                yield part
            else:
                part = rest[: _FRAME_HEADER - len(self._header)]
                self._header += bytes(part)
                if len(self._header) == _FRAME_HEADER:
                    yield self._begin_frame()
            rest = rest[len(part) :]
            if self._addition and not self._left:
                yield self._addition
                self._addition = b""

    def _begin_frame(self) -> bytes:
        """Return the header of the frame that begins; a block of header fields does not end with it any more."""
        header, self._header = self._header, b""
        self._left = int.from_bytes(header[:3], "big")
        kind, flags = header[3], header[4]
        if kind in (_HEADERS, _CONTINUATION) and flags & _END_HEADERS:
            stream = header[5:]
            size = len(self._block).to_bytes(3, "big")
            self._addition = size + bytes((_CONTINUATION, _END_HEADERS)) + stream + self._block
            header = header[:4] + bytes((flags & ~_END_HEADERS,)) + stream
        return header


def _literal(name: bytes, value: bytes) -> bytes:
    """Return a header field that is never indexed, on no way to the server: the value is a secret."""
    return b"\x10" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    """Return a string of HPACK, without Huffman's code."""
    if len(text) < 127:
        return bytes((len(text),)) + text
    size, encoded = len(text) - 127, bytearray((127,))
    while size >= 128:
        encoded.append(size & 127 | 128)
        size >>= 7
    return bytes((*encoded, size)) + text
