"""The client of a server: its devices, memories, buffers and programs, over one connection."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pjrt import stablehlo
from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.capability import Capabilities, Feature
from pjrt.api.checks import expect, expect_int
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Attributes, Device, MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import CancelledError, FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.executable import Executable, choose_place
from pjrt.api.future import Future, Promise
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.api.shape_spec import Layout, Shapes, ShapeSpec, TiledLayout, expect_shape, expect_spec
from pjrt.api.topology import ClientTopology
from pjrt.remote.client.buffer import (
    BufferType,
    RemoteBuffer,
    RemoteTransferManager,
    buffer_from_host,
    failed_buffer,
    uninitialized_buffer,
)
from pjrt.remote.client.connection import Connection
from pjrt.remote.client.device import RemoteDevice, RemoteMemorySpace
from pjrt.remote.client.executable import CompiledProgram, RemoteExecutable
from pjrt.remote.client.loaded_executable import Launches, RemoteLoadedExecutable
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.programs import compile_options_of, compile_options_proto, portable, program_of, program_proto
from pjrt.remote.protocol.values import element_type_proto, layout_of_spelling, shape_proto
from pjrt.remote.protocol.versions import (
    BATCHES,
    INLINE,
    LAYOUT_OF_NEW_ARRAY,
    SAVED_EXECUTABLES,
    load_request,
    saved_request_of,
)
from pjrt.stablehlo.encodings.format import HLO_ENCODINGS, Encoding, Version, encoding_of
from pjrt.stablehlo.reading.conversion import with_partitioning

_OF_PROTOCOL = {
    Feature.ALIAS_BUFFERS: False,
    Feature.AOT_TOPOLOGIES: True,
    Feature.ASYNC_TRANSFERS: True,
    Feature.CROSS_HOST_TRANSFERS: False,
    Feature.DEVICE_VIEWS: False,
    Feature.DMA_MAPPING: False,
    Feature.DONATION: True,
    Feature.ERROR_BUFFERS: True,
    Feature.EXECUTE_CONTEXTS: False,
    Feature.HOST_CALLBACKS: False,
    Feature.MEMORY_STATISTICS: False,
    Feature.SERIALIZATION: True,
    Feature.UNINITIALIZED_BUFFERS: True,
}
"""The features whose requests the protocol has or lacks. The server's devices make no difference to them."""


def capabilities_of(client: RemoteClient) -> Capabilities:
    """Return the capabilities of a client's devices."""
    features = dict(_OF_PROTOCOL)
    if client.connection.version.protocol < LAYOUT_OF_NEW_ARRAY:
        features[Feature.LAYOUTS] = False
    devices = client.addressable_devices
    kinds = dict.fromkeys(space.kind for device in devices for space in device.memory_spaces)
    names = dict.fromkeys(device.kind for device in client.devices)
    facts = Capabilities(
        num_devices=len(client.devices),
        memory_kinds=tuple(kinds) or None,
        features=features,
        variants={"device_kind": ", ".join(names)},
    )
    return facts.completed(Capabilities.from_attributes(client.attributes))


