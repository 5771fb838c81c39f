"""A client that the runtime in C serves to frameworks: what it answers when it is asked, one request after the other.

The worker of another process and the devices of this one (``worker``, ``here``) do the rest: arrays and launches.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from pjrt import stablehlo
from pjrt.api.buffer import Buffer
from pjrt.api.client import Client, LocalHandler
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device, MemorySpace, NamedValue
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    PjrtError,
    UnimplementedError,
    from_author,
)
from pjrt.api.executable import Executable
from pjrt.api.future import Future
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.plugin import Profiler
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.protobuf import message_classes
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout
from pjrt.api.topology import TopologyDescription
from pjrt.native._commands import Loaded
from pjrt.native.code import serialize, spec_of
from pjrt.native.compiling import ANSWER
from pjrt.native.facts import client_facts, topology_facts
from pjrt.native.questions import Questions

_CLASSES = message_classes(
    "pjrt_native_served",
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
EXECUTE_OPTIONS = _CLASSES["ExecuteOptions"]
"""The message about one execution, beside its arguments; native/library/execute_options.c writes it."""

_COMPILED_KEPT = 16
_XLA_FORMATS = frozenset({"mlir", "hlo", "hlo_with_config"})

Factory = Callable[[Mapping[str, NamedValue], KeyValueStore | None], Client | TopologyDescription]
"""Makes a client of a framework's options and its key-value store, or the topology that they name."""


class ProfilerSessions:
    """The sessions of a profiler that the runtime asks for (``PLUGIN_Profiler_Api``), by their numbers.

    Args:
        find: returns the function of a place that makes a session of serialized options.
    """

    def __init__(self, find: Callable[[str], Callable[[bytes], Profiler]]) -> None:
        self._find = find
        self._numbers = itertools.count(1)
        self._open: dict[int, Profiler] = {}

    def answer(self, request: Any) -> Any:
        """Return the answer to a request: its format says what to do with the session of its number."""
        verb, number = request.format, request.number
        if verb == "create":
            made = self._find(request.data.decode())(request.options)
            number = next(self._numbers)
            self._open[number] = made
        elif verb == "start":
            self._open[number].start()
        elif verb == "stop":
            self._open[number].stop()
        elif verb == "collect":
            return ANSWER(data=self._open[number].collect())
        else:
            del self._open[number]
        return ANSWER(number=number)


