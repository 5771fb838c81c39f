"""Trace files: what the trace layer of ``pjrt.capi.layer`` recorded, also of a process that died.

``capi/layer/library/trace/file.h`` states the format. A file may be cut short, or be written to while it is read: what
is whole is read, and ``Trace.problems`` reports the rest.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.layers.trace.trace_records import Call, Note, ReadyNotice, RecordedValue, Thread, Trace
from pjrt.layers.trace.trace_schema import parse_schema

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
