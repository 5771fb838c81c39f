"""Files of recordings with some calls of another one, as a reduction writes them."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from pjrt.api.errors import InvalidArgumentError
from pjrt.capi.raw.struct import Struct
from pjrt.layers.recording.recorded_value import Blob, LeftOut, Writer, functions_in
from pjrt.layers.recording.recording import (
    BLOB,
    CALL,
    CALLBACK,
    CALLBACK_RETURN,
    DATA,
    END,
    HEADER,
    MAGIC,
    NAME,
    RETURN,
    Call,
    Callback,
    RecordedError,
    Recording,
)


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
                self._record(BLOB, bytes(writer.data), self._recording.data(value) or b"")
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
