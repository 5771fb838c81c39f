"""Devices of the ``cpu`` device's client: virtual ones, which share the host's processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.device import AllocatorStats, Device, DeviceDescription
from pjrt.api.errors import PjrtError, unimplemented
from pjrt.api.expecting import expect, expect_int
from pjrt.api.memory_space import MemorySpaceDescription
from pjrt.devices.xla import _raw
from pjrt.devices.xla._errors import converted
from pjrt.devices.xla.memory_space import KINDS, XlaMemorySpace

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient


class XlaDeviceDescription(DeviceDescription):
    """What is known of one virtual CPU device."""

    __slots__ = ("_id",)

    def __init__(self, number: int) -> None:
        self._id = number

    @property
    def id(self) -> int:
        return self._id

    @property
    def process_index(self) -> int:
        return 0

    @property
    def kind(self) -> str:
        return "cpu"

    @property
    def memory_space_descriptions(self) -> Sequence[MemorySpaceDescription]:
        return tuple(MemorySpaceDescription(kind, number) for number, kind in enumerate(KINDS))

    @property
    def debug_string(self) -> str:
        return f"CpuDevice(id={self._id})"

    def __str__(self) -> str:
        return f"cpu:{self._id}"


class XlaDevice(Device):
    """One virtual CPU device.

    Attributes:
        raw: jaxlib's device.
        raw_list: a list of it alone, as jaxlib takes devices.
    """

    __slots__ = ("_client", "_description", "_spaces", "raw", "raw_list")

    def __init__(self, client: XlaClient, raw: Any) -> None:
        self._client = client
        self.raw = raw
        self.raw_list = _raw.device_list([raw])
        self._description = XlaDeviceDescription(raw.id)
        memories = {memory.kind: memory for memory in raw.addressable_memories()}
        first = raw.id * len(KINDS)
        self._spaces = tuple(XlaMemorySpace(self, memories[kind], first + number) for number, kind in enumerate(KINDS))

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
        """The bytes of the device's live buffers; what an execution needs while it runs is not counted, and there are
        no peaks.
        """
        return AllocatorStats(bytes_in_use=self._client.bytes_in_use(self))

    def poison_execution(self, launch_id: int, error: PjrtError) -> bool:
        self._client.check_open()
        expect_int(launch_id, "a launch id as a whole number")
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        if not hasattr(self.raw, "poison_execution"):
            raise unimplemented("cpu", "Device.poison_execution with this jaxlib", "use 0.10 or newer")
        try:
            poisoned: bool = self.raw.poison_execution(launch_id, error.message)
        except Exception as failure:
            raise converted(failure) from failure
        return poisoned
