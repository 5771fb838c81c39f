"""Recordings: files with the calls of a framework to a plugin, and the data that went in and came out.

``layers/library/record/file.h`` describes the format. A file that was cut short, as by a process that died, is read
up to its last whole record.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pjrt.abi.schema import ENUMS, STRUCTS, Field
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError
from pjrt.capi.raw.struct import Struct
from pjrt.capi.raw.table import code_name
from pjrt.layers.trace.trace_objects import Address, Elements, Fields, Memory, Name, Text, value_text

__all__ = ["Call", "Callback", "Recording", "lines_of", "write_recording"]

# Values of a recording. Each describes itself, so that a file can be read whatever version of the C API its reader
# knows. The layer that records (``layers/library``) writes the same bytes in C.

NULL, FALSE, TRUE, NUMBER, NEGATIVE, REAL, TEXT, BLOB, LEFT_OUT, LIST, STRUCT, HANDLE, POINTER, FUNCTION = range(14)
"""The first byte of a value."""


@dataclass(frozen=True, slots=True)
class Handle:
    """An object of the plugin: its kind, such as ``PJRT_Buffer``, and its number among all handles of the recording."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind.removeprefix('PJRT_')}#{self.number}"


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that the recording holds once, however often they occur; ``Recording.data`` returns them."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Host data that was not recorded: its size in bytes. A replay fills it with a seed."""

    size: int


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address in the recorded process. It stands for itself only: two equal addresses were the same memory."""

    address: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function that one side gave the other to call: its type, and its number among those of the recording."""

    kind: str
    number: int


class Reader:
    """A reader of values from the bytes of one record.

    Raises:
        ValueError: the bytes end inside a value, or are none.
    """

    def __init__(self, data: bytes | memoryview, names: Mapping[int, str], at: int = 0) -> None:
        self._data, self._names, self._at = data, names, at

    def number(self) -> int:
        """Read an unsigned number: seven bits a byte, the lowest first."""
        value = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 63:
                raise ValueError("a number ends behind the record")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def name(self) -> str:
        """Read a name, which an earlier record gave a number."""
        number = self.number()
        if number not in self._names:
            raise ValueError(f"no name has the number {number}")
        return self._names[number]

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError(f"{size} bytes end behind the record")
        return bytes(self._data[begin : self._at])

    @property
    def at(self) -> int:
        """The number of bytes that were read."""
        return self._at

    def rest(self) -> bytes:
        """Read all bytes that are left."""
        return self.take(len(self._data) - self._at)

    def struct(self) -> Struct:
        """Read a struct."""
        value = self.struct_or_null()
        if value is None:
            raise ValueError("expected a struct, found null")
        return value

    def struct_or_null(self) -> Struct | None:
        """Read a struct, or ``None`` where there is none."""
        value = self.value()
        if value is not None and not isinstance(value, Struct):
            raise ValueError(f"expected a struct, found {value!r}")
        return value

    def value(self, depth: int = 0) -> Any:
        """Read a value."""
        if depth > 32:
            raise ValueError("values are nested more than 32 deep")
        tag = self.take(1)[0]
        if tag in _SIMPLE:
            return _SIMPLE[tag]
        if tag == NUMBER:
            return self.number()
        if tag == NEGATIVE:
            return -1 - self.number()
        if tag == REAL:
            return struct.unpack("<d", self.take(8))[0]
        if tag == TEXT:
            return self.take(self.number())
        if tag == BLOB:
            return Blob(self.number(), self.number())
        if tag == LEFT_OUT:
            return LeftOut(self.number())
        if tag == LIST:
            return [self.value(depth + 1) for _ in range(self._count())]
        if tag == STRUCT:
            kind = self.name()
            return Struct(kind, {self.name(): self.value(depth + 1) for _ in range(self._count())})
        if tag == HANDLE:
            return Handle(self.name(), self.number())
        if tag == POINTER:
            return Pointer(self.number())
        if tag == FUNCTION:
            return Function(self.name(), self.number())
        raise ValueError(f"{tag} begins no value")

    def _count(self) -> int:
        count = self.number()
        if count > len(self._data) - self._at:  # each element has a byte at least
            raise ValueError(f"{count} elements end behind the record")
        return count


