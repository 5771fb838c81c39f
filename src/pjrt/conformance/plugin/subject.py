"""The plugin under test, as checks see it: its calls, its client, buffers, executions and lists of named values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.abi.schema import ENUMS, FUNCTIONS, STRUCTS
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.raw.struct import StructReader
from pjrt.conformance.plugin.check import Failed, Unsupported
from pjrt.conformance.plugin.samples import Samples

Codes = str | int | Iterable[str | int]
"""Status codes: one or several, by their names or numbers."""

Array = np.ndarray[Any, Any]


_OF_COMPILERS = frozenset({"PJRT_Compile", "PJRT_TopologyDescription_Deserialize"})
_NO_COMPILER = "No compiler"
"""So begins what XLA says where no compiler is registered: its plugins are built with one or without."""


class Subject:
    """The plugin under test in the process of one check.

    ``plugin`` makes calls without any rule; ``call`` makes calls that must succeed, and ``fails`` such that must fail.
    The client, its devices and its memories are made when a check first asks for them. What a check leaves goes with
    its process.

    Args:
        plugin: the plugin.
        options: the options of clients that the user gave.
        samples: the programs.
        name: the plugin's name, the path of its library, or ``FILE.py:FUNCTION``.

    Attributes:
        plugin: the plugin, whose functions can be called without any rule, too.
        options: the options of clients.
        samples: the programs.
        name: by which another process can load the plugin.
        advice: what the plugin should do, but need not.
    """

    def __init__(self, plugin: raw.Plugin, options: Mapping[str, Any], samples: Samples, name: str = "") -> None:
        self.plugin = plugin
        self.options = dict(options)
        self.samples = samples
        self.name = name
        self.advice: list[str] = []
        self._optional: set[str] = set()
        self._cleanups: list[Callable[[], object]] = []

    # Calls, and what a check requires of their results.

    def call(self, function: str, /, **fields: Any) -> raw.Result:
        """Call a function, which must succeed; return its result.

        Raises:
            Failed: the plugin returned an error.
            Unsupported: the plugin lacks the function; or it answers UNIMPLEMENTED, and ``require`` named it.
        """
        result = self.attempt(function, **fields)
        if result.error is not None:
            self._refuse_unimplemented(function, result.error)
            raise Failed(f"{function} to succeed", str(result.error))
        return result

    def fails(self, function: str, codes: Codes, /, **fields: Any) -> raw.Error:
        """Call a function, which must fail with one of the codes; return the error.

        Raises:
            Failed: the call succeeded, or failed with another code.
            Unsupported: the plugin lacks the function; or it answers UNIMPLEMENTED, and ``require`` named it.
        """
        result = self.attempt(function, **fields)
        names = _names(codes)
        if result.error is None:
            raise Failed(f"{function} to fail with {' or '.join(names)}", "that it succeeded")
        self.expect_code(result.error, codes, function)
        return result.error

    def expect_code(self, error: raw.Error, codes: Codes, function: str) -> None:
        """Raise ``Failed`` unless an error has one of the codes."""
        names = _names(codes)
        if raw.code_name(error.code) not in names:
            self._refuse_unimplemented(function, error)
            raise Failed(f"{function} to fail with {' or '.join(names)}", str(error))

    def attempt(self, function: str, /, **fields: Any) -> raw.Result:
        """Call a function, which may succeed or fail; return its result.

        Raises:
            Unsupported: the plugin lacks the function, or a compiler that needs no client.
        """
        if not self.plugin.has(function):
            raise Unsupported(f"the plugin lacks {function}")
        result = self.plugin.call(function, **fields)
        error = result.error if function in _OF_COMPILERS else None
        if error is not None and error.code == StatusCode.NOT_FOUND and error.message.startswith(_NO_COMPILER):
            raise Unsupported("the plugin was built without a compiler for topologies")
        return result

    def require(self, *functions: str) -> None:
        """Raise ``Unsupported`` if the plugin lacks a function.

        From here on a call of it that answers UNIMPLEMENTED is unsupported, too, and not a failure.
        """
        for function in functions:
            if not self.plugin.has(function):
                raise Unsupported(f"the plugin lacks {function}")
        self._optional.update(functions)

    def require_extension(self, name: str) -> int:
        """Return the address of an extension; raise ``Unsupported`` if the plugin lacks it."""
        if name not in self.plugin.extensions:
            raise Unsupported(f"the plugin lacks the extension {name}")
        return self.plugin.extensions[name]

    def expect(self, condition: object, expected: str, found: object) -> None:
        """Raise ``Failed`` unless a condition holds.

        Args:
            condition: whether the plugin did what it must.
            expected: what the rule requires, as a noun: "an id of at least 0".
            found: what there is instead.
        """
        if not condition:
            raise Failed(expected, found if isinstance(found, str) else repr(found))

    def advise(self, condition: object, expected: str, found: object) -> None:
        """Note what the plugin should do, but need not, unless a condition holds."""
        if not condition:
            self.advice.append(f"expected {expected}, found {found}")

    def finally_(self, cleanup: Callable[[], object]) -> None:
        """Have a function called after the check, whatever its outcome, such as one that lets a thread go on."""
        self._cleanups.append(cleanup)

    def clean_up(self) -> None:
        """Call the functions that ``finally_`` was given, the last one first."""
        while self._cleanups:
            self._cleanups.pop()()

    def _refuse_unimplemented(self, function: str, error: raw.Error) -> None:
        if error.code == StatusCode.UNIMPLEMENTED and function in self._optional:
            raise Unsupported(f"{function} is unimplemented")

    # The client, its devices and its memories.

    @functools.cached_property
    def client(self) -> int:
        """The client with the options of the user.

        Raises:
            Unsupported: none can be made, as where the plugin's hardware is missing.
        """
        return self.new_client()

    @functools.cached_property
    def has_client(self) -> bool:
        """Whether a client can be made: not where the plugin's hardware is missing."""
        try:
            return bool(self.client)
        except Unsupported:
            return False

    def new_client(self, **options: Any) -> int:
        """Return a further client, with the options of the user and these. The check destroys it, or leaves it.

        Raises:
            Unsupported: none can be made with these options.
        """
        values = [raw.named_value(name, value) for name, value in {**self.options, **options}.items()]
        result = self.attempt("PJRT_Client_Create", create_options=values)
        if result.error is not None:
            what = f"a client with {', '.join(options)}" if options else "a client"
            raise Unsupported(f"{what} cannot be made: {result.error}")
        return int(result.client)

    @functools.cached_property
    def devices(self) -> list[int]:
        """The addressable devices of the client, of which there is at least one."""
        devices = self.call("PJRT_Client_AddressableDevices", client=self.client).addressable_devices
        if not devices:
            raise Failed("a client with an addressable device", "none")
        return list(devices)

    @property
    def device(self) -> int:
        """The first addressable device of the client."""
        return self.devices[0]

    def several_devices(self, count: int) -> list[int]:
        """Return some addressable devices.

        Raises:
            Unsupported: the client has fewer.
        """
        if len(self.devices) < count:
            raise Unsupported(f"{count} addressable devices; the client has {len(self.devices)}")
        return self.devices[:count]

    @functools.cached_property
    def memory(self) -> int:
        """The default memory of the first device."""
        self.require("PJRT_Device_DefaultMemory")
        return int(self.call("PJRT_Device_DefaultMemory", device=self.device).memory or 0)

    @functools.cached_property
    def memories(self) -> dict[str, int]:
        """The memories of the first device by their kinds, such as ``device`` and ``pinned_host``."""
        self.require("PJRT_Device_AddressableMemories")
        listed = self.call("PJRT_Device_AddressableMemories", device=self.device).memories or []
        return {self.call("PJRT_Memory_Kind", memory=each).kind.decode(): each for each in reversed(listed)}

    def description(self, device: int) -> int:
        """Return the description of a device."""
        return int(self.call("PJRT_Device_GetDescription", device=device).device_description)

    # Buffers, and the events of their transfers.

    def buffer(self, array: Any, *, device: int | None = None, memory: int | None = None, **fields: Any) -> int:
        """Return a buffer with a copy of an array, when the transfer is done.

        Args:
            array: an array of numpy, or what makes one.
            device: where to; by default the first device, unless there is a memory.
            memory: the memory.
            fields: further fields of ``PJRT_Client_BufferFromHostBuffer``, such as ``host_buffer_semantics``.

        Raises:
            Failed: the plugin returned an error.
            Unsupported: the plugin has no such element type.
        """
        host = np.ascontiguousarray(array).reshape(np.shape(array))
        result = self.attempt_buffer(host, device=device, memory=memory, **fields)
        if result.error is not None:
            if result.error.code == StatusCode.UNIMPLEMENTED:
                raise Unsupported(f"buffers of element type {ElementType.of(host.dtype).name}")
            raise Failed("PJRT_Client_BufferFromHostBuffer to succeed", str(result.error))
        self.await_event(result.done_with_host_buffer)
        return int(result.buffer)

    def attempt_buffer(
        self, host: Array, *, device: int | None = None, memory: int | None = None, **fields: Any
    ) -> raw.Result:
        """Call ``PJRT_Client_BufferFromHostBuffer``, which may fail. The caller keeps the result until it is done."""
        if device is None and memory is None:
            device = self.device
        arguments = {
            "client": self.client,
            "data": host,
            "type": int(ElementType.of(host.dtype)),
            "dims": list(host.shape),
            "host_buffer_semantics": "ImmutableOnlyDuringCall",
            "device": device,
            "memory": memory,
        }
        return self.attempt("PJRT_Client_BufferFromHostBuffer", **{**arguments, **fields})

    def read(self, buffer: int) -> Array:
        """Return the contents of a buffer, in row-major order."""
        number = self.call("PJRT_Buffer_ElementType", buffer=buffer).type
        shape = self.shape(buffer)
        array = np.zeros(shape, ElementType(number).dtype)
        if not array.size:
            array = np.zeros(max(1, array.itemsize), np.uint8).view(array.dtype)  # memory that the plugin may be given
        result = self.call("PJRT_Buffer_ToHostBuffer", src=buffer, host_layout=row_major(len(shape)), dst=array)
        self.await_event(result.event)
        return array.reshape(shape) if array.size == np.prod(shape, dtype=int) else array[:0].reshape(shape)

    def shape(self, buffer: int) -> tuple[int, ...]:
        """Return the dimensions of a buffer."""
        return tuple(self.call("PJRT_Buffer_Dimensions", buffer=buffer).dims or ())

    def expect_contents(self, buffer: int, expected: Any) -> None:
        """Raise ``Failed`` unless a buffer has the contents of an array, bit by bit."""
        array, right = self.read(buffer), np.asarray(expected)
        same = array.shape == right.shape and array.dtype == right.dtype and array.tobytes() == right.tobytes()
        self.expect(same, f"a buffer with {_shown(right)}", _shown(array))

    def await_event(self, event: int) -> None:
        """Wait for an event, which must succeed, and destroy it."""
        error = self.event_error(event)
        if error is not None:
            raise Failed("an event without an error", str(error))

    def event_error(self, event: int) -> raw.Error | None:
        """Wait for an event, and destroy it; return its error."""
        if not event:
            raise Failed("an event", "a null pointer")
        error = self.attempt("PJRT_Event_Await", event=event).error
        self.call("PJRT_Event_Destroy", event=event)
        return error

    def await_buffers(self, buffers: Sequence[int]) -> None:
        """Wait until buffers have their contents, which they must get without an error."""
        for each in buffers:
            self.await_event(self.call("PJRT_Buffer_ReadyEvent", buffer=each).event)

    def destroy_buffers(self, *buffers: int) -> None:
        """Destroy buffers."""
        for each in buffers:
            self.call("PJRT_Buffer_Destroy", buffer=each)

    # Executables, and their executions.

    def program(self, sample: str, tensor: str = "4xf32") -> raw.Struct:
        """Return a sample as the program of a call; see ``samples``.

        Raises:
            Unsupported: the user gave programs, and this one is not among them.
        """
        program = self.samples.program(sample, tensor)
        return raw.Struct("PJRT_Program", code=program.code, format=program.format)

    def compile(self, sample: str, tensor: str = "4xf32", **options: Any) -> int:
        """Return the loaded executable of a sample.

        Args:
            sample: the name of a program in ``samples``.
            tensor: the type of its arrays, such as ``2x3xbf16``.
            options: options of ``CompileOptions``; the program is for one device unless they say otherwise.

        Raises:
            Failed: the plugin returned an error.
            Unsupported: the plugin does not implement something of the program.
        """
        result = self.attempt_compile(self.program(sample, tensor), **options)
        if result.error is not None:
            if result.error.code == StatusCode.UNIMPLEMENTED:
                raise Unsupported(f"the program {sample} of {tensor}: {result.error}")
            raise Failed("PJRT_Client_Compile to succeed", str(result.error))
        return int(result.executable)

    def attempt_compile(self, program: raw.Struct, **options: Any) -> raw.Result:
        """Call ``PJRT_Client_Compile``, which may fail."""
        return self.attempt(
            "PJRT_Client_Compile", client=self.client, program=program, compile_options=compile_options(**options)
        )

    def num_outputs(self, executable: int) -> int:
        """Return the number of results of a loaded executable."""
        unloaded = self.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=executable).executable
        number = int(self.call("PJRT_Executable_NumOutputs", executable=unloaded).num_outputs)
        self.call("PJRT_Executable_Destroy", executable=unloaded)
        return number

    def execute(
        self, executable: int, rows: Sequence[Sequence[int]], *, num_outputs: int | None = None, **options: Any
    ) -> list[list[int]]:
        """Execute a program, and wait until it is done; return the results of each device.

        Args:
            executable: the loaded executable.
            rows: the buffers that are the arguments of each device.
            num_outputs: the number of results, which is asked for by default.
            options: fields of ``PJRT_ExecuteOptions``.
        """
        result = self.attempt_execute(executable, rows, num_outputs=num_outputs, **options)
        if result.error is not None:
            raise Failed("PJRT_LoadedExecutable_Execute to succeed", str(result.error))
        for event in result.device_complete_events:
            self.await_event(event)
        return [[int(each or 0) for each in row] for row in result.output_lists]

    def attempt_execute(
        self,
        executable: int,
        rows: Sequence[Sequence[int]],
        *,
        num_outputs: int | None = None,
        execute_device: int | None = None,
        **options: Any,
    ) -> raw.Result:
        """Call ``PJRT_LoadedExecutable_Execute`` with events, which may fail; the caller awaits and destroys them."""
        count = self.num_outputs(executable) if num_outputs is None else num_outputs
        return self.attempt(
            "PJRT_LoadedExecutable_Execute",
            executable=executable,
            options=raw.Struct("PJRT_ExecuteOptions", options),
            argument_lists=[list(row) for row in rows],
            num_args=len(rows[0]) if rows else 0,
            output_lists=[[None] * count for _ in rows],
            device_complete_events=[None] * len(rows),
            execute_device=execute_device,
        )


