"""Files that layers write, cut short and with wrong bytes: each is read or refused, with one of this package's errors.

``PJRT_TEST_DAMAGES`` is the number of damaged copies of each file.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import record_sums
from traced import TracedRun

import pjrt
from pjrt.layers import read_findings
from pjrt.layers.recording import Recording, lines_of
from pjrt.layers.recording.recorded_value import Blob
from pjrt.layers.recording.recording import MAGIC
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


def test_recordings_with_right_checksums(recording: bytes, tmp_path: Path) -> None:
    check(recording, read_whole_recording, tmp_path / "a.rec", with_checksums)


def test_findings(tiny_library: Path, tmp_path: Path) -> None:
    file = tmp_path / "findings.jsonl"
    plugin = pjrt.layers.wrap(tiny_library, ["validate"], validate={"file": file, "stacks": "all"})
    buffer = plugin.client().buffer_from_host([1.0])
    buffer.delete()
    for _ in range(3):
        with pytest.raises(pjrt.FailedPreconditionError):
            buffer.tolist()
    data = file.read_bytes()
    assert len(read_findings(file)) == 3
    check(data, read_findings, tmp_path / "damaged.jsonl")
