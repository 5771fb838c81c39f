"""The client of a cluster: the devices of all its members, and the programs, buffers and arrays on them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pjrt import ifrt
from pjrt.api.buffer import Buffer, HostBufferSemantics
from pjrt.api.capability import Capabilities, Feature
from pjrt.api.checks import expect_int, unexpected
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Attributes, Device, MemorySpace
from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError
from pjrt.api.executable import Executable, choose_place
from pjrt.api.future import Future
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.program import AnyProgram
from pjrt.api.shape_spec import Layout, Shapes, ShapeSpec, expect_shape
from pjrt.api.topology import ClientTopology
from pjrt.clusters.calls import ControllerFunctions, Function
from pjrt.clusters.client.buffer import ClusterBuffer, ClusterTransferManager, CrossHostCopier
from pjrt.clusters.client.device import (
    ClusterDevice,
    ClusterMemorySpace,
    OutsideDevice,
    buffers_from_hosts,
    call_on_hosts,
    can_call,
    pass_on_call,
    register_ffi_handler,
)
from pjrt.clusters.client.executable import (
    ClusterExecutable,
    ClusterLoadedExecutable,
    ClusterPortableExecutable,
    Compiler,
)
from pjrt.clusters.client.member import Member
from pjrt.ifrt.array import reduction_of

_LACKING = (
    Feature.ALIAS_BUFFERS,
    Feature.CROSS_HOST_TRANSFERS,
    Feature.DEVICE_VIEWS,
    Feature.DMA_MAPPING,
    Feature.EXECUTE_CONTEXTS,
)
"""The features whose calls name memory or functions of one process."""


class ClusterClient(Client):
    """The devices of several members as those of one machine.

    Args:
        members: the members, whose clients belong to the cluster from now on: ``close`` closes them.
        close: called at the end of ``close``, when the clients of the members are closed.
        functions: the functions of this process that workers call; ``None`` if the members call none.

    Attributes:
        members: the members.
        order: held while a program is sent to its members, so that all get programs in one order.
        copier: the copies between hosts.
        functions: the functions of this process that workers call; ``None`` if the members call none.

    Raises:
        InvalidArgumentError: there is no member, the platforms differ, or several members have a device of the same id.
    """

    __slots__ = (
        "_by_id", "_close", "_compiler", "_is_closed", "_outside", "addressable_devices", "copier", "devices",
        "functions", "members", "memory_spaces", "order", "platform_name", "platform_version", "topology",
    )  # fmt: skip

    addressable_devices: Sequence[ClusterDevice]
    devices: Sequence[Device]
    memory_spaces: Sequence[ClusterMemorySpace]
    platform_name: str
    platform_version: str
    topology: ClientTopology

    def __init__(
        self,
        members: Sequence[Member],
        *,
        close: Callable[[], object] | None = None,
        functions: ControllerFunctions | None = None,
    ) -> None:
        self._is_closed = False
        self._close = close
        self.functions = functions
        self.members = tuple(members)
        if not self.members:
            raise InvalidArgumentError("expected at least one member of a cluster, found none")
        names = {member.client.platform_name for member in self.members}
        if len(names) > 1:
            raise InvalidArgumentError(f"expected members of one platform, found {', '.join(sorted(names))}")
        self.platform_name = names.pop()
        self.platform_version = self.members[0].client.platform_version
        # The garbage collector may run in the holder, and end something whose end runs a program.
        self.order = threading.RLock()
        self._add_devices()
        self.topology = ClientTopology(self)
        self.copier = CrossHostCopier(self)
        self._compiler = Compiler(self, len(self.members))

    def _add_devices(self) -> None:
        devices: list[ClusterDevice] = []
        spaces: list[ClusterMemorySpace] = []
        kinds: dict[str, int] = {}
        for member in self.members:
            inner_devices = member.client.addressable_devices
            own: dict[MemorySpace, ClusterMemorySpace] = {}
            for inner in dict.fromkeys(space for device in inner_devices for space in device.memory_spaces):
                kind_id = kinds.setdefault(inner.kind, inner.kind_id)
                own[inner] = ClusterMemorySpace(self, member, inner, len(spaces), kind_id)
                spaces.append(own[inner])
            added = [ClusterDevice(self, member, inner, len(devices) + i, own) for i, inner in enumerate(inner_devices)]
            devices += added
            for space in own.values():
                space.devices = tuple(device for device in added if space in device.memory_spaces)
        self._by_id = {device.id: device for device in devices}
        if len(self._by_id) < len(devices):
            raise InvalidArgumentError(
                "expected members whose devices have different ids, as the processes of one job have them, found "
                f"{[device.id for device in devices]}"
            )
        self.addressable_devices = tuple(devices)
        self.memory_spaces = tuple(spaces)
        others = [device for device in self.members[0].client.devices if device.id not in self._by_id]
        self._outside = {device.id: OutsideDevice(self, device) for device in others}
        self.devices = (*self.addressable_devices, *self._outside.values())

    # Its platform and devices.

    @property
    def attributes(self) -> Attributes:
        return self.members[0].client.attributes

    @property
    def capabilities(self) -> Capabilities:
        of_member = self.members[0].client.capabilities
        calls_functions = can_call(self)
        features = {**of_member.features, **dict.fromkeys(_LACKING, False), Feature.HOST_CALLBACKS: calls_functions}
        if calls_functions:  # the workers are asked, who may have them or not
            features.pop(Feature.MEMORY_STATISTICS, None)
        return replace(of_member, num_devices=len(self.devices), features=features)

    def lookup_device(self, device_id: int) -> Device:
        device = self._by_id.get(device_id) or self._outside.get(device_id)
        if device is None:
            super().lookup_device(device_id)  # its errors
            raise NotFoundError(f"'{self.platform_name}' has no device with id {device_id}")
        return device

    def addressable(self, assignment: DeviceAssignment) -> list[ClusterDevice]:
        """Return the devices of an assignment that members of the cluster have.

        Raises:
            NotFoundError: there is no device with one of the ids.
        """
        devices = [self.lookup_device(number) for row in assignment.device_ids for number in row]
        return [device for device in devices if isinstance(device, ClusterDevice)]

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        ids = list(self._by_id)
        counts = [expect_int(number, "a number of devices") for number in (num_replicas, num_partitions)]
        if math.prod(counts) > len(ids):
            ids += self._outside
        return DeviceAssignment.in_order(ids, num_replicas, num_partitions)

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        self.check()
        member = self.members[0]
        try:
            return member.client.default_layout(element_type, shape)
        except PjrtError as error:
            member.fail(error)

    # Its workers.

    @property
    def lost_members(self) -> Sequence[Member]:
        """The members whose worker is lost; their ``loss`` is the error with the cause."""
        return tuple(worker for member in self.members for worker in member.workers if worker.loss is not None)

    def on_worker_lost(self, callback: Callable[[Member], object]) -> None:
        """Have a function called, in a thread of its own, with each member whose worker is lost, also before this call.

        Buffers on the member's devices are gone, and so are programs that include one of them. All others go on.
        """
        for member in self.members:
            for worker in member.workers:
                worker.add_loss_callback(
                    lambda lost: threading.Thread(target=callback, args=(lost,), name="pjrt-on-worker-lost").start()
                )

    def __repr__(self) -> str:
        lost = ", ".join(map(str, self.lost_members))
        return super().__repr__() if not lost or self.is_closed else f"{super().__repr__()[:-1]}, lost: {lost}>"

    # Programs.

    def compile(
        self, program: AnyProgram, options: CompileOptions | None = None, *, shapes: Shapes | None = None
    ) -> ClusterLoadedExecutable | ClusterPortableExecutable:
        self.check()
        return self._compiler.compile(program, options, shapes)

    def load(self, executable: Executable, options: CompileOptions | None = None) -> LoadedExecutable:
        self.check()
        if not isinstance(executable, ClusterExecutable) or executable.executables[0][0] not in self.members:
            raise InvalidArgumentError(f"{executable!r} was not compiled by this cluster")
        if options is not None and executable.program is not None:
            return self.compile(executable.program, options)
        return self._compiler.load(executable)

    def deserialize(self, serialized: bytes, options: CompileOptions | None = None) -> LoadedExecutable:
        self.check()
        return self._compiler.deserialize(serialized, options)

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
    ) -> ClusterBuffer:
        place, space = self.place(device, memory_space)
        try:
            inner = place.member.client.buffer_from_host(
                array,
                device=place.inner,
                memory_space=space.inner,
                layout=layout,
                semantics=semantics,
                on_done_with_host_buffer=on_done_with_host_buffer,
            )
        except PjrtError as error:
            place.fail(error)
        return ClusterBuffer(inner, place)

    def create_uninitialized_buffer(self, spec: ShapeSpec, *, memory_space: MemorySpace | None = None) -> Buffer:
        place, space = self.place(None, memory_space)
        try:
            return ClusterBuffer(place.member.client.create_uninitialized_buffer(spec, memory_space=space.inner), place)
        except PjrtError as error:
            place.fail(error)

    def create_error_buffer(
        self, error: PjrtError, spec: ShapeSpec, *, memory_space: MemorySpace | None = None
    ) -> Buffer:
        place, space = self.place(None, memory_space)
        try:
            return ClusterBuffer(place.member.client.create_error_buffer(error, spec, memory_space=space.inner), place)
        except PjrtError as failure:
            place.fail(failure)

    def create_buffers_for_async_host_to_device(
        self, specs: Sequence[ShapeSpec], *, memory_space: MemorySpace | None = None
    ) -> ClusterTransferManager:
        place, space = self.place(None, memory_space)
        try:
            manager = place.member.client.create_buffers_for_async_host_to_device(specs, memory_space=space.inner)
        except PjrtError as error:
            place.fail(error)
        return ClusterTransferManager(manager, place)

    def place(
        self, device: Device | None, memory_space: MemorySpace | None
    ) -> tuple[ClusterDevice, ClusterMemorySpace]:
        """Return the device and the memory space of a new buffer; raise the errors of ``choose_place``."""
        self.check()
        place, space = choose_place(self, device, memory_space)
        assert isinstance(place, ClusterDevice)
        assert isinstance(space, ClusterMemorySpace)
        place.worker.check()
        return place, space

    # Functions on the hosts.

    def call_on_hosts(self, function: Function, *arguments: Any) -> list[Any]:
        """Call a function in the worker of each host, all at the same time, and return the result of each host.

        The calls of this client are made one after the other on each host, and after the programs that were sent before
        have been started there.

        Args:
            function: a function that the workers can import, or its place as ``module:function``; with the package
                cloudpickle any function.
            arguments: the arguments, the same for all hosts. Where they contain a buffer of this client, the function
                gets its value as a numpy array on the host that has it, and ``None`` on the others. So data that is on
                the devices can be used or saved by their hosts.

        Raises:
            InvalidArgumentError: the function or an argument cannot be sent.
            PjrtError: the function failed; the error names the hosts.
            UnavailableError: a worker was lost.
        """
        self.check()
        return call_on_hosts(self, function, arguments)

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, *, traits: int = 0) -> None:
        """Register a Python function with the worker of each host: programs call it there, and not in this process.

        So a program loads the data of a host on this host. The function is sent as by ``call_on_hosts``. A
        ``LocalHandler`` is not sent: the workers call it here.

        Raises:
            AlreadyExistsError: the name has another handler.
            InvalidArgumentError: the function cannot be sent.
            UnimplementedError: the handler is an address, or a member is no worker.
        """
        self.check()
        register_ffi_handler(self, name, handler, traits)

    def buffers_from_hosts(
        self,
        function: Function,
        spec: ShapeSpec,
        arguments: Sequence[Sequence[Any]],
        devices: Sequence[Device] | None = None,
    ) -> list[Buffer]:
        """Return a buffer on each device, whose value a function makes on the host of the device.

        The values do not pass this process. The call returns at once: programs that use the buffers wait for them.

        Args:
            function: as for ``call_on_hosts``. It is called for each device, and returns an array of the type and shape
                of ``spec``.
            spec: the type and shape of each buffer.
            arguments: the function's arguments for each device. Devices of a host that have the same object here share
                a call.
            devices: the devices; by default all.

        Raises:
            InvalidArgumentError: the function or an argument cannot be sent, or there are not as many as devices.
        """
        self.check()
        return buffers_from_hosts(self, function, spec, arguments, self.devices if devices is None else devices)  # type: ignore[arg-type]  # checked there

    def pass_on_call(
        self, process_index: int, call: bytes, arguments: Sequence[Buffer], results: Sequence[tuple[ShapeSpec, Device]]
    ) -> tuple[Future[bytes], Sequence[Buffer]]:
        """Pass on a call of a function to a worker: an inner node of a tree of controllers does it.

        Args:
            process_index: the process index of the worker.
            call: the call, as the controller has written it.
            arguments: the buffers on the worker's devices that the function gets.
            results: the type and the device of each buffer that is made of the function's results.

        Returns:
            A future of the function's answer, and the buffers.

        Raises:
            InvalidArgumentError: there is no such worker below.
            UnavailableError: the worker was lost.
        """
        self.check()
        return pass_on_call(self, process_index, call, arguments, results)

    # Its end.

    def check(self) -> None:
        """Raise an error if the client was closed.

        Raises:
            FailedPreconditionError: it was closed.
        """
        if self._is_closed:
            raise FailedPreconditionError(
                f"the client of the cluster of {self.platform_name!r} was closed; make a new one"
            )

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def __enter__(self) -> ClusterClient:
        return self

    def give_up_work(self, error: PjrtError, *, only_ask: bool = False, of: Future[None] | None = None) -> None:
        for member in self.members:
            member.client.give_up_work(error, only_ask=only_ask, of=of)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._compiler.close()
        for member in self.members:
            member.client.close()
        if self._close is not None:
            self._close()
        self._notify_closed()


def array_from_hosts(
    client: ifrt.Client,
    function: Function,
    shape: Sequence[int],
    element_type: ElementType | AnyDType,
    sharding: ifrt.Sharding,
    *arguments: Any,
) -> ifrt.Array:
    """Return an array whose shards are made by a function, in the worker of each host for the devices of that host.

    The values do not pass this process. The call returns at once: programs that use the array wait for it.

    Args:
        client: the client of the arrays of a cluster.
        function: as for ``ClusterClient.call_on_hosts``. It is called with the slices of the whole array that a shard
            has, and the further arguments, and returns the shard as a numpy array. A host that has the same shard on
            several devices calls it once.
        shape: the shape of the whole array.
        element_type: the type of its elements; a numpy dtype is taken too.
        sharding: the devices and the part of each.
        arguments: further arguments of the function.

    Raises:
        InvalidArgumentError: the client is not of a cluster, or the function or an argument cannot be sent.
        UnimplementedError: the sharding does not know the places of its shards, or they are terms of a sum.
    """
    cluster = client.pjrt_client
    if not isinstance(cluster, ClusterClient):
        raise unexpected(cluster, "a cluster as the client below: ifrt.Client(pjrt.cluster(…))")
    if reduction_of(sharding) == "sum":
        raise UnimplementedError(f"expected a sharding that a function can make the shards of, found {sharding}")
    spec = ifrt.ArraySpec(expect_shape(shape), ElementType.of(element_type), sharding)
    shard = ShapeSpec(sharding.shard_shape(spec.shape), spec.element_type)
    domains = sharding.index_domains(spec.shape)
    calls = {domain: (domain.slices, *arguments) for domain in domains}
    kind = sharding.memory_kind
    buffers = cluster.buffers_from_hosts(function, shard, [calls[domain] for domain in domains], sharding.devices)
    if kind is not None:
        buffers = [
            buffer if buffer.memory_space.kind == kind else buffer.copy_to(buffer.device.memory_space(kind))
            for buffer in buffers
        ]
    return ifrt.Array(client, spec, buffers)
