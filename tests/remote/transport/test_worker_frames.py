"""Frames between a server and the processes of its clients: however they are cut, and whatever comes in their place."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pjrt
from pjrt.remote.transport.worker_frames import PACKET, RESPONSE, Frames, Kind, Packet, Response, response_frame


@given(st.lists(st.binary(max_size=200), max_size=8), st.integers(1, 50))
def test_frames_are_the_same_however_they_are_cut(messages: list[bytes], step: int) -> None:
    stream = b"".join(response_frame(Response(message, 1, 2, 0.5, 3, 4, 5)) for message in messages)
    frames = Frames(RESPONSE, 200)
    found = [frame for start in range(0, len(stream), step) for frame in frames.add(stream[start : start + step])]
    assert [content for _, content in found] == messages
    assert all(fields[1:] == (1, 2, 0.5, 3, 4, 5) for fields, _ in found)


def test_a_packet_has_its_length_in_its_head() -> None:
    packet = Packet(Kind.PIECE, 7, 8, 9, b"data")
    ((fields, content),) = Frames(PACKET, 10, field=4).add(packet.head + packet.data)
    assert fields == (Kind.PIECE, 7, 8, 9, 4)
    assert content == b"data"


@given(st.binary(max_size=300))
def test_what_is_no_frame_is_an_error_or_waits(data: bytes) -> None:
    frames = Frames(RESPONSE, 100)
    with contextlib.suppress(pjrt.DataLossError):
        assert all(len(content) <= 100 for _, content in frames.add(data))


def test_a_long_frame_is_refused_before_it_comes() -> None:
    with pytest.raises(pjrt.DataLossError, match="found one of 18446744073709551615"):
        list(Frames(RESPONSE, 1 << 30).add(b"\xff" * RESPONSE.size))
