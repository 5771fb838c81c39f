"""The readable log of a trace: one line for each call, with the nouns and the order of PJRT's own example log.

The example is in the overview of the C++ device API: a heading for each part of a run, and below it the methods with
their objects, in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pjrt.layers.trace.trace_objects import TracedObjects, objects_of
from pjrt.layers.trace.trace_records import Call, Trace
from pjrt.layers.trace.trace_values import Address, value_text, values_of

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