class ServedClient(ABC):
    """A client that the runtime asked for, or the topology that its options named; and its executables.

    Args:
        factory: makes it.
        executables: is given those that are loaded, by their numbers.
    """

    def __init__(self, factory: Factory, executables: dict[int, Loaded]) -> None:
        self._factory = factory
        self._client: Client | None = None
        self._topology: TopologyDescription | None = None  # in the place of a client: one that has a name
        self._has_contexts = False  # whether executions are given addresses of this process
        self._spaces: list[list[MemorySpace]] = []  # of each device, the default one first
        self._executables = executables
        self._compiled: dict[bytes, tuple[LoadedExecutable, Sequence[ShapeSpec]]] = {}  # the latest, until loaded
        self._number_of: dict[tuple[bytes, Device | None], int] = {}  # those for one device alone have it in the key
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # of the executables: they are loaded on one thread, and unloaded on another
        self._token = secrets.token_bytes(16)

    def give_up(self, future: Future[None], why: str = "the execution was cancelled") -> None:
        """Have the client give up the execution that ends with a future, because the runtime has cancelled it."""
        if self._client is not None:
            self._client.give_up_work(CancelledError(why), of=future)

    @property
    @abstractmethod
    def questions(self) -> Questions:
        """Return what asks the framework's process."""

    @abstractmethod
    def _prepare(self, client: Client) -> bool:
        """Prepare a new client; return whether its executions are given addresses of this process."""

    @abstractmethod
    def _handler(self, target: str, address: int) -> LocalHandler | Callable[..., Any] | int:
        """Return the handler of a custom call that the framework registered."""

    @property
    def client(self) -> Client | None:
        """The client that was made; ``None`` before, and for a topology."""
        return self._client

    def answer(self, request: Any) -> Any:
        """Return the answer to a request of the runtime."""
        if request.method == "open":
            opened = self._open(request)
            self._register(request)
            return ANSWER(data=opened, number=int(self._has_contexts))
        if request.method == "layout":
            return self._layout(request.data)
        self._register(request)
        if request.method == "compile":
            return ANSWER(data=self._compile(request))
        if request.method == "load":
            return ANSWER(number=self._load(request.data, self.device(request.number)))
        raise InternalError(f"expected a request to open, compile, load or lay out, found {request.method!r}")

    def _is_in_c(self) -> bool:
        """Return whether the client is that of a plugin in C, or perhaps, where there are only topologies."""
        return self._client is None or bool(self._client.library)

    def _open(self, request: Any) -> bytes:
        options = {each.name: getattr(each, each.WhichOneof("value")) for each in request.client_options}
        made = self._factory(options, self.questions.key_value_store() if request.number else None)
        if isinstance(made, TopologyDescription):
            self._topology = made
            return topology_facts(made)
        client = self._client = made
        self._has_contexts = self._prepare(client)
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
            # A client that takes no handlers, or has one of this name, raises the error when a program calls it.
            with contextlib.suppress(UnimplementedError, AlreadyExistsError):
                self._client.register_ffi_handler(target, self._handler(target, address), traits=traits)

    def _layout(self, question: bytes) -> Any:
        """Return how a memory lays out an array; native/library/facts.c has the form of both messages."""
        device, kind, element_type, rank, *rest = struct.unpack(f"<{len(question) // 8}q", question)
        order = TiledLayout(tuple(rest[rank:])) if len(rest) > rank else None
        spec = ShapeSpec(tuple(rest[:rank]), ElementType(element_type), order)
        space = self.space(device, kind)
        layout, size = (space.layout(spec), space.size_of(spec)) if space.has_layouts else (None, spec.size_in_bytes)
        tiles, bits = ((), 0) if layout is None else (layout.tiles, layout.element_bits)
        numbers = [bits, len(tiles), *map(len, tiles), *itertools.chain(*tiles)]
        return ANSWER(number=size, data=struct.pack(f"<{len(numbers)}q", *numbers))

    def _with_own_calls(self, program: Program) -> Program:
        """Return a program whose custom calls find the handlers of this framework."""
        return program

    def _compile(self, request: Any) -> bytes:
        compiler = self._topology if self._topology is not None else self._client
        assert compiler is not None
        formats = compiler.capabilities.program_formats
        if request.format not in _XLA_FORMATS and formats is not None and request.format not in formats:
            raise InvalidArgumentError(f"Unknown program format '{request.format}'.")  # XLA's words
        program, options = Program(request.program, format=request.format), _options(request.options)
        if self._topology is not None:
            return self._code(self._topology.compile(program, options), None, program, options)
        assert self._client is not None
        loaded = self._client.compile(self._with_own_calls(program), options)
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
            # A plugin in C gets one call for all devices: none is launched before the others can be.
            has_collectives=self._is_in_c() and executable.num_replicas * executable.num_partitions > 1,
            name=executable.name,
            cost={name: float(value) for name, value in _called(executable.cost_analysis, {}).items()},
            memory=_called((loaded or executable).memory_stats, ()),
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
            results = _called(lambda: loaded.executable.output_specs, None)
            execute_all = loaded.execute if devices and len(devices) > 1 and self._is_in_c() else None
            self._executables[number] = Loaded(execute, parameters, results, devices, loaded.value_path(), execute_all)
            return number

    def _deserialize(
        self, code: bytes, options: CompileOptions | None = None
    ) -> tuple[LoadedExecutable, Sequence[ShapeSpec]]:
        assert self._client is not None
        loaded = self._client.deserialize(_CLASSES["Code"].FromString(code).serialized, options)
        return loaded, loaded.executable.parameter_specs

    def unload(self, number: int) -> None:
        """Let go of an executable, as often as it was loaded."""
        with self._lock:
            loaded = self._executables[number]
            loaded.users -= 1
            if loaded.users == 0:
                del self._executables[number]
                self._number_of = {key: each for key, each in self._number_of.items() if each != number}

    def given(self, message: Any) -> dict[str, Any]:
        """Return what the framework gave to an execution beside its arguments, as ``ExecuteOptions`` names it.

        Args:
            message: an ``EXECUTE_OPTIONS``.
        """
        token = message.token
        given: dict[str, Any] = {}
        if message.launch_id:
            given["launch_id"] = message.launch_id
        if message.call_location:
            given["call_location"] = message.call_location
        if message.tasks:
            given["task_incarnations"] = dict(zip(message.tasks, message.incarnations, strict=True))
        if message.sends:
            given["send_callbacks"] = [[self.questions.send_callback(token, channel) for channel in message.sends]]
        if message.receives:
            given["recv_callbacks"] = [[self.questions.recv_callback(token, channel) for channel in message.receives]]
        if message.values:
            given["hlo_output_callbacks"] = [
                self.questions.hlo_output_callback(token, callback, number)
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

    def failed_arguments(self, parameters: Sequence[ShapeSpec], device: int, message: Any) -> list[Buffer]:
        """Return arguments for a launch of which one has an error that the runtime knows.

        Args:
            parameters: the specs of the parameters.
            device: the device's number.
            message: an ``EXECUTE_OPTIONS`` with the error.
        """
        error = PjrtError.of(message.failed_code, message.failed_message)
        memory = self.device(device).default_memory_space
        assert self._client is not None
        return [self._client.create_error_buffer(error, spec, memory_space=memory) for spec in parameters]

    def seen_as(self, buffer: Buffer, spec: ShapeSpec) -> Buffer:
        """Return a buffer with the elements of another one as a parameter has them: with its shape, or bit for bit.

        The runtime has compared the sizes: frameworks may give an array of one element for a scalar, and what a
        bitcast returns is the same array here.
        """

        def seen(array: Any) -> Buffer:
            flat = np.ascontiguousarray(array).reshape(-1)
            seen_array = flat.view(spec.element_type.dtype).reshape(spec.shape)
            return buffer.client.buffer_from_host(seen_array, memory_space=buffer.memory_space)

        array = buffer.to_host()
        if array.done():
            return seen(array.result())
        # Nobody waits here: what the value needs may come behind this launch.
        alias, fulfillment = buffer.client.create_alias_buffer(
            ShapeSpec(spec.shape, spec.element_type), memory_space=buffer.memory_space
        )

        def fulfill(future: Future[Any]) -> None:
            try:
                fulfillment.fulfill(seen(future.result()))
            except BaseException as error:
                fulfillment.fail(from_author(error))

        array.add_done_callback(fulfill)
        return alias

    def device(self, number: int) -> Device:
        """Return a device of the client by the runtime's number."""
        assert self._client is not None
        return self._client.devices[number]

    def space(self, device: int, kind: int) -> MemorySpace:
        """Return a memory of a device by the runtime's numbers."""
        return self._spaces[device][kind]


def _options(serialized: bytes) -> CompileOptions:
    try:
        return CompileOptions.from_proto(serialized)
    except InvalidArgumentError as error:
        if not isinstance(error.__cause__, DecodeError):
            raise
        raise InvalidArgumentError(
            "PJRT_Client_Compile: failed to deserialize CompileOptionsProto"  # XLA's words, also for topologies
        ) from error


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
        from pjrt.stablehlo.transforms.partitioner import with_shardings  # programs of one device need none of it

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
        UnimplementedError: neither says it: a size is only known at run time, for example, or the program has a format
            of the device's own.
    """
    from pjrt.stablehlo.facts.signatures import signature

    @functools.cache
    def stated() -> Any:
        if program.format != "mlir":
            raise UnimplementedError(
                f"expected an executable that states its parameters and results, because its program has the format "
                f"{program.format!r}, which only the device reads"
            )
        return signature(program, trusted=True)

    try:
        parameters = executable.parameter_specs
    except UnimplementedError:
        parameters = [spec_of(each.type, f"argument {n}") for n, each in enumerate(stated().arguments)]
    try:
        outputs = executable.output_specs
    except UnimplementedError:
        outputs = [spec_of(each.type, f"result {n}") for n, each in enumerate(stated().results)]
    donations: dict[int, int | None] = {}
    with contextlib.suppress(PjrtError):
        arguments = stated().arguments
        donations = {n: each.aliases_output for n, each in enumerate(arguments) if each.aliases_output is not None}
    with contextlib.suppress(UnimplementedError):
        donations = {n: donations.get(n) if to is None else to for n, to in executable.donations().items()}
    return (
        _with_layouts(parameters, _stated(executable, "parameter_layouts")),
        _with_layouts(outputs, _stated(executable, "output_layouts")),
        donations,
    )


def own_layout(spec: ShapeSpec) -> Layout | None:
    """Return the layout of a parameter; ``None`` for rows, in which every device takes arrays."""
    return None if isinstance(spec.layout, TiledLayout) and spec.layout.is_row_major else spec.layout


def _with_layouts(specs: Sequence[ShapeSpec], layouts: Sequence[Layout]) -> list[ShapeSpec]:
    """Return the specs with the layouts that the device states, where it states any."""
    if len(layouts) != len(specs):
        return list(specs)
    return [replace(spec, layout=layout) for spec, layout in zip(specs, layouts, strict=True)]
