"""Views of a trace: a log, a summary, and a file for trace viewers."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from pjrt.layers.trace.trace_file import Call, Trace
from pjrt.layers.trace.trace_objects import (
    Address,
    Fields,
    TracedBuffer,
    TracedEvent,
    TracedObjects,
    array_bytes,
    objects_of,
    value_text,
    values_of,
)

# The log: one line for each call, with the nouns and the order of PJRT's own example log. That is in the overview of
# the C++ device API: a heading for each part of a run, and below it the methods with their objects.

_RULE = "/" * 34
_TO_HOST = ("PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_CopyRawToHost", "PJRT_Buffer_CopyRawToHostFuture")
_FROM_HOST = ("PJRT_Client_BufferFromHostBuffer", "PJRT_Client_CreateBuffersForAsyncHostToDevice")


def log_lines(trace: Trace, *, numbered: bool = False) -> Iterator[str]:
    """Yield the lines of the log.

    With ``numbered``, pointers are numbers in the order of their appearance, and there are no times and no threads: the
    logs of two runs of the same program are equal.
    """
    yield from (f"# {line}" for line in remarks(trace))
    address_text = _Numbers() if numbered else hex
    headings = _Headings(objects_of(trace))
    several = len({call.stack for call in trace.calls}) > 1
    for call in trace.calls:
        if heading := headings.of(call):
            yield from ("", _RULE, f"// {heading}", _RULE, "")
        prefix = "" if numbered else f"{call.begin / 1e9:12.6f}  {thread_name(call):<16}"
        stack = f"#{call.stack} " if several else ""
        time = "" if numbered and call.end is not None else f"  [{_duration(call)}]"
        yield f"{prefix}{stack}{'  ' * call.depth}{call_text(trace, call, address_text)}{time}"


def remarks(trace: Trace) -> list[str]:
    """Return what a reader has to know about the trace as a whole: what it lacks, and how the process ended."""
    lines = list(trace.problems)
    if trace.overwritten:
        lines.append(f"the ring was full: {trace.overwritten} chunks were overwritten, so the first calls are missing")
    if trace.dropped:
        lines.append("the ring was full, or had fewer chunks than there are threads: calls are missing")
    if trace.sample > 1:
        lines.append(f"of each function, 1 of {trace.sample} calls was recorded")
    if not trace.finished:
        lines.append(f"process {trace.process} was killed, crashed, or still runs")
    return lines


def call_text(trace: Trace, call: Call, address_text: Callable[[int], str] = hex) -> str:
    """Return a call as text: the function, its arguments, and its results or its error."""
    values = values_of(trace, call)
    arguments = ", ".join(f"{name}={value_text(value, address_text)}" for name, value in values.arguments.items())
    text = f"{call.function.name}({arguments})"
    if call.origin is not None and call.origin.name != call.function.name:
        text = f"{call.origin.name}({_receiver(call, address_text)}) calls {text}"
    if call.failed:
        return f"{text} -> {call.code_name}: {call.message}" if call.message else f"{text} -> {call.code_name}"
    results = ", ".join(f"{name}={value_text(value, address_text)}" for name, value in values.results.items())
    return f"{text} -> {results}" if results else text


def thread_name(call: Call) -> str:
    """Return the name of a call's thread, or its number if it has none."""
    return call.thread.name or str(call.thread.system_id)


def readable_time(nanoseconds: float) -> str:
    """Return a time with a suitable unit."""
    for unit, size in (("ns", 1.0), ("us", 1e3), ("ms", 1e6)):
        if nanoseconds < 999.5 * size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1e9:.3g} s"


def _duration(call: Call) -> str:
    return "did not return" if call.end is None else readable_time(call.end - call.begin)


def _receiver(call: Call, address_text: Callable[[int], str]) -> str:
    if call.origin is None or call.origin.handle < 0 or not call.origin_handle:
        return ""
    return f"{call.origin.args.fields[call.origin.handle].name}={address_text(Address(call.origin_handle))}"


