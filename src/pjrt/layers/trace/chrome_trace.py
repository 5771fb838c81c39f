"""Traces for trace viewers: the JSON format of Chrome, which Perfetto (ui.perfetto.dev) and ``chrome://tracing`` open.

Each thread of the process has a track with its calls. The queue behind the calls has tracks of its own: each execution
and each transfer, from the return of the call that enqueued it until its event is ready. Arrows lead from the call that
enqueued the work to the place where the process learned that it is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from pjrt.layers.trace.trace_log import remarks
from pjrt.layers.trace.trace_objects import TracedEvent, TracedObjects, objects_of
from pjrt.layers.trace.trace_records import Call, Trace
from pjrt.layers.trace.trace_values import Fields, value_text, values_of

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
