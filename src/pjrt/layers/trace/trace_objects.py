"""The values and objects that the calls of a trace name."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.layers.trace.trace_file import Call, Direction, FieldSchema, Note, RecordedValue, Schema, StructSchema, Trace

# Values: the arguments and results of a call, as a reader would write them.

_DEEPEST = 12
_NOWHERE = 0xFFFF
"""The step to an element of a list, of which no values behind pointers are recorded."""
_POINTERS = ("handle", "pointer", "callback", "user_data", "extensions", "text", "struct", "array", "lists", "bytes")
_BEHIND_POINTERS = ("text", "struct", "array", "lists", "bytes")


class Address(int):
    """A handle or another pointer."""


class Name(str):
    """The name of a value of an enum."""


@dataclass(frozen=True)
class Text:
    """A text; ``total`` counts its bytes, of which a trace keeps the first ones."""

    text: str
    total: int


@dataclass(frozen=True)
class Memory:
    """Memory of the host with its size, whose contents a trace does not have."""

    address: int
    size: int


@dataclass(frozen=True)
class Elements:
    """An array; ``total`` counts its elements, of which a trace keeps the first ones."""

    items: list[Any]
    total: int


class Fields(dict[str, Any]):
    """A struct: its fields by name."""


@dataclass(frozen=True)
class Values:
    """The arguments and the results of a call, by the names of the fields."""

    arguments: Fields
    results: Fields


def values_of(trace: Trace, call: Call) -> Values:
    """Return the arguments and the results of a call.

    A call that failed or never returned has no results. Counts are left out: the arrays have them.
    """
    type_ = call.function.args
    reader = _StructReader(trace.schema, type_, call.args, {value.path: value for value in call.values}, ())
    arguments, results = Fields(), Fields()
    succeeded = not call.failed and call.end is not None
    for index, member in type_.shown:
        if reader.is_omitted(index, member):
            continue
        # Memory that the caller gives to be filled is an argument: its contents are not recorded.
        if member.direction != Direction.OUT and (not member.fills or member.kind == "bytes"):
            arguments[member.name] = reader.value(index, member)
        elif succeeded:
            results[member.name] = reader.value(index, member)
    return Values(arguments, results)


class _StructReader:
    """The fields of one struct: its bytes, and the values behind its pointers under a path."""

    def __init__(
        self,
        schema: Schema,
        type_: StructSchema,
        data: bytes,
        behind: Mapping[tuple[int, ...], RecordedValue],
        path: tuple[int, ...],
    ) -> None:
        self.schema = schema
        self.type = type_
        self.data = data
        self.behind = behind
        self.path = path
        known = len(data)
        if type_.sized and len(data) >= 8:
            known = min(known, struct.unpack_from("<Q", data)[0])
        self.known = known

    def is_omitted(self, index: int, field: FieldSchema) -> bool:
        """Whether the caller's struct does not have the field, or the field has nothing to show."""
        if field.offset + field.size > self.known:
            return True
        # A null pointer of the caller means that it leaves something out; a null result is worth a look.
        if field.kind in _POINTERS and field.direction == Direction.IN and not self._number(field):
            return field.kind in ("extensions", "user_data") or bool(self.path) or field.nullable
        switch = self.type.switches.get(index)
        if switch is not None:
            other = self.type.fields[switch]
            if other.offset + other.size > self.known or not self._number(other):
                return True
        return field.variant >= 0 and field.variant != self._discriminator()

    def _discriminator(self) -> int:
        enum_ = next((field for _, field in self.type.shown if field.kind == "enum"), None)
        return -1 if enum_ is None else self._number(enum_)

    def _number(self, field: FieldSchema) -> int:
        return int.from_bytes(self.data[field.offset : field.offset + field.size], "little")

    def fields(self) -> Fields:
        """Return all fields that are not omitted."""
        return Fields(
            (field.name, self.value(index, field))
            for index, field in self.type.shown
            if not self.is_omitted(index, field)
        )

    def value(self, index: int, field: FieldSchema) -> Any:
        """Return the value of a field."""
        kind = field.kind
        raw = self.data[field.offset : field.offset + field.size]
        if field.inline:
            return Elements([self._element(field, piece) for piece in _pieces(raw, field.element_size)], -1)
        if kind in ("handle", "pointer", "callback", "user_data", "extensions"):
            return Address(self._number(field))
        if kind == "struct_value":
            return self._inner(field.type, raw, (index, 0))
        if kind not in _BEHIND_POINTERS:
            return self._scalar(kind, field.type, raw)
        address = self._number(field)
        if not address:
            return Address(0)
        if kind == "bytes":
            size = self._number(self.type.fields[field.count]) if field.count >= 0 else 0
            return Memory(address, size) if field.count >= 0 else Address(address)
        if kind == "lists":
            return self._lists(index, field, address)
        value = self.behind.get((*self.path, index))
        if value is None:
            return self._lists(index, field, address) if field.element == "text" else Address(address)
        if kind == "text":
            return Text(value.data.decode(errors="replace"), value.total)
        if kind == "struct":
            return self._inner(field.type, value.data, (index, 0))
        items: list[Any] = []
        for i, piece in enumerate(_pieces(value.data, value.element_size)):
            if field.element == "struct_value" and field.type >= 0:
                items.append(self._inner(field.type, piece, (index, i)))
            else:
                items.append(self._element(field, piece))
        return Elements(items, value.total)

    def _lists(self, index: int, field: FieldSchema, address: int) -> Any:
        lists: list[Any] = []
        while value := self.behind.get((*self.path, index, len(lists))):
            if field.element == "text":
                lists.append(Text(value.data.decode(errors="replace"), value.total))
            else:
                pieces = _pieces(value.data, value.element_size)
                lists.append(Elements([self._element(field, piece) for piece in pieces], value.total))
        if not lists:
            return Address(address)
        total = self._number(self.type.fields[field.count]) if field.count >= 0 else len(lists)
        return Elements(lists, total)

    def _inner(self, type_: int, data: bytes, step: tuple[int, ...]) -> Any:
        path = (*self.path, *step)
        if type_ < 0 or len(path) > _DEEPEST:
            return Memory(1, len(data))
        return _StructReader(self.schema, self.schema.structs[type_], data, self.behind, path).fields()

    def _element(self, field: FieldSchema, data: bytes) -> Any:
        if field.element == "struct_value":
            return self._inner(field.type, data, (_NOWHERE, 0))
        return self._scalar(field.element, field.type, data)

    def _scalar(self, kind: str, type_: int, data: bytes) -> Any:
        if kind == "float" and len(data) in (4, 8):
            return struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
        number = int.from_bytes(data, "little", signed=kind in ("signed", "enum"))
        if kind == "bool":
            return bool(number)
        if kind == "enum" and type_ >= 0:
            return Name(self.schema.enums[type_][1].get(number, str(number)))
        return number if kind in ("signed", "unsigned", "count") else Address(number)


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data) - size + 1, size)] if size else []


