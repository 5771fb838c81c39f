"""The client of the host runtime: a complete asynchronous client around a device author's functions."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pjrt.api.buffer import AliasFulfillment, HostBufferSemantics
from pjrt.api.capability import Capabilities, Effort, StaticCheck, Support, decide, only_format, try_compiling
from pjrt.api.checks import expect, expect_all, expect_bytes, expect_int
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment, Partitioning
from pjrt.api.device import Attributes, Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    AlreadyExistsError,
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
    UnimplementedError,
)
from pjrt.api.executable import Executable, choose_place
from pjrt.api.future import Future
from pjrt.api.key_value_store import KeyValueStore, ProcessInfo
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Layout, Shapes, ShapeSpec, expect_shape
from pjrt.host import device_memory_buffer
from pjrt.host.buffer import (
    DmaMappings,
    HostAliasFulfillment,
    HostBuffer,
    HostTransferManager,
    alias_buffer,
    buffer_from_host,
    uninitialized,
    view,
    zero_copy,
)
from pjrt.host.device import MEMORY_KINDS, HostDevice, HostMemorySpace, HostTopology, PlatformSpec
from pjrt.host.device_memory import Memory
from pjrt.host.device_memory_buffer import DeviceBuffer
from pjrt.host.executable import (
    Compiled,
    CompileFunction,
    HostExecutable,
    HostRuntimeAbiVersion,
    Origin,
    unpack,
    without_traceback,
)
from pjrt.host.execution import Dispatcher
from pjrt.host.launch import HostExecuteContext
from pjrt.host.loaded_executable import HostLoadedExecutable
from pjrt.host.processes import CollectivesFactory, ProcessExchange, membership
from pjrt.host.shutdown import forked_error, generation
from pjrt.host_memory.array import order_of_spec
from pjrt.host_memory.external import from_dlpack

StaticCheckFunction = Callable[[Program, CompileOptions, Capabilities], StaticCheck]
"""An author's ``static_check(program, options, capabilities)``, such as ``pjrt.stablehlo.static_check``."""


PartitioningFunction = Callable[[Program], Partitioning]
"""An author's ``partitioning(program)``, such as ``pjrt.stablehlo.partitioning_of``."""

RefineFunction = Callable[[Program, Shapes], Program]
"""An author's ``refine(program, shapes)``, such as ``pjrt.stablehlo.refine``."""

FingerprintFunction = Callable[[Program], bytes]
"""An author's ``fingerprint(program)``, such as ``pjrt.stablehlo.fingerprint``."""

