"""Remote devices, their descriptions and their memory spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.device import AllocatorStats, DescribedDevice, DeviceFacts, MemorySpaceDescription, MemorySpaceFacts
from pjrt.api.errors import UnimplementedError
from pjrt.remote.protocol.values import attributes_of

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient


class RemoteMemorySpace(MemorySpaceFacts):
    """A memory space of a server's devices, as its ``InitResponse.Memory`` describes it."""

    __slots__ = ()

    devices: Sequence[RemoteDevice]

    def __init__(self, client: RemoteClient, proto: Any) -> None:
        kind, texts = proto.memory_space_kind, {"text": proto.to_string, "debug_string": proto.debug_string}
        super().__init__(client, proto.id, kind, proto.kind_id, **texts)


class RemoteDevice(DescribedDevice[RemoteMemorySpace]):
    """A device of a server, as its ``InitResponse.Device`` describes it."""

    __slots__ = ("_default",)

    client: RemoteClient

    def __init__(
        self, client: RemoteClient, proto: Any, spaces: Mapping[int, RemoteMemorySpace], *, is_addressable: bool
    ) -> None:
        memory_spaces = tuple(spaces[number] for number in proto.memory_ids)
        description = DeviceFacts(
            proto.id,
            # The protocol does not say which process the devices of other processes belong to.
            client.process_index if is_addressable else client.process_index + 1,
            proto.device_kind,
            [MemorySpaceDescription(space.kind, space.kind_id) for space in memory_spaces],
            attributes_of(proto.attributes),
            text=proto.to_string,
            debug_string=proto.debug_string,
        )
        number = proto.local_hardware_id if is_addressable else -1
        super().__init__(client, description, memory_spaces, number, is_addressable=is_addressable)
        self._default = spaces.get(proto.default_memory_id) if proto.HasField("default_memory_id") else None

    @property
    def default_memory_space(self) -> RemoteMemorySpace:
        if self._default is None:
            raise self.elsewhere("its default memory")
        return self._default

    def memory_stats(self) -> AllocatorStats:
        raise UnimplementedError(
            f"the IFRT proxy protocol has no request for the memory of {self}; ask the server's metrics"
        )
