"""The worker: the process that computes for devices in Python, whose clients stand behind the runtime in C.

The runtime starts it as ``python -m pjrt.native.worker SPEC FOLDER``. Its standard input is a socket, on which devices,
programs to compile and executables to load are asked for (see ``compiling``). Descriptor 3 is memory that both share:
there the commands are that follow each other fast. native/library/driver_worker.c has their form. Descriptor 4 is a
socket on which programs call functions of the framework's process (see ``host_functions``).
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
from pjrt.api.device import Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
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
from pjrt.api.shape_spec import ShapeSpec
from pjrt.capi.library_files import library_of
from pjrt.host_memory.array import HostArray
from pjrt.native.code import serialize, spec_of
from pjrt.native.compiling import ANSWER, find_function, serve, take_connection
from pjrt.native.host_functions import HostFunctions

_DEVICES = message_classes(
    "pjrt_native_worker",
    {
        "Devices": {"devices": (1, "[Device]")},
        "Device": {"kind": (1, "string"), "memory_kinds": (2, "[string]"), "limits": (3, "[int64]")},
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
        functions: the socket for calls of functions of the framework's process.
    """

    def __init__(self, spec: str, shared: mmap.mmap, functions: socket.socket) -> None:
        self._spec = spec
        self._functions = HostFunctions(functions)
        self._shared = shared
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
        library = ctypes.CDLL(str(library_of(Path(__file__).parent)))
        self._next = library.pjrt_worker_next
        self._next.argtypes, self._next.restype = [ctypes.c_void_p, ctypes.c_uint64], ctypes.c_int64
        self._answer = library.pjrt_worker_answer
        self._answer.argtypes, self._answer.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64], None
        self._client: Client | None = None
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
            opened = self._open(request.client_options)
            self._register(request.handlers)
            return ANSWER(data=opened)
        self._register(request.handlers)
        if request.method == "compile":
            return ANSWER(data=self._compile(request))
        if request.method == "load":
            return ANSWER(number=self._load(request.data, self._device(request.number)))
        raise InternalError(f"the worker knows no request {request.method!r}")

    def _open(self, options: Any) -> bytes:
        factory = find_function(self._spec, "makes clients")
        if isinstance(factory, type) and issubclass(factory, Plugin):
            factory = factory().client
        client = factory(**{each.name: getattr(each, each.WhichOneof("value")) for each in options})
        if not isinstance(client, Client):
            raise InvalidArgumentError(f"{self._spec!r}: expected a pjrt.Client, found {type(client).__name__}")
        self._client = client
        client.use_from_one_thread()
        devices = _DEVICES["Devices"]()
        for device in client.addressable_devices:
            spaces = sorted(device.memory_spaces, key=lambda space: space is not device.default_memory_space)
            self._spaces.append(spaces)
            devices.devices.append(
                _DEVICES["Device"](
                    kind=device.description.kind,
                    memory_kinds=[space.kind for space in spaces],
                    limits=[_limit(device) if space is spaces[0] else 0 for space in spaces],
                )
            )
        return bytes(devices.SerializeToString())

    def _register(self, targets: Sequence[str]) -> None:
        assert self._client is not None
        for target in targets:
            # A client that takes no handlers, or has one of this name, raises the error when a program calls it.
            with contextlib.suppress(UnimplementedError, AlreadyExistsError):
                self._client.register_ffi_handler(target, self._functions.handler(target))

    def _compile(self, request: Any) -> bytes:
        assert self._client is not None
        program = Program(request.program, format=request.format)
        options = CompileOptions.from_proto(request.options)
        loaded = self._client.compile(program, options)
        executable = loaded.executable
        try:
            serialized = executable.serialize()
        except UnimplementedError:
            serialized = b""
        number = next(self._numbers)
        serialized_code = _DEVICES["Code"](token=self._token, number=number, serialized=serialized).SerializeToString()
        parameters, outputs, aliases = _signature(loaded, program)
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
            optimized=_optimized(loaded, program),
            fingerprint=executable.fingerprint(),
            takes_any_memory=True,  # the client says what it refuses
            name=executable.name,
            cost=_cost(loaded),
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
        loaded = self._client.deserialize(_DEVICES["Code"].FromString(code).serialized, options)
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
        return self._client.addressable_devices[number]

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
            return self._client.buffer_from_host(np.zeros(spec.shape, dtype), memory_space=space)
        array = np.frombuffer(self._shared, dtype, spec.size, place).reshape(spec.shape)
        array.flags.writeable = False
        return self._client.buffer_from_host(
            array,
            memory_space=space,
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


def _limit(device: Device) -> int:
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


def _optimized(loaded: LoadedExecutable, program: Program) -> Program | None:
    try:
        optimized = loaded.executable.optimized_program()
    except PjrtError:
        return None
    return None if optimized.code == program.code else optimized


def _cost(loaded: LoadedExecutable) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in loaded.executable.cost_analysis().items()}
    except PjrtError:
        return {}


def _signature(
    loaded: LoadedExecutable, program: Program
) -> tuple[Sequence[ShapeSpec], Sequence[ShapeSpec], dict[int, int]]:
    """Return the parameters and results on one device, and by parameter the result that takes over its memory.

    What the device does not declare is read from the program.

    Raises:
        UnimplementedError: neither says it: a size is only known at run time, for example.
    """
    from pjrt.stablehlo.signatures import signature

    executable = loaded.executable
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
        parameters,
        outputs,
        {n: each.aliases_output for n, each in enumerate(arguments) if each.aliases_output is not None},
    )


if __name__ == "__main__":
    # Not as __main__: errors tell the author's code from ours by the names of modules.
    from pjrt.native import worker

    worker.main(*sys.argv[1:])
