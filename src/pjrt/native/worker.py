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
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pjrt import stablehlo
from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device, MemorySpace, NamedValue
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    PjrtError,
    UnimplementedError,
    from_author,
)
from pjrt.api.executable import Executable
from pjrt.api.future import Future
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.loaded_executable import ExecuteOptions, FailedRunError, LoadedExecutable, ValuePath
from pjrt.api.plugin import Plugin
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.protobuf import message_classes
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout
from pjrt.api.topology import TopologyDescription
from pjrt.api.waits import note_interruption
from pjrt.capi.client_factories import make_client, named_topology
from pjrt.capi.import_spec import find_attribute
from pjrt.capi.library_files import library_of
from pjrt.host_memory.array import HostArray
from pjrt.native.code import serialize, spec_of
from pjrt.native.compiling import ANSWER, checked_function, serve, take_connection
from pjrt.native.facts import client_facts, topology_facts
from pjrt.native.questions import Questions

_CLASSES = message_classes(
    "pjrt_native_worker",
    {
        "ExecuteOptions": {
            "token": (1, "uint64"),
            "launch_id": (2, "int64"),
            "call_location": (3, "string"),
            "tasks": (4, "[int64]"),
            "incarnations": (5, "[int64]"),
            "sends": (6, "[int64]"),
            "receives": (7, "[int64]"),
            "values": (8, "[int64]"),
            "operands": (9, "[int64]"),
            "in_rows": (10, "bool"),
            "types": (11, "[int64]"),
            "addresses": (12, "[uint64]"),
            "failed_code": (13, "uint64"),
            "failed_message": (14, "string"),
        },
        "Code": {"token": (1, "bytes"), "number": (2, "uint64"), "serialized": (3, "bytes")},
    },
)

_LAUNCH, _FREE, _COPY_OUT, _COPY, _UNLOAD, _ASK = 1, 2, 3, 4, 5, 6
_IS_ON_HOST, _ADDRESS = 1, 2
_DONE, _RELEASE = 1, 2
_NOWHERE = 2**64 - 1
_COMPILED_KEPT = 16
_SIZE_MASK, _IMPORTED, _IN_HEAP = 2**56 - 1, 2**63, 2**63

_HEAD = struct.Struct("<IIQ")
_LAUNCH_HEAD = struct.Struct("<IIIIQq")
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
        spec: ``package.module:attribute`` or ``/path/of/file.py:attribute`` of a function that makes clients, of a
            ``pjrt.Plugin``'s class, or of what ``pjrt.export`` returned.
        folder: a folder to import the module from; empty where it is installed.
    """
    connection = take_connection(folder)

    def factory(options: Mapping[str, NamedValue], store: KeyValueStore | None) -> Client | TopologyDescription:
        found = find_attribute(spec)
        make: Callable[..., Client | TopologyDescription] | None = getattr(found, "make_for_framework", None)
        return (
            make(options, store)
            if make
            else _made(checked_function(found, spec, "makes clients"), options, store, repr(spec))
        )

    worker = Worker(factory, mmap.mmap(3, os.fstat(3).st_size), socket.socket(fileno=4))

    def answer_requests() -> None:
        serve(connection, worker.answer)
        os._exit(0)  # the runtime is gone: nothing that computes is wanted

    signal.signal(signal.SIGURG, worker.cancel)
    threading.Thread(target=answer_requests, daemon=True).start()
    worker.run()


def _made(
    factory: Callable[..., Any], options: Mapping[str, NamedValue], store: KeyValueStore | None, whose: str
) -> Client | TopologyDescription:
    """Return a client of a function or of a plugin's class, or the topology that the options name."""
    plugin = factory() if isinstance(factory, type) and issubclass(factory, Plugin) else None
    name = options.get("topology")
    if isinstance(name, str):
        rest = {each: value for each, value in options.items() if each != "topology"}
        topology = plugin.topology(name, **rest) if plugin else named_topology(factory, name, rest)
        if topology is not None:
            return topology
    return make_client(plugin.client if plugin else factory, options, store, whose)


