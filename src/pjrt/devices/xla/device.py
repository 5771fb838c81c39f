"""The virtual devices of a ``cpu`` client, which share the host's processor, and their memory spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.checks import expect, expect_int
from pjrt.api.client import Client
from pjrt.api.device import AllocatorStats, Device, DeviceDescription, MemorySpace, MemorySpaceDescription
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError, unimplemented
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import converted

if TYPE_CHECKING:
    from pjrt.devices.xla.runtime import Runtime


DEVICE, PINNED_HOST, UNPINNED_HOST = KINDS = ("device", "pinned_host", "unpinned_host")
"""The kinds of memory in the order of their ``kind_id``; a device's default kind comes first."""


class XlaMemorySpace(MemorySpace):
    """One kind of memory of one device.

    Attributes:
        placement: the same place in jaxlib's terms.
    """

    __slots__ = ("_device", "_id", "_kind", "_text", "placement")

    def __init__(self, device: XlaDevice, jaxlib_memory: Any, number: int) -> None:
        self._device = device
        self._id = number
        self._kind: str = jaxlib_memory.kind
        self._text = str(jaxlib_memory)
        self.placement = _jaxlib.Placement(device.jaxlib_device, self._kind)

    @property
    def client(self) -> Client:
        return self._device.client

    @property
    def id(self) -> int:
        return self._id

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def kind_id(self) -> int:
        return KINDS.index(self._kind)

    @property
    def device(self) -> XlaDevice:
        """The one device that can address it."""
        return self._device

    @property
    def devices(self) -> Sequence[XlaDevice]:
        return (self._device,)

    @property
    def debug_string(self) -> str:
        return self._text


IDS_OF_A_PROCESS = 2048
"""The distance between the ids of the first devices of two processes: XLA's own, so an id is no index."""


class XlaDeviceDescription(DeviceDescription):
    """The description of one virtual CPU device."""

    __slots__ = ("_id", "_process_index")

    def __init__(self, number: int, process_index: int = 0) -> None:
        self._id = number
        self._process_index = process_index

    @property
    def id(self) -> int:
        return self._id

    @property
    def process_index(self) -> int:
        return self._process_index

    @property
    def kind(self) -> str:
        return "cpu"

    @property
    def memory_space_descriptions(self) -> Sequence[MemorySpaceDescription]:
        return tuple(MemorySpaceDescription(kind, number) for number, kind in enumerate(KINDS))

    @property
    def debug_string(self) -> str:
        return f"cpu:{self._id}"

    def __str__(self) -> str:
        return f"CpuDevice(id={self._id})"  # as XLA's own client has it: JAX shows it as the device's repr


class _CpuDevice(Device):
    """A virtual CPU device, of this process or of another one of the job.

    Attributes:
        jaxlib_device: jaxlib's device.
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


class XlaDevice(_CpuDevice):
    """One virtual CPU device.

    Attributes:
        runtime: the runtime that the device belongs to.
    """

    __slots__ = ("_spaces", "runtime")

    def __init__(self, client: Client, runtime: Runtime, jaxlib_device: Any) -> None:
        super().__init__(client, jaxlib_device)
        self.runtime = runtime
        memories = {memory.kind: memory for memory in jaxlib_device.addressable_memories()}
        first = jaxlib_device.id * len(KINDS)
        self._spaces = tuple(XlaMemorySpace(self, memories[kind], first + number) for number, kind in enumerate(KINDS))

    @property
    def is_addressable(self) -> bool:
        return True

    @property
    def local_hardware_id(self) -> int:
        number: int = self.jaxlib_device.local_hardware_id
        return number

    @property
    def memory_spaces(self) -> Sequence[XlaMemorySpace]:
        return self._spaces

    @property
    def default_memory_space(self) -> XlaMemorySpace:
        return self._spaces[0]

    def memory_stats(self) -> AllocatorStats:
        """Return the bytes of the device's live buffers.

        The memory that an execution needs while it runs is not counted, and there are no peaks.
        """
        return AllocatorStats(bytes_in_use=self.runtime.bytes_in_use(self.jaxlib_device))

    def poison_execution(self, launch_id: int, error: PjrtError) -> bool:
        self.runtime.check_open()
        expect_int(launch_id, "a launch id as a whole number")
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        if not hasattr(self.jaxlib_device, "poison_execution"):
            raise unimplemented("cpu", "Device.poison_execution with this jaxlib", "use 0.10 or newer")
        try:
            is_poisoned: bool = self.jaxlib_device.poison_execution(launch_id, error.message)
        except Exception as failure:
            raise converted(failure) from failure
        return is_poisoned


def memory_space_of(place: Device | MemorySpace, runtime: Runtime) -> XlaMemorySpace:
    """Return the memory space that a device (its default one) or a memory space of a runtime stands for.

    Raises:
        InvalidArgumentError: the place belongs to another client.
    """
    if isinstance(place, XlaDevice) and place.runtime is runtime:
        return place.default_memory_space
    if isinstance(place, XlaMemorySpace) and place.device.runtime is runtime:
        return place
    if isinstance(place, Device) and not place.is_addressable:
        raise UnimplementedError(
            f"{place} belongs to process {place.process_index}, which has to take part in a copy to its memory: use "
            "client.cross_host_send_buffers here and client.cross_host_receive_buffers there, or "
            "pjrt.ifrt.Client.copy_arrays in both"
        )
    expect(place, (Device, MemorySpace), "a device or memory space of this client")
    raise InvalidArgumentError(
        f"{place!r} belongs to another client; use one of client.addressable_devices or client.memory_spaces, or "
        "copy by way of the host"
    )


class XlaPeerDevice(_CpuDevice):
    """A virtual CPU device of another process of the job: it can be named, and not used."""

    __slots__ = ()

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