_SIMPLE = {NULL: None, FALSE: False, TRUE: True}


class Writer:
    """A writer of values into the bytes of one record."""

    def __init__(self, name_number: Callable[[str], int]) -> None:
        """Begin a record.

        Args:
            name_number: a function that returns the number of a name, and writes it into the file before its first use.
        """
        self.data = bytearray()
        self._name_number = name_number

    def number(self, value: int) -> None:
        """Write an unsigned number."""
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def name(self, name: str) -> None:
        """Write a name."""
        self.number(self._name_number(name))

    def value(self, value: Any) -> None:
        """Write a value."""
        if value is None:
            self.data.append(NULL)
        elif isinstance(value, bool):
            self.data.append(TRUE if value else FALSE)
        elif isinstance(value, int):
            self._tagged(NUMBER, value) if value >= 0 else self._tagged(NEGATIVE, -1 - value)
        elif isinstance(value, float):
            self.data.append(REAL)
            self.data += struct.pack("<d", value)
        elif isinstance(value, bytes):
            self._tagged(TEXT, len(value))
            self.data += value
        elif isinstance(value, Blob):
            self._tagged(BLOB, value.number)
            self.number(value.size)
        elif isinstance(value, LeftOut):
            self._tagged(LEFT_OUT, value.size)
        elif isinstance(value, list):
            self._tagged(LIST, len(value))
            for each in value:
                self.value(each)
        elif isinstance(value, Struct):
            self.data.append(STRUCT)
            self.name(value.kind)
            self.number(len(value.fields))
            for name, each in value.fields.items():
                self.name(name)
                self.value(each)
        elif isinstance(value, Pointer):
            self._tagged(POINTER, value.address)
        else:
            self.data.append(HANDLE if isinstance(value, Handle) else FUNCTION)
            self.name(value.kind)
            self.number(value.number)

    def _tagged(self, tag: int, number: int) -> None:
        self.data.append(tag)
        self.number(number)


def handles_in(value: Any) -> list[Handle]:
    """Return the handles in a value, those inside of lists and structs too."""
    if isinstance(value, Handle):
        return [value]
    if isinstance(value, list):
        return [handle for each in value for handle in handles_in(each)]
    if isinstance(value, Struct):
        return handles_in(list(value.fields.values()))
    return []


def functions_in(value: Any) -> list[Function]:
    """Return the functions in a value, those inside of lists and structs too."""
    if isinstance(value, Function):
        return [value]
    if isinstance(value, list):
        return [function for each in value for function in functions_in(each)]
    if isinstance(value, Struct):
        return functions_in(list(value.fields.values()))
    return []


# Recordings, read.

MAGIC = b"PJRTREC\n"
FORMAT = 1

HEADER, NAME, BLOB_RECORD, CALL, RETURN, DATA, CALLBACK, CALLBACK_RETURN, END = range(1, 10)
"""The kinds of records: ``record_kind`` of the layer."""


@dataclass(frozen=True, slots=True)
class RecordedError:
    """An error that a call returned.

    Attributes:
        handle: the error itself, which the framework may have read and destroyed; ``None`` if it is unknown.
        code: its status code.
        message: its message.
    """

    handle: Handle | None
    code: int
    message: str


@dataclass(slots=True)
class Call:
    """A call of the framework to a function of the plugin.

    Attributes:
        number: its number; calls are numbered as they began.
        thread: the number of the thread that made it.
        time: when it began, in nanoseconds since the recording began.
        function: the function's name, such as ``PJRT_Client_Create``.
        arguments: the fields that the framework set.
        data: the host array that it took in, dense and row-major; ``None`` if it takes none.
        duration: how long it took, in nanoseconds; ``None`` if it never returned.
        error: the error that it returned.
        results: the fields that the plugin set; ``None`` if it failed or never returned.
        read: the host memory that it filled, once its event was ready.
    """

    number: int
    thread: int
    time: int
    function: str
    arguments: Struct
    data: Any = None
    duration: int | None = None
    error: RecordedError | None = None
    results: Struct | None = None
    read: Any = None