class _Numbers:
    """Names of pointers by the order in which they appear."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def __call__(self, address: int) -> str:
        return f"@{self.numbers.setdefault(address, len(self.numbers))}"


class _Headings:
    """The headings of the log: each part of a run has one when it begins for the first time."""

    def __init__(self, objects: TracedObjects) -> None:
        self.objects = objects
        self.seen: set[str] = set()

    def of(self, call: Call) -> str:
        """Return the heading above a call; empty if there is none."""
        heading = self._part(call)
        if heading in self.seen or (heading == "" and self.seen):
            return ""
        heading = heading or "Load the plugin"
        self.seen.add(heading)
        return heading

    def _part(self, call: Call) -> str:
        name = call.function.name
        program = self.objects.program_of.get(id(call))
        if program is not None:
            return f"{'RUN' if program.executions and call in program.executions[:1] else 'Compile'}: {program.label}"
        if name in _FROM_HOST:
            return "Load data onto the device"
        return "Read data from the device" if name in _TO_HOST else ""


# The JSON format of Chrome, which Perfetto (ui.perfetto.dev) and ``chrome://tracing`` open. Each thread of the process
# has a track with its calls. The queue behind the calls has tracks of its own: each execution and each transfer, from
# the return of the call that enqueued it until its event is ready. Arrows lead from the call that enqueued the work to
# the place where the process learned that it is done.

_NO_THREAD = 0
"""The thread number of what belongs to the whole process; no thread has it."""

Event = dict[str, Any]


def write_chrome_trace(traces: Sequence[Trace], file: IO[str]) -> None:
    """Write the traces of one or several processes as one JSON object."""
    file.write('{"displayTimeUnit": "ns", "otherData": ')
    json.dump({str(trace.process): [trace.command, *remarks(trace)] for trace in traces}, file)
    file.write(', "traceEvents": [\n')
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for number, event in enumerate(chrome_events(traces)):
        file.write(",\n" if number else "")
        file.write(encode(event))
    file.write("\n]}\n")


def chrome_events(traces: Sequence[Trace]) -> Iterator[Event]:
    """Yield the events of the traces; times are microseconds since the first of them began."""
    origin = min((trace.start for trace in traces), default=0)
    for trace in traces:
        yield from _Process(trace, (trace.start - origin) / 1e3).events()


class _Process:
    def __init__(self, trace: Trace, offset: float) -> None:
        self.trace = trace
        self.offset = offset
        self.objects: TracedObjects = objects_of(trace)
        self.end = max((call.end or call.begin for call in trace.calls), default=0.0)

    def _time(self, nanoseconds: float) -> float:
        return round(self.offset + nanoseconds / 1e3, 3)

    def _event(self, phase: str, name: str, time: float, thread: int, **others: Any) -> Event:
        return {"ph": phase, "name": name, "ts": self._time(time), "pid": self.trace.process, "tid": thread, **others}

    def events(self) -> Iterator[Event]:
        yield from self._names()
        for call in self.trace.calls:
            yield self._slice(call)
        yield from self._queue()
        yield from self._memory()

    def _names(self) -> Iterable[Event]:
        plugins = ", ".join(self.trace.plugins)
        yield self._event("M", "process_name", 0, _NO_THREAD, args={"name": f"{self.trace.command} ({plugins})"})
        for index, thread in enumerate(self.trace.threads):
            name = thread.name or f"thread {thread.system_id}"
            yield self._event("M", "thread_name", 0, thread.system_id, args={"name": name})
            yield self._event("M", "thread_sort_index", 0, thread.system_id, args={"sort_index": index})

    def _slice(self, call: Call) -> Event:
        values = values_of(self.trace, call)
        args = {**_plain(values.arguments), **{f"-> {name}": text for name, text in _plain(values.results).items()}}
        if call.failed:
            args["error"] = f"{call.code_name}: {call.message}"
        if call.end is None:
            args["returned"] = "no"
        program = self.objects.program_of.get(id(call))
        name = call.function.name.removeprefix("PJRT_")
        if program is not None and program.name:
            name = f"{name} {program.name}"
        end = self.end if call.end is None else call.end
        category = "callback" if call.is_callback else "error" if call.failed else "call"
        duration = round(max(end - call.begin, 0) / 1e3, 3)
        return self._event("X", name, call.begin, call.thread.system_id, dur=duration, cat=category, args=args)

    def _queue(self) -> Iterator[Event]:
        """Yield what was enqueued, until it was ready: asynchronous slices, and arrows between the calls."""
        for number, event in enumerate(self.objects.events):
            if event.ready is None:
                continue
            identity = f"{self.trace.process}.{number}"
            name = self._work_name(event)
            begin = min(event.creator.begin, event.ready)
            shared = {"cat": "queue", "id": identity}
            args = {"event": f"{event.handle:#x}", "from": event.creator.function.name}
            yield self._event("b", name, begin, _NO_THREAD, **shared, args=args)
            yield self._event("e", name, event.ready, _NO_THREAD, **shared)
            yield from self._arrow(event, identity, name)

    def _work_name(self, event: TracedEvent) -> str:
        creator = event.creator if event.buffer is None else event.buffer.creator
        program = self.objects.program_of.get(id(creator))
        what = creator.function.name.removeprefix("PJRT_")
        name = f"{what} {program.name}" if program is not None and program.name else what
        return name if event.buffer is None else f"buffer of {name}"

    def _arrow(self, event: TracedEvent, identity: str, name: str) -> Iterator[Event]:
        notified = event.notified
        if notified is None or notified is event.creator:
            return
        creator = event.creator if event.buffer is None else event.buffer.creator
        shared = {"cat": "readiness", "id": identity}
        yield self._event("s", name, creator.begin, creator.thread.system_id, **shared)
        # The end of an arrow belongs to the slice around it ("bp": "e"), and must not lie before its beginning.
        time = max(notified.begin, creator.begin)
        yield self._event("f", name, time, notified.thread.system_id, bp="e", **shared)

    def _memory(self) -> Iterator[Event]:
        """Yield the number and the bytes of live buffers, as counters."""
        changes = [(buffer.created, 1, buffer.nbytes or 0) for buffer in self.objects.buffers]
        changes += [(b.released, -1, -(b.nbytes or 0)) for b in self.objects.buffers if b.released is not None]
        count = nbytes = 0
        for time, change, size in sorted(changes):
            count, nbytes = count + change, nbytes + size
            yield self._event("C", "live buffers", time, _NO_THREAD, args={"buffers": count})
            yield self._event("C", "live bytes", time, _NO_THREAD, args={"bytes": nbytes})


def _plain(fields: Fields) -> dict[str, str]:
    return {name: value_text(value) for name, value in fields.items()}


# The summary.

BLOCKING = 1e-3
"""The seconds from which on a call that need not wait counts as one that blocked its caller."""

_ASYNCHRONOUS = frozenset(
    f"PJRT_{name}"
    for name in (
        "LoadedExecutable_Execute",
        "Client_BufferFromHostBuffer",
        "Client_CreateBuffersForAsyncHostToDevice",
        "AsyncHostToDeviceTransferManager_TransferData",
        "AsyncHostToDeviceTransferManager_TransferLiteral",
        "Buffer_ToHostBuffer",
        "Buffer_CopyRawToHost",
        "Buffer_CopyRawToHostFuture",
        "Buffer_CopyToDevice",
        "Buffer_CopyToMemory",
        "Buffer_ReadyEvent",
        "Event_OnReady",
    )
)
"""Functions that only begin work, or listen: events and buffers tell when it is done."""

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
class BlockingSummary:
    """The long calls of a function whose work may go on after it returned; times are in seconds."""

    name: str
    calls: int
    """The number of all its calls."""
    blocked: int
    """The number of those that took ``BLOCKING`` or longer."""
    total: float
    """The time in the long calls."""
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
    blocking: list[BlockingSummary]
    """Functions that need not wait, and had long calls."""
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
        _blocking(trace),
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


def _blocking(trace: Trace) -> list[BlockingSummary]:
    grouped: dict[str, list[float]] = defaultdict(list)
    for call in trace.calls:
        if call.function.name in _ASYNCHRONOUS:
            grouped[call.function.name].append(call.duration / 1e9)
    rows = []
    for name, durations in grouped.items():
        if blocked := [each for each in durations if each >= BLOCKING]:
            rows.append(BlockingSummary(name, len(durations), len(blocked), sum(blocked), max(blocked)))
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
