"""The arguments of the calls of a replay: recorded structs, with the objects, data and callbacks of this one."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pjrt.abi.schema import CALLBACKS, STRUCTS, Field
from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError
from pjrt.capi.raw import KeyValueStore, call_function, read_struct
from pjrt.capi.raw.struct import Memory, Struct, StructReader, StructWriter, address_of, callback, load, store
from pjrt.capi.raw.table import Error, Table
from pjrt.host_memory.tolerance import Tolerance
from pjrt.layers.recording import Blob, Call, Function, Handle, LeftOut, Pointer, Recording, handles_in


@dataclass(frozen=True, slots=True)
class Raw:
    """A handle that the plugin returned: its kind and its address."""

    kind: str
    address: int


class RecordedStructReader(StructReader):
    """A reader of structs in which handles are ``Raw``, and functions and pointers are ``Pointer``."""

    def handle(self, kind: str, address: int) -> Raw:
        """Return a handle with its kind."""
        return Raw(kind, address)

    def pointer(self, address: int) -> Pointer:
        """Return an address as a recording has it."""
        return Pointer(address)


_SPARE = 64
"""Room for further results, in elements: the program of another plugin may have more of them."""


class Context(Protocol):
    """The state of a replay that structs need."""

    def address(self, handle: Handle) -> int:
        """Return the address of a handle, as the plugin returned it."""

    def memory(self, pointer: Pointer) -> int:
        """Return the address that stands for one of the recorded process."""

    def known_memory(self, pointer: Pointer) -> int:
        """Return the same; 0 if there is none."""

    def function(self, function: Function) -> int:
        """Return the address of a function to give to the plugin."""

    def data(self, value: Any) -> bytes | memoryview | None:
        """Return the bytes of a text or of a blob."""


class StructBuilder(StructWriter):
    """A maker of the argument structs of one call.

    Attributes:
        filled: the address and the size of the memory that the plugin fills, by the name of the field.
        num_outputs: the number of results of the program that runs.
    """

    def __init__(self, context: Context, num_outputs: int = 0) -> None:
        super().__init__()
        self.filled: dict[str, tuple[int, int]] = {}
        self.num_outputs = num_outputs
        self._context = context

    def build_recorded(self, struct: Struct) -> int:
        """Return the address of a recorded struct in new memory."""
        return self.build(struct.kind, struct.fields)

    def write(self, address: int, kind: str, fields: Mapping[str, Any]) -> None:
        """Write a recorded struct; fields that this version of the C API does not have are left out."""
        if kind == "PJRT_NamedValue":
            fields = {name: self._data(value) for name, value in fields.items()}
        elif kind != "PJRT_Buffer_MemoryLayout":
            fields = {name: value for name, value in fields.items() if name in STRUCTS[kind].fields}
            fields = {**fields, **self._sizes(kind, fields)}
        super().write(address, kind, fields)

    def write_field(self, at: int, field: Field, value: Any, fields: Mapping[str, Any]) -> None:
        """Write one field; for memory that the plugin fills, the address of new memory."""
        if "FILLS" in field.marks and isinstance(value, Pointer):
            store(at, self._to_fill(field, fields))
        else:
            super().write_field(at, field, value, fields)

    def address_of(self, value: Any, field: Field, fields: Mapping[str, Any]) -> int:
        """Return the address for a recorded value."""
        if isinstance(value, (bytes, Blob)):
            return self.memory.copy(self._context.data(value) or b"")
        if isinstance(value, LeftOut):
            return self.memory.allocate(value.size)
        if isinstance(value, Handle):
            return self._context.address(value)
        if isinstance(value, Function):
            return self._context.function(value)
        if not isinstance(value, Pointer):
            return super().address_of(value, field, fields)
        if field.kind == "BYTES":
            size = int(fields.get(field.count) or 0)
            return self._context.known_memory(value) or self.memory.allocate(size)
        if field.kind in ("USER_DATA", "TEXT"):
            # Such a text is in a struct that the plugin fills: it points to one of its own there. The recorded pointer,
            # and its size, may be what was in the framework's memory before.
            return self._context.known_memory(value)
        return self._context.memory(value) if field.kind == "POINTER" else 0

    def _sizes(self, kind: str, fields: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes of texts and bytes: what this plugin serialized may be longer or shorter than recorded."""
        specs = STRUCTS[kind].fields
        return {
            specs[name].count: len(self._context.data(value) or b"")
            for name, value in fields.items()
            if specs[name].count and isinstance(value, (bytes, Blob))
        }

    def _data(self, value: Any) -> Any:
        return bytes(self._context.data(value) or b"") if isinstance(value, (bytes, Blob)) else value

    def _to_fill(self, field: Field, fields: Mapping[str, Any]) -> int:
        """Return the address of memory for what the plugin writes."""
        count = int(fields.get(field.count) or 0)
        if field.kind == "LISTS":
            lists = self.memory.allocate(8 * count)
            for i in range(count):
                store(lists + 8 * i, self.memory.allocate(8 * (self.num_outputs + _SPARE)))
            return lists
        size = count * (field.element_size or 1)
        address = self.memory.allocate(size)
        self.filled[field.name] = address, size
        return address