def row_major(rank: int) -> raw.Struct | None:
    """Return the layout of a dense array in row-major order; ``None``, the default, for a scalar."""
    if not rank:
        return None
    return raw.Struct("PJRT_Buffer_MemoryLayout", type=0, minor_to_major=list(range(rank))[::-1])


def compile_options(**options: Any) -> bytes:
    """Return compile options as the bytes of a ``CompileOptionsProto``: for one device, unless they say otherwise."""
    return CompileOptions(**{"num_replicas": 1, "num_partitions": 1, **options}).to_proto()


_VALUE_TYPES = {number: name for name, number in ENUMS["PJRT_NamedValue_Type"]}
_PYTHON_TYPES = {0: (bytes, type(None)), 1: (int,), 2: (list, type(None)), 3: (float,), 4: (bool,)}


def expect_named_values(subject: Subject, result: raw.Result, field: str) -> dict[str, object]:
    """Return the values of a list by name; raise ``Failed`` if a name comes twice, or a value has no known type."""
    values: dict[str, object] = {}
    for each in result.fields[field] or ():
        name = (each.name or b"").decode("utf-8", "replace")
        subject.expect(name, "a value with a name", "none")
        subject.expect(name not in values, "names that come once", f"{name} twice")
        subject.expect(
            each.type in _VALUE_TYPES, f"a type of {', '.join(_VALUE_TYPES.values())}", f"{each.type} of {name}"
        )
        subject.expect(
            isinstance(each.value, _PYTHON_TYPES[each.type]), f"a {_VALUE_TYPES[each.type]} {name}", each.value
        )
        values[name] = each.value
    return values


def read_named_values(result: raw.Result, field: str, count: int) -> list[raw.Struct]:
    """Read a list of a result anew from the memory of the plugin."""
    offset = STRUCTS[FUNCTIONS[result.function].args].fields[field].offset
    address = int.from_bytes(result.struct_bytes[offset : offset + 8], "little")
    size = STRUCTS["PJRT_NamedValue"].size
    return [StructReader().read("PJRT_NamedValue", address + i * size) for i in range(count)]


def _names(codes: Codes) -> list[str]:
    several = (codes,) if isinstance(codes, (str, int)) else codes
    return [raw.code_name(each) if isinstance(each, int) else each for each in several]


def _shown(array: Array) -> str:
    text = np.array2string(array.ravel()[:8], separator=", ", threshold=8)
    more = f" and {array.size - 8} more" if array.size > 8 else ""
    return f"{array.dtype.name}{list(array.shape)} {text}{more}"
