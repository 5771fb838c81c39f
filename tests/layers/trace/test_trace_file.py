"""Reading trace files: whole, cut short and damaged ones."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traced import TracedRun

import pjrt
from pjrt.layers.trace.trace_file import is_trace_file, read_trace, switch_trace
from pjrt.layers.trace.trace_views import log_lines, summarize, write_chrome_trace


def test_what_a_trace_has(known_run: TracedRun, tiny_library: Path) -> None:
    trace = known_run.trace
    assert trace.plugins == [str(tiny_library)]
    assert (trace.problems, trace.overwritten, trace.dropped, trace.finished) == ([], 0, 0, True)
    assert trace.process == int(Path(trace.path).stem)
    assert "python" in trace.command
    assert trace.threads[0].name.startswith("python")  # the plugin's own threads may follow
    assert all(call.end is not None and call.end >= call.begin >= 0 for call in trace.calls)


def test_calls_inside_of_calls(known_run: TracedRun) -> None:
    """The callback of OnReady runs inside of the call where the event is ready already, else on a thread of its own."""
    for call in known_run.trace.calls:
        if call.is_callback and call.parent:
            same_thread = (other for other in known_run.trace.calls if other.thread == call.thread)
            (parent,) = (other for other in same_thread if other.number == call.parent)
            assert parent.function.name == "PJRT_Event_OnReady"
            assert parent.begin <= call.begin
            assert (call.end or 0) <= (parent.end or 0)
            assert call.depth == parent.depth + 1


def read_everything(path: Path) -> int:
    """Read a file as far as it goes, with all readers; returns the number of calls."""
    trace = read_trace(path)
    for line in log_lines(trace):
        assert "\n" not in line
    summarize(trace)
    with open("/dev/null", "w") as nowhere:
        write_chrome_trace([trace], nowhere)
    return len(trace.calls)


def test_a_file_cut_short(known_run: TracedRun, tmp_path: Path) -> None:
    """The calls before the cut are read, and a message reports it."""
    whole = Path(known_run.trace.path).read_bytes()
    cut = tmp_path / "cut.trace"
    counts = []
    for size in (len(whole) - 1, len(whole) // 2, len(whole) // 4):
        cut.write_bytes(whole[:size])
        trace = read_trace(cut)
        assert "cut short" in trace.problems[0]
        assert next(log_lines(trace)).startswith("# the file is cut short")
        counts.append(len(trace.calls))
    assert counts[0] == len(known_run.trace.calls)
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("size", [1, 7, 8, 100, 4096, 20_000])
def test_a_file_without_its_beginning(size: int, known_run: TracedRun, tmp_path: Path) -> None:
    cut = tmp_path / "cut.trace"
    cut.write_bytes(Path(known_run.trace.path).read_bytes()[:size])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a trace file|damaged"):
        read_trace(cut)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 30))
def test_a_damaged_file_is_read_or_refused(
    seed: int, flips: int, known_run: TracedRun, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(Path(known_run.trace.path).read_bytes())
    chance = random.Random(seed)
    used = len(bytes(data).rstrip(b"\0"))
    for _ in range(flips):
        data[chance.choice([chance.randrange(2176), chance.randrange(used)])] = chance.randrange(256)
    damaged = tmp_path_factory.getbasetemp() / "damaged.trace"
    damaged.write_bytes(data)
    with contextlib.suppress(pjrt.InvalidArgumentError):
        read_everything(damaged)


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.trace"
    other.write_bytes(b"")
    with pytest.raises(pjrt.InvalidArgumentError, match="found an empty file"):
        read_trace(other)
    other.write_bytes(b"x" * 10_000)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a trace file, found other contents"):
        read_trace(other)
    assert not is_trace_file(other)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected the trace file of a running process"):
        switch_trace(other, on=True)
    with pytest.raises(pjrt.NotFoundError, match="no such trace file"):
        read_trace(tmp_path / "missing.trace")


def test_a_newer_version_is_refused(known_run: TracedRun, tmp_path: Path) -> None:
    data = bytearray(Path(known_run.trace.path).read_bytes())
    data[8] = 99
    newer = tmp_path / "newer.trace"
    newer.write_bytes(data)
    with pytest.raises(pjrt.InvalidArgumentError, match="of version 1, found version 99"):
        read_trace(newer)
