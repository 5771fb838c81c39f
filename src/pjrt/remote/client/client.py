"""The client of a server: its devices, memories, buffers and programs, over one connection."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from pjrt import stablehlo
from pjrt.api.attributes import Attributes
from pjrt.api.buffer import Buffer
from pjrt.api.capability import Capabilities
from pjrt.api.checks import expect, expect_int
from pjrt.api.client import Client
from pjrt.api.client_topology import ClientTopology
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import CancelledError, FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.executable import Executable
from pjrt.api.future import Future
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.memory_space import MemorySpace
from pjrt.api.placement import choose_place
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Shapes, ShapeSpec, expect_shape, expect_spec
from pjrt.remote.client import special_buffers
from pjrt.remote.client.buffer import BufferType, RemoteBuffer
from pjrt.remote.client.capability import describe
from pjrt.remote.client.compilation import Compiler
from pjrt.remote.client.connection import Connection
from pjrt.remote.client.device import RemoteDevice
from pjrt.remote.client.executable import CompiledProgram, RemoteExecutable
from pjrt.remote.client.from_host import buffer_from_host
from pjrt.remote.client.function_call import call_function
from pjrt.remote.client.launch import Launches
from pjrt.remote.client.loaded_executable import RemoteLoadedExecutable
from pjrt.remote.client.memory_space import RemoteMemorySpace
from pjrt.remote.client.transfer import RemoteTransferManager
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import element_type_proto, layout_of_spelling, shape_proto
from pjrt.remote.protocol.versions import BATCHES, SAVED_EXECUTABLES

_EXTENSIONS = {BATCHES, SAVED_EXECUTABLES}


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
        return describe(self)

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
        return special_buffers.uninitialized(self, expect_spec(spec), device, space)

    def create_error_buffer(
        self, error: PjrtError, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> RemoteBuffer:
        device, space = self._place(None, memory_space)
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        return special_buffers.failed(self, error, expect_spec(spec), device, space)

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
