"""The contents of a trace: calls with the memory behind their pointers, notices of readiness, notes and threads."""

from __future__ import annotations

from dataclasses import dataclass, field

from pjrt.api.errors import StatusCode
from pjrt.layers.trace.trace_schema import FunctionSchema, Schema


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of the traced process."""

    index: int
    """Its number in the trace, from 0."""
    system_id: int
    name: str


@dataclass(slots=True)
class RecordedValue:
    """A text, an array or a struct behind a pointer of a call, cut to the limits of the trace."""

    path: tuple[int, ...]
    """Fields and elements in turn, from the call's arguments to the value."""
    element_size: int
    total: int
    data: bytes

    def numbers(self) -> list[int]:
        """Return the elements as unsigned numbers: handles, dimensions or counts."""
        step = self.element_size
        return [int.from_bytes(self.data[i : i + step], "little") for i in range(0, len(self.data), step)]

    @property
    def kept(self) -> int:
        """The number of elements that were recorded."""
        return len(self.data) // self.element_size


@dataclass(slots=True)
class Call:
    """A call of a function of the C API, or a callback of the plugin."""

    function: FunctionSchema
    is_callback: bool
    thread: Thread
    number: int
    """The call's number among those of its thread."""
    parent: int
    """The number of the call of the same thread in which it happened; 0 if there is none."""
    depth: int
    stack: int
    """Which wrapped plugin of the process it is a call of."""
    begin: float
    """Nanoseconds since the trace began."""
    end: float | None
    """None: the call had not returned when the trace ended."""
    code: int
    failed: bool
    args: bytes
    """The struct of the arguments, as it was in memory after the call."""
    origin: FunctionSchema | None = None
    """For a callback: the function that it was given to."""
    origin_handle: int = 0
    values: list[RecordedValue] = field(default_factory=list)
    message: str = ""

    def number_of(self, name: str) -> int:
        """Return the field of a name as an unsigned number; 0 if the function has no such field."""
        index = self.function.args.field(name)
        if index < 0:
            return 0
        field = self.function.args.fields[index]
        return int.from_bytes(self.args[field.offset : field.offset + field.size], "little")

    def value(self, name: str, element: int | None = None) -> RecordedValue | None:
        """Return what is behind a pointer: the field of a name, or one of its lists."""
        path: tuple[int, ...] = (self.function.args.field(name),)
        if element is not None:
            path = (*path, element)
        return next((value for value in self.values if value.path == path), None)

    def inner_numbers(self, name: str, step: int) -> list[int]:
        """Return the array in the field ``step`` of the struct behind a pointer; empty if there is none."""
        path = (self.function.args.field(name), 0, step)
        return next((value.numbers() for value in self.values if value.path == path), [])

    @property
    def duration(self) -> float:
        """The nanoseconds that it took; 0 if it never returned."""
        return 0.0 if self.end is None else self.end - self.begin

    @property
    def code_name(self) -> str:
        """The name of the error's code."""
        try:
            return StatusCode(self.code).name
        except ValueError:
            return f"code {self.code}"


@dataclass(slots=True)
class ReadyNotice:
    """An event became ready, as the layer heard by its own callback."""

    function: FunctionSchema
    """The function that made the event or the buffer."""
    thread: Thread
    event: int
    buffer: int
    begin: float
    end: float
    code: int


@dataclass(frozen=True, slots=True)
class Note:
    """A fact that the layer recorded about a plugin or a program."""

    time: float
    stack: int
    text: str


@dataclass
class Trace:
    """The contents of a trace file."""

    path: str
    process: int
    command: str
    options: str
    start: int
    """The time of the beginning in nanoseconds since 1970."""
    sample: int
    schema: Schema
    calls: list[Call]
    """In the order of their beginnings."""
    ready: list[ReadyNotice]
    notes: list[Note]
    threads: list[Thread]
    finished: bool
    """Whether the process ended, or closed the trace, in order."""
    overwritten: int
    """The number of chunks that newer ones replaced: the trace lacks its beginning."""
    dropped: int
    """The number of calls for which there was no place."""
    problems: list[str]

    @property
    def plugins(self) -> list[str]:
        """The paths or names of the traced plugins."""
        return [note.text.partition(" ")[2] for note in self.notes if note.text.startswith("plugin ")]