_BYTECODE = b"ML\xefR"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCompiler:
    """The compiler of a platform; ``HostClient`` documents the author's part of its attributes."""

    platform_name: str
    platform_version: str
    default_memory_kind: str
    memory: Memory | None
    compile_function: CompileFunction
    deserialize_function: Callable[[bytes, Program, CompileOptions], Any] | None
    formats: tuple[str, ...] | None
    capabilities: Capabilities | Callable[[], Capabilities]
    static_check: StaticCheckFunction | None
    partitioning: PartitioningFunction | None
    refine: RefineFunction | None
    fingerprint_function: FingerprintFunction | None

    def compile(
        self, program: AnyProgram, options: CompileOptions | None, shapes: Shapes | None = None
    ) -> HostExecutable:
        """Compile a program by the author's ``compile``, for these shapes of its arguments.

        Raises:
            InvalidArgumentError: the platform does not accept the program's format, or the program does not take
                arguments of these shapes.
            UnimplementedError: the author declares no function for programs with dynamic shapes.
            PjrtError: the author's function raised an exception.
        """
        program = Program.of(program)
        if shapes is not None:
            if self.refine is None:
                raise UnimplementedError(
                    f"'{self.platform_name}' takes no shapes of arguments; compile without shapes, or "
                    "give its client the option 'refine'"
                )
            program = self.refine(program, shapes)
        if self.formats is not None and str(program.format) not in self.formats:
            raise InvalidArgumentError(
                f"'{self.platform_name}' takes programs in the formats {', '.join(self.formats)}, found "
                f"'{program.format}'"
            )
        options = self._completed(program, options)
        return self._executable(lambda: self.compile_function(program, options), program, options)

    def declared_capabilities(self) -> Capabilities:
        """Return what the author declares about the devices."""
        declarations = self.capabilities
        return declarations if isinstance(declarations, Capabilities) else declarations()

    def supports(
        self,
        program: AnyProgram,
        options: CompileOptions | None,
        effort: Effort | str | None,
        capabilities: Capabilities,
        compile: Callable[[], Any],
    ) -> Support:
        """Return whether devices with these capabilities can run a program; see ``Client.supports``.

        Args:
            program: the program.
            options: compile options.
            effort: the effort to make.
            capabilities: those of the devices.
            compile: a function that compiles the program for the devices.
        """
        code = Program.of(program)
        if self.static_check is None:
            return decide(effort, only_format(code, capabilities), compile)
        return decide(effort, self.static_check(code, self._completed(code, options), capabilities), compile)

    def deserialize(self, serialized: bytes, options: CompileOptions | None) -> HostExecutable:
        """Return the executable in the bytes of ``Executable.serialize``.

        Raises:
            InvalidArgumentError: the bytes are not an executable, or one for another platform.
        """
        program, kept, payload = unpack(
            expect_bytes(serialized, "a serialized executable as bytes"), self.platform_name
        )
        options = kept if options is None else self._completed(program, options)
        function = self.deserialize_function
        if payload is None or function is None:
            return self.compile(program, options)
        return self._executable(lambda: function(payload, program, options), program, options)

    def fingerprint(self, program: Program, options: CompileOptions) -> str:
        """Return a number, in digits, that differs between processes if they run different programs; empty if that
        cannot be told: bytecode holds source locations, and those of one program may differ.
        """
        if self.fingerprint_function is not None:
            code = self.fingerprint_function(program)
        elif program.code.startswith(_BYTECODE):
            return ""
        else:
            code = program.code
        return options.fingerprint(code)

    def _completed(self, program: Program, options: CompileOptions | None) -> CompileOptions:
        """Return options in which nothing is left to the program."""
        chosen = CompileOptions.of(options)
        if chosen.states_partitioning:
            return chosen
        return chosen.completed(Partitioning() if self.partitioning is None else self.partitioning(program))

    def _executable(self, make: Callable[[], Any], program: Program, options: CompileOptions) -> HostExecutable:
        try:
            compiled = Compiled.of(make())
        except PjrtError:
            raise
        except Exception as error:
            raise without_traceback(error) from None
        if self.memory is None:  # a layout that memory of the host cannot have is an error now, not at each execution
            for spec in (*(compiled.outputs or ()), *(compiled.parameters or ())):
                order_of_spec(spec)
        origin = Origin(self.platform_name, self.platform_version, self.default_memory_kind, program, options)
        return HostExecutable(compiled, origin)


# FFI handlers: host functions that programs call by name.


class FfiHandler(NamedTuple):
    """A host function.

    Attributes:
        function: a Python function, or the address of an XLA FFI handler.
        traits: the bits of ``XLA_FFI_Handler_Traits``.
    """

    function: Callable[..., Any] | int
    traits: int


