"""The file of a trace: its schema and its records, read and written.

``layers/library/trace/file.h`` states the format. A file may be cut short, or be written to while it is read: what
is whole is read, and ``Trace.problems`` reports the rest.
"""

from __future__ import annotations

import enum
import mmap
import os
import re
import struct
from collections.abc import Iterator, Sized
from dataclasses import dataclass, field
from functools import cached_property

from pjrt.api.errors import InvalidArgumentError, NotFoundError, StatusCode
from pjrt.api.printable import html_table

_NULLABLE, _CREATES, _FILLS, _INLINE = 1 << 0, 1 << 1, 1 << 7, 1 << 10
"""Some of the marks of a field; ``abi/pjrt_support/schema.h`` states all."""


class Direction(enum.IntEnum):
    """The direction of a field: set by the caller, by the function, or by both."""

    IN = 0
    OUT = 1
    IN_OUT = 2


@dataclass(frozen=True)
class FieldSchema:
    """A field of a struct of the C API."""

    name: str
    offset: int
    size: int
    kind: str
    direction: Direction
    element: str
    element_size: int
    type: int
    """The index of the enum, handle, struct or callback; -1 if the field is of none."""
    count: int
    """The index of the field with the number of elements; -1: one element, or unknown."""
    inner_count: int
    """The index of the field with the numbers of elements of inner arrays or texts; -1: it has none."""
    variant: int
    """For a member of a union: the value of the struct's enum that selects it; -1: no union."""
    marks: int

    @property
    def nullable(self) -> bool:
        """Whether null is a value that the ABI allows."""
        return bool(self.marks & _NULLABLE)

    @property
    def creates(self) -> bool:
        """Whether the function makes a new object and gives it to the caller here."""
        return bool(self.marks & _CREATES)

    @property
    def fills(self) -> bool:
        """Whether the function fills memory of the caller behind this pointer."""
        return bool(self.marks & _FILLS)

    @property
    def inline(self) -> bool:
        """Whether the field is an array inside of the struct."""
        return bool(self.marks & _INLINE)


@dataclass
class StructSchema:
    """A struct of the C API."""

    name: str
    size: int
    sized: bool
    """Whether it begins with ``struct_size``."""
    fields: list[FieldSchema] = field(default_factory=list)

    def field(self, name: str) -> int:
        """Return the index of the field of a name; -1 if there is none."""
        return self._indices.get(name, -1)

    @cached_property
    def shown(self) -> list[tuple[int, FieldSchema]]:
        """The fields that a reader looks for, with their indices: arrays have their counts with them."""
        hidden = {field.inner_count for field in self.fields}
        return [
            (index, field)
            for index, field in enumerate(self.fields)
            if index not in hidden and field.kind not in ("struct_size", "count") and not field.name.endswith("_is_set")
        ]

    @cached_property
    def switches(self) -> dict[int, int]:
        """For the fields that another one declares to be set or not: the index of that other one."""
        pairs = ((index, self.field(f"{field.name}_is_set")) for index, field in enumerate(self.fields))
        return {index: switch for index, switch in pairs if switch >= 0}

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {field.name: index for index, field in enumerate(self.fields)}


@dataclass(frozen=True)
class FunctionSchema:
    """A function of the table or of an extension, or a callback."""

    name: str
    index: int
    extension: int
    handle: int
    args: StructSchema


@dataclass
class Schema:
    """All functions, callbacks, structs, enums and handles."""

    enums: list[tuple[str, dict[int, str]]] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)
    structs: list[StructSchema] = field(default_factory=list)
    functions: list[FunctionSchema] = field(default_factory=list)
    callbacks: list[FunctionSchema] = field(default_factory=list)


