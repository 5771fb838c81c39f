"""Commands in the memory that a worker shares: their sizes are not trusted."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import pytest

from pjrt.api.errors import CancelledError, InternalError
from pjrt.native._commands import CommandLoop, Loaded

RING_SIZE = 1 << 20
COMMANDS, ANSWERS = 64, 64 + 128 + RING_SIZE  # each: bytes posted, at 64 bytes taken, at 128 the records
CANCELLED = ANSWERS + 128 + RING_SIZE  # how many fences are cancelled, and which
LAUNCH, FREE, COPY_OUT, COPY, UNLOAD = range(1, 6)


class Loop(CommandLoop):
    """A loop that notes what is wrong with its commands."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 4 << 20)
        super().__init__(self.memory)
        self.failures: list[tuple[int, BaseException]] = []

    def fail(self, fence: int, error: BaseException) -> None:
        self.failures.append((fence, error))

    def not_launched(self, fence: int, outputs: list[int], error: BaseException) -> None:
        self.failures.append((fence, error))

    def do(self, record: bytes) -> None:
        """Do a command, which is the first one."""
        self.memory[COMMANDS + 128 : COMMANDS + 128 + len(record)] = record
        struct.pack_into("<Q", self.memory, COMMANDS, len(record))
        self.do_posted()

    def answers(self) -> bytes:
        """Return what the loop has answered."""
        (size,) = struct.unpack_from("<Q", self.memory, ANSWERS)
        return self.memory[ANSWERS + 128 : ANSWERS + 128 + size]


def record(kind: int, fence: int, body: bytes) -> bytes:
    return struct.pack("<IIQ", 16 + len(body), kind, fence) + body


def launch(num_inputs: int, num_outputs: int, size_of_options: int, rest: bytes = b"") -> bytes:
    return struct.pack("<IIIIQq", 0, num_inputs, num_outputs, size_of_options, 1, 0) + rest


@pytest.mark.parametrize(
    "command",
    [
        record(LAUNCH, 7, b""),
        record(LAUNCH, 7, launch(1, 0, 0, bytes(16))),
        record(LAUNCH, 7, launch(2**32 - 1, 2**32 - 1, 2**32 - 1)),
        record(LAUNCH, 7, launch(0, 2, 0, bytes(8))),
        record(LAUNCH, 7, launch(0, 1, 9, bytes(16))),
        record(FREE, 7, b""),
        record(COPY_OUT, 7, bytes(24)),
        record(COPY, 7, bytes(16)),
        record(UNLOAD, 7, b""),
    ],
    ids=["launch", "input", "many", "outputs", "options", "free", "copy_out", "copy", "unload"],
)
def test_a_command_that_is_too_small(command: bytes) -> None:
    loop = Loop()
    loop.do(command)
    ((fence, error),) = loop.failures
    assert fence == 7
    assert isinstance(error, InternalError)
    assert "too few" in error.message


def test_a_launch_with_more_arguments_than_the_program_has() -> None:
    loop = Loop()
    loop.executables[1] = Loaded(lambda *arguments, **options: [], [], [], None, None)
    loop.do(record(LAUNCH, 7, launch(1, 0, 0, bytes(24))))
    assert "expected 0 arguments, found 1" in str(loop.failures)


def test_a_launch_that_was_cancelled_does_not_begin() -> None:
    loop = Loop()
    begun: list[Any] = []
    loop.executables[1] = Loaded(lambda *arguments, **options: begun.append(arguments), [], [], None, None)
    struct.pack_into("<QQ", loop.memory, CANCELLED, 1, 7)
    loop.do(record(LAUNCH, 7, launch(0, 0, 0)))
    ((fence, error),) = loop.failures
    assert (fence, begun) == (7, [])
    assert isinstance(error, CancelledError)


def test_answers() -> None:
    """Post the answers for work that is done, for a place in the heap, and for an error, and read each."""
    loop = Loop()
    loop.done(5)
    loop.release(4096, 6)
    loop.failed(7, 13, 3, b"why" + bytes(5))
    assert loop.answers() == (
        struct.pack("<IIQII", 24, 1, 5, 0, 0)
        + struct.pack("<IIQQQ", 32, 2, 0, 4096, 6)
        + struct.pack("<IIQII", 32, 1, 7, 13, 3)
        + b"why"
        + bytes(5)
    )


@pytest.mark.parametrize(
    ("posted", "taken", "size"),
    [
        (24, 0, 12),
        (24, 0, 8),
        (24, 0, 0),
        (24, 0, 32),
        (RING_SIZE + 24, RING_SIZE - 24, 48),
        (RING_SIZE + 32, 0, 24),
        (44, 20, 24),
    ],
    ids=["odd", "without_fence", "empty", "not_posted", "over_the_end", "more_than_the_ring", "odd_place"],
)
def test_a_record_that_cannot_be_ends_the_loop(posted: int, taken: int, size: int) -> None:
    loop = Loop()
    struct.pack_into("<Q", loop.memory, COMMANDS, posted)
    struct.pack_into("<Q", loop.memory, COMMANDS + 64, taken)
    struct.pack_into("<IIQ", loop.memory, COMMANDS + 128 + taken % RING_SIZE // 8 * 8, size, FREE, 1)
    with pytest.raises(InternalError, match="somebody has written into the memory"):
        loop.do_all()
    assert not loop.failures
