"""Devices of the ``cpu`` device's client: virtual ones, which share the host's processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.device import AllocatorStats, Device, DeviceDescription
from pjrt.api.memory_space import MemorySpaceDescription
from pjrt.devices.xla import _raw
from pjrt.devices.xla.memory_space import KINDS, XlaMemorySpace

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient


class XlaDeviceDescription(DeviceDescription):
    """What is known of one virtual CPU device."""

    __slots__ = ("_id", "_kind", "_process_index", "_text")

    def __init__(self, raw: Any) -> None:
        self._id: int = raw.id
        self._kind: str = raw.device_kind
        self._process_index: int = raw.process_index
        self._text = str(raw)

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
    def memory_space_descriptions(self) -> Sequence[MemorySpaceDescription]:
        return tuple(MemorySpaceDescription(kind, number) for number, kind in enumerate(KINDS))

    def __str__(self) -> str:
        return self._text


class XlaDevice(Device):
    """One virtual CPU device."""

    __slots__ = ("_client", "_description", "_spaces", "raw")

    def __init__(self, client: XlaClient, raw: Any) -> None:
        self._client = client
        self.raw = raw
        """jaxlib's device."""
        self._description = XlaDeviceDescription(raw)
        kinds = {memory.kind: memory for memory in raw.addressable_memories()}
        first = raw.id * len(KINDS)
        self._spaces = tuple(
            XlaMemorySpace(self, kinds[kind], first + number, _raw.whole_on(raw, kind))
            for number, kind in enumerate(KINDS)
        )

    @property
    def client(self) -> XlaClient:
        return self._client

    @property
    def description(self) -> XlaDeviceDescription:
        return self._description

    @property
    def is_addressable(self) -> bool:
        return True

    @property
    def local_hardware_id(self) -> int:
        number: int = self.raw.local_hardware_id
        return number

    @property
    def memory_spaces(self) -> Sequence[XlaMemorySpace]:
        return self._spaces

    @property
    def default_memory_space(self) -> XlaMemorySpace:
        return self._spaces[0]

    def memory_stats(self) -> AllocatorStats:
        """The bytes of the live buffers; what executions need while they run is not counted, nor are peaks."""
        self._client.check_open()
        return AllocatorStats(bytes_in_use=sum(a.on_device_size_in_bytes() for a in self.raw.live_buffers()))
