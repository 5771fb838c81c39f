"""Files of recordings: what is written is read, and damage costs only what comes after it."""

from __future__ import annotations

import contextlib
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import record_sums

from pjrt import DataLossError, InvalidArgumentError, NotFoundError
from pjrt.capi.raw.struct import Struct
from pjrt.layers.recording import (
    MAGIC,
    Blob,
    Function,
    Handle,
    LeftOut,
    Pointer,
    Reader,
    Recording,
    Writer,
    lines_of,
    write_recording,
)

NAMES = st.sampled_from(["PJRT_Buffer", "dims", "client"])
NUMBERS = st.integers(0, 2**64 - 1)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.binary(max_size=80),
    st.builds(Blob, NUMBERS, NUMBERS), st.builds(LeftOut, NUMBERS), st.builds(Handle, NAMES, NUMBERS),
    st.builds(Pointer, NUMBERS), st.builds(Function, NAMES, NUMBERS),
)  # fmt: skip
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.builds(Struct, NAMES, st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=12,
)


@pytest.fixture(scope="session")
def sums(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of two sums."""
    folder = tmp_path_factory.mktemp("sums")
    recording = record_sums(tiny_library, folder / "open.rec")  # still open: there is room for more behind its end
    write_recording(recording, folder / "sums.rec", recording.calls)
    return folder / "sums.rec"


@given(VALUES)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    names: dict[str, int] = {}
    writer = Writer(lambda name: names.setdefault(name, len(names)))
    writer.value(value)
    reader = Reader(bytes(writer.data), {number: name for name, number in names.items()})
    assert reader.value() == value
    assert reader.rest() == b""


@given(st.binary(max_size=60))
def test_bytes_that_are_no_value_are_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        Reader(data, {0: "name"}).value()


def test_every_call_has_its_place(sums: Path) -> None:
    recording = Recording.open(sums)
    assert [call.number for call in recording.calls] == list(range(1, len(recording.calls) + 1))
    assert all(call.duration is not None for call in recording.calls)
    functions = [call.function for call in recording.calls]
    assert functions.count("PJRT_LoadedExecutable_Execute") == 2
    assert functions.count("PJRT_Client_Destroy") == 1


def test_a_copy_has_the_same_calls(sums: Path, tmp_path: Path) -> None:
    recording = Recording.open(sums)
    write_recording(recording, tmp_path / "copy.rec", recording.calls)
    copy = Recording.open(tmp_path / "copy.rec")
    assert list(lines_of(copy)) == list(lines_of(recording))
    assert not copy.problem


def test_a_file_that_is_cut_short_is_read_up_to_there(sums: Path, tmp_path: Path) -> None:
    whole = Recording.open(sums)
    data = sums.read_bytes()
    lines = [_call(line) for line in lines_of(whole)]
    path = tmp_path / "cut.rec"
    counts = set()
    for size in range(len(MAGIC), len(data), 97):
        path.write_bytes(data[:size])
        try:
            recording = Recording.open(path)
        except DataLossError:
            assert not counts
            continue
        assert recording.problem
        counts.add(len(recording.calls))
        threads = {call.thread for call in recording.calls}  # each may be inside of a call
        assert sum(call.duration is None for call in recording.calls) <= len(threads)
        # What was read is what the whole file has, but for the last calls, whose results may be missing.
        found = [_call(line) for line in lines_of(recording)]
        assert found[:-5] == lines[: max(0, len(found) - 5)]
    assert len(counts) > 10


def _call(line: str) -> str:
    """Return the call of a line without its number and thread, which depend on the calls that come later."""
    return re.sub(r"^ *[0-9]+ (T[0-9]+ )?", "", line)


def test_damage_in_the_middle_is_found(sums: Path, tmp_path: Path) -> None:
    whole, path = Recording.open(sums), tmp_path / "damaged.rec"
    problems = set()
    # Bytes of the lengths of records (a wrong one looks like a cut), of their checksums, and of what they hold.
    for position in range(len(sums.read_bytes()) // 2, len(sums.read_bytes()) * 3 // 4, 7):
        data = bytearray(sums.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
        damaged = Recording.open(path)
        assert 0 < len(damaged.calls) < len(whole.calls), position
        problems.add(re.sub(r"[0-9]+", "N", damaged.problem))
    assert problems == {
        "the file is damaged at byte N; what is before it was read",
        "the file is cut short or damaged in a record at byte N; what is before it was read",
    }


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no recording"):
        Recording.open(tmp_path / "nothing.rec")
    (tmp_path / "other").write_bytes(b"\x7fELF and more")
    with pytest.raises(InvalidArgumentError, match="expected a recording of the layer record"):
        Recording.open(tmp_path / "other")
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidArgumentError, match="expected a recording"):
        Recording.open(tmp_path / "empty")
    (tmp_path / "no_calls").write_bytes(MAGIC)
    with pytest.raises(DataLossError, match="no calls"):
        Recording.open(tmp_path / "no_calls")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    header = b'\x01{"format": 2}'
    frame = len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little")
    (tmp_path / "newer.rec").write_bytes(MAGIC + frame + header)
    with pytest.raises(InvalidArgumentError, match="expected a recording of format 1, found format 2"):
        Recording.open(tmp_path / "newer.rec")