def host_array(data: bytes | memoryview, struct: Struct, memory: Memory) -> int:
    """Return the address of the host array of a ``BufferFromHostBuffer``, with the strides that it had.

    Args:
        data: its elements, dense and in row-major order.
        struct: the call's arguments.
        memory: the memory to put it in.

    Raises:
        UnimplementedError: an element has a type of a later version.
    """
    fields = struct.fields
    dims, strides = fields.get("dims") or [], fields.get("byte_strides")
    if strides is None or not len(data):
        return memory.copy(data)
    dtype = np.dtype(f"V{element_size(fields['type'])}")
    low = sum(stride * (dim - 1) for dim, stride in zip(dims, strides, strict=True) if stride < 0)
    high = sum(stride * (dim - 1) for dim, stride in zip(dims, strides, strict=True) if stride > 0)
    span = np.zeros(high - low + dtype.itemsize, np.uint8)
    view = np.ndarray(tuple(dims), dtype, span, -low, tuple(strides))
    view[...] = np.frombuffer(data, dtype).reshape(dims)
    return int(memory.keep(span) - low)


def element_size(number: int) -> int:
    """Return the bytes of an element in host memory, where one of less than a byte takes a whole one."""
    try:
        return max(1, ElementType(number).dtype.itemsize)
    except (ValueError, TypeError) as error:
        raise UnimplementedError(f"elements of type {number} of PJRT_Buffer_Type cannot be laid out") from error


