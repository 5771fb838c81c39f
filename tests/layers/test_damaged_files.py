"""Files that layers write, cut short and with wrong bytes: each is read or refused, with one of this package's errors.

``PJRT_TEST_DAMAGES`` is the number of damaged copies of each file.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import record_sums
from traced import TracedRun

import pjrt
from pjrt.capi.raw.struct import Struct
from pjrt.layers import read_findings
from pjrt.layers.recording import (
    CALL,
    HEADER,
    MAGIC,
    NAME,
    RETURN,
    Blob,
    Function,
    Handle,
    Pointer,
    Recording,
    Writer,
    lines_of,
)
from pjrt.layers.trace import log_lines, read_trace, summarize, write_chrome_trace

DAMAGES = int(os.environ.get("PJRT_TEST_DAMAGES", "60"))
FRAME = struct.Struct("<II")  # the size and the checksum of a record of a recording


def read_whole_trace(path: Path) -> None:
    trace = read_trace(path)
    for _ in log_lines(trace):
        pass
    summarize(trace)
    with open(os.devnull, "w") as nowhere:
        write_chrome_trace([trace], nowhere)


def read_whole_recording(path: Path) -> None:
    for _ in lines_of(Recording.open(path)):
        pass


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return a copy that is cut short, or has some wrong bytes, or both."""
    copy = bytearray(data)
    kind = chance.randrange(4)
    for _ in range(chance.choice([1, 2, 8, 40]) if kind else 0):
        copy[chance.randrange(len(copy))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    return bytes(copy[: chance.randrange(len(copy) + 1)] if kind < 2 else copy)


def with_checksums(data: bytes) -> bytes:
    """Return a recording whose damaged records have right checksums, as a wrong writer would give them."""
    copy, at = bytearray(data), len(MAGIC)
    while at + FRAME.size <= len(copy):
        size, _ = FRAME.unpack_from(copy, at)
        body = copy[at + FRAME.size : at + FRAME.size + size]
        if len(body) < size:
            break
        FRAME.pack_into(copy, at, size, zlib.crc32(body))
        at += FRAME.size + size
    return bytes(copy)


def check(data: bytes, read: Callable[[Path], object], path: Path, seal: Callable[[bytes], bytes] = bytes) -> None:
    for seed in range(DAMAGES):
        path.write_bytes(seal(damaged(data, random.Random(seed))))
        try:
            with contextlib.suppress(pjrt.PjrtError):
                read(path)
        except Exception as error:
            raise AssertionError(f"damage of seed {seed}") from error


@pytest.fixture(scope="module")
def recording(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("sums") / "sums.rec"
    record_sums(tiny_library, file)
    return file.read_bytes()


def test_traces(known_run: TracedRun, tmp_path: Path) -> None:
    # The end of a trace file is the part of its ring that nothing was written to.
    check(Path(known_run.trace.path).read_bytes().rstrip(b"\0"), read_whole_trace, tmp_path / "a.trace")


def test_recordings(recording: bytes, tmp_path: Path) -> None:
    check(recording, read_whole_recording, tmp_path / "a.rec")


def test_a_blob_that_is_not_in_the_file(recording: bytes) -> None:
    with pytest.raises(pjrt.DataLossError, match="has no blob 123456"):
        Recording.parse(recording, "a.rec").data(Blob(123456, 70))


@pytest.mark.full
def test_recordings_with_right_checksums(recording: bytes, tmp_path: Path) -> None:
    check(recording, read_whole_recording, tmp_path / "a.rec", with_checksums)


HANDLE = Handle("name", 1)
VALUES = [
    True,
    5,
    -5,
    0.5,
    b"text",
    [],
    [HANDLE, 13],
    [HANDLE, 13, 7],
    HANDLE,
    Pointer(1),
    Function("name", 1),
    Blob(2, 3),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("place", ["error", "results"])
def test_values_of_the_wrong_kind(value: object, place: str, tmp_path: Path) -> None:
    begun, returned = Writer(lambda _: 1), Writer(lambda _: 1)
    for number in (1, 1, 0, 1):  # the call, its thread, its time, and the name of its function
        begun.number(number)
    for each in (Struct("name"), None):
        begun.value(each)
    for number in (1, 0):
        returned.number(number)
    for each in (value, None) if place == "error" else (None, value):
        returned.value(each)
    records = [(HEADER, b'{"format": 1}'), (NAME, b"\1name"), (CALL, begun.data), (RETURN, returned.data)]
    bodies = [bytes([kind]) + body for kind, body in records]
    file = tmp_path / "a.rec"
    file.write_bytes(MAGIC + b"".join(FRAME.pack(len(body), zlib.crc32(body)) + body for body in bodies))
    expected = "an error, which is a handle, a code and a message" if place == "error" else "a struct"
    assert re.fullmatch(
        rf"the file is damaged at byte \d+: expected {expected}[,;] found .*; what is before it was read",
        Recording.open(file).problem,
    )
    read_whole_recording(file)


@pytest.mark.parametrize("header", [b"5", b"[]", b"{", b"[" * 100_000], ids=["number", "list", "cut", "nested"])
def test_headers_of_the_wrong_kind(header: bytes) -> None:
    body = bytes([HEADER]) + header
    with pytest.raises(pjrt.DataLossError, match="the recording has no calls: the file is damaged at byte"):
        Recording.parse(MAGIC + FRAME.pack(len(body), zlib.crc32(body)) + body, "a.rec")


def test_findings(tiny_library: Path, tmp_path: Path) -> None:
    file = tmp_path / "findings.jsonl"
    plugin = pjrt.layers.wrap(tiny_library, ["validate"], validate={"file": file, "stacks": "all"})
    buffer = plugin.client().buffer_from_host([1.0])
    donated = buffer.donate_with_control_dependency(pjrt.Future.completed(None))
    for _ in range(3):
        with contextlib.suppress(pjrt.PjrtError):
            buffer.unpadded_shape  # noqa: B018
    donated.delete()
    data = file.read_bytes()
    assert len(read_findings(file)) == 3
    check(data, read_findings, tmp_path / "damaged.jsonl")