@dataclass(slots=True)
class Callback:
    """A call of the plugin to a function that the framework gave it.

    Attributes:
        number: its number; callbacks are numbered as they began.
        function: the number of the function (``Function.number``).
        thread: the number of the thread that it ran on.
        kind: the function's type, such as ``PJRT_Event_OnReady``.
        arguments: its arguments.
        error: the error that it was given.
        results: the fields that the framework set; ``None`` if it never returned.
    """

    number: int
    function: int
    thread: int
    kind: str
    arguments: Struct
    error: RecordedError | None = None
    results: Struct | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A moment of the recording: a call begins or returns, or the host memory that it gave was filled.

    Attributes:
        call: the call.
        moment: ``begin``, ``return`` or ``data``.
    """

    call: Call
    moment: str


@dataclass(slots=True)
class Recording:
    """A recording in memory; large data stays in the file.

    Attributes:
        header: what recorded what: ``plugin``, ``api``, ``data``.
        calls: all calls, as they began.
        steps: the moments of calls, and the callbacks as they began, in order: they show which calls overlapped.
        callbacks: the calls of the plugin to the framework, as they began.
        problem: why the file could not be read to its end, or that it has none; empty if it is whole.
    """

    header: Mapping[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    steps: list[Step | Callback] = field(default_factory=list)
    callbacks: list[Callback] = field(default_factory=list)
    problem: str = ""
    _blobs: dict[int, tuple[int, int]] = field(default_factory=dict)
    _file: Any = b""

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Recording:
        """Read a file.

        Raises:
            NotFoundError: there is no such file.
            InvalidArgumentError: the file is no recording, or of a newer format.
            DataLossError: the file holds not even one call.
        """
        try:
            with Path(path).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                data: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no recording {os.fspath(path)}") from error
        except OSError as error:
            raise InvalidArgumentError(f"cannot read {os.fspath(path)}: {error}") from error
        return Recording.parse(data, os.fspath(path))

    @staticmethod
    def parse(data: Any, source: str) -> Recording:
        """Read the bytes of a file, which are kept.

        Args:
            data: the bytes.
            source: their origin, for messages.

        Raises:
            InvalidArgumentError: they are no recording, or one of a newer format.
            DataLossError: they hold not even one call.
        """
        if data[: len(MAGIC)] != MAGIC:
            raise InvalidArgumentError(
                f"{source}: expected a recording of the layer record, found a file that begins with "
                f"{bytes(data[:16])!r}"
            )
        recording = _Parser(data, source).parse()
        if not recording.calls:
            raise DataLossError(f"{source}: the recording has no calls{recording.problem and ': '}{recording.problem}")
        return recording

    def data(self, value: Any) -> bytes | memoryview | None:
        """Return the bytes of a text, of a blob or of host data; ``None`` of data that was left out, and of null.

        Raises:
            DataLossError: the blob is not in the file.
        """
        if isinstance(value, Blob):
            if value.number not in self._blobs:
                raise DataLossError(f"the recording is damaged: it has no blob {value.number}, which a call refers to")
            begin, size = self._blobs[value.number]
            return memoryview(self._file)[begin : begin + size]
        return value if isinstance(value, bytes) else None

    def text(self, value: Any) -> str:
        """Return a text, with characters that are none replaced."""
        return bytes(self.data(value) or b"").decode("utf-8", "replace")


class _Parser:
    """The reader of a file's records, in order."""

    def __init__(self, data: Any, source: str) -> None:
        self._data, self._view, self._source = data, memoryview(data), source
        self._names: dict[int, str] = {}
        self._recording = Recording(_file=data)
        self._calls: dict[int, Call] = {}
        self._callbacks: dict[int, Callback] = {}
        self._ended = False

    def parse(self) -> Recording:
        recording = self._recording
        for begin, end in self._records(len(MAGIC)):
            try:
                self._add(self._data[begin], begin + 1, end)
            except InvalidArgumentError:
                raise
            except (ValueError, DataLossError) as error:
                recording.problem = f"the file is damaged at byte {begin}: {error}; what is before it was read"
                break
        if not self._ended and not recording.problem:
            recording.problem = "the process ended before the recording was closed"
        return recording

    def _records(self, at: int) -> Iterator[tuple[int, int]]:
        while at < len(self._data):
            size = int.from_bytes(self._data[at : at + 4], "little")
            if size == 0:  # the file is longer than what was recorded, until it is closed
                return
            end = at + 8 + size
            if at + 8 > len(self._data) or end > len(self._data):
                problem = "cut short or damaged in a record"  # a damaged length looks like a cut
                self._recording.problem = f"the file is {problem} at byte {at}; what is before it was read"
                return
            checksum = int.from_bytes(self._data[at + 4 : at + 8], "little")
            if zlib.crc32(self._view[at + 8 : end]) != checksum:
                self._recording.problem = f"the file is damaged at byte {at}; what is before it was read"
                return
            yield at + 8, end
            at = end

    def _add(self, kind: int, begin: int, end: int) -> None:
        recording = self._recording
        read = Reader(self._view[begin:end], self._names)
        if kind == HEADER:
            recording.header = self._header(bytes(self._view[begin:end]))
            if recording.header.get("format") != FORMAT:
                raise InvalidArgumentError(
                    f"{self._source}: expected a recording of format {FORMAT}, found format "
                    f"{recording.header.get('format')}; use the version of pjrt that recorded it"
                )
        elif kind == NAME:
            number = read.number()
            self._names[number] = read.rest().decode()
        elif kind == BLOB_RECORD:
            number = read.number()
            recording._blobs[number] = begin + read.at, end - begin - read.at
        elif kind == CALL:
            call = Call(read.number(), read.number(), read.number(), read.name(), read.struct(), read.value())
            self._calls[call.number] = call
            recording.calls.append(call)
            recording.steps.append(Step(call, "begin"))
        elif kind == RETURN:
            call = self._call(read.number())
            call.duration = read.number()
            call.error, call.results = self._error(read), read.struct_or_null()
            recording.steps.append(Step(call, "return"))
        elif kind == DATA:
            call = self._call(read.number())
            call.read = read.value()
            recording.steps.append(Step(call, "data"))
        elif kind == CALLBACK:
            callback = Callback(read.number(), read.number(), read.number(), read.name(), read.struct())
            callback.error = self._error(read)
            self._callbacks[callback.number] = callback
            recording.callbacks.append(callback)
            recording.steps.append(callback)
        elif kind == CALLBACK_RETURN:
            number = read.number()
            if number in self._callbacks:
                self._callbacks[number].results = read.struct()
        elif kind == END:
            self._ended = True
        else:
            raise ValueError(f"a record is of the unknown kind {kind}")

    @staticmethod
    def _header(text: bytes) -> Mapping[str, Any]:
        try:
            header = json.loads(text)
        except RecursionError as error:
            raise ValueError("the header is nested too deeply") from error
        if not isinstance(header, dict):
            raise ValueError(f"expected a header with names and values, found {header!r}")
        return header

    def _error(self, read: Reader) -> RecordedError | None:
        match read.value():
            case None:
                return None
            case [Handle() | None as handle, int(code), bytes() | Blob() | None as message]:
                return RecordedError(handle, code, self._recording.text(message))
            case value:
                raise ValueError(f"expected an error, which is a handle, a code and a message; found {value!r}")

    def _call(self, number: int) -> Call:
        if number not in self._calls:
            raise ValueError(f"call {number} returns before it begins")
        return self._calls[number]