# Callbacks of the framework, which this process has instead.


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of the plugin to one of the functions.

    Attributes:
        error: the error that it was given.
        handle: the handle that it was given, such as the stream of a transfer.
        data: the host data that it was given.
    """

    error: Error | None = None
    handle: Raw | None = None
    data: bytes | None = None


@dataclass(slots=True)
class ReplayCallbacks:
    """All functions of a replay, by their numbers in the recording.

    Attributes:
        table: the plugin, whose errors they read.
        key_values: the values of the key-value store that they offer to the plugin.
        store: the key-value store.
    """

    table: Table
    key_values: dict[bytes, bytes] = field(default_factory=dict)
    store: KeyValueStore = field(init=False)
    _functions: dict[int, Any] = field(default_factory=dict)
    _invocations: dict[int, list[Invocation]] = field(default_factory=dict)
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        # The recorded processes wrote all values before; a key without one has none in the whole replay.
        self.store = KeyValueStore(self.key_values, waits=False)

    def address(self, function: Function) -> int:
        """Return the address of the function that stands for a recorded one."""
        if function.number not in self._functions:
            answer = functools.partial(_KINDS.get(function.kind, _ignore), self, function.number)
            # A callback that a later version added does nothing, and gets at most two arguments, as most do.
            kind = function.kind if function.kind in CALLBACKS else "PJRT_Chunk_deleter"
            self._functions[function.number] = callback(kind, answer)
        return address_of(self._functions[function.number])

    def knows(self, number: int) -> bool:
        """Whether the plugin was given the function."""
        return number in self._functions

    def has_been_called(self, number: int) -> bool:
        """Whether the plugin has called the function."""
        with self._condition:
            return bool(self._invocations.get(number))

    def wait(self, number: int, place: int) -> Invocation:
        """Return an invocation of a function by its place; wait until the plugin has made it."""
        with self._condition:
            while len(self._invocations.get(number, ())) <= place:
                self._condition.wait()
            return self._invocations[number][place]

    def add(self, number: int, invocation: Invocation) -> None:
        """Add an invocation, and wake those that wait for it."""
        with self._condition:
            self._invocations.setdefault(number, []).append(invocation)
            self._condition.notify_all()


def _on_ready(callbacks: ReplayCallbacks, number: int, error: int, _: int) -> None:
    callbacks.add(number, Invocation(callbacks.table.take_error(error) if error else None))


def _send(callbacks: ReplayCallbacks, number: int, chunk: int, *_: int) -> None:
    fields = read_struct("PJRT_Chunk", chunk).fields
    if fields["deleter"]:
        data = load(chunk + STRUCTS["PJRT_Chunk"].fields["data"].offset)
        call_function(fields["deleter"], data, fields["deleter_arg"] or 0)
    callbacks.add(number, Invocation(data=fields["data"] or b""))


def _receive(callbacks: ReplayCallbacks, number: int, stream: int, _: int) -> None:
    callbacks.add(number, Invocation(handle=Raw("PJRT_CopyToDeviceStream", stream)))


def _output(callbacks: ReplayCallbacks, number: int, _: int, __: int, data: int, *shape: int) -> None:
    dims, rank, kind = shape[:3]
    size = element_size(kind)
    for i in range(rank):
        size *= load(dims + 8 * i)
    callbacks.add(number, Invocation(data=ctypes.string_at(data, size) if data else b""))


def _ignore(callbacks: ReplayCallbacks, number: int, *_: int) -> None:
    """Do nothing, as for deleters: the replay owns the memory that it gave."""
    callbacks.add(number, Invocation())


def _key_values(method: str) -> Callable[..., int | None]:
    def answer(callbacks: ReplayCallbacks, number: int, args: int) -> int | None:
        callbacks.add(number, Invocation())
        error: int | None = getattr(callbacks.store, method)(args)
        return error

    return answer


_KINDS: Mapping[str, Callable[..., Any]] = {
    "PJRT_Event_OnReadyCallback": _on_ready,
    "PJRT_SendCallback": _send,
    "PJRT_RecvCallback": _receive,
    "PJRT_HloOutputCallback": _output,
    "PJRT_KeyValueGetCallback": _key_values("get"),
    "PJRT_KeyValueTryGetCallback": _key_values("try_get"),
    "PJRT_KeyValuePutCallback": _key_values("put"),
}


# Counterparts: the objects of this replay that stand for recorded ones.

_LEAST_SERIALIZED = 64
"""Texts of fewer bytes are names, not what a plugin serialized."""


class UnusableError(Exception):
    """A call cannot be made: this plugin lacks something that it needs."""


class LostError(Exception):
    """A call cannot be made: an earlier call of this replay failed."""


class Counterparts:
    """The objects, functions and addresses of this plugin, by those of the recording.

    Attributes:
        received: the addresses of the functions that the plugin gave, by their recorded numbers.
        device_ids: the identifiers of this plugin's devices, by the recorded ones.
        program_sizes: the bytes of this plugin's optimized programs, by the numbers of their executables.
    """

    def __init__(self, recording: Recording, callbacks: ReplayCallbacks) -> None:
        self.received: dict[int, int] = {}
        self.device_ids: dict[int, int] = {}
        self.program_sizes: dict[int, int] = {}
        self._recording, self._callbacks = recording, callbacks
        self._handles: dict[int, int] = {}
        self._lost: dict[int, int] = {}  # handles that are missing, and the call that should have made them
        self._addresses: dict[int, int] = {}
        self._serialized: dict[bytes, bytes] = {}

    def has(self, handle: Handle) -> bool:
        """Whether a handle has a counterpart."""
        return handle.number in self._handles

    def address(self, handle: Handle) -> int:
        """Return the address of a handle's counterpart.

        Raises:
            LostError: a call of this replay should have made it, and failed.
            UnusableError: the plugin never had it.
        """
        if handle.number in self._handles:
            return self._handles[handle.number]
        if handle.number in self._lost:
            raise LostError(f"it needs {handle}, which call {self._lost[handle.number]} did not make")
        raise UnusableError(f"it needs {handle}, which this plugin does not have")

    def memory(self, pointer: Pointer) -> int:
        """Return the address that stands for a recorded one.

        Raises:
            UnusableError: it is of memory that the recording does not describe.
        """
        if pointer.address not in self._addresses:
            raise UnusableError(f"it needs the memory at 0x{pointer.address:x} of the recorded process")
        return self._addresses[pointer.address]

    def known_memory(self, pointer: Pointer) -> int:
        """Return the address that stands for a recorded one; 0 if there is none."""
        return self._addresses.get(pointer.address, 0)

    def function(self, function: Function) -> int:
        """Return the address of the function that stands for one of the framework's."""
        return self._callbacks.address(function)

    def data(self, value: Any) -> bytes | memoryview | None:
        """Return the bytes of a text or a blob; of what the recorded plugin serialized, those of this plugin."""
        data = self._recording.data(value)
        if data is not None and self._serialized and len(data) >= _LEAST_SERIALIZED:
            return self._serialized.get(bytes(data), data)
        return data

    def learn(self, handle: Handle, address: int) -> None:
        """Take an address for the counterpart of a handle."""
        self._handles[handle.number] = address

    def learn_memory(self, pointer: Pointer, address: int) -> None:
        """Take an address for the counterpart of a recorded one."""
        self._addresses[pointer.address] = address

    def learn_serialized(self, recorded: bytes, here: bytes) -> None:
        """Take bytes for the counterpart of those that the recorded plugin serialized."""
        if len(recorded) >= _LEAST_SERIALIZED:
            self._serialized[recorded] = here

    def lose(self, handle: Handle, call: Call) -> None:
        """Note that a call did not make a handle."""
        if handle.number not in self._handles:
            self._lost.setdefault(handle.number, call.number)

    def lose_results(self, call: Call) -> None:
        """Note that a call made none of the handles of its results."""
        for handle in handles_in(call.results):
            self.lose(handle, call)