class Compiler:
    """Compiles programs on the server of a client."""

    def __init__(self, client: RemoteClient) -> None:
        self._client = client

    def compile(self, program: Program, options: CompileOptions | None) -> CompiledProgram:
        """Return the program as the server has compiled it; wait for the server.

        Raises:
            InvalidArgumentError: the program's format is unknown, it is damaged, or needs more devices than there are.
            PjrtError: the server's compiler refuses the program.
        """
        connection = self._client.connection
        program = _stablehlo(program)
        stated = with_partitioning(program, options)
        request = wire.CompileRequest(
            program=program_proto(self._portable(program)),
            compile_options=compile_options_proto(self._with_devices(stated)),
        )
        return self._compiled(program, stated, connection.call("compile", request).result())

    def deserialize(self, serialized: bytes, options: CompileOptions | None) -> CompiledProgram:
        """Return the program of a saved executable, as the server has loaded it; wait for the server.

        Args:
            serialized: what ``RemoteExecutable.serialize`` has returned.
            options: the compile options; ``None`` for those that the executable was compiled with.

        Raises:
            InvalidArgumentError: the bytes are not a saved executable, or it is for other devices.
            PjrtError: the server's device refuses the executable.
        """
        message = saved_request_of(serialized)
        program, options = program_of(message.program), options or compile_options_of(message.compile_options)
        if not message.serialized_executable:  # the server saved none
            return self.compile(program, options)
        stated = with_partitioning(program, options)
        request = load_request(self._portable(program), self._with_devices(stated), message.serialized_executable)
        response = self._client.connection.call("load_executable", request).result()
        return self._compiled(program, stated, response.compiled)

    def _compiled(self, program: Program, options: CompileOptions, response: Any) -> CompiledProgram:
        """Return a program that the server has compiled or loaded.

        Args:
            program: the program.
            options: the options, which leave nothing to the program.
            response: the server's ``CompileResponse``.
        """
        client, connection = self._client, self._client.connection
        handle = response.loaded_executable_handle
        metadata = connection.call(
            "loaded_executable_metadata", wire.LoadedExecutableMetadataRequest(loaded_executable_handle=handle)
        )
        if response.HasField("ready_future_handle"):
            ready = wire.CheckFutureRequest(future_handle=response.ready_future_handle)
            connection.call("check_future", ready).result()
        return CompiledProgram(
            connection,
            client.platform_name,
            client.addressable_devices[0].default_memory_space.kind,
            program,
            options,
            response,
            metadata.result(),
        )

    def _with_devices(self, options: CompileOptions) -> CompileOptions:
        """Return the options with the devices to compile for: servers need not have defaults."""
        # Each of a portable executable's devices gets a compilation of its own, the first one here.
        options = replace(options, compile_portable_executable=False)
        if options.device_assignment is not None:
            return options
        shape = options.partitioning
        if options.device_ordinal > 0 and shape.num_devices == 1:
            device = self._client.lookup_addressable_device(options.device_ordinal)
            return replace(options, device_assignment=DeviceAssignment(((device.id,),)))
        return replace(
            options,
            device_assignment=self._client.default_device_assignment(shape.num_replicas, shape.num_partitions),
        )

    def _portable(self, program: Program) -> Program:
        """Return the program as a portable artifact of a version that the server reads, if it declares one."""
        newest = self._client.attributes.get("stablehlo_current_version")
        if not isinstance(newest, tuple) and encoding_of(program) is Encoding.PORTABLE_ARTIFACT:
            return program
        version = Version.of(newest) if isinstance(newest, tuple) else stablehlo.current_version()
        return portable(program, version)


def _stablehlo(program: Program) -> Program:
    """Return a program as StableHLO.

    Raises:
        InvalidArgumentError: the program is of another format, or XLA cannot convert it.
        DataLossError: the program is damaged.
    """
    if program.format not in tuple(ProgramFormat):
        raise InvalidArgumentError(
            f"expected a program in StableHLO or HLO, which the IFRT proxy protocol carries, found {program.format!r}"
        )
    program = stablehlo.read(program)
    return stablehlo.from_hlo(program, trusted=True) if encoding_of(program) in HLO_ENCODINGS else program


def call_function(
    client: RemoteClient,
    function: bytes,
    arguments: Sequence[Buffer],
    results: Sequence[tuple[ShapeSpec, Device]],
    worker: int,
) -> tuple[Future[bytes], list[RemoteBuffer]]:
    """Send a call; see ``RemoteClient.call_function``."""
    connection = client.connection
    connection.check()
    connection.release_now()  # the function may ask for the memory that is in use
    request = wire.IfrtRequest()
    body = request.call_function_request
    body.function = function
    body.worker = worker
    for argument in arguments:
        if not isinstance(argument, RemoteBuffer) or argument.type.connection is not connection:
            raise InvalidArgumentError(f"expected a buffer of this client as an argument, found {argument!r}")
        body.array_handles.append(argument.use())
    buffers = []
    for spec, device in results:
        place, space = choose_place(client, device, None)
        layout = TiledLayout.row_major(len(spec.shape))
        buffer_type = BufferType(client, connection, place, space, spec.shape, spec.element_type, layout)  # type: ignore[arg-type]
        buffer = RemoteBuffer(buffer_type, connection.new_handle())
        body.result_specs.append(client.spec_proto(buffer_type))
        body.result_array_handles.append(buffer.handle())
        buffers.append(buffer)
    answer: Promise[bytes] = Promise()
    outcomes = [buffer.outcome() for buffer in buffers]

    def reply(response: Any, error: PjrtError | None) -> None:
        for keep in outcomes:
            keep(response, error)
        if error is None:
            answer.set_result(response.call_function_response.result)
        else:
            answer.set_error(error)

    connection.send(request, reply)
    return answer.future, buffers