class FfiHandlers(Mapping[str, FfiHandler]):
    """The handlers that were registered with a client, by the name that custom calls use."""

    def __init__(self) -> None:
        self._handlers: dict[str, FfiHandler] = {}
        self._types: dict[str, int] = {}
        self._type_ids = itertools.count(1)

    def register(self, name: str, function: Callable[..., Any] | int, traits: int) -> None:
        """Add a handler.

        Raises:
            InvalidArgumentError: the handler is neither a function nor an address.
            AlreadyExistsError: the name has another handler.
        """
        expect(name, str, "the name of a custom call's target as a str")
        expect_int(traits, "the traits of an FFI handler as the bits of a whole number")
        if not callable(function) and not (isinstance(function, int) and function):
            raise InvalidArgumentError(
                f"an FFI handler is a function or the address of one, found {type(function).__name__} for {name!r}"
            )
        handler = FfiHandler(function, traits)
        if self._handlers.setdefault(name, handler) != handler:
            raise AlreadyExistsError(f"the custom call {name!r} has another handler already; use another name")

    def register_type(self, name: str) -> int:
        """Return the id of a type of user data; the same each time for the same name."""
        type_id = self._types.get(expect(name, str, "the name of an FFI type as a str"))
        return self._types.setdefault(name, next(self._type_ids)) if type_id is None else type_id

    def find(self, name: str) -> FfiHandler:
        """Return the handler with a name.

        Raises:
            NotFoundError: no handler has this name.
        """
        handler = self._handlers.get(name)
        if handler is None:
            raise NotFoundError(
                f"no FFI handler is registered for the custom call {name!r}; registered are "
                f"{', '.join(sorted(self._handlers)) or 'none'}"
            )
        return handler

    def __getitem__(self, name: str) -> FfiHandler:
        return self._handlers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


# The client of the host runtime: a complete asynchronous client around a device author's functions.

_TIMEOUT_SECONDS = 60.0