def value_text(value: Any, address_text: Callable[[int], str] = hex) -> str:
    """Return a value as it is written in logs."""
    if isinstance(value, Address):
        return address_text(value) if value else "null"
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, Text):
        cut = "" if value.total <= len(value.text.encode()) else "…"
        return f'"{_printable(value.text)}{cut}"'
    if isinstance(value, Memory):
        return f"<{value.size} bytes>"
    if isinstance(value, Elements):
        items = [value_text(item, address_text) for item in value.items]
        return f"[{', '.join([*items, '…'] if value.total > len(items) else items)}]"
    if isinstance(value, Fields):
        return "{" + ", ".join(f"{name}={value_text(item, address_text)}" for name, item in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text.replace('"', '\\"'))


# Objects: the programs, buffers and events of a trace, with the calls that made and used them.

_EXECUTE = "PJRT_LoadedExecutable_Execute"
_ON_READY = "PJRT_Event_OnReady"
_COMPILERS = ("PJRT_Client_Compile", "PJRT_Executable_DeserializeAndLoad")
_DIMS = ("dims", "shape_dims")
_TYPES = ("type", "element_type", "shape_element_type")
_SOURCES = ("buffer", "src")


@dataclass
class TracedProgram:
    """A loaded executable."""

    handle: int
    compiled: Call | None
    """The call that compiled or loaded it; None if the trace does not have it."""
    name: str = ""
    output_bytes: list[int] = field(default_factory=list)
    donated: list[int] = field(default_factory=list)
    """The arguments whose buffers its executions take."""
    executions: list[Call] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Its name, or else its handle."""
        return self.name or f"{self.handle:#x}"


@dataclass
class TracedBuffer:
    """A buffer."""

    handle: int
    creator: Call
    created: float
    nbytes: int | None
    """None: the trace does not have its shape."""
    released: float | None = None
    ready: float | None = None


@dataclass
class TracedEvent:
    """An event, from the return of the call that made it until it is ready."""

    handle: int
    creator: Call
    created: float
    buffer: TracedBuffer | None = None
    """The buffer whose ready event it is."""
    ready: float | None = None
    notified: Call | None = None
    """The callback, or the call, by which the framework learned that it is ready."""
    code: int = 0


@dataclass
class TracedObjects:
    """Everything that a trace's calls made."""

    programs: list[TracedProgram] = field(default_factory=list)
    buffers: list[TracedBuffer] = field(default_factory=list)
    events: list[TracedEvent] = field(default_factory=list)
    program_of: dict[int, TracedProgram] = field(default_factory=dict)
    """The program of each compilation and execution, by ``id`` of the call."""