FROM_HOST = "PJRT_Client_BufferFromHostBuffer"
LITERAL = "PJRT_AsyncHostToDeviceTransferManager_TransferLiteral"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a replay.

    Attributes:
        tolerance: how far elements of results may be from those of the recording.
        stop_at: the number of the last call; 0 for all.
        seed: the seed of host data that the recording leaves out.
        options: options of the clients, by name; they come before the recorded ones.
        recorded_options: whether clients get the recorded options.
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    stop_at: int = 0
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    recorded_options: bool = True


class ReplayArguments:
    """A maker of argument structs.

    Raises:
        LostError: a call needs what an earlier one did not make.
        UnusableError: a call needs what this plugin lacks.
    """

    def __init__(self, recording: Recording, counterparts: Counterparts, settings: Settings) -> None:
        self._recording, self._counterparts, self._settings = recording, counterparts, settings
        self._mapped: list[Memory] = []

    def build(self, call: Call, num_outputs: int) -> tuple[int, StructBuilder]:
        """Return the address of a call's arguments, and what keeps them."""
        builder = StructBuilder(self._counterparts, num_outputs)
        arguments = call.arguments
        if call.function == "PJRT_Client_Create":
            arguments = self._client_arguments(arguments)
        elif call.function == "PJRT_Client_DmaMap":
            self._map(arguments)
        elif call.function == "PJRT_Client_LookupDevice":
            number = arguments.fields["id"]
            number = self._counterparts.device_ids.get(number, number)
            arguments = Struct(arguments.kind, {**arguments.fields, "id": number})
        elif call.function == "PJRT_Executable_OptimizedProgram" and call.error is None:
            arguments = self._program_arguments(arguments)
        if call.function not in (FROM_HOST, LITERAL):
            return builder.build_recorded(arguments), builder
        arguments = Struct(arguments.kind, {k: v for k, v in arguments.fields.items() if k != "data"})
        address = builder.build_recorded(arguments)
        if call.data is not None:
            data = self._host_data(call)
            of_array = call.function == FROM_HOST
            begin = host_array(data, arguments, builder.memory) if of_array else builder.memory.copy(data)
            ctypes.c_uint64.from_address(address + STRUCTS[arguments.kind].fields["data"].offset).value = begin
        return address, builder

    def _client_arguments(self, arguments: Struct) -> Struct:
        settings = self._settings
        recorded = arguments.fields.get("create_options") or [] if settings.recorded_options else []
        kept = [each for each in recorded if self._recording.text(each.fields["name"]) not in settings.options]
        options = [*kept, *(_named_value(name, value) for name, value in settings.options.items())]
        return Struct(arguments.kind, {**arguments.fields, "create_options": options, "num_options": len(options)})

    def _program_arguments(self, arguments: Struct) -> Struct:
        """Make room for the program of this plugin, whose size an earlier call returned."""
        program = arguments.fields["program"]
        size = self._counterparts.program_sizes.get(arguments.fields["executable"].number)
        if size is None or program.fields["code"] is None:
            return arguments
        program = Struct(program.kind, {**program.fields, "code_size": size})
        return Struct(arguments.kind, {**arguments.fields, "program": program})

    def _map(self, arguments: Struct) -> None:
        """Take new memory for the host memory that the framework registers."""
        if isinstance(arguments.fields["data"], Pointer):
            memory = Memory()
            self._mapped.append(memory)
            self._counterparts.learn_memory(arguments.fields["data"], memory.allocate(arguments.fields["size"]))

    def _host_data(self, call: Call) -> bytes | memoryview:
        if not isinstance(call.data, LeftOut):
            return self._recording.data(call.data) or b""
        generator = np.random.default_rng((self._settings.seed, call.number))
        number = call.arguments.fields.get("type", call.arguments.fields.get("shape_element_type", 0))
        kind, count = ElementType(number), call.data.size // element_size(number)
        if kind.is_floating or kind.is_complex:
            return generator.uniform(-1, 1, count).astype(kind.dtype).tobytes()
        return generator.integers(0, 2, count).astype(kind.dtype).tobytes()


def _named_value(name: str, value: Any) -> Struct:
    number = {str: 0, bool: 4, int: 1, float: 3}.get(type(value), 2)
    plain = value.encode() if isinstance(value, str) else list(value) if number == 2 else value
    return Struct("PJRT_NamedValue", {"name": name.encode(), "type": number, "value": plain})