_EXTENSIONS = {BATCHES, INLINE, SAVED_EXECUTABLES}


class RemoteClient(Client):
    """The devices of a server.

    Args:
        connection: the connection to the server; the client closes it.

    Attributes:
        connection: the connection to the server.
    """

    __slots__ = (
        "_assignments",
        "_compiler",
        "_is_closed",
        "_open_launches",
        "_places",
        "addressable_devices",
        "attributes",
        "connection",
        "devices",
        "memory_spaces",
        "topology",
    )

    addressable_devices: Sequence[RemoteDevice]
    attributes: Attributes
    devices: Sequence[RemoteDevice]
    memory_spaces: Sequence[RemoteMemorySpace]
    topology: ClientTopology

    def __init__(self, connection: Connection) -> None:
        self._is_closed = False
        self.connection = connection
        session = connection.session
        # JAX keeps the executables in its compilation cache where the server saves them.
        saves = connection.attributes.get(SAVED_EXECUTABLES) is True
        attributes = {**connection.attributes, "supports_executable_serialization": saves}
        self.attributes = {name: value for name, value in attributes.items() if name not in _EXTENSIONS}
        spaces = {proto.id: RemoteMemorySpace(self, proto) for proto in session.memories}
        here = set(session.addressable_device_ids)
        self.devices = tuple(
            RemoteDevice(self, proto, spaces, is_addressable=proto.id in here) for proto in session.all_devices
        )
        self.addressable_devices = tuple(device for device in self.devices if device.is_addressable)
        for space in spaces.values():
            space.devices = tuple(device for device in self.addressable_devices if space in device.memory_spaces)
        self.memory_spaces = tuple(spaces.values())
        self.topology = ClientTopology(self)
        self._compiler = Compiler(self)
        self._places: dict[tuple[int, str], Any] = {}
        self._assignments: dict[tuple[int, int], DeviceAssignment] = {}
        # Launches that lack devices; ``close`` ends the wait for them.
        self._open_launches: weakref.WeakSet[Launches] = weakref.WeakSet()

    # Its platform and devices.

    @property
    def platform_name(self) -> str:
        name: str = self.connection.session.platform_name
        return name

    @property
    def platform_version(self) -> str:
        version: str = self.connection.session.platform_version
        return version

    @property
    def process_index(self) -> int:
        index: int = self.connection.session.process_index
        return index

    @property
    def capabilities(self) -> Capabilities:
        return capabilities_of(self)

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        counts = expect_int(num_replicas, "a number of replicas"), expect_int(num_partitions, "a number of partitions")
        if min(counts) < 1 or counts[0] * counts[1] > len(self.devices):
            raise InvalidArgumentError(
                f"{num_replicas} replicas × {num_partitions} partitions need {counts[0] * counts[1]} devices, the "
                f"server has {len(self.devices)}"
            )
        assignment = self._assignments.get(counts)
        if assignment is None:
            assignment = self._assignments[counts] = self._asked_assignment(*counts)
        return assignment

    def _asked_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        self.connection.check()
        request = wire.GetDefaultDeviceAssignmentRequest(num_replicas=num_replicas, num_partitions=num_partitions)
        try:
            proto = self.connection.call("get_default_device_assignment", request).result().device_assignment
        except UnimplementedError:
            devices = self.addressable_devices
            if num_replicas * num_partitions > len(devices):
                devices = self.devices
            return DeviceAssignment.in_order([device.id for device in devices], num_replicas, num_partitions)
        columns = [tuple(column.replica_device_ids) for column in proto.computation_devices]
        return DeviceAssignment(tuple(zip(*columns, strict=True)))

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        expect(element_type, ElementType, "an element type as pjrt.ElementType")
        shape = expect_shape(shape)
        self.connection.check()
        device = self.addressable_devices[0]
        request = wire.GetDefaultLayoutRequest(
            dtype=element_type_proto(element_type),
            dims=shape,
            device_id=device.id,
            memory_kind=device.default_memory_space.kind,
        )
        try:
            response = self.connection.call("get_default_layout", request).result()
        except UnimplementedError:
            return TiledLayout.row_major(len(shape))
        return layout_of_spelling(response.serialized_pjrt_layout)

    # Programs.

    def compile(
        self, program: AnyProgram, options: CompileOptions | None = None, *, shapes: Shapes | None = None
    ) -> RemoteLoadedExecutable:
        self.connection.check()
        refined = Program.of(program) if shapes is None else stablehlo.refine(program, shapes)
        return self._loaded(self._compiler.compile(refined, options))

    def load(self, executable: Executable, options: CompileOptions | None = None) -> RemoteLoadedExecutable:
        self.connection.check()
        if not isinstance(executable, RemoteExecutable) or executable.compiled.connection is not self.connection:
            raise InvalidArgumentError(f"{executable!r} was not compiled by the server {self.connection.address}")
        if options is not None:
            return self._loaded(self._compiler.compile(executable.compiled.program, options))
        return self._loaded(executable.compiled)

    def deserialize(self, serialized: bytes, options: CompileOptions | None = None) -> RemoteLoadedExecutable:
        self.connection.check()
        return self._loaded(self._compiler.deserialize(serialized, options))

    def _loaded(self, compiled: CompiledProgram) -> RemoteLoadedExecutable:
        return RemoteLoadedExecutable(self, compiled)

    def launches_of(self, executable: RemoteLoadedExecutable) -> Launches:
        """Return the launches of an executable, which ``close`` ends."""
        launches = Launches(executable)
        self._open_launches.add(launches)
        return launches

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
    ) -> RemoteBuffer:
        place, space = self._place(device, memory_space)
        return buffer_from_host(self, array, place, space, layout, semantics, on_done_with_host_buffer)

    def create_uninitialized_buffer(self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None) -> RemoteBuffer:
        device, space = self._place(None, memory_space)
        return uninitialized_buffer(self, expect_spec(spec), device, space)

    def create_error_buffer(
        self, error: PjrtError, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> RemoteBuffer:
        device, space = self._place(None, memory_space)
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        return failed_buffer(self, error, expect_spec(spec), device, space)

    def create_buffers_for_async_host_to_device(
        self, specs: Sequence[ShapeSpec], *, memory_space: MemorySpace | None = None
    ) -> RemoteTransferManager:
        device, space = self._place(None, memory_space)
        return RemoteTransferManager(self, device, space, specs)

    def place_proto(self, device: RemoteDevice, space: RemoteMemorySpace) -> Any:
        """Return the sharding of an array on one device, as a ``ShardingProto``."""
        key = (device.id, space.kind)
        proto = self._places.get(key)
        if proto is None:
            single = wire.SingleDeviceShardingProto(device_id=device.id, memory_kind=space.kind)
            serialized = wire.Serialized(type_name="xla::ifrt::SingleDeviceSharding", data=single.SerializeToString())
            proto = self._places[key] = wire.ShardingProto(serialized_sharding=serialized)
        return proto

    def spec_proto(self, buffer_type: BufferType) -> Any:
        """Return the array that a buffer is, as an ``ArraySpecProto``."""
        proto = wire.ArraySpecProto(
            dtype=element_type_proto(buffer_type.element_type), shape=shape_proto(buffer_type.shape)
        )
        proto.sharding.CopyFrom(self.place_proto(buffer_type.device, buffer_type.memory_space))
        return proto

    def _place(self, device: Device | None, memory_space: MemorySpace | None) -> tuple[RemoteDevice, RemoteMemorySpace]:
        self.connection.check()
        chosen, space = choose_place(self, device, memory_space)
        assert isinstance(chosen, RemoteDevice)
        assert isinstance(space, RemoteMemorySpace)
        return chosen, space

    # Functions.

    def call_function(
        self,
        function: bytes,
        arguments: Sequence[Buffer] = (),
        results: Sequence[tuple[ShapeSpec, Device]] = (),
        worker: int = 0,
    ) -> tuple[Future[bytes], list[RemoteBuffer]]:
        """Have the server call a function with the values of buffers, after all earlier calls of this client.

        The workers of a cluster offer it to their controller (``call_function`` of ``pjrt.remote.serve``).

        Args:
            function: the call, as the server's function understands it.
            arguments: buffers of this client.
            results: the type and the device of each buffer that is made of the function's results.
            worker: the number of the worker that is to call the function, for a server that passes it on.

        Returns:
            A future of the function's answer, and the buffers, which get their values later.

        Raises:
            InvalidArgumentError: an argument is a buffer of another client.
            FailedPreconditionError: an argument was deleted or donated, or the client is closed.
        """
        return call_function(self, function, arguments, results, worker)

    # Its end.

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        reason = f"the client of {self.connection.address} was closed; make a new one"
        for launches in list(self._open_launches):
            launches.abandon(CancelledError(reason))
        self.connection.close(FailedPreconditionError(reason))
        self._notify_closed()