def parse_schema(text: str) -> Schema:
    """Return the schema that a trace file begins with.

    Raises:
        ValueError: the text is damaged.
    """
    schema = Schema()
    kinds: list[str] = []
    struct: StructSchema | None = None
    functions: list[tuple[str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        letter, *words = line.split("\t")
        try:
            if letter == "K":
                kinds = words
            elif letter == "E":
                pairs = (word.rpartition("=") for word in words[1:])
                schema.enums.append((words[0], {int(value): name for name, _, value in pairs}))
            elif letter == "H":
                schema.handles.append(words[0])
            elif letter == "S":
                struct = StructSchema(words[0], int(words[1]), words[2] == "1")
                schema.structs.append(struct)
            elif letter == "A" and struct is not None:
                struct.fields.append(_field(words, kinds))
            elif letter in "FC":
                functions.append((letter, words))
        except (ValueError, IndexError) as error:
            raise ValueError(f"line {number} of the schema is damaged: {line[:80]!r}") from error
    for letter, words in functions:
        target = schema.functions if letter == "F" else schema.callbacks
        try:
            struct_index = int(words[4])
            args = schema.structs[struct_index] if struct_index >= 0 else StructSchema("", 0, False)
            target.append(FunctionSchema(words[0], len(target), int(words[1]), int(words[3]), args))
        except (ValueError, IndexError) as error:
            raise ValueError(f"the schema of the function {words[:1]} is damaged") from error
    for each in schema.structs:
        for field_ in each.fields:
            _check(schema, each, field_)
    return schema


def _check(schema: Schema, struct_: StructSchema, field_: FieldSchema) -> None:
    """Refuse a field whose references lead nowhere."""
    tables: dict[str, Sized] = {
        "enum": schema.enums,
        "struct": schema.structs,
        "struct_value": schema.structs,
        "handle": schema.handles,
    }
    table = tables.get(field_.element if field_.kind in ("array", "lists") else field_.kind, ())
    indices = (field_.count, field_.inner_count)
    if (table and field_.type >= len(table)) or max(indices) >= len(struct_.fields):
        raise ValueError(f"the schema of the field {field_.name} of {struct_.name} is damaged")


def _field(words: list[str], kinds: list[str]) -> FieldSchema:
    numbers = list(map(int, words[1:]))
    offset, size, kind, direction, element, element_size, type_, count, inner_count, variant, marks = numbers[:11]
    return FieldSchema(
        words[0],
        offset,
        size,
        kinds[kind],
        Direction(direction),
        kinds[element],
        element_size,
        type_,
        count,
        inner_count,
        variant,
        marks,
    )


# The records.


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

    def _repr_html_(self) -> str:
        calls = f"{len(self.calls)} in {len(self.threads)} threads"
        rows = [("process", self.process), ("calls", calls), ("problems", "; ".join(self.problems))]
        return html_table(self.command, rows)

    @property
    def plugins(self) -> list[str]:
        """The paths or names of the traced plugins."""
        return [note.text.partition(" ")[2] for note in self.notes if note.text.startswith("plugin ")]


# The file.

MAGIC = b"PJRTRACE"
VERSION = 1
_HEADER = struct.Struct("<8sIIQQQIIqQQQQQIIQQII1024s1024s")
_CHUNK = struct.Struct("<IIQQQQII16s")
_RECORD = struct.Struct("<IBBHIIHHIQQ")
_DATA = struct.Struct("<IBBHIII6H")
_NOTICE = struct.Struct("<IBBHIIxxxxQxxxx")
_READY = struct.Struct("<IBBHHHIQQQQ")
_ORIGIN = struct.Struct("<QQ")
_KIND = struct.Struct("<IB")
_CALL, _CALLBACK, _VALUE, _READINESS, _NOTE = range(1, 6)
_HIDDEN = 1
_FAILED = 2
_NO_ORIGIN = 0xFFFFFFFFFFFFFFFF
_NO_STEP = 0xFFFF
_NOTES_THREAD = 0xFFFFFFFF
_ERROR_TEXT = (0xFFFE,)
_CHUNKS_OFFSET = 32
_ENABLED_OFFSET = _HEADER.size - 2048 - 32


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace file.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: the file is no trace file, is of another version, or is damaged at its beginning.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise InvalidArgumentError(f"{path}: expected a trace file, found an empty file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                return _Reader(str(path), memory).read()
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: there is no such trace file") from error
    except OSError as error:
        raise InvalidArgumentError(f"{path}: the trace file cannot be read: {error}") from error


def is_trace_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a trace file does."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def switch_trace(path: str | os.PathLike[str], on: bool) -> None:
    """Switch the recording of a running process on or off, through its trace file.

    Raises:
        InvalidArgumentError: the file is no trace file.
    """
    if not is_trace_file(path):
        raise InvalidArgumentError(f"{path}: expected the trace file of a running process")
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), _HEADER.size) as memory:
        memory[_ENABLED_OFFSET : _ENABLED_OFFSET + 4] = struct.pack("<I", on)


def save_trace(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a trace file without the chunks that nothing was written to."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        chunks_offset, chunk_size, num_chunks = struct.unpack_from("<QII", memory, _CHUNKS_OFFSET)
        whole = min(num_chunks, (len(memory) - chunks_offset) // chunk_size)
        offsets = [chunks_offset + i * chunk_size for i in range(whole)]
        used = [offset for offset in offsets if _CHUNK.unpack_from(memory, offset)[1] > _CHUNK.size]
        head = bytearray(memory[:chunks_offset])
        struct.pack_into("<I", head, _CHUNKS_OFFSET + 12, len(used))
        with open(target, "wb") as copy:
            copy.write(head)
            for offset in used:
                copy.write(memory[offset : offset + chunk_size])


class _Reader:
    def __init__(self, path: str, memory: mmap.mmap) -> None:
        self.path = path
        self.memory = memory
        self.problems: list[str] = []
        self.threads: dict[int, Thread] = {}
        self.calls: list[Call] = []
        self.scale = 1.0
        self.base = 0
        self.ready: list[ReadyNotice] = []
        self.notes: list[Note] = []

    def read(self) -> Trace:
        size = len(self.memory)
        if size < _HEADER.size or self.memory[: len(MAGIC)] != MAGIC:
            raise InvalidArgumentError(f"{self.path}: expected a trace file, found other contents")
        header = _HEADER.unpack_from(self.memory)
        _, version, clock, schema_offset, schema_size, chunks_offset, chunk_size, num_chunks, start = header[:9]
        first_ticks, first, last_ticks, last, process, _, finished, _, dropped, sample, overwritten = header[9:20]
        if version != VERSION:
            raise InvalidArgumentError(
                f"{self.path}: expected a trace file of version {VERSION}, found version {version}: "
                "read it with the release of pjrt that wrote it"
            )
        try:
            if schema_offset + schema_size > size:
                raise ValueError("the file ends inside of the schema")
            if chunk_size < _CHUNK.size or chunk_size % 8:
                raise ValueError(f"its chunks have {chunk_size} bytes")
            self.schema = parse_schema(bytes(self.memory[schema_offset : schema_offset + schema_size]).decode())
        except (ValueError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"{self.path}: the trace file is damaged: {error}") from error
        whole = chunks_offset + num_chunks * chunk_size
        if size < whole:
            self.problems.append(
                f"the file is cut short: it has {size} of {whole} bytes; calls that were recorded in the rest are lost"
            )
        offsets = range(chunks_offset, min(whole, size), chunk_size)
        anchors = [(last_ticks, last), *self._anchors(offsets)]
        last_ticks, last = max(anchors)
        # The longer the time between two anchors, the better is the known speed of the clock.
        self.scale = (last - first) / (last_ticks - first_ticks) if clock and last_ticks > first_ticks else 1.0
        self.base = first_ticks
        values: list[tuple[int, int, RecordedValue]] = []
        for offset in offsets:
            self._read_chunk(offset, min(chunk_size, size - offset), values)
        self._attach(values)
        self.calls.sort(key=lambda call: call.begin)
        self.ready.sort(key=lambda notice: notice.end)
        return Trace(
            self.path,
            process,
            _text(header[20]),
            _text(header[21]),
            start,
            sample,
            self.schema,
            self.calls,
            self.ready,
            sorted(self.notes, key=lambda note: note.time),
            [self.threads[index] for index in sorted(self.threads)],
            bool(finished),
            overwritten,
            dropped,
            self.problems,
        )

    def _anchors(self, offsets: range) -> Iterator[tuple[int, int]]:
        for offset in offsets:
            if offset + _CHUNK.size <= len(self.memory):
                _, used, _, ticks, nanoseconds, *_ = _CHUNK.unpack_from(self.memory, offset)
                if used >= _CHUNK.size:
                    yield ticks, nanoseconds

    def _time(self, ticks: int) -> float:
        return (ticks - self.base) * self.scale

    def _read_chunk(self, offset: int, room: int, values: list[tuple[int, int, RecordedValue]]) -> None:
        if room < _CHUNK.size:
            return
        _, used, _, _, _, system_id, index, _, name = _CHUNK.unpack_from(self.memory, offset)
        if used <= _CHUNK.size:
            return
        thread = Thread(index, system_id, _text(name))
        if index != _NOTES_THREAD:
            thread = self.threads.setdefault(index, thread)
        for position, size, kind in self._records(offset, min(used, room)):
            if kind in (_CALL, _CALLBACK):
                self._read_call(position, size, kind == _CALLBACK, thread)
            elif kind == _VALUE:
                _, _, _, element_size, number, total, kept, *path = _DATA.unpack_from(self.memory, position)
                steps = tuple(step for step in path if step != _NO_STEP)
                at = position + _DATA.size
                data = bytes(self.memory[at : at + kept * element_size])
                values.append((index, number, RecordedValue(steps, max(1, element_size), total, data)))
            elif kind == _READINESS:
                _, _, _, code, function, _, _, event, buffer, begin, end = _READY.unpack_from(self.memory, position)
                self.ready.append(
                    ReadyNotice(
                        self.schema.functions[function], thread, event, buffer, self._time(begin), self._time(end), code
                    )
                )
            elif kind == _NOTE:
                _, _, _, _, stack, length, ticks = _NOTICE.unpack_from(self.memory, position)
                at = position + _DATA.size
                self.notes.append(Note(self._time(ticks), stack, _text(self.memory[at : at + length])))

    def _records(self, offset: int, used: int) -> Iterator[tuple[int, int, int]]:
        position = _CHUNK.size
        while position + _KIND.size <= used:
            size, kind = _KIND.unpack_from(self.memory, offset + position)
            least = {_CALL: _RECORD.size, _CALLBACK: _RECORD.size + _ORIGIN.size, _READINESS: _READY.size}
            if size % 8 or size < least.get(kind, _DATA.size) or position + size > used or not _CALL <= kind <= _NOTE:
                self.problems.append(f"a chunk is damaged at byte {offset + position}: its other records are lost")
                return
            yield offset + position, size, kind
            position += size

    def _read_call(self, position: int, size: int, is_callback: bool, thread: Thread) -> None:
        _, _, flags, depth, number, parent, function, code, stack, begin, end = _RECORD.unpack_from(
            self.memory, position
        )
        if flags & _HIDDEN:
            return
        at = position + _RECORD.size
        origin, handle = None, 0
        if is_callback:
            index, handle = _ORIGIN.unpack_from(self.memory, at)
            at += _ORIGIN.size
            if index != _NO_ORIGIN and index < len(self.schema.functions):
                origin = self.schema.functions[index]
        functions = self.schema.callbacks if is_callback else self.schema.functions
        if function >= len(functions):
            self.problems.append(f"a record at byte {position} is of an unknown function")
            return
        self.calls.append(
            Call(
                functions[function],
                is_callback,
                thread,
                number,
                parent,
                depth,
                stack,
                self._time(begin),
                self._time(end) if end else None,
                code,
                bool(flags & _FAILED),
                bytes(self.memory[at : position + size]),
                origin,
                handle,
            )
        )

    def _attach(self, values: list[tuple[int, int, RecordedValue]]) -> None:
        by_number = {(call.thread.index, call.number): call for call in self.calls}
        for thread, number, value in values:
            call = by_number.get((thread, number))
            if call is None:
                continue
            if value.path == _ERROR_TEXT:
                call.message = value.data.decode(errors="replace")
            else:
                call.values.append(value)


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode(errors="replace")


# The options of the layer that writes the file.

_SIZE = re.compile(r"\d+(\.\d+)?([kKmMgG](iB)?)?")
_TIME = re.compile(r"\d+(\.\d+)?(ns|us|ms|s)")


@dataclass(frozen=True)
class TraceOptions:
    """The options of the trace layer: which calls it records, and into which file.

    ``docs/layers.md`` explains each option.

    Raises:
        InvalidArgumentError: the ring is no size, or ``slower`` is no time. The layer checks the rest.
    """

    file: str
    """The path of the trace file; ``%p`` in it stands for the number of the process."""
    ring: str = ""
    keep: str = ""
    functions: tuple[str, ...] = ()
    errors: bool = False
    slower: str = ""
    sample: int = 1
    text: int | None = None
    array: int | None = None
    ready: str = ""
    ask: bool = True
    on: bool = True

    def __post_init__(self) -> None:
        if self.ring and not _SIZE.fullmatch(self.ring):
            raise InvalidArgumentError(f"expected ring to be a size, such as 64m, found {self.ring!r}")
        if self.slower and not _TIME.fullmatch(self.slower):
            raise InvalidArgumentError(f"expected slower to be a time with a unit, such as 10us, found {self.slower!r}")

    def as_text(self) -> str:
        """Return the options in the form ``key=value,key=value``, without those that have their defaults."""
        return ",".join(f"{key}={_escaped(str(value))}" for key, value in self.as_dict().items())

    def as_dict(self) -> dict[str, str | int]:
        """Return the options by key, without those that have their defaults."""
        pairs: dict[str, str | int | None] = {
            "file": self.file,
            "ring": self.ring or None,
            "keep": self.keep or None,
            "functions": "|".join(self.functions) or None,
            "errors": 1 if self.errors else None,
            "slower": self.slower or None,
            "sample": self.sample if self.sample != 1 else None,
            "text": self.text,
            "array": self.array,
            "ready": self.ready or None,
            "ask": None if self.ask else 0,
            "on": None if self.on else 0,
        }
        return {key: value for key, value in pairs.items() if value is not None}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,")