# Recordings with some calls of another one, as a reduction writes them.


def write_recording(
    recording: Recording, path: str | os.PathLike[str], calls: Iterable[Call], *, leave_out: Iterable[int] = ()
) -> None:
    """Write some of the calls of a recording to a new file, with their callbacks and the data that they need.

    Args:
        recording: the recording.
        path: the new file.
        calls: the calls.
        leave_out: the numbers of the calls whose host data is left out.

    Raises:
        InvalidArgumentError: the file cannot be written.
    """
    chosen = {call.number for call in calls}
    try:
        with Path(path).open("wb") as file:
            _Copy(recording, file, frozenset(leave_out)).write(chosen)
    except OSError as error:
        raise InvalidArgumentError(f"cannot write {os.fspath(path)}: {error}") from error


class _Copy:
    """A writer of some calls of a recording into a new file."""

    def __init__(self, recording: Recording, file: BinaryIO, leave_out: frozenset[int]) -> None:
        self._recording, self._file, self._leave_out = recording, file, leave_out
        self._names: dict[str, int] = {}
        self._blobs: dict[int, int] = {}
        self._left_out = False

    def write(self, chosen: set[int]) -> None:
        recording = self._recording
        self._file.write(MAGIC)
        self._record(HEADER, json.dumps({**recording.header, "reduced": True}).encode())
        functions: set[int] = set()  # that the chosen calls give or receive
        for step in recording.steps:
            if isinstance(step, Callback):
                if step.function in functions:
                    self._callback(step)
                continue
            call = step.call
            if call.number not in chosen:
                continue
            self._left_out = call.number in self._leave_out
            writer = Writer(self._name)
            if step.moment == "data":
                writer.number(call.number)
                writer.value(self._moved(call.read, host=True))
                self._record(DATA, bytes(writer.data))
            elif step.moment == "return":
                functions |= {each.number for each in functions_in(call.results)}
                self._return(writer, call)
            else:
                functions |= {each.number for each in functions_in(call.arguments)}
                for number in (call.number, call.thread, call.time):
                    writer.number(number)
                writer.name(call.function)
                writer.value(self._moved(call.arguments))
                writer.value(self._moved(call.data, host=True))
                self._record(CALL, bytes(writer.data))
        writer = Writer(self._name)
        writer.number(len(chosen))
        self._record(END, bytes(writer.data))

    def _return(self, writer: Writer, call: Call) -> None:
        writer.number(call.number)
        writer.number(call.duration or 0)
        writer.value(_error_value(call.error))
        writer.value(self._moved(call.results))
        self._record(RETURN, bytes(writer.data))

    def _callback(self, callback: Callback) -> None:
        writer = Writer(self._name)
        for number in (callback.number, callback.function, callback.thread):
            writer.number(number)
        writer.name(callback.kind)
        writer.value(self._moved(callback.arguments))
        writer.value(_error_value(callback.error))
        self._record(CALLBACK, bytes(writer.data))
        if callback.results is not None:
            writer = Writer(self._name)
            writer.number(callback.number)
            writer.value(self._moved(callback.results))
            self._record(CALLBACK_RETURN, bytes(writer.data))

    def _moved(self, value: Any, host: bool = False) -> Any:
        """Return the value with the numbers of blobs that the new file has, and write those that it lacks."""
        if host and self._left_out and isinstance(value, (bytes, Blob)):
            return LeftOut(value.size if isinstance(value, Blob) else len(value))
        if isinstance(value, Blob):
            if value.number not in self._blobs:
                self._blobs[value.number] = len(self._blobs) + 1
                writer = Writer(self._name)
                writer.number(self._blobs[value.number])
                self._record(BLOB_RECORD, bytes(writer.data), self._recording.data(value) or b"")
            return Blob(self._blobs[value.number], value.size)
        if isinstance(value, list):
            return [self._moved(each) for each in value]
        if isinstance(value, Struct):
            return Struct(value.kind, {name: self._moved(each) for name, each in value.fields.items()})
        return value

    def _name(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = len(self._names) + 1
            writer = Writer(self._name)
            writer.number(self._names[name])
            self._record(NAME, bytes(writer.data) + name.encode())
        return self._names[name]

    def _record(self, kind: int, content: bytes, data: bytes | memoryview = b"") -> None:
        crc = zlib.crc32(data, zlib.crc32(content, zlib.crc32(bytes([kind]))))
        size = 1 + len(content) + len(data)
        self._file.write(size.to_bytes(4, "little") + crc.to_bytes(4, "little") + bytes([kind]) + content)
        self._file.write(data)


def _error_value(error: RecordedError | None) -> Any:
    return None if error is None else [error.handle, error.code, error.message.encode()]


# Recordings as text.

_MAX_ELEMENTS, _MAX_TEXT = 16, 120


def lines_of(recording: Recording) -> Iterator[str]:
    """Yield a line for each call: its number, its thread if there are several, and the call."""
    several = len({call.thread for call in recording.calls}) > 1
    width = len(str(recording.calls[-1].number)) if recording.calls else 1
    for call in recording.calls:
        thread = f"T{call.thread} " if several else ""
        yield f"{call.number:{width}} {thread}{call_text(recording, call)}"


def call_text(recording: Recording, call: Call) -> str:
    """Return a call as text: the function, its arguments, and its results or its error."""
    arguments = _listed(recording, call.arguments)
    text = f"{call.function}({arguments})"
    if call.data is not None:
        text += f" with {value_text(_shown(recording, call.data, None))}"
    if call.duration is None:
        return f"{text}  [did not return]"
    if call.error is not None:
        return f"{text} -> {code_name(call.error.code)}: {call.error.message}"
    results = _listed(recording, call.results) if call.results else ""
    read = f" {value_text(_shown(recording, call.read, None))}" if call.read is not None else ""
    return f"{text} -> {results}{read}" if results or read else text


def _listed(recording: Recording, struct: Struct) -> str:
    return ", ".join(f"{name}={value_text(value)}" for name, value in _fields(recording, struct).items())


def _fields(recording: Recording, struct: Struct) -> Fields:
    spec = STRUCTS[struct.kind].fields if struct.kind in STRUCTS else {}
    counts = {name for field in spec.values() for name in (field.count, field.inner_count)}
    counts |= {"struct_size", "extension_start"}
    values = Fields()
    for name, value in struct.fields.items():
        field = spec.get(name)
        nullable = field is not None and field.direction == "IN" and value is None
        hidden = field is not None and field.kind == "USER_DATA"
        if name not in counts and not nullable and not hidden:
            values[name] = _shown(recording, value, field)
    return values


def _shown(recording: Recording, value: Any, field: Field | None) -> Any:
    """Return a recorded value as one of the trace's."""
    if value is None:
        return Address(0)
    if isinstance(value, Handle):
        return Name(value)
    if isinstance(value, Function):
        return Name(f"{value.kind.removeprefix('PJRT_')}#{value.number}")
    if isinstance(value, Pointer):
        return Address(value.address)
    if isinstance(value, LeftOut):
        return Memory(0, value.size)
    if isinstance(value, (bytes, Blob)):
        return _data(recording, value, field)
    if isinstance(value, list):
        return Elements([_shown(recording, each, field) for each in value[:_MAX_ELEMENTS]], len(value))
    if isinstance(value, Struct):
        return _fields(recording, value)
    if field is not None and field.kind == "ENUM":
        return Name(next((name for name, number in ENUMS[field.type] if number == value), str(value)))
    return value


def _data(recording: Recording, value: bytes | Blob, field: Field | None) -> Any:
    data = bytes((recording.data(value) or b"")[: _MAX_TEXT + 1])
    size = value.size if isinstance(value, Blob) else len(value)
    is_text = field is None or field.kind != "BYTES"
    if is_text and data.isascii() and data.decode("ascii").isprintable():
        return Text(data[:_MAX_TEXT].decode(), size)
    return Memory(0, size)