class HostClient(Client):
    """A complete, asynchronous client around one function that compiles.

    Args:
        name: the platform's name.
        compile: ``compile(program, options)`` returns a function on numpy arrays, or a ``Compiled``: such a function
            with its author's declarations.
        num_devices: the number of devices; each runs its programs on its own thread.
        platform_version: the platform's version, human-readable.
        device_kind: the name of the kind of device; the platform's name by default.
        device_attributes: facts of every device by name.
        attributes: facts of the platform by name, such as ``stablehlo_current_version``.
        memory: the memory of the devices, if it is not numpy's: an allocator (``pjrt.host.Memory``). Then programs take
            and return its handles in place of arrays, and may return ``pjrt.host.Enqueued`` before their work is done.
        memory_kinds: the kinds of memory of each device, its default one first; by default those of ``memory``, or
            ``MEMORY_KINDS``.
        memory_limit: the most bytes in use on each device: of its default memory, or by kind.
        process_index: the number of this process among those of the job; by default that of the job of
            ``pjrt.distributed.initialize``, or of the framework that makes the client.
        process_count: the number of processes of the job. The devices of the other processes are listed, and programs
            run on all devices of the job if there is a store; without one, each process has ``num_devices`` devices,
            and programs run on those of one process. 1 makes a client of the devices of this process alone.
        key_value_store: the store of the job, which all processes share; by default that of the job.
        collectives: a function that makes the exchange of values between the processes (``pjrt.host.Collectives``),
            such as ``pjrt.xla_collectives``; without it, collectives among devices of several processes are refused.
        formats: the program formats that ``compile`` accepts; ``None`` for all.
        deserialize: ``deserialize(payload, program, options)`` returns what ``compile`` does, from the bytes of
            ``Compiled.serialize``.
        alignment: the alignment in bytes that the device needs to use a host array in place; other arrays are copied.
        collective_timeout: how long the devices of a launch wait for each other, in seconds; by default 60 in one
            process, and 1800 for another process.
        watchdog_seconds: how long the first fence of a device's queue may take; then its results fail with
            ``DEADLINE_EXCEEDED``, and its method ``cancel`` is called. Without a limit by default.
        reset: ``reset(device)`` gives up all work of a device that does not answer: its fences end soon, with errors.
            It is called where ``cancel`` is missing, or has not helped in as many seconds again.
        capabilities: the abilities of the devices in addition to the runtime's, or a function that returns them.
        static_check: a function that looks into a program for ``supports`` before it is compiled, such as
            ``pjrt.stablehlo.static_check``; none by default.
        partitioning: a function that reads the replicas and partitions that a program states, such as
            ``pjrt.stablehlo.partitioning_of``; by default every program is for one device. The options that ``compile``
            gets leave nothing to the program.
        refine: ``refine(program, shapes)`` returns a program with dynamic shapes as one for these shapes of its
            arguments, such as ``pjrt.stablehlo.refine``; by default ``compile`` takes no shapes.
        fingerprint: ``fingerprint(program)`` returns bytes that are equal for equal programs, such as
            ``pjrt.stablehlo.fingerprint``; processes that run different programs together notice it. By default these
            are the program's own bytes, and MLIR bytecode is told apart by the names of programs alone.
    """

    __slots__ = (
        "_closed", "_compiler", "_generation", "_handlers", "_mapped", "_platform", "_unfulfilled",
        "addressable_devices", "alignment", "buffer_type", "collective_timeout", "devices", "dispatcher", "memory",
        "memory_spaces", "processes", "runs_on_caller", "topology",
    )  # fmt: skip

    addressable_devices: Sequence[HostDevice]
    devices: Sequence[HostDevice]
    memory_spaces: Sequence[HostMemorySpace]
    topology: HostTopology

    def __init__(
        self,
        name: str,
        *,
        compile: CompileFunction,
        num_devices: int = 1,
        platform_version: str = "",
        device_kind: str | None = None,
        device_attributes: Attributes | None = None,
        attributes: Attributes | None = None,
        memory: Memory | None = None,
        memory_kinds: Sequence[str] | None = None,
        memory_limit: int | Mapping[str, int] | None = None,
        process_index: int | None = None,
        process_count: int | None = None,
        key_value_store: KeyValueStore | None = None,
        collectives: CollectivesFactory | None = None,
        formats: Sequence[str] | None = None,
        deserialize: Callable[[bytes, Program, CompileOptions], Any] | None = None,
        alignment: int = 1,
        collective_timeout: float | None = None,
        watchdog_seconds: float | None = None,
        reset: Callable[[Any], object] | None = None,
        capabilities: Capabilities | Callable[[], Capabilities] | None = None,
        static_check: StaticCheckFunction | None = None,
        partitioning: PartitioningFunction | None = None,
        refine: RefineFunction | None = None,
        fingerprint: FingerprintFunction | None = None,
    ) -> None:
        self._closed = False
        self._generation = generation()
        self.runs_on_caller = False
        self.memory = None if memory is None else expect(memory, Memory, "an allocator as pjrt.host.Memory")
        self.buffer_type: type[HostBuffer] = HostBuffer if memory is None else DeviceBuffer
        if memory_kinds is None:
            memory_kinds = MEMORY_KINDS if memory is None else memory.kinds
        self._platform = PlatformSpec(
            name=name,
            version=platform_version,
            num_devices=num_devices,
            device_kind=device_kind or name,
            device_attributes=device_attributes or {},
            attributes=dict(attributes or {}),
            memory_kinds=tuple(memory_kinds),
            memory_limit=memory_limit,
            membership=membership(name, num_devices, process_index, process_count, key_value_store),
            alignment=alignment,
            watchdog_seconds=watchdog_seconds,
            reset=reset,
        )
        self.alignment = alignment
        self.collective_timeout = _TIMEOUT_SECONDS if collective_timeout is None else collective_timeout
        self.processes = ProcessExchange(self._platform.membership, collectives, collective_timeout)
        self._compiler = HostCompiler(
            platform_name=name,
            platform_version=platform_version,
            default_memory_kind=self._platform.memory_kinds[0],
            memory=memory,
            compile_function=compile,
            deserialize_function=deserialize,
            formats=None if formats is None else tuple(map(str, formats)),
            capabilities=capabilities or Capabilities(),
            static_check=static_check,
            partitioning=partitioning,
            refine=refine,
            fingerprint_function=fingerprint,
        )
        descriptions = self._platform.describe()
        self.devices = tuple(HostDevice(self, d, self._platform) for d in descriptions)
        self.addressable_devices = tuple(device for device in self.devices if device.is_addressable)
        self.memory_spaces = tuple(space for device in self.addressable_devices for space in device.memory_spaces)
        spaces = self.memory_spaces
        home = self.addressable_devices[0] if spaces and spaces[0].has_layouts else None
        self.topology = HostTopology(self._compiler, descriptions, self._platform.attributes, home)
        self.dispatcher = Dispatcher(self.addressable_devices)
        self._handlers = FfiHandlers()
        self._mapped = DmaMappings()
        # Aliases and transfers that wait for the caller; ``close`` ends their wait.
        self._unfulfilled: weakref.WeakSet[HostAliasFulfillment | HostTransferManager] = weakref.WeakSet()

    # Its platform and devices.

    @property
    def platform_name(self) -> str:
        return self._compiler.platform_name

    @property
    def platform_version(self) -> str:
        return self._compiler.platform_version

    @property
    def process_index(self) -> int:
        return self._platform.membership.process_index

    @property
    def attributes(self) -> Attributes:
        return self._platform.attributes

    @property
    def capabilities(self) -> Capabilities:
        return self.topology.capabilities

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        needed = expect_int(num_replicas, "a number of replicas") * expect_int(num_partitions, "a number of partitions")
        devices = self.addressable_devices if needed <= len(self.addressable_devices) else self.devices
        if needed > len(devices):
            raise InvalidArgumentError(
                f"{num_replicas} replicas × {num_partitions} partitions need {needed} devices, "
                f"'{self.platform_name}' has {len(self.devices)}; make the client with num_devices={needed}"
            )
        return DeviceAssignment.in_order([device.id for device in devices], num_replicas, num_partitions)

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        spec = ShapeSpec(expect_shape(shape), expect(element_type, ElementType, "an element type as pjrt.ElementType"))
        own = self.memory_spaces[0].layout(spec) if self.memory_spaces else None
        return own or self.topology.default_layout(element_type, shape)

    def runtime_abi_version(self) -> HostRuntimeAbiVersion:
        return HostRuntimeAbiVersion(self.platform_name, self.platform_version)

    # Programs.

    def use_from_one_thread(self) -> None:
        self.runs_on_caller = len(self.addressable_devices) == 1

    def compile(
        self, program: AnyProgram, options: CompileOptions | None = None, *, shapes: Shapes | None = None
    ) -> HostLoadedExecutable:
        self.check_open()
        return HostLoadedExecutable(self, self._compiler.compile(program, options, shapes))

    def fingerprint_of(self, executable: HostExecutable) -> str:
        """Return a number, in digits, that differs between processes if they run different programs."""
        return self._compiler.fingerprint(executable.origin.program, executable.origin.options)

    def supports(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        self.check_open()
        return self._compiler.supports(
            program, options, effort, self.capabilities, lambda: try_compiling(self, program, options)
        )

    def load(self, executable: Executable, options: CompileOptions | None = None) -> HostLoadedExecutable:
        self.check_open()
        if not isinstance(executable, HostExecutable) or executable.platform_name != self.platform_name:
            raise InvalidArgumentError(f"{executable!r} was not compiled for '{self.platform_name}'")
        if options is not None:
            executable = self._compiler.compile(executable.origin.program, options)
        return HostLoadedExecutable(self, HostExecutable(executable.compiled, executable.origin))

    def deserialize(self, serialized: bytes, options: CompileOptions | None = None) -> HostLoadedExecutable:
        self.check_open()
        return HostLoadedExecutable(self, self._compiler.deserialize(serialized, options))

    def create_execute_context(self) -> HostExecuteContext:
        return HostExecuteContext()

    # Buffers.

    def buffer_from_host(
        self,
        array: Any,
        *,
        device: Device | None = None,
        memory_space: MemorySpace | None = None,
        layout: Layout | None = None,
        semantics: HostBufferSemantics = HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        on_done_with_host_buffer: Callable[[], object] | None = None,
    ) -> HostBuffer:
        place, space = self._place(device, memory_space)
        make = buffer_from_host if self.memory is None else device_memory_buffer.buffer_from_host
        return make(array, place, space, layout, semantics, on_done_with_host_buffer)

    def buffer_from_dlpack(self, source: Any, *, device: Device | None = None) -> HostBuffer:
        place, space = self._place(device, None)
        if self.memory is not None:
            return device_memory_buffer.buffer_from_dlpack(source, place, space)
        return zero_copy(from_dlpack(source), place, space, None)

    def create_uninitialized_buffer(self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None) -> HostBuffer:
        device, space = self._place(None, memory_space)
        make = uninitialized if self.memory is None else device_memory_buffer.uninitialized
        return make(spec, device, space)

    def create_error_buffer(
        self, error: PjrtError, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> HostBuffer:
        device, space = self._place(None, memory_space)
        buffer, fulfillment = alias_buffer(device, space, spec)
        fulfillment.fail(error)
        return buffer

    def create_alias_buffer(
        self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> tuple[HostBuffer, AliasFulfillment]:
        device, space = self._place(None, memory_space)
        buffer, fulfillment = alias_buffer(device, space, spec)
        self._unfulfilled.add(fulfillment)
        return buffer, fulfillment

    def create_view_of_device_buffer(
        self,
        pointer: int,
        spec: ShapeSpec,
        *,
        device: Device | None = None,
        memory_space: MemorySpace | None = None,
        on_delete: Callable[[], object] | None = None,
        stream: int | None = None,
    ) -> HostBuffer:
        place, space = self._place(device, memory_space)
        if stream is not None:
            raise InvalidArgumentError(f"memory of the host has no streams: expected stream=None, found {stream!r}")
        make = view if self.memory is None else device_memory_buffer.view
        return make(pointer, spec, place, space, on_delete)

    def create_buffers_for_async_host_to_device(
        self, specs: Sequence[ShapeSpec], *, memory_space: MemorySpace | None = None
    ) -> HostTransferManager:
        device, space = self._place(None, memory_space)
        manager = HostTransferManager(device, space, specs)
        self._unfulfilled.add(manager)
        return manager

    # Memory of the host.

    def dma_map(self, memory: Any) -> None:
        self.check_open()
        self._mapped.add(memory)

    def dma_unmap(self, memory: Any) -> None:
        self._mapped.remove(memory)

    # Other processes.

    def update_global_process_info(self, processes: Sequence[ProcessInfo]) -> None:
        """Check the state of the job's processes and ignore it (``PJRT_Client_UpdateGlobalProcessInfo``): collectives
        find lost processes themselves.
        """
        self.check_open()
        expect_all(processes, ProcessInfo, "a pjrt.ProcessInfo")

    # Host functions that programs call.

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, *, traits: int = 0) -> None:
        self._handlers.register(name, handler, traits)

    def register_ffi_type(self, name: str) -> int:
        return self._handlers.register_type(name)

    @property
    def ffi_handlers(self) -> FfiHandlers:
        """The registered handlers, for the function that computes a program with custom calls."""
        return self._handlers

    # Its end.

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise an error if the client cannot be used.

        Raises:
            FailedPreconditionError: the client was closed, or belongs to the parent of a forked process.
        """
        if self._closed:
            raise FailedPreconditionError(f"the client '{self.platform_name}' was closed; make a new one")
        if self._generation != generation():
            raise forked_error()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._generation == generation():
            self.dispatcher.finish(self._end_waiting)
            self.processes.close()
        self._notify_closed()

    def give_up_work(self, error: PjrtError, *, only_ask: bool = False, of: Future[None] | None = None) -> None:
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        if of is None:
            self.dispatcher.give_up(error, only_ask)
        else:
            self.dispatcher.give_up_one(of, error)

    def _place(self, device: Device | None, memory_space: MemorySpace | None) -> tuple[HostDevice, HostMemorySpace]:
        """Return the device and memory space of a new buffer, whose caller named either, both or none of them."""
        self.check_open()
        if device is None and memory_space is None:
            first = self.addressable_devices[0]
            return first, first.memory_spaces[0]
        chosen, space = choose_place(self, device, memory_space)
        assert isinstance(chosen, HostDevice)
        assert isinstance(space, HostMemorySpace)
        return chosen, space

    def _end_waiting(self) -> None:
        """Fail the aliases and transfers that still wait for the caller."""
        for promise in list(self._unfulfilled):
            promise.abandon(CancelledError(f"the client '{self.platform_name}' was closed"))
