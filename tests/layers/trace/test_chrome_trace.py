"""Traces for viewers: the rules of Chrome's JSON format, and what the tracks and arrows show."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from traced import TracedRun, run_traced

from pjrt.layers.trace.trace_views import write_chrome_trace


def written(run: TracedRun) -> list[dict[str, Any]]:
    file = io.StringIO()
    write_chrome_trace(run.traces, file)
    events: list[dict[str, Any]] = json.loads(file.getvalue())["traceEvents"]
    return events


def check_format(events: list[dict[str, Any]]) -> None:
    """Check what the viewers require of each kind of event."""
    assert {event["ph"] for event in events} <= set("XMbesfC")
    for event in events:
        assert isinstance(event["ts"], float | int)
        assert event["ts"] >= 0
        assert {"name", "pid", "tid"} <= set(event)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] in "besf":
            assert {"id", "cat"} <= set(event)
        if event["ph"] == "f":
            assert event["bp"] == "e"
    for first, last in (("b", "e"), ("s", "f")):
        starts = {event["id"]: event for event in events if event["ph"] == first}
        stops = {event["id"]: event for event in events if event["ph"] == last}
        assert set(starts) == set(stops)
        assert all(starts[key]["ts"] <= stops[key]["ts"] for key in starts)
        assert all(starts[key]["name"] == stops[key]["name"] for key in starts)
    slices = [event for event in events if event["ph"] == "X"]
    for event in events:
        if event["ph"] in "sf":  # an arrow begins and ends at a slice
            assert any(
                each["tid"] == event["tid"] and each["ts"] <= event["ts"] <= each["ts"] + each["dur"] + 0.002
                for each in slices
            ), event
    for thread in {event["tid"] for event in slices}:  # slices of a thread lie in each other, or apart
        ends: list[float] = []
        for event in sorted((e for e in slices if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= event["ts"] + 0.002:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1] + 0.002, event
            ends.append(end)


def test_each_call_is_a_slice(known_run: TracedRun) -> None:
    events = written(known_run)
    check_format(events)
    slices = Counter(event["name"] for event in events if event["ph"] == "X")
    assert sum(slices.values()) == len(known_run.trace.calls)
    assert slices["LoadedExecutable_Execute double"] == 3
    failed = [event for event in events if event.get("cat") == "error" and event["name"] == "Client_Compile"]
    assert failed[0]["args"]["error"].startswith("INVALID_ARGUMENT: Line 1")
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert any(name.startswith("python") for name in names)
    most = max(event["args"]["bytes"] for event in events if event["name"] == "live bytes")
    assert most == 4 * 16


@pytest.mark.parametrize("ready", ["calls", "events", "buffers"])
def test_the_queue_behind_the_calls(ready: str, tiny_library: Path, tmp_path: Path) -> None:
    """A slow program: its call returns at once, and what it enqueued is ready later, on another thread."""
    code = """
from tiny.control import Control

slow = client.compile(program("slow"))
with Control(LIBRARY).held():
    (y,) = slow(X)
y.ready().result()
client.close()
"""
    run = run_traced(code, tiny_library, tmp_path, f"ready={ready}")
    assert run.returncode == 0, run.output
    events = written(run)
    check_format(events)
    (call,) = (event for event in events if event["name"] == "LoadedExecutable_Execute slow" and event["ph"] == "X")
    work = [
        event for event in events if event["ph"] in "be" and event["name"] == "buffer of LoadedExecutable_Execute slow"
    ]
    begin, end = (event["ts"] for event in work)
    assert call["ts"] <= begin <= end
    assert call["ts"] + call["dur"] < end  # the call does not wait for its work
    (start,) = (event for event in events if event["ph"] == "s" and event["name"].endswith("slow"))
    assert start["ts"] == call["ts"]
