"""The calls of a recording as text, in the words of the trace's log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pjrt.capi.layer.schema import ENUMS, STRUCTS, Field
from pjrt.capi.raw.struct import Struct
from pjrt.capi.raw.table import code_name
from pjrt.layers.recording.recorded_value import Blob, Function, Handle, LeftOut, Pointer
from pjrt.layers.recording.recording import Call, Recording
from pjrt.layers.trace.trace_values import Address, Elements, Fields, Memory, Name, Text, value_text

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
