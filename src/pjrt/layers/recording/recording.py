"""Recordings: the calls of a framework to a plugin in a file, as the layer ``record`` writes it.

``capi/layer/library/record/file.h`` describes the format. A file that was cut short, as by a process that died, is read
up to its last whole record.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError
from pjrt.capi.raw.struct import Struct
from pjrt.layers.recording.recorded_value import Blob, Handle, Reader

MAGIC = b"PJRTREC\n"
FORMAT = 1

HEADER, NAME, BLOB, CALL, RETURN, DATA, CALLBACK, CALLBACK_RETURN, END = range(1, 10)
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
        elif kind == BLOB:
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