def objects_of(trace: Trace) -> TracedObjects:
    """Follow the calls of a trace, and return the objects that they made."""
    walk = _Walk(trace.schema)
    # A handle exists from the return of the call that makes it until the call that destroys it begins: from then on the
    # plugin may use the same address for a new object.
    moments: list[tuple[float, int, Call | Note]] = [(call.begin, 0, call) for call in trace.calls]
    moments += [(call.end, 1, call) for call in trace.calls if call.end is not None]
    moments += [(note.time, 2, note) for note in trace.notes]
    for _, kind, moment in sorted(moments, key=lambda entry: entry[:2]):
        if isinstance(moment, Note):
            walk.note(moment)
        elif kind == 0:
            walk.enter(moment)
        else:
            walk.leave(moment)
    for notice in trace.ready:
        walk.notice(notice.event, notice.buffer, notice.end, notice.code)
    return walk.objects


def nbytes_of(element_type: int, dims: list[int]) -> int | None:
    """Return the bytes of a dense array; None for a type without a size."""
    try:
        bits = ElementType(element_type).bits
    except ValueError:
        return None
    return math.ceil(math.prod(dims) * bits / 8)


class _Walk:
    def __init__(self, schema: Schema) -> None:
        self.objects = TracedObjects()
        self.programs: dict[int, TracedProgram] = {}
        self.executables: dict[int, TracedProgram] = {}
        self.buffers: dict[int, TracedBuffer] = {}
        self.events: dict[int, TracedEvent] = {}
        self.all_buffers: dict[int, list[TracedBuffer]] = {}
        self.all_events: dict[int, list[TracedEvent]] = {}
        self.listeners: dict[tuple[int, int], TracedEvent] = {}
        self.managers: dict[int, list[int | None]] = {}
        kinds = schema.handles
        options = next((struct for struct in schema.structs if struct.name == "PJRT_ExecuteOptions"), None)
        self.kept_arguments = -1 if options is None else options.field("non_donatable_input_indices")
        self.made = {
            function.name: [
                (field, kinds[field.type])
                for field in function.args.fields
                if field.creates and field.type >= 0 and "handle" in (field.kind, field.element)
            ]
            for function in schema.functions
        }

    def note(self, note: Note) -> None:
        words = note.text.split(" ", 3)
        if words[0] != "executable" or len(words) < 3:
            return
        program = self._program(int(words[1], 16))
        rest = words[3] if len(words) > 3 else ""
        if words[2] == "name":
            program.name = rest
        elif words[2] == "donates":
            program.donated = list(map(int, rest.split()))
            for call in program.executions:  # the layer learns it from the first execution
                self._donate(call)
        elif words[2] == "outputs":
            shapes = (shape.partition(":") for shape in rest.split())
            sizes = [nbytes_of(int(kind), [int(dim) for dim in dims.split(",") if dim]) for kind, _, dims in shapes]
            program.output_bytes = [size or 0 for size in sizes]

    def _program(self, handle: int, compiled: Call | None = None) -> TracedProgram:
        if compiled is not None or handle not in self.programs:
            self.programs[handle] = TracedProgram(handle, compiled)
            self.objects.programs.append(self.programs[handle])
        return self.programs[handle]

    def enter(self, call: Call) -> None:
        name = call.function.name
        if call.is_callback:
            if call.origin is not None and call.origin.name == _ON_READY:
                # The event may be destroyed before its callback is called.
                listener = (call.origin_handle, call.number_of("user_arg"))
                self._ready(self.listeners.pop(listener, self.events.get(call.origin_handle)), call.begin, call)
        elif name == _ON_READY:
            event = self.events.get(call.number_of("event"))
            if event is not None:
                self.listeners[event.handle, call.number_of("user_arg")] = event
        elif name == _EXECUTE:
            program = self._program(call.number_of("executable"))
            program.executions.append(call)
            self.objects.program_of[id(call)] = program
        elif name == "PJRT_Buffer_Destroy":
            self._release(call.number_of("buffer"), call.begin)
            self.buffers.pop(call.number_of("buffer"), None)
        elif name == "PJRT_Event_Destroy":
            self.events.pop(call.number_of("event"), None)

    def leave(self, call: Call) -> None:
        name = call.function.name
        if call.failed or call.is_callback or call.end is None:
            return
        if name in _COMPILERS:
            handle = call.number_of("executable" if name == _COMPILERS[0] else "loaded_executable")
            self.objects.program_of[id(call)] = self._program(handle, call)
        elif name == "PJRT_LoadedExecutable_GetExecutable":
            self.executables[call.number_of("executable")] = self._program(call.number_of("loaded_executable"))
        elif name == "PJRT_Executable_Name":
            text = call.value("executable_name")
            program = self.executables.get(call.number_of("executable"))
            if text is not None and program is not None:
                program.name = text.data.decode(errors="replace")
        elif name in ("PJRT_Buffer_Delete", "PJRT_Buffer_DonateWithControlDependency"):
            self._release(call.number_of("buffer"), call.end)
        elif name == _EXECUTE:
            self._donate(call)
        elif name == "PJRT_Event_Await" or (name == "PJRT_Event_IsReady" and call.number_of("is_ready")):
            self._ready(self.events.get(call.number_of("event")), call.end, call)
        elif name == "PJRT_Buffer_OnDeviceSizeInBytes":
            buffer = self.buffers.get(call.number_of("buffer"))
            if buffer is not None and buffer.nbytes is None:
                buffer.nbytes = call.number_of("on_device_size_in_bytes")
        elif name == "PJRT_Client_CreateBuffersForAsyncHostToDevice":
            self.managers[call.number_of("transfer_manager")] = list(_shape_specs(call))
        self._make(call)

    def _make(self, call: Call) -> None:
        assert call.end is not None
        for field_, kind in self.made.get(call.function.name, ()):
            for position, handle in enumerate(_handles(call, field_)):
                if not handle:
                    continue
                if kind == "PJRT_Buffer":
                    buffer = TracedBuffer(handle, call, call.end, self._size(call, position))
                    self.buffers[handle] = buffer
                    self.all_buffers.setdefault(handle, []).append(buffer)
                    self.objects.buffers.append(buffer)
                elif kind == "PJRT_Event":
                    event = TracedEvent(handle, call, call.end)
                    if call.function.name == "PJRT_Buffer_ReadyEvent":
                        event.buffer = self.buffers.get(call.number_of("buffer"))
                    self.events[handle] = event
                    self.all_events.setdefault(handle, []).append(event)
                    self.objects.events.append(event)

    def _size(self, call: Call, position: int) -> int | None:
        program = self.objects.program_of.get(id(call))
        if program is not None:
            sizes = program.output_bytes
            return sizes[position % len(sizes)] if sizes else None
        if manager := call.number_of("transfer_manager"):
            specs, index = self.managers.get(manager, []), call.number_of("buffer_index")
            return specs[index] if index < len(specs) else None
        size = array_bytes(call)
        if size is not None:
            return size
        source = next((self.buffers.get(call.number_of(name)) for name in _SOURCES if call.number_of(name)), None)
        return None if source is None else source.nbytes

    def _donate(self, call: Call) -> None:
        program = self.objects.program_of.get(id(call))
        if program is None or not program.donated:
            return
        kept = call.inner_numbers("options", self.kept_arguments)
        for device in range(call.number_of("num_devices")):
            arguments = call.value("argument_lists", device)
            for index in program.donated:
                if arguments is not None and index < arguments.kept and index not in kept:
                    self._release(arguments.numbers()[index], call.begin)

    def _release(self, handle: int, time: float) -> None:
        buffer = self.buffers.get(handle)
        if buffer is not None and buffer.released is None:
            buffer.released = time

    def _ready(self, event: TracedEvent | None, time: float, call: Call) -> None:
        if event is None or (event.ready is not None and event.ready <= time):
            return
        event.ready, event.notified, event.code = time, call, call.code
        if event.buffer is not None and event.buffer.ready is None:
            event.buffer.ready = time

    def notice(self, event_handle: int, buffer_handle: int, time: float, code: int) -> None:
        """Take a notice of the layer itself, which is the most exact time there is."""
        for event in self.all_events.get(event_handle, ()):
            if event.created <= time and (event.ready is None or time < event.ready):
                event.ready, event.code = time, code
        for buffer in self.all_buffers.get(buffer_handle, ()):
            if buffer.ready is None and buffer.created <= time:
                buffer.ready = time


