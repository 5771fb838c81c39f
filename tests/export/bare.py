"""A device that has only the abstract members of the device API.

The generous one returns an object of each kind, but these do nothing either: every method raises ``UNIMPLEMENTED``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pjrt
from pjrt.api.buffer import AliasFulfillment, AsyncHostToDeviceTransferManager, CopyToDeviceStream
from pjrt.api.device import AsyncTrackingEvent, DeviceDescription, MemorySpace
from pjrt.api.errors import unimplemented
from pjrt.api.future import Future, Promise
from pjrt.api.loaded_executable import ExecuteContext
from pjrt.api.shape_spec import TiledLayout

NAME = "bare"


def _hollow(face: type, **more: Any) -> Any:
    """Make an object of a class of the device API, all of whose abstract members are unimplemented."""

    def method(name: str) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            raise unimplemented(NAME, f"{face.__name__}.{name}")

        return property(refuse) if isinstance(vars(face).get(name), property) else refuse

    members = {name: method(name) for name in face.__abstractmethods__}  # type: ignore[attr-defined]
    return type(f"Hollow{face.__name__}", (face,), {**members, **more})()


class BareDescription(DeviceDescription):
    id, process_index, kind = 0, 0, NAME


class BareMemorySpace(MemorySpace):
    id, kind, kind_id = 0, "device", 0
    client: Any = None
    devices: Any = ()


class BareDevice(pjrt.Device):
    description, is_addressable, local_hardware_id = BareDescription(), True, 0
    client: Any = None
    memory_spaces: Any = ()
    default_memory_space: Any = None

    def create_async_tracking_event(self, description: str) -> Any:
        return _hollow(AsyncTrackingEvent) if self.client.is_generous else super().create_async_tracking_event("")


class BareTopology(pjrt.TopologyDescription):
    platform_name, platform_version = NAME, "1"
    device_descriptions = (BareDevice.description,)


class BareBuffer(pjrt.Buffer):
    shape, element_type, layout = (2,), pjrt.ElementType.F32, TiledLayout.row_major(1)
    on_device_size, is_on_cpu, is_deleted = 8, False, False

    def __init__(self, client: BareClient) -> None:
        self._client = client

    client = property(lambda self: self._client)
    device = property(lambda self: self._client.devices[0])
    memory_space = property(lambda self: self._client.memory_spaces[0])

    def delete(self) -> None:
        raise unimplemented(NAME, "Buffer.delete")

    def ready(self) -> Future[None]:
        return self._client.pending.future

    def to_host(self, out: Any = None, *, layout: Any = None) -> Any:
        raise unimplemented(NAME, "Buffer.to_host")

    def copy_to(self, destination: Any) -> Any:
        raise unimplemented(NAME, "Buffer.copy_to")

    def external_reference(self) -> Any:
        if self._client.is_generous:
            return _hollow(pjrt.api.buffer.ExternalReference)
        return super().external_reference()


class BareStream(CopyToDeviceStream):
    total_bytes, granule_size, current_bytes = 8, 4, 0

    def add_chunk(self, data: Any) -> Future[None]:
        return Future.completed(None)


class BareExecutable(pjrt.Executable):
    platform_name, name, num_replicas, num_partitions, num_outputs = NAME, "program", 1, 1, 1


class BareLoadedExecutable(BareExecutable, pjrt.LoadedExecutable):
    executable, addressable_device_logical_ids, is_deleted = BareExecutable(), ((0, 0),), False
    device_assignment = pjrt.DeviceAssignment(((0,),))

    def __init__(self, client: BareClient) -> None:
        self._client = client

    client = property(lambda self: self._client)
    addressable_devices = property(lambda self: self._client.devices)

    def execute(self, arguments: Any, options: Any = None, *, returned_futures: Any = None) -> Any:
        if options is not None and options.recv_callbacks:
            options.recv_callbacks[0][0].callback(BareStream())
            returned_futures.append(self._client.pending.future)  # it goes on as long as the stream may come
            return [[]]
        raise unimplemented(NAME, "LoadedExecutable.execute")

    def execute_sharded(self, arguments: Any, device: Any, options: Any = None, *, returned_futures: Any = None) -> Any:
        return self.execute([arguments], options, returned_futures=returned_futures)[0]

    def execute_portable(
        self, arguments: Any, device: Any, options: Any = None, *, returned_futures: Any = None
    ) -> Any:
        raise unimplemented(NAME, "LoadedExecutable.execute_portable")

    def delete(self) -> None:
        raise unimplemented(NAME, "LoadedExecutable.delete")


class BareClient(pjrt.Client):
    """The client that a framework gets.

    Attributes:
        pending: its buffers are ready when this future is; never, if nobody completes it.
        is_generous: whether it returns objects of each kind.
    """

    platform_name, platform_version, topology = NAME, "1", BareTopology()

    def __init__(self, generous: bool = False) -> None:
        self.pending: Promise[None] = Promise()
        self.is_generous = generous
        self._closed = False
        space, device = BareMemorySpace(), BareDevice()
        space.client = device.client = self
        space.devices, device.memory_spaces, device.default_memory_space = (device,), (space,), space
        self._devices, self._spaces = (device,), (space,)

    devices = addressable_devices = property(lambda self: self._devices)
    memory_spaces = property(lambda self: self._spaces)
    is_closed = property(lambda self: self._closed)

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> pjrt.DeviceAssignment:
        raise unimplemented(NAME, "Client.default_device_assignment")

    def compile(self, program: Any, options: Any = None) -> Any:
        return BareLoadedExecutable(self)

    def buffer_from_host(self, array: Any, **_: Any) -> BareBuffer:
        return BareBuffer(self)

    def dma_map(self, memory: Any) -> None:
        if not self.is_generous:
            super().dma_map(memory)

    def create_execute_context(self) -> Any:
        return _hollow(ExecuteContext) if self.is_generous else super().create_execute_context()

    def create_alias_buffer(self, spec: Any, *, memory_space: Any = None) -> Any:
        if self.is_generous:
            return BareBuffer(self), _hollow(AliasFulfillment)
        return super().create_alias_buffer(spec, memory_space=memory_space)

    def create_buffers_for_async_host_to_device(self, specs: Sequence[Any], *, memory_space: Any = None) -> Any:
        if self.is_generous:
            return _hollow(AsyncHostToDeviceTransferManager)
        return super().create_buffers_for_async_host_to_device(specs, memory_space=memory_space)

    def close(self) -> None:
        self._closed = True
        self._notify_closed()


def make(generous: bool = False) -> BareClient:
    """Make a client."""
    return BareClient(generous)
