"""Remote devices, their descriptions and their memory spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.device import AllocatorStats, Attributes, Device, DeviceDescription, MemorySpace, MemorySpaceDescription
from pjrt.api.errors import FailedPreconditionError, UnimplementedError
from pjrt.remote.protocol.values import attributes_of

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient


class RemoteMemorySpace(MemorySpace):
    """A memory space of a server's devices, as its ``InitResponse.Memory`` describes it."""

    __slots__ = ("client", "debug_string", "devices", "id", "kind", "kind_id", "text")

    client: RemoteClient
    debug_string: str
    devices: Sequence[RemoteDevice]
    id: int
    kind: str
    kind_id: int

    def __init__(self, client: RemoteClient, proto: Any) -> None:
        self.client = client
        self.id = proto.id
        self.kind = proto.memory_space_kind
        self.kind_id = proto.kind_id
        self.debug_string = proto.debug_string
        self.text: str = proto.to_string
        self.devices = ()  # the devices come later: each knows its memory spaces

    def __str__(self) -> str:
        return self.text or super().__str__()


class RemoteDeviceDescription(DeviceDescription):
    """A server's device, as its ``InitResponse.Device`` describes it."""

    __slots__ = ("attributes", "debug_string", "id", "kind", "memory_space_descriptions", "process_index", "text")

    attributes: Attributes
    debug_string: str
    id: int
    kind: str
    memory_space_descriptions: Sequence[MemorySpaceDescription]
    process_index: int

    def __init__(self, proto: Any, process_index: int, spaces: Sequence[RemoteMemorySpace]) -> None:
        self.id = proto.id
        self.kind = proto.device_kind
        self.process_index = process_index
        self.attributes = attributes_of(proto.attributes)
        self.debug_string = proto.debug_string or proto.to_string
        self.text: str = proto.to_string
        self.memory_space_descriptions = tuple(MemorySpaceDescription(space.kind, space.kind_id) for space in spaces)

    def __str__(self) -> str:
        return self.text or super().__str__()


class RemoteDevice(Device):
    """A device of a server."""

    __slots__ = ("_default", "client", "description", "is_addressable", "local_hardware_id", "memory_spaces")

    client: RemoteClient
    description: RemoteDeviceDescription
    is_addressable: bool
    local_hardware_id: int
    memory_spaces: tuple[RemoteMemorySpace, ...]

    def __init__(
        self, client: RemoteClient, proto: Any, spaces: Mapping[int, RemoteMemorySpace], *, is_addressable: bool
    ) -> None:
        self.client = client
        self.is_addressable = is_addressable
        numbers = list(proto.memory_ids)
        default = proto.default_memory_id if proto.HasField("default_memory_id") else None
        self.memory_spaces = tuple(spaces[number] for number in numbers)
        self._default = None if default is None else spaces.get(default)
        # The protocol does not say which process the devices of other processes belong to.
        process_index = client.process_index if is_addressable else client.process_index + 1
        self.description = RemoteDeviceDescription(proto, process_index, self.memory_spaces)
        self.local_hardware_id = proto.local_hardware_id if is_addressable else -1

    @property
    def default_memory_space(self) -> RemoteMemorySpace:
        if self._default is None:
            raise FailedPreconditionError(
                f"{self} has no default memory space that this client can reach; use one of client.addressable_devices"
            )
        return self._default

    def memory_stats(self) -> AllocatorStats:
        raise UnimplementedError(
            f"the IFRT proxy protocol has no request for the memory of {self}; ask the server's metrics"
        )
