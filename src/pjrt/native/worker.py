"""The worker: the process that computes for devices in Python, whose clients stand behind the runtime in C.

The runtime starts it as ``python -m pjrt.native.worker SPEC FOLDER``. Its standard input is a socket, on which devices,
programs to compile and executables to load are asked for (see ``compiling``). Descriptor 3 is memory that both share:
there the commands are that follow each other fast. native/library/driver_worker.c has their form. Descriptor 4 is a
socket on which programs call functions of the framework's process (see ``questions``).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Attributes, Device, DeviceDescription, MemorySpace, NamedValue
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    AlreadyExistsError,
    InternalError,
    PjrtError,
    UnimplementedError,
    from_author,
)
from pjrt.api.executable import Executable
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions, FailedRunError, LoadedExecutable, ValuePath
from pjrt.api.plugin import Plugin
from pjrt.api.program import Program
from pjrt.api.protobuf import message_classes
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout
from pjrt.api.topology import TopologyDescription
from pjrt.capi.client_factories import make_client, named_topology
from pjrt.capi.library_files import library_of
from pjrt.capi.reports import stated_capabilities
from pjrt.host_memory.array import HostArray
from pjrt.native.code import serialize, spec_of
from pjrt.native.compiling import ANSWER, find_function, serve, take_connection
from pjrt.native.questions import Questions

_CLASSES = message_classes(
    "pjrt_native_worker",
    {
        "Facts": {
            "platform": (1, "string"),
            "platform_version": (2, "string"),
            "process_index": (3, "int64"),
            "devices": (4, "[Device]"),
            "attributes": (5, "[Attribute]"),
        },
        "Device": {
            "kind": (1, "string"),
            "memory_kinds": (2, "[string]"),
            "limits": (3, "[int64]"),
            "id": (4, "int64"),
            "process_index": (5, "int64"),
            "is_addressable": (6, "bool"),
            "local_hardware_id": (7, "int64"),
            "text": (8, "string"),
            "debug_text": (9, "string"),
            "attributes": (10, "[Attribute]"),
        },
        "Attribute": {
            "name": (1, "string"),
            "type": (2, "int64"),
            "text": (3, "string"),
            "integers": (4, "[int64]"),
            "real": (5, "uint64"),
        },
        "Code": {"token": (1, "bytes"), "number": (2, "uint64"), "serialized": (3, "bytes")},
    },
)

_LAUNCH, _FREE, _COPY_OUT, _COPY, _UNLOAD = 1, 2, 3, 4, 5
_DONE, _RELEASE = 1, 2
_NOWHERE = 2**64 - 1
_COMPILED_KEPT = 16
_SIZE_MASK = 2**56 - 1

_HEAD = struct.Struct("<IIQ")
_LAUNCH_HEAD = struct.Struct("<III4xQq")
_ANSWER = struct.Struct("<IIQII")


@dataclass(slots=True)
class _Loaded:
    """An executable that can be launched: what a launch needs of it, and how many devices of the runtime have it."""

    execute: Callable[..., list[Buffer]]
    parameters: Sequence[ShapeSpec]
    devices: Sequence[Device] | None  # those that it runs on; any, for a portable one
    path: ValuePath | None
    options: dict[frozenset[int], ExecuteOptions]
    users: int

    def runs_on(self, device: Device) -> bool:
        """Return whether it can be launched on a device."""
        return self.devices is None or device in self.devices


@dataclass(slots=True)
class _Value:
    """The value of a result that no buffer was made of yet: ``ValuePath`` has it."""

    value: Any
    make: Callable[[Any], Buffer]


def main(spec: str, folder: str = "") -> None:
    """Serve the runtime until it closes its end of the socket.

    Args:
        spec: ``package.module:attribute`` or ``/path/of/file.py:attribute`` of a function that makes clients, or of a
            ``pjrt.Plugin``'s class.
        folder: a folder to import the module from; empty where it is installed.
    """
    connection = take_connection(folder)
    worker = Worker(spec, mmap.mmap(3, os.fstat(3).st_size), socket.socket(fileno=4))

    def answer_requests() -> None:
        serve(connection, worker.answer)
        os._exit(0)  # the runtime is gone: nothing that computes is wanted

    threading.Thread(target=answer_requests, daemon=True).start()
    worker.run()


class Worker:
    """The worker's client, its arrays and its executables.

    Args:
        spec: the place of the function that makes clients.
        shared: the shared memory.
        questions: the socket for questions to the framework's process.
    """

    def __init__(self, spec: str, shared: mmap.mmap, questions: socket.socket) -> None:
        self._spec = spec
        self._asked = Questions(questions)
        self._shared = shared
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
        library = ctypes.CDLL(str(library_of(Path(__file__).parent)))
        self._next = library.pjrt_worker_next
        self._next.argtypes, self._next.restype = [ctypes.c_void_p, ctypes.c_uint64], ctypes.c_int64
        self._answer = library.pjrt_worker_answer
        self._answer.argtypes, self._answer.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64], None
        self._client: Client | None = None
        self._topology: TopologyDescription | None = None  # in the place of a client: one that has a name
        self._spaces: list[list[MemorySpace]] = []  # of each device, the default one first
        self._arrays: dict[int, Buffer | _Value | PjrtError] = {}
        self._executables: dict[int, _Loaded] = {}
        self._compiled: dict[bytes, tuple[LoadedExecutable, Sequence[ShapeSpec]]] = {}  # the latest, until loaded
        self._number_of: dict[tuple[bytes, Device | None], int] = {}  # those for one device alone have it in the key
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # of the executables: they are loaded on one thread, and unloaded on another
        self._token = secrets.token_bytes(16)

    # Requests: on a thread of their own, one after the other.

    def answer(self, request: Any) -> Any:
        """Return the answer to a request of the runtime."""
        if request.method == "open":
            opened = self._open(request)
            self._register(request.handlers)
            return ANSWER(data=opened)
        self._register(request.handlers)
        if request.method == "compile":
            return ANSWER(data=self._compile(request))
        if request.method == "load":
            return ANSWER(number=self._load(request.data, self._device(request.number)))
        raise InternalError(f"the worker knows no request {request.method!r}")

    def _open(self, request: Any) -> bytes:
        factory = find_function(self._spec, "makes clients")
        plugin = factory() if isinstance(factory, type) and issubclass(factory, Plugin) else None
        options = {each.name: getattr(each, each.WhichOneof("value")) for each in request.client_options}
        name = options.get("topology")
        if isinstance(name, str):
            rest = {each: value for each, value in options.items() if each != "topology"}
            self._topology = plugin.topology(name, **rest) if plugin else named_topology(factory, name, rest)
        if self._topology is not None:
            return _topology_facts(self._topology)
        store = self._asked.key_value_store() if request.number else None
        client = make_client(plugin.client if plugin else factory, options, store, repr(self._spec))
        self._client = client
        client.use_from_one_thread()
        for device in client.devices:
            spaces = device.memory_spaces if device.is_addressable else ()
            self._spaces.append(sorted(spaces, key=lambda space: space is not device.default_memory_space))
        return _client_facts(client, self._spaces)

    def _register(self, targets: Sequence[str]) -> None:
        if self._client is None:
            return
        for target in targets:
            # A client that takes no handlers, or has one of this name, raises the error when a program calls it.
            with contextlib.suppress(UnimplementedError, AlreadyExistsError):
                self._client.register_ffi_handler(target, self._asked.handler(target))

    def _compile(self, request: Any) -> bytes:
        program = Program(request.program, format=request.format)
        options = CompileOptions.from_proto(request.options)
        if self._topology is not None:
            return self._code(self._topology.compile(program, options), None, program)
        assert self._client is not None
        loaded = self._client.compile(program, options)
        return self._code(loaded.executable, loaded, program)

    def _code(self, executable: Executable, loaded: LoadedExecutable | None, program: Program) -> bytes:
        try:
            serialized = executable.serialize()
        except UnimplementedError:
            serialized = b""
        number = next(self._numbers)
        serialized_code = _CLASSES["Code"](token=self._token, number=number, serialized=serialized).SerializeToString()
        parameters, outputs, aliases = _signature(executable, program)
        if loaded is not None:
            self._compiled[serialized_code] = loaded, parameters
        if len(self._compiled) > _COMPILED_KEPT:
            del self._compiled[next(iter(self._compiled))]
        return serialize(
            serialized_code,
            program,
            executable.compile_options(),
            parameters=parameters,
            outputs=outputs,
            aliases=aliases,
            parameter_memory_kinds=_stated(executable, "parameter_memory_kinds"),
            output_memory_kinds=_stated(executable, "output_memory_kinds"),
            parameter_shardings=_stated(executable, "parameter_shardings"),
            output_shardings=_stated(executable, "output_shardings"),
            optimized=_optimized(executable, program),
            fingerprint=executable.fingerprint(),
            takes_any_memory=True,  # the client says what it refuses
            name=executable.name,
            cost=_cost(executable),
        )

    def _load(self, code: bytes, device: Device) -> int:
        """Return the number of an executable; the same one for each device that asks, since they run it together.

        Raises:
            UnimplementedError: it was compiled for several devices, and this is none of them.
        """
        with self._lock:
            number = self._number_of.get((code, None)) or self._number_of.get((code, device))
            if number is not None and self._executables[number].runs_on(device):
                self._executables[number].users += 1
                return number
            loaded, parameters = self._compiled.pop(code) if code in self._compiled else self._deserialize(code)
            key: tuple[bytes, Device | None] = (code, None)
            options = loaded.executable.compile_options()
            if not options.compile_portable_executable and device not in loaded.addressable_devices:
                if len(loaded.addressable_devices) > 1:
                    raise UnimplementedError(f"the program was compiled for several devices, of which {device} is none")
                options = replace(options, device_assignment=DeviceAssignment(((device.id,),)))
                loaded, parameters = self._deserialize(code, options)
                key = (code, device)
            number = self._number_of[key] = next(self._numbers)
            execute = loaded.execute_portable if options.compile_portable_executable else loaded.execute_sharded
            devices = None if options.compile_portable_executable else loaded.addressable_devices
            self._executables[number] = _Loaded(execute, parameters, devices, loaded.value_path(), {}, 1)
            return number

    def _deserialize(
        self, code: bytes, options: CompileOptions | None = None
    ) -> tuple[LoadedExecutable, Sequence[ShapeSpec]]:
        assert self._client is not None
        loaded = self._client.deserialize(_CLASSES["Code"].FromString(code).serialized, options)
        return loaded, loaded.executable.parameter_specs

    def _unload(self, number: int) -> None:
        with self._lock:
            loaded = self._executables[number]
            loaded.users -= 1
            if loaded.users == 0:
                del self._executables[number]
                self._number_of = {key: each for key, each in self._number_of.items() if each != number}

    # Commands: on the main thread.

    def run(self) -> None:
        """Do what is commanded, for ever."""
        shared, address, take, head = self._shared, self._address, self._next, _HEAD.unpack_from
        ended = 0
        while True:
            at = take(address, ended)
            ended, kind, fence = head(shared, at)
            try:
                if kind == _LAUNCH:
                    self._launch(at + 16, fence)
                elif kind == _FREE:
                    self._arrays.pop(struct.unpack_from("<Q", shared, at + 16)[0], None)
                elif kind == _COPY_OUT:
                    self._copy_out(at + 16, fence)
                elif kind == _COPY:
                    self._copy(at + 16, fence)
                elif kind == _UNLOAD:
                    self._unload(struct.unpack_from("<Q", shared, at + 16)[0])
            except Exception as error:
                self._fail(fence, error)

    def _launch(self, at: int, fence: int) -> None:
        number, num_inputs, num_outputs, executable, _ = _LAUNCH_HEAD.unpack_from(self._shared, at)
        words = struct.unpack_from(f"<{3 * num_inputs + num_outputs}Q", self._shared, at + 32)
        outputs = words[3 * num_inputs :]
        try:
            loaded = self._executables[executable]
            if loaded.path is not None and self._run(loaded, loaded.path, words, num_inputs, number, fence):
                return
            arguments = [
                self._argument(words[3 * n : 3 * n + 3], loaded.parameters[n], number) for n in range(num_inputs)
            ]
            # What the runtime does not write in place, it may use again.
            written = set(outputs)
            kept = frozenset(n for n in range(num_inputs) if words[3 * n] not in written)
            options = loaded.options.get(kept) or loaded.options.setdefault(
                kept, ExecuteOptions(non_donatable_input_indices=kept)
            )
            futures: list[Future[None]] = []
            results = loaded.execute(arguments, self._device(number), options, returned_futures=futures)
            self._finish(outputs, results, fence, futures[0])
        except Exception as error:
            known = from_author(error)
            self._arrays.update(dict.fromkeys(outputs, known))
            self._fail(fence, known)

    def _run(
        self, loaded: _Loaded, path: ValuePath, words: Sequence[int], num_inputs: int, device: int, fence: int
    ) -> bool:
        """Run a program without buffers; return whether it was started."""
        values = []
        find = self._arrays.get
        for n in range(0, 3 * num_inputs, 3):
            array = find(words[n])
            if type(array) is _Value:
                values.append(array.value)
                continue
            value = path.value(self._argument(words[n : n + 3], loaded.parameters[n // 3], device))
            if value is None:
                return False
            values.append(value)
        futures: list[Future[None]] = []
        outputs = words[3 * num_inputs :]
        try:
            results = path.run(values, 0, futures)
        except FailedRunError as error:
            self._finish(outputs, error.buffers, fence, error.buffers[0].ready())
            return True
        if results is None:
            return False
        self._arrays.update(zip(outputs, map(_Value, results, path.makers), strict=True))
        if futures:
            futures[0].add_done_callback(partial(self._end, fence))
        else:
            self._say(_ANSWER.pack(24, _DONE, fence, 0, 0))
        return True

    def _finish(self, outputs: Sequence[int], results: Sequence[Buffer], fence: int, future: Future[None]) -> None:
        self._arrays.update(zip(outputs, results, strict=True))
        future.add_done_callback(partial(self._end, fence))

    def _end(self, fence: int, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            self._fail(fence, error)
        else:
            self._say(_ANSWER.pack(24, _DONE, fence, 0, 0))

    def _fail(self, fence: int, error: Exception) -> None:
        known = from_author(error)
        message = known.message.encode()[:1000].decode(errors="ignore").encode()  # the room of a driver's message
        padding = bytes(-len(message) % 8)
        self._say(
            _ANSWER.pack(24 + len(message + padding), _DONE, fence, int(known.code), len(message)) + message + padding
        )

    def _say(self, answer: bytes) -> None:
        self._answer(self._address, answer, len(answer))

    # Arrays.

    def _device(self, number: int) -> Device:
        assert self._client is not None
        return self._client.devices[number]

    def _argument(self, words: Sequence[int], spec: ShapeSpec, device: int) -> Buffer:
        number, place, size = words
        if number not in self._arrays:
            space = self._spaces[device][size >> 56]
            self._arrays[number] = self._from_heap(place, size & _SIZE_MASK, spec, space)
        return self._buffer(number)

    def _buffer(self, number: int) -> Buffer:
        """Return an array as a buffer.

        Raises:
            PjrtError: the array was to be the result of an execution that did not begin.
        """
        array = self._arrays[number]
        if isinstance(array, PjrtError):
            raise array
        if isinstance(array, _Value):
            array = self._arrays[number] = array.make(array.value)
        return array

    def _from_heap(self, place: int, size: int, spec: ShapeSpec, space: MemorySpace) -> Buffer:
        """Return a buffer of what the runtime wrote to the heap, which the device may use in place."""
        assert self._client is not None
        if size != spec.size_in_bytes:
            raise InternalError(f"expected {spec.size_in_bytes} bytes for an argument, found memory of {size} bytes")
        if spec.element_type is ElementType.TOKEN:
            return self._client.buffer_from_host(np.zeros(0, np.bool_), memory_space=space)
        dtype = spec.element_type.dtype
        if place == _NOWHERE:  # nobody wrote there
            zeros = np.zeros(spec.shape, dtype)
            return self._client.buffer_from_host(zeros, memory_space=space, layout=_own_layout(spec))
        array = np.frombuffer(self._shared, dtype, spec.size, place).reshape(spec.shape)
        array.flags.writeable = False
        return self._client.buffer_from_host(
            array,
            memory_space=space,
            layout=_own_layout(spec),
            semantics=HostBufferSemantics.IMMUTABLE_ZERO_COPY,
            on_done_with_host_buffer=partial(self._say, struct.pack("<IIQQ", 24, _RELEASE, 0, place)),
        )

    def _copy_out(self, at: int, fence: int) -> None:
        number, place, offset, size = struct.unpack_from("<4Q", self._shared, at)

        def write(values: HostArray) -> None:
            data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            np.frombuffer(self._shared, np.uint8, size, place)[:] = data[offset : offset + size]
            self._say(_ANSWER.pack(24, _DONE, fence, 0, 0))

        def bring(future: Future[HostArray]) -> None:
            error = future.exception()
            if error is not None:
                self._fail(fence, error)
            else:
                write(future.result())

        array = self._arrays[number]
        if type(array) is _Value and type(array.value) is np.ndarray:
            write(array.value)
        else:
            self._buffer(number).to_host().add_done_callback(bring)

    def _copy(self, at: int, fence: int) -> None:
        number, copy, device, kind = struct.unpack_from("<QQII", self._shared, at)
        copied = self._buffer(number).copy_to(self._spaces[device][kind])
        self._finish((copy,), (copied,), fence, copied.ready())


def _client_facts(client: Client, spaces: Sequence[Sequence[MemorySpace]]) -> bytes:
    """Return what a client says about itself and its devices; native/library/facts.c reads it."""
    facts = _facts(client, {**client.topology.attributes, **stated_capabilities(client)})
    facts.process_index = client.process_index
    for device, own in zip(client.devices, spaces, strict=True):
        each = _device_facts(device.description, [space.kind for space in own])
        each.limits[:] = [_limit(device) if n == 0 else 0 for n in range(len(own))]
        each.is_addressable = device.is_addressable
        each.local_hardware_id = device.local_hardware_id
        facts.devices.append(each)
    return bytes(facts.SerializeToString())


def _topology_facts(topology: TopologyDescription) -> bytes:
    """Return what a topology says about devices that need not be here."""
    facts = _facts(topology, {**topology.attributes, **stated_capabilities(topology)})
    for description in topology.device_descriptions:
        try:
            kinds = [space.kind for space in description.memory_space_descriptions]
        except UnimplementedError:
            kinds = []
        facts.devices.append(_device_facts(description, kinds))
    return bytes(facts.SerializeToString())


def _facts(of: Client | TopologyDescription, attributes: Attributes) -> Any:
    return _CLASSES["Facts"](
        platform=of.platform_name,
        platform_version=of.platform_version,
        attributes=[_attribute(name, value) for name, value in attributes.items()],
    )


def _device_facts(description: DeviceDescription, memory_kinds: Sequence[str]) -> Any:
    return _CLASSES["Device"](
        kind=description.kind,
        memory_kinds=memory_kinds,
        limits=[0] * len(memory_kinds),
        id=description.id,
        process_index=description.process_index,
        text=str(description),
        debug_text=description.debug_string,
        attributes=[_attribute(name, value) for name, value in description.attributes.items()],
    )


_TEXT, _INTEGER, _INTEGERS, _REAL, _BOOLEAN = range(5)


def _attribute(name: str, value: NamedValue) -> Any:
    make = partial(_CLASSES["Attribute"], name=name)
    if isinstance(value, str):
        return make(type=_TEXT, text=value)
    if isinstance(value, bool):
        return make(type=_BOOLEAN, integers=[int(value)])
    if isinstance(value, int):
        return make(type=_INTEGER, integers=[value])
    if isinstance(value, float):
        return make(type=_REAL, real=struct.unpack("<I", struct.pack("<f", value))[0])
    return make(type=_INTEGERS, integers=value)


def _limit(device: Device) -> int:
    if not device.is_addressable:
        return 0
    try:
        return device.memory_stats().bytes_limit or 0
    except UnimplementedError:
        return 0


def _stated(executable: Executable, name: str) -> Any:
    """Return a fact about an executable; nothing where the device does not state it."""
    try:
        return getattr(executable, name) or ()
    except UnimplementedError:
        return ()


def _optimized(executable: Executable, program: Program) -> Program | None:
    try:
        optimized = executable.optimized_program()
    except PjrtError:
        return None
    return None if optimized.code == program.code else optimized


def _cost(executable: Executable) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in executable.cost_analysis().items()}
    except PjrtError:
        return {}


def _signature(
    executable: Executable, program: Program
) -> tuple[Sequence[ShapeSpec], Sequence[ShapeSpec], dict[int, int]]:
    """Return the parameters and results on one device, and by parameter the result that takes over its memory.

    What the device does not declare is read from the program.

    Raises:
        UnimplementedError: neither says it: a size is only known at run time, for example.
    """
    from pjrt.stablehlo.signatures import signature

    stated = signature(program, trusted=True) if program.format == "mlir" else None
    try:
        parameters = executable.parameter_specs
    except UnimplementedError:
        if stated is None:
            raise
        parameters = [spec_of(each.type, f"argument {n}") for n, each in enumerate(stated.arguments)]
    try:
        outputs = [
            ShapeSpec(tuple(shape), ElementType(type_))
            for shape, type_ in zip(executable.output_shapes, executable.output_element_types, strict=True)
        ]
    except UnimplementedError:
        if stated is None:
            raise
        outputs = [spec_of(each.type, f"result {n}") for n, each in enumerate(stated.results)]
    arguments = () if stated is None else stated.arguments
    return (
        _with_layouts(parameters, _stated(executable, "parameter_layouts")),
        _with_layouts(outputs, _stated(executable, "output_layouts")),
        {n: each.aliases_output for n, each in enumerate(arguments) if each.aliases_output is not None},
    )


def _own_layout(spec: ShapeSpec) -> Layout | None:
    """Return the layout of a parameter; ``None`` for rows, in which every device takes arrays."""
    return None if isinstance(spec.layout, TiledLayout) and spec.layout.is_row_major else spec.layout


def _with_layouts(specs: Sequence[ShapeSpec], layouts: Sequence[Layout]) -> list[ShapeSpec]:
    """Return the specs with the layouts that the device states, where it states any."""
    if len(layouts) != len(specs):
        return list(specs)
    return [replace(spec, layout=layout) for spec, layout in zip(specs, layouts, strict=True)]


if __name__ == "__main__":
    # Not as __main__: errors tell the author's code from ours by the names of modules.
    from pjrt.native import worker

    worker.main(*sys.argv[1:])