class Worker:
    """The worker's client, its arrays and its executables.

    Args:
        factory: makes a client of a framework's options and its key-value store, or the topology that they name.
        shared: the shared memory.
        questions: the socket for questions to the framework's process.
        is_alone: whether nobody else uses the client.
    """

    def __init__(
        self,
        factory: Callable[[Mapping[str, NamedValue], KeyValueStore | None], Client | TopologyDescription],
        shared: mmap.mmap,
        questions: socket.socket,
        *,
        is_alone: bool = True,
    ) -> None:
        self._factory = factory
        self._is_alone = is_alone
        self._working = threading.Lock()  # of the thread that does what is commanded
        self._helper = 0  # that thread, where it waits for a result and reads the answers itself
        self._asked = Questions(questions)
        self._shared = shared
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
        path = str(library_of(Path(__file__).parent))
        library, brief = ctypes.CDLL(path), ctypes.PyDLL(path)  # what is brief need not let go of the interpreter
        self._next, self._take = library.pjrt_worker_next, brief.pjrt_worker_take
        self._next.argtypes, self._next.restype = [ctypes.c_void_p, ctypes.c_uint64], ctypes.c_int64
        self._take.argtypes, self._take.restype = [*self._next.argtypes, ctypes.c_uint64], ctypes.c_int64
        self._posted = brief.pjrt_worker_posted
        self._posted.argtypes, self._posted.restype = [ctypes.c_void_p], ctypes.c_uint64
        self._wait = library.pjrt_worker_wait
        self._wait.argtypes, self._wait.restype = [ctypes.c_void_p], ctypes.c_int
        self._answer = library.pjrt_worker_answer
        self._answer.argtypes, self._answer.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64], None
        self._try_answer = brief.pjrt_worker_try_answer
        self._try_answer.argtypes, self._try_answer.restype = [*self._answer.argtypes, ctypes.c_bool], ctypes.c_bool
        cancelled = brief.pjrt_worker_cancelled
        cancelled.argtypes, cancelled.restype = [ctypes.c_void_p], ctypes.POINTER(ctypes.c_uint64 * 256)
        self._cancelled_fences = cancelled(self._address).contents  # where the runtime writes them
        self._cancelled: frozenset[int] = frozenset()
        self._computing = 0  # the fence of what the main thread computes in a function of the device
        self._end_commands = library.pjrt_worker_end
        self._end_commands.argtypes, self._end_commands.restype = [ctypes.c_void_p], None
        self._client: Client | None = None
        self._topology: TopologyDescription | None = None  # in the place of a client: one that has a name
        self._is_over = False
        self._has_contexts = False  # whether executions are given addresses of this process
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
            self._register(request)
            return ANSWER(data=opened, number=int(self._has_contexts))
        self._register(request)
        if request.method == "compile":
            return ANSWER(data=self._compile(request))
        if request.method == "load":
            return ANSWER(number=self._load(request.data, self._device(request.number)))
        raise InternalError(f"the worker knows no request {request.method!r}")

    def _open(self, request: Any) -> bytes:
        options = {each.name: getattr(each, each.WhichOneof("value")) for each in request.client_options}
        made = self._factory(options, self._asked.key_value_store() if request.number else None)
        if isinstance(made, TopologyDescription):
            self._topology = made
            return topology_facts(made)
        client = self._client = made
        if self._is_alone:
            client.use_from_one_thread()
        else:
            self._has_contexts = type(client).create_execute_context is not Client.create_execute_context
        for device in client.devices:
            spaces = device.memory_spaces if device.is_addressable else ()
            self._spaces.append(sorted(spaces, key=lambda space: space is not device.default_memory_space))
        return client_facts(client, self._spaces)

    def _register(self, request: Any) -> None:
        if self._client is None:
            return
        for target, address, traits in zip(
            request.handlers, request.handler_addresses, request.handler_traits, strict=True
        ):
            handler = self._asked.handler(target) if self._is_alone else _handler_at(address)
            # A client that takes no handlers, or has one of this name, raises the error when a program calls it.
            with contextlib.suppress(UnimplementedError, AlreadyExistsError):
                self._client.register_ffi_handler(target, handler, traits=traits)

    def _compile(self, request: Any) -> bytes:
        program = Program(request.program, format=request.format)
        options = CompileOptions.from_proto(request.options)
        if self._topology is not None:
            return self._code(self._topology.compile(program, options), None, program, options)
        assert self._client is not None
        loaded = self._client.compile(program, options)
        return self._code(loaded.executable, loaded, program, options)

    def _code(
        self, executable: Executable, loaded: LoadedExecutable | None, program: Program, options: CompileOptions
    ) -> bytes:
        serialized = _called(executable.serialize, b"")
        number = next(self._numbers)
        serialized_code = _CLASSES["Code"](token=self._token, number=number, serialized=serialized).SerializeToString()
        parameters, outputs, donations = _signature(executable, program)
        if loaded is not None:
            self._compiled[serialized_code] = loaded, parameters
        if len(self._compiled) > _COMPILED_KEPT:
            del self._compiled[next(iter(self._compiled))]
        return serialize(
            serialized_code,
            program,
            _called(executable.compile_options, options),
            parameters=parameters,
            outputs=outputs,
            aliases={parameter: result for parameter, result in donations.items() if result is not None},
            donated=[parameter for parameter, result in donations.items() if result is None],
            parameter_memory_kinds=_stated(executable, "parameter_memory_kinds"),
            output_memory_kinds=_stated(executable, "output_memory_kinds"),
            parameter_shardings=_stated(executable, "parameter_shardings"),
            output_shardings=_output_shardings(executable),
            optimized=_optimized(executable, program),
            fingerprint=_called(executable.fingerprint, b""),
            takes_any_memory=True,  # the client says what it refuses
            name=executable.name,
            cost={name: float(value) for name, value in _called(executable.cost_analysis, {}).items()},
            memory=_called(executable.memory_stats, ()),
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
            options = _called(loaded.executable.compile_options, CompileOptions())
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
        """Do what is commanded until ``end`` is called."""
        if self._is_alone:
            self._do(self._next)
        while self._wait(self._address):
            with self._working:
                self._do_posted()

    def work(self) -> None:
        """Do what is commanded now, unless another thread is doing so."""
        if self._working.acquire(blocking=False):
            self._helper = threading.get_ident()
            try:
                self._do_posted()
            finally:
                self._helper = 0
                self._working.release()

    def _do_posted(self) -> None:
        """Do what is commanded already: whoever waits for a part of it does not do what others ask for meanwhile."""
        posted = self._posted(self._address)
        self._do(lambda address, ended: self._take(address, ended, posted))

    def _do(self, take: Callable[[int, int], int]) -> None:
        shared, address, head = self._shared, self._address, _HEAD.unpack_from
        ended = 0
        while (at := take(address, ended)) > 0:
            ended, kind, fence = head(shared, at)
            try:
                if kind == _LAUNCH:
                    self._launch(at + 16, fence)
                elif kind == _FREE:
                    self._arrays.pop(struct.unpack_from("<Q", shared, at + 16)[0], None)
                elif kind == _COPY_OUT:
                    self._check_wanted(fence)
                    self._copy_out(at + 16, fence)
                elif kind == _COPY:
                    self._check_wanted(fence)
                    self._copy(at + 16, fence)
                elif kind == _UNLOAD:
                    self._unload(struct.unpack_from("<Q", shared, at + 16)[0])
                elif kind == _ASK:
                    self._ask(at + 16, fence)
            except Exception as error:
                self._fail(fence, error)

    def cancel(self, *signal: object) -> None:
        """Do not do what the runtime has cancelled, or end it; the handler of the signal that says so."""
        self._cancelled = frozenset(self._cancelled_fences)
        if self._computing in self._cancelled and self._computing:
            note_interruption()
            raise KeyboardInterrupt

    def _check_wanted(self, fence: int) -> None:
        if fence in self._cancelled:
            raise _cancelled()

    def end(self) -> None:
        """Let ``run`` return, from another thread."""
        self._end_commands(self._address)

    def drop(self) -> None:
        """Let go of the arrays and executables, after ``run`` has returned: nobody hears of that any more."""
        self._is_over = True
        self._asked.close()
        self._arrays.clear()
        self._executables.clear()
        self._compiled.clear()

    @property
    def client(self) -> Client | None:
        """The client that was made; ``None`` before, and for a topology."""
        return self._client

    def _launch(self, at: int, fence: int) -> None:
        number, num_inputs, num_outputs, size, executable, _ = _LAUNCH_HEAD.unpack_from(self._shared, at)
        num_words = 3 * num_inputs + num_outputs
        words = struct.unpack_from(f"<{num_words}Q", self._shared, at + 32)
        outputs = words[3 * num_inputs :]
        try:
            self._check_wanted(fence)
            loaded = self._executables[executable]
            given = None
            if size:
                start = at + 32 + 8 * num_words
                given = _CLASSES["ExecuteOptions"].FromString(self._shared[start : start + size])
            # A program without buffers asks for no context, and for no place of its call.
            path = loaded.path if given is None or not (given.token or given.tasks or given.failed_code) else None
            launch_id = given.launch_id if given else 0
            if path is not None and self._run(loaded, path, words, num_inputs, number, fence, launch_id):
                return
            if given is not None and given.failed_code:
                arguments = self._failed(loaded, number, given)
            else:
                arguments = [
                    self._argument(words[3 * n : 3 * n + 3], loaded.parameters[n], number) for n in range(num_inputs)
                ]
            # What the runtime does not write in place, it may use again.
            written = set(outputs)
            kept = frozenset(n for n in range(num_inputs) if words[3 * n] not in written)
            options = loaded.options.get(kept) or loaded.options.setdefault(
                kept, ExecuteOptions(non_donatable_input_indices=kept)
            )
            if given is not None:
                options = replace(options, **self._given(given))
            futures: list[Future[None]] = []
            self._computing = fence
            results = loaded.execute(arguments, self._device(number), options, returned_futures=futures)
            self._computing = 0
            self._finish(outputs, results, fence, futures[0])
        except (Exception, KeyboardInterrupt) as error:
            self._computing = 0
            known = _cancelled() if fence in self._cancelled else from_author(error)
            self._arrays.update(dict.fromkeys(outputs, known))
            self._fail(fence, known)

    def _failed(self, loaded: _Loaded, device: int, given: Any) -> list[Buffer]:
        """Return arguments for a launch of which one has an error that the runtime knows."""
        error = PjrtError.of(given.failed_code, given.failed_message)
        memory = self._device(device).default_memory_space
        assert self._client is not None
        return [self._client.create_error_buffer(error, spec, memory_space=memory) for spec in loaded.parameters]

    def _given(self, message: Any) -> dict[str, Any]:
        """Return what the framework gave to an execution beside its arguments, as ``ExecuteOptions`` names it."""
        asked, token = self._asked, message.token
        given: dict[str, Any] = {}
        if message.launch_id:
            given["launch_id"] = message.launch_id
        if message.call_location:
            given["call_location"] = message.call_location
        if message.tasks:
            given["task_incarnations"] = dict(zip(message.tasks, message.incarnations, strict=True))
        if message.sends:
            given["send_callbacks"] = [[asked.send_callback(token, channel) for channel in message.sends]]
        if message.receives:
            given["recv_callbacks"] = [[asked.recv_callback(token, channel) for channel in message.receives]]
        if message.values:
            given["hlo_output_callbacks"] = [
                asked.hlo_output_callback(token, callback, number)
                for callback, number in zip(message.values, message.operands, strict=True)
            ]
        if message.in_rows:
            given["use_major_to_minor_data_layout_for_callbacks"] = True
        if message.types:
            assert self._client is not None
            given["context"] = context = self._client.create_execute_context()
            for type_id, address in zip(message.types, message.addresses, strict=True):
                context.add_user_data(type_id, address)
        return given

    def _run(
        self,
        loaded: _Loaded,
        path: ValuePath,
        words: Sequence[int],
        num_inputs: int,
        device: int,
        fence: int,
        launch_id: int,
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
            self._computing = fence
            results = path.run(values, launch_id, futures)
            self._computing = 0
        except FailedRunError as error:
            self._computing = 0
            self._check_wanted(fence)
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
        parts = [message, bytes(-len(message) % 8)]
        for name, value in known.payloads.items():
            payload = name.encode() + b"\0" + value
            parts += [struct.pack("<II", len(payload) - len(value) - 1, len(value)), payload, bytes(-len(payload) % 8)]
        body = b"".join(parts)
        self._say(_ANSWER.pack(24 + len(body), _DONE, fence, int(known.code), len(message)) + body)

    def _say(self, answer: bytes) -> None:
        if self._is_over:
            return
        wakes = self._helper != threading.get_ident()
        if not self._try_answer(self._address, answer, len(answer), wakes):
            self._answer(self._address, answer, len(answer))

    # Arrays.

    def _device(self, number: int) -> Device:
        assert self._client is not None
        return self._client.devices[number]

    def _argument(self, words: Sequence[int], spec: ShapeSpec, device: int) -> Buffer:
        number, place, size = words
        if number not in self._arrays:
            space = self._spaces[device][size >> 56 & 0x7F]
            self._arrays[number] = self._from_heap(number, place, size, spec, space)
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

    def _from_heap(self, number: int, place: int, size: int, spec: ShapeSpec, space: MemorySpace) -> Buffer:
        """Return a buffer of what the runtime wrote to the heap, which the device may use in place."""
        assert self._client is not None
        if size & _SIZE_MASK != spec.size_in_bytes:
            found = size & _SIZE_MASK
            raise InternalError(f"expected {spec.size_in_bytes} bytes for an argument, found memory of {found} bytes")
        if spec.element_type is ElementType.TOKEN:
            return self._client.buffer_from_host(np.zeros(0, np.bool_), memory_space=space)
        dtype = spec.element_type.dtype
        if place == _NOWHERE:  # nobody wrote there
            zeros = np.zeros(spec.shape, dtype)
            return self._client.buffer_from_host(zeros, memory_space=space, layout=_own_layout(spec))
        released = partial(self._say, struct.pack("<IIQQQ", 32, _RELEASE, 0, place, number))
        try:
            if size & _IMPORTED:
                memory = (ctypes.c_char * spec.size_in_bytes).from_address(place)
                array = np.frombuffer(memoryview(memory), dtype, spec.size).reshape(spec.shape)
            else:
                array = np.frombuffer(self._shared, dtype, spec.size, place).reshape(spec.shape)
            # Only the memory of an argument that the runtime gives up is written to.
            return self._client.buffer_from_host(
                array,
                memory_space=space,
                layout=_own_layout(spec),
                semantics=HostBufferSemantics.MUTABLE_ZERO_COPY,
                on_done_with_host_buffer=released,
            )
        except BaseException:
            released()
            raise

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

    def _ask(self, at: int, fence: int) -> None:
        what, which, place = struct.unpack_from("<3Q", self._shared, at)
        answer = self._is_on_host(which >> 32, which & 0xFFFFFFFF) if what == _IS_ON_HOST else self._address_of(which)
        struct.pack_into("<Q", self._shared, place, answer)
        self._say(_ANSWER.pack(24, _DONE, fence, 0, 0))

    def _is_on_host(self, device: int, kind: int) -> bool:
        assert self._client is not None
        empty = self._client.buffer_from_host(np.zeros(0, np.float32), memory_space=self._spaces[device][kind])
        return empty.is_on_cpu

    def _address_of(self, number: int) -> int:
        """Return the address of an array on the host; for one in the heap its place there, with a mark."""
        place = self._buffer(number).unsafe_pointer() - self._address
        return place | _IN_HEAP if 0 <= place < len(self._shared) else place + self._address

    def _copy(self, at: int, fence: int) -> None:
        number, copy, device, kind = struct.unpack_from("<QQII", self._shared, at)
        copied = self._buffer(number).copy_to(self._spaces[device][kind])
        self._finish((copy,), (copied,), fence, copied.ready())


def _cancelled() -> CancelledError:
    return CancelledError("the execution was cancelled")


def _handler_at(address: int) -> Callable[..., Any] | int:
    """Return the handler at an address of this process: a Python function, where this package made it of one."""
    from pjrt.capi.export import function_at  # the worker of another process has none of this

    return function_at(address) or address


def _called(function: Callable[[], Any], default: Any) -> Any:
    """Return what a function of an executable says; the default where the device does not offer it."""
    try:
        return function()
    except UnimplementedError:
        return default


def _stated(executable: Executable, name: str) -> Any:
    """Return a fact about an executable; nothing where the device does not state it."""
    try:
        return getattr(executable, name) or ()
    except UnimplementedError:
        return ()


def _output_shardings(executable: Executable) -> Sequence[bytes] | None:
    try:
        return executable.output_shardings
    except UnimplementedError:
        return None


def _optimized(executable: Executable, program: Program) -> Program | None:
    """Return the optimized program in one of the two formats that frameworks read: ``mlir`` or ``hlo_with_config``;
    ``None`` where it is the program that was compiled.

    An XLA without the Shardings extension, as PyTorch/XLA has it, reads the shardings of an executable in this program.
    Where it finds none, it takes the shard of one device for the whole of a result.
    """
    try:
        optimized = executable.optimized_program()
    except PjrtError:
        return None
    shardings = [_stated(executable, name) or None for name in ("parameter_shardings", "output_shardings")]
    if any(shardings):
        from pjrt.stablehlo.shardings.partitioner import with_shardings  # programs of one device need none of it

        return with_shardings(optimized, *shardings)
    if optimized.format == ProgramFormat.HLO:
        return stablehlo.to_hlo(optimized, with_config=True)
    return None if optimized.code == program.code else optimized


def _signature(
    executable: Executable, program: Program
) -> tuple[Sequence[ShapeSpec], Sequence[ShapeSpec], Mapping[int, int | None]]:
    """Return the parameters and results on one device, and the parameters that are donated, as ``Executable`` has them.

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
    donations: dict[int, int | None] = {
        n: each.aliases_output for n, each in enumerate(arguments) if each.aliases_output is not None
    }
    with contextlib.suppress(UnimplementedError):
        donations = {n: donations.get(n) if to is None else to for n, to in executable.donations().items()}
    return (
        _with_layouts(parameters, _stated(executable, "parameter_layouts")),
        _with_layouts(outputs, _stated(executable, "output_layouts")),
        donations,
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