def array_bytes(call: Call) -> int | None:
    """Return the bytes of the dense array whose type and dimensions a call has; None if it has none."""
    args = call.function.args
    dims = next((name for name in _DIMS if args.field(name) >= 0), None)
    type_ = next((name for name in _TYPES if args.field(name) >= 0), None)
    if dims is None or type_ is None:
        return None
    value = call.value(dims)
    if value is not None and value.kept < value.total:
        return None
    return nbytes_of(call.number_of(type_), value.numbers() if value is not None else [])


def _handles(call: Call, field_: FieldSchema) -> Iterator[int]:
    if field_.kind == "handle":
        yield call.number_of(field_.name)
        return
    if field_.kind == "lists":
        device = 0
        while (value := call.value(field_.name, device)) is not None:
            yield from value.numbers()
            device += 1
    elif (value := call.value(field_.name)) is not None:
        yield from value.numbers()


def _shape_specs(call: Call) -> Iterator[int | None]:
    index = call.function.args.field("shape_specs")
    specs = call.value("shape_specs")
    for i in range(0 if specs is None else specs.kept):
        element_type = int.from_bytes(specs.data[i * 40 + 32 : i * 40 + 36], "little") if specs is not None else 0
        dims = next((value for value in call.values if value.path[:2] == (index, i) and len(value.path) == 3), None)
        yield nbytes_of(element_type, dims.numbers() if dims is not None else [])
