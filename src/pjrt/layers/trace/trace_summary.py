"""The summary of a trace: calls and their times, compilations, executions, bytes moved, buffers that live at once."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from pjrt.layers.trace.trace_log import remarks
from pjrt.layers.trace.trace_objects import TracedBuffer, TracedObjects, array_bytes, objects_of
from pjrt.layers.trace.trace_records import Call, Trace

_COMPILERS = ("PJRT_Client_Compile", "PJRT_Compile")
"""The functions that compile: for a client's devices, and for a topology."""


@dataclass(frozen=True)
class FunctionSummary:
    """The calls of one function; times are in seconds."""

    name: str
    calls: int
    errors: int
    total: float
    own: float
    """The total without the time of calls and callbacks inside of it."""
    median: float
    longest: float


@dataclass(frozen=True)
class ProgramSummary:
    """A program; times are in seconds."""

    name: str
    compile: float | None
    """None: the trace does not have the compilation."""
    executions: int
    enqueue: float
    """The time in calls of ``PJRT_LoadedExecutable_Execute``."""
    run: float | None
    """From the beginning of a call until its outputs were ready, in the median; None where nothing asked for it."""


@dataclass(frozen=True)
class TraceSummary:
    """The numbers of a traced run; times are in seconds."""

    process: int
    command: str
    plugins: list[str]
    seconds: float
    calls: int
    errors: int
    threads: int
    functions: list[FunctionSummary]
    programs: list[ProgramSummary]
    compilations: int
    compile_seconds: float
    bytes_to_device: int
    bytes_to_host: int
    bytes_between_devices: int
    buffers: int
    peak_buffers: int
    peak_bytes: int
    buffers_without_size: int
    live_buffers: int
    """Buffers that were not released when the trace ended."""
    unfinished: list[str]
    """The functions that had not returned."""
    remarks: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for ``--json``."""
        return asdict(self)


def summarize(trace: Trace) -> TraceSummary:
    """Return the summary of a trace."""
    objects = objects_of(trace)
    functions = _functions(trace)
    programs = _programs(objects)
    ends = [call.end or call.begin for call in trace.calls]
    peak_buffers, peak_bytes = _peaks(objects.buffers)
    moved = _moved(trace, objects)
    compilations = [call for call in trace.calls if call.function.name in _COMPILERS and not call.failed]
    return TraceSummary(
        trace.process,
        trace.command,
        trace.plugins,
        (max(ends) - trace.calls[0].begin) / 1e9 if ends else 0.0,
        len(trace.calls),
        sum(call.failed for call in trace.calls),
        len({call.thread.index for call in trace.calls}),
        functions,
        programs,
        len(compilations),
        sum(call.duration for call in compilations) / 1e9,
        *moved,
        len(objects.buffers),
        peak_buffers,
        peak_bytes,
        sum(buffer.nbytes is None for buffer in objects.buffers),
        sum(buffer.released is None for buffer in objects.buffers),
        sorted({call.function.name for call in trace.calls if call.end is None}),
        remarks(trace),
    )


def _functions(trace: Trace) -> list[FunctionSummary]:
    inside: dict[tuple[int, int], float] = defaultdict(float)
    for call in trace.calls:
        if call.parent:
            inside[call.thread.index, call.parent] += call.duration
    grouped: dict[str, list[Call]] = defaultdict(list)
    for call in trace.calls:
        grouped[call.function.name].append(call)
    rows = [
        FunctionSummary(
            name,
            len(calls),
            sum(call.failed for call in calls),
            sum(call.duration for call in calls) / 1e9,
            sum(max(0.0, call.duration - inside[call.thread.index, call.number]) for call in calls) / 1e9,
            statistics.median(call.duration for call in calls) / 1e9,
            max(call.duration for call in calls) / 1e9,
        )
        for name, calls in grouped.items()
    ]
    return sorted(rows, key=lambda row: (-row.total, row.name))


def _programs(objects: TracedObjects) -> list[ProgramSummary]:
    until_ready: dict[int, float] = {}
    for event in objects.events:
        creator = event.creator if event.buffer is None else event.buffer.creator
        if event.ready is not None:
            until_ready[id(creator)] = max(until_ready.get(id(creator), 0.0), event.ready - creator.begin)
    rows = []
    for program in objects.programs:
        times = [until_ready[id(call)] for call in program.executions if id(call) in until_ready]
        compiled = None if program.compiled is None else program.compiled.duration / 1e9
        enqueue = sum(call.duration for call in program.executions) / 1e9
        run = statistics.median(times) / 1e9 if times else None
        rows.append(ProgramSummary(program.label, compiled, len(program.executions), enqueue, run))
    return rows


def _peaks(buffers: list[TracedBuffer]) -> tuple[int, int]:
    changes = [(buffer.created, 1, buffer.nbytes or 0) for buffer in buffers]
    changes += [(buffer.released, -1, -(buffer.nbytes or 0)) for buffer in buffers if buffer.released is not None]
    count = nbytes = most = most_bytes = 0
    for _, change, size in sorted(changes):
        count, nbytes = count + change, nbytes + size
        most, most_bytes = max(most, count), max(most_bytes, nbytes)
    return most, most_bytes


def _moved(trace: Trace, objects: TracedObjects) -> tuple[int, int, int]:
    """Return the bytes to devices, to the host, and between devices."""
    made_by = {id(buffer.creator): buffer for buffer in objects.buffers}
    to_device = to_host = between = 0
    for call in trace.calls:
        if call.failed:
            continue
        name = call.function.name.removeprefix("PJRT_")
        if name in ("Client_BufferFromHostBuffer", "AsyncHostToDeviceTransferManager_TransferLiteral"):
            to_device += array_bytes(call) or 0
        elif name in ("AsyncHostToDeviceTransferManager_TransferData", "RawBuffer_CopyRawHostToDevice"):
            to_device += call.number_of("transfer_size")
        elif name == "Buffer_ToHostBuffer" and call.number_of("dst"):
            to_host += call.number_of("dst_size")
        elif name in ("Buffer_CopyRawToHost", "Buffer_CopyRawToHostFuture", "RawBuffer_CopyRawDeviceToHost"):
            to_host += call.number_of("transfer_size")
        elif name in ("Buffer_CopyToDevice", "Buffer_CopyToMemory") and id(call) in made_by:
            between += made_by[id(call)].nbytes or 0
    return to_device, to_host, between
