"""The log of a trace: the nouns and the order of the calls, as in PJRT's own example log."""

from __future__ import annotations

import re

import pytest
from traced import TracedRun

from pjrt.layers.trace.trace_views import log_lines, readable_time

GOLDEN = """\

//////////////////////////////////
// Load the plugin
//////////////////////////////////

PJRT_Client_Create(create_options=[{name="num_devices", type=Int64, int64_value=1}]) -> client=@0

//////////////////////////////////
// Compile: double
//////////////////////////////////

PJRT_Client_Compile(client=@0, program={code=<58 bytes>, format="tiny"}, compile_options=<17 bytes>) -> executable=@3
PJRT_LoadedExecutable_GetExecutable(loaded_executable=@3) -> executable=@4
PJRT_Executable_NumOutputs(executable=@4) -> num_outputs=1

//////////////////////////////////
// Load data onto the device
//////////////////////////////////

PJRT_Client_BufferFromHostBuffer(client=@0, data=@5, type=F32, dims=[4], \
host_buffer_semantics=ImmutableOnlyDuringCall, device=@1) -> done_with_host_buffer=@6, buffer=@7

//////////////////////////////////
// RUN: double
//////////////////////////////////

PJRT_LoadedExecutable_Execute(executable=@3, \
options={launch_id=0, use_major_to_minor_data_layout_for_callbacks=false}, \
argument_lists=[[@7]], execute_device=@1) -> output_lists=[[@8]]

//////////////////////////////////
// Read data from the device
//////////////////////////////////

PJRT_Buffer_ToHostBuffer(src=@8, host_layout={tiled={minor_to_major=[0]}, type=Tiled}, dst=<16 bytes>) -> event=@event
"""


def test_the_manner_of_the_log(known_run: TracedRun) -> None:
    """The first calls of each part. Events may be destroyed in between, and their addresses be used again."""
    parts = ("Client_Create", "Compile", "GetExecutable", "NumOutputs", "FromHostBuffer", "_Execute", "ToHostBuffer")
    lines: list[str] = []
    for line in log_lines(known_run.trace, numbered=True):
        if not line.startswith("PJRT_") or any(part in line.partition("(")[0] for part in parts):
            lines.append(line)
        if line.startswith("PJRT_Buffer_ToHostBuffer"):
            break
    assert _renumbered(_firsts(lines)) == _renumbered(GOLDEN.splitlines())


def _firsts(lines: list[str]) -> list[str]:
    seen: set[str] = set()
    kept = []
    for line in lines:
        name = line.partition("(")[0] if line.startswith("PJRT_") else ""
        if not name or name not in seen:
            kept.append(line)
        seen.add(name)
    return kept


def _renumbered(lines: list[str]) -> list[str]:
    """Number the pointers anew, but for the last event, which may have the address of a destroyed one."""
    numbers: dict[str, str] = {}
    lines = [re.sub(r" event=@\d+$", " event=@event", line) for line in lines]
    return [re.sub(r"@\d+", lambda match: numbers.setdefault(match[0], f"@{len(numbers)}"), line) for line in lines]


def test_errors_have_their_codes_and_messages(known_run: TracedRun) -> None:
    lines = list(log_lines(known_run.trace))
    compile_ = [line for line in lines if "PJRT_Client_Compile(" in line]
    assert "-> INVALID_ARGUMENT: Line 1 of the tiny program" in compile_[1]
    # The program asks the event for its error, or gets it in a callback, if the event was not ready yet.
    assert any(re.search(r"PJRT_Event_\w+\(.*\) -> INTERNAL: no luck  ", line) for line in lines)
    assert any(r"starts with \"tiny 1\"" in line for line in lines if "PJRT_Error_Message" in line)


def test_times_and_threads(known_run: TracedRun) -> None:
    calls = [line for line in log_lines(known_run.trace) if "PJRT_" in line]
    assert all(re.match(r" +\d+\.\d{6}  python\S* +PJRT_\w+\(.*  \[[\d.e+]+ (ns|us|ms|s)\]$", line) for line in calls)
    starts = [float(line.split()[0]) for line in calls]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 ns"), (12.34, "12.3 ns"), (999.4, "999 ns"), (999.6, "1 us"), (1.5e6, "1.5 ms"), (2e9, "2 s")],
)
def test_times_with_units(nanoseconds: float, text: str) -> None:
    assert readable_time(nanoseconds) == text
