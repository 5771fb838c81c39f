"""The devices of other processes of a job: they can be named, and not used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.device import AllocatorStats, Device
from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.devices.xla.device import XlaDeviceDescription

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.devices.xla.memory_space import XlaMemorySpace


class XlaRemoteDevice(Device):
    """A virtual CPU device of another process.

    Attributes:
        jaxlib_device: jaxlib's device, which is not addressable, too.
    """

    __slots__ = ("_client", "_description", "jaxlib_device")

    def __init__(self, client: Client, jaxlib_device: Any) -> None:
        self._client = client
        self.jaxlib_device = jaxlib_device
        self._description = XlaDeviceDescription(jaxlib_device.id, jaxlib_device.process_index)

    @property
    def client(self) -> Client:
        return self._client

    @property
    def description(self) -> XlaDeviceDescription:
        return self._description

    def __str__(self) -> str:
        return self._description.debug_string

    @property
    def is_addressable(self) -> bool:
        return False

    @property
    def local_hardware_id(self) -> int:
        return -1

    @property
    def memory_spaces(self) -> Sequence[XlaMemorySpace]:
        return ()

    @property
    def default_memory_space(self) -> XlaMemorySpace:
        raise self._elsewhere("its memory")

    def memory_stats(self) -> AllocatorStats:
        raise self._elsewhere("the state of its memory")

    def poison_execution(self, launch_id: int, error: PjrtError) -> bool:
        raise self._elsewhere("its executions")

    def _elsewhere(self, subject: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{self} belongs to process {self.process_index}: {subject} cannot be reached from process "
            f"{self._client.process_index}; use one of client.addressable_devices"
        )
