"""The devices of the host runtime, and their descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.attributes import Attributes
from pjrt.api.device import AllocatorStats, Device, DeviceDescription
from pjrt.api.memory_space import MemorySpaceDescription
from pjrt.host.memory_space import HostMemorySpace
from pjrt.host.queue import WorkQueue

if TYPE_CHECKING:
    from pjrt.host.client import HostClient


class HostDeviceDescription(DeviceDescription):
    """What is known of a device of the host runtime."""

    __slots__ = ("_attributes", "_id", "_kind", "_memories", "_process_index")

    def __init__(
        self, device_id: int, process_index: int, kind: str, attributes: Attributes, memory_kinds: Sequence[str]
    ) -> None:
        self._id = device_id
        self._process_index = process_index
        self._kind = kind
        self._attributes = dict(attributes)
        self._memories = tuple(MemorySpaceDescription(name, number) for number, name in enumerate(memory_kinds))

    @property
    def id(self) -> int:
        return self._id

    @property
    def process_index(self) -> int:
        return self._process_index

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def attributes(self) -> Attributes:
        return self._attributes

    @property
    def memory_space_descriptions(self) -> Sequence[MemorySpaceDescription]:
        return self._memories


class HostDevice(Device):
    """A device whose work is done by a thread of this process.

    Attributes:
        compute: the queue on which programs run, one after the other.
        transfers: the queue on which large copies run, so that they do not wait for programs.
    """

    __slots__ = ("_client", "_description", "_local_hardware_id", "_memory_spaces", "compute", "transfers")

    def __init__(
        self,
        client: HostClient,
        description: HostDeviceDescription,
        local_hardware_id: int,
        limits: dict[str, int],
    ) -> None:
        self._client = client
        self._description = description
        self._local_hardware_id = local_hardware_id
        memories = description.memory_space_descriptions
        first = description.id * len(memories)
        self._memory_spaces = tuple(
            HostMemorySpace(self, first + m.kind_id, m.kind, m.kind_id, limits.get(m.kind)) for m in memories
        )
        self.compute = WorkQueue(f"{client.platform_name}:{description.id}")
        self.transfers = WorkQueue(f"{client.platform_name}:{description.id} transfers")

    @property
    def client(self) -> HostClient:
        return self._client

    @property
    def description(self) -> HostDeviceDescription:
        return self._description

    @property
    def id(self) -> int:
        return self._description.id

    @property
    def is_addressable(self) -> bool:
        return True

    @property
    def local_hardware_id(self) -> int:
        return self._local_hardware_id

    @property
    def memory_spaces(self) -> tuple[HostMemorySpace, ...]:
        return self._memory_spaces

    @property
    def default_memory_space(self) -> HostMemorySpace:
        return self._memory_spaces[0]

    def memory_stats(self) -> AllocatorStats:
        return self.default_memory_space.account.stats()

    def clear_memory_stats(self) -> None:
        self.default_memory_space.account.clear_peak()
