"""Header fields that are added to requests: for every division into pieces, and for a real gRPC server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt import InvalidArgumentError
from pjrt.remote.security.tunnel import MetadataInserter

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, CONTINUATION = 0, 1, 4, 9
END_HEADERS = 4

frames = st.lists(
    st.tuples(
        st.sampled_from([DATA, HEADERS, SETTINGS, CONTINUATION]),
        st.sampled_from([0, 1, END_HEADERS, END_HEADERS | 1]),
        st.integers(0, 7),
        st.binary(max_size=40),
    ),
    max_size=6,
)


def encode(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def decode(data: bytes) -> list[tuple[int, int, int, bytes]]:
    assert data.startswith(PREFACE)
    data = data[len(PREFACE) :]
    decoded = []
    while data:
        size = int.from_bytes(data[:3], "big")
        decoded.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return decoded


@given(frames, st.lists(st.integers(1, 30)), st.integers(0, 400))
def test_each_block_of_header_fields_gets_the_field(
    sent: list[tuple[int, int, int, bytes]], pieces: list[int], size: int
) -> None:
    value = "v" * size
    data = PREFACE + b"".join(encode(*frame) for frame in sent)
    inserter = MetadataInserter((("name", value),))
    passed, at = b"", 0
    for piece in [*pieces, len(data)]:
        passed += b"".join(bytes(part) for part in inserter.feed(data[at : at + piece]))
        at += piece
    expected = []
    for kind, flags, stream, payload in sent:
        if kind in (HEADERS, CONTINUATION) and flags & END_HEADERS:
            expected.append((kind, flags & ~END_HEADERS, stream, payload))
            block = b"\x10\x04name" + integer(size) + value.encode()
            expected.append((CONTINUATION, END_HEADERS, stream, block))
        else:
            expected.append((kind, flags, stream, payload))
    assert decode(passed) == expected


def integer(value: int) -> bytes:
    """Encode a length as RFC 7541, section 5.1, has it, with a prefix of seven bits."""
    if value < 127:
        return bytes([value])
    value -= 127
    return bytes([127]) + (bytes([value]) if value < 128 else bytes([value % 128 + 128, value // 128]))


def test_without_metadata_all_passes() -> None:
    assert b"".join(MetadataInserter(()).feed(b"anything")) == b"anything"


def test_other_protocols_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="HTTP/2"):
        list(MetadataInserter((("a", "b"),)).feed(b"GET / HTTP/1.1\r\n"))
    with pytest.raises(InvalidArgumentError, match="16384"):
        MetadataInserter((("a", "b" * 16384),))
