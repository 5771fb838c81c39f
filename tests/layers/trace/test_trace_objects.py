"""The objects of a trace: which buffer and which event a handle stands for at a time."""

from __future__ import annotations

import dataclasses
import struct

from traced import TracedRun

from pjrt.layers.trace.trace_file import Call, Trace
from pjrt.layers.trace.trace_objects import nbytes_of, objects_of


class Calls:
    """Calls that follow one another, one each microsecond, with the schema of a real trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = dataclasses.replace(trace, calls=[], notes=[])
        self._functions = {each.name: each for each in (*trace.schema.functions, *trace.schema.callbacks)}
        self._now = 0.0

    def add(self, name: str, *, origin: str = "", handle: int = 0, **fields: int) -> Call:
        """Add a call of a function with these fields."""
        function = self._functions[f"PJRT_{name}"]
        args = bytearray(function.args.size)
        struct.pack_into("<Q", args, 0, len(args))
        for field, value in fields.items():
            where = function.args.fields[function.args.field(field)]
            args[where.offset : where.offset + where.size] = value.to_bytes(where.size, "little")
        self._now += 1000
        call = Call(
            function,
            bool(origin),
            self.trace.threads[0],
            len(self.trace.calls) + 1,
            0,
            0,
            0,
            self._now,
            self._now + 500,
            0,
            False,
            bytes(args),
            self._functions[f"PJRT_{origin}"] if origin else None,
            handle,
        )
        self.trace.calls.append(call)
        return call


def test_an_event_may_be_destroyed_before_its_callback(known_run: TracedRun) -> None:
    """And its address may be used again by then."""
    calls = Calls(known_run.trace)
    calls.add("Buffer_ReadyEvent", buffer=7, event=100)
    calls.add("Event_OnReady", event=100, callback=1, user_arg=55)
    calls.add("Event_Destroy", event=100)
    calls.add("Buffer_ReadyEvent", buffer=8, event=100)
    calls.add("Event_OnReady", event=100, callback=1, user_arg=66)
    first = calls.add("Event_OnReadyCallback", origin="Event_OnReady", handle=100, user_arg=55)
    second = calls.add("Event_OnReadyCallback", origin="Event_OnReady", handle=100, user_arg=66)
    events = objects_of(calls.trace).events
    assert [event.notified for event in events] == [first, second]
    assert [event.ready for event in events] == [first.begin, second.begin]


def test_a_handle_that_is_used_again_is_another_buffer(known_run: TracedRun) -> None:
    calls = Calls(known_run.trace)
    source = calls.add("Buffer_CopyToDevice", buffer=1, dst_buffer=7)
    gone = calls.add("Buffer_Destroy", buffer=7)
    calls.add("Buffer_CopyToDevice", buffer=1, dst_buffer=7)
    deleted = calls.add("Buffer_Delete", buffer=7)
    calls.add("Buffer_Destroy", buffer=7)
    first, second = objects_of(calls.trace).buffers
    assert (first.created, first.released) == (source.end, gone.begin)
    assert second.released == deleted.end
    assert first.nbytes is None


def test_sizes() -> None:
    assert nbytes_of(11, [2, 3]) == 24
    assert nbytes_of(21, [3]) == 2  # four bits each
    assert nbytes_of(23, []) == 0
    assert nbytes_of(9999, [2]) is None
