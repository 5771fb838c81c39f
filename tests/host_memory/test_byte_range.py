"""Ranges of bytes: what fits, what does not, and what has no bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.host_memory.array import bytes_of, source_bytes, target_bytes


@pytest.mark.parametrize(
    "memory", [b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), np.array([97, 98, 99, 100], "u1")]
)
def test_the_bytes_are_those_of_the_object_itself(memory: Any) -> None:
    data = source_bytes(memory, 2, 6)
    assert data.tobytes() == b"abcd"
    assert np.shares_memory(data, np.frombuffer(memory, np.uint8))


def test_a_target_is_cut_to_the_size_and_written_in_place() -> None:
    out = np.zeros(3, np.int16)
    target_bytes(out, 4, 2, 6)[:] = 255
    assert out.tolist() == [-1, 0, 0]
    assert target_bytes(out, 0, None, 6).nbytes == 6
    assert target_bytes(bytearray(), 6, None, 6).nbytes == 0


@pytest.mark.parametrize(("offset", "size"), [(-1, 2), (5, 2), (0, -1)])
def test_ranges_outside_of_the_buffer(offset: int, size: int) -> None:
    with pytest.raises(pjrt.OutOfRangeError, match="the buffer's 6 bytes"):
        target_bytes(bytearray(8), offset, size, 6)
    if size > 0:
        with pytest.raises(pjrt.OutOfRangeError, match="the buffer's 6 bytes"):
            source_bytes(bytes(size), offset, 6)


def test_targets_that_cannot_take_the_bytes() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="read-only bytes"):
        target_bytes(b"abcd", 0, None, 6)
    with pytest.raises(pjrt.InvalidArgumentError, match="room for 4 bytes to copy to, found 2"):
        target_bytes(bytearray(2), 0, 4, 6)
    with pytest.raises(pjrt.InvalidArgumentError, match="whole number"):
        target_bytes(bytearray(2), 0.5, 1, 6)  # type: ignore[arg-type]


@pytest.mark.parametrize("memory", [7, "text", np.zeros((4, 4))[:, ::2], memoryview(b"abcd")[::2]], ids=type)
def test_objects_without_bytes_that_lie_together(memory: Any) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"lie together|buffer protocol"):
        bytes_of(memory)
