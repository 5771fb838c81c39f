"""Transcripts: the calls of a check, written before and after each one where another process can read them.

The memory is shared with the process that started the check: what a plugin does to the process of the check, the calls
before it are known.
"""

from __future__ import annotations

import ctypes
import marshal
import mmap
import struct
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from pjrt.capi.raw import Result, Struct

_SIZE = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
_MAX_DATA = 1 << 16
"""The bytes of a text or an array that a transcript keeps; of longer ones it keeps the size."""

TRANSCRIPT_BYTES = 1 << 23
"""The bytes of a transcript's memory. Calls that find no room are counted."""

_RESERVE = 1 << 20
"""The bytes that calls leave to the outcome and to the call that ends the process."""


class Transcript:
    """The transcript of one check, in shared memory; a raw plugin's observer.

    Args:
        memory: the memory, of which the first 8 bytes are the number of bytes that are used.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._number = 0

    @staticmethod
    def clear(memory: mmap.mmap) -> None:
        """Empty the memory."""
        _SIZE.pack_into(memory, 0, _SIZE.size)

    def begin(self, function: str, fields: Mapping[str, Any]) -> int:
        """Note a call before it is made."""
        arguments = {name: plain(value) for name, value in fields.items()}
        with self._lock:
            self._number += 1
            number = self._number
            self._write(("call", number, threading.get_ident(), function, arguments))
        return number

    def end(self, token: int, result: Result) -> None:
        """Note the result of a call."""
        error = None if result.error is None else (result.error.code, result.error.message)
        with self._lock:
            self._write(("return", token, error, {name: plain(value) for name, value in result.fields.items()}))

    def forget(self) -> None:
        """Forget all calls so far."""
        with self._lock:
            self.clear(self._memory)

    def note(self, kind: str, value: Any) -> None:
        """Note something else, such as the outcome of the check."""
        with self._lock:
            self._write((kind, value), reserve=0)

    def _write(self, record: tuple[Any, ...], reserve: int = _RESERVE) -> None:
        data = marshal.dumps(record)
        at = _SIZE.unpack_from(self._memory)[0]
        end = at + _LENGTH.size + len(data)
        if end + reserve > len(self._memory):
            return
        _LENGTH.pack_into(self._memory, at, len(data))
        self._memory[at + _LENGTH.size : end] = data
        _SIZE.pack_into(self._memory, 0, end)


def plain(value: Any) -> Any:
    """Return an argument or a result as values that another process can read.

    A struct is ``{"struct": KIND, "fields": …}``, an array of numpy ``{"array": DTYPE, …}`` with its memory, a function
    ``{"function": NAME}``, and bytes that are too long ``{"bytes": SIZE}``.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of an enum, too, which cannot be written as it is
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value) if len(value) <= _MAX_DATA else {"bytes": len(value)}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Struct):
        return {"struct": value.kind, "fields": {name: plain(each) for name, each in value.fields.items()}}
    if isinstance(value, Mapping):
        return {"struct": "", "fields": {str(name): plain(each) for name, each in value.items()}}
    if isinstance(value, np.ndarray):
        return _plain_array(value)
    if callable(value):
        return {"function": getattr(value, "__name__", "function")}
    if isinstance(value, (ctypes.Array, ctypes.Structure)):
        return {
            "array": "uint8",
            "shape": [ctypes.sizeof(value)],
            "data": bytes(value),
            "address": ctypes.addressof(value),
        }
    return {"object": repr(value)[:200]}


def _plain_array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return an array with the memory that it is a view of, from its lowest to its highest byte."""
    address = int(array.ctypes.data)
    low, high = np.lib.array_utils.byte_bounds(array) if array.size else (address, address)
    data = ctypes.string_at(low, high - low) if high - low <= _MAX_DATA else None
    return {
        "array": array.dtype.name, "shape": list(array.shape), "address": address,
        "size": high - low, "offset": address - low, "data": data,
    }  # fmt: skip


def records(memory: mmap.mmap | bytes) -> list[tuple[Any, ...]]:
    """Return all records of a transcript, in their order."""
    used = min(_SIZE.unpack_from(memory)[0], len(memory))
    at, found = _SIZE.size, []
    while at + _LENGTH.size <= used:
        size = _LENGTH.unpack_from(memory, at)[0]
        at += _LENGTH.size
        try:
            found.append(marshal.loads(memory[at : at + size]))
        except (ValueError, EOFError, TypeError):  # the process ended, or its plugin wrote there, in the middle of it
            break
        at += size
    return found


def calls(of: list[tuple[Any, ...]]) -> tuple[dict[str, Any], ...]:
    """Return the calls among the records of a transcript, each with its result if it has returned.

    Each has ``number``, ``thread``, ``function`` and ``arguments``; ``returned`` is whether it has returned, and then
    ``error`` is a pair of code and message or ``None``, and ``results`` the fields that the function set.
    """
    by_number: dict[int, dict[str, Any]] = {}
    for kind, *rest in of:
        if kind == "call":
            number, thread, function, arguments = rest
            by_number[number] = {
                "number": number, "thread": thread, "function": function, "arguments": arguments,
                "returned": False, "error": None, "results": {},
            }  # fmt: skip
        elif kind == "return" and rest[0] in by_number:
            number, error, results = rest
            by_number[number].update(returned=True, error=error, results=results)
    return tuple(by_number.values())


def spelled_call(call: Mapping[str, Any]) -> str:
    """Return a call as text: the function, and its arguments in short form."""
    arguments = ", ".join(f"{name}={_spelled(value)}" for name, value in call["arguments"].items())
    return f"{call['function']}({arguments})"


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        if "struct" in value:
            inner = ", ".join(f"{name}={_spelled(each)}" for name, each in value["fields"].items())
            return f"{{{inner}}}"
        if "array" in value:
            return f"{value['array']}[{','.join(map(str, value['shape']))}]"
        kind, text = next(iter(value.items()))
        return f"{text} bytes" if kind == "bytes" else f"<{text}>"
    if isinstance(value, list):
        shown = ", ".join(_spelled(each) for each in value[:8])
        return f"[{shown}, … {len(value)} in all]" if len(value) > 8 else f"[{shown}]"
    if isinstance(value, bytes):
        return repr(value) if len(value) <= 40 else f"{len(value)} bytes"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1 << 24:
        return hex(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
