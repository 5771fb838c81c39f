"""The virtual devices of a ``cpu`` client, which share the host's processor, and their memory spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.checks import expect, expect_int
from pjrt.api.client import Client
from pjrt.api.device import AllocatorStats, DescribedDevice, Device, DeviceFacts, MemorySpace, MemorySpaceFacts
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError, unimplemented
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import converted

if TYPE_CHECKING:
    from pjrt.devices.xla.runtime import Runtime


DEVICE, PINNED_HOST, UNPINNED_HOST = KINDS = ("device", "pinned_host", "unpinned_host")
"""The kinds of memory in the order of their ``kind_id``; a device's default kind comes first."""


class XlaMemorySpace(MemorySpaceFacts):
    """One kind of memory of one device.

    Attributes:
        device: the one device that can address it.
        placement: the same place in jaxlib's terms.
    """

    __slots__ = ("device", "placement")

    devices: Sequence[XlaDevice]

    def __init__(self, device: XlaDevice, jaxlib_memory: Any, number: int) -> None:
        kind: str = jaxlib_memory.kind
        super().__init__(device.client, number, kind, KINDS.index(kind), debug_string=str(jaxlib_memory))
        self.device = device
        self.devices = (device,)
        self.placement = _jaxlib.Placement(device.jaxlib_device, kind)


IDS_OF_A_PROCESS = 2048
"""The distance between the ids of the first devices of two processes: XLA's own, so an id is no index."""


def describe(number: int, process_index: int = 0) -> DeviceFacts:
    """Return the description of one virtual CPU device."""
    # As XLA's own client has it: JAX shows it as the device's repr.
    text = f"CpuDevice(id={number})"
    return DeviceFacts(number, process_index, "cpu", KINDS, text=text, debug_string=f"cpu:{number}")


class XlaDevice(DescribedDevice[XlaMemorySpace]):
    """One virtual CPU device, of this process.

    Attributes:
        jaxlib_device: jaxlib's device.
        runtime: the runtime that the device belongs to.
    """

    __slots__ = ("jaxlib_device", "runtime")

    def __init__(self, client: Client, runtime: Runtime, jaxlib_device: Any) -> None:
        description = describe(jaxlib_device.id, jaxlib_device.process_index)
        super().__init__(client, description, (), jaxlib_device.local_hardware_id)
        self.jaxlib_device = jaxlib_device
        self.runtime = runtime
        memories = {memory.kind: memory for memory in jaxlib_device.addressable_memories()}
        first = jaxlib_device.id * len(KINDS)
        self.memory_spaces = tuple(
            XlaMemorySpace(self, memories[kind], first + number) for number, kind in enumerate(KINDS)
        )

    def __str__(self) -> str:
        return self.description.debug_string

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


class XlaPeerDevice(DescribedDevice[XlaMemorySpace]):
    """A virtual CPU device of another process of the job: it can be named, and not used."""

    __slots__ = ()

    def __init__(self, client: Client, jaxlib_device: Any) -> None:
        description = describe(jaxlib_device.id, jaxlib_device.process_index)
        super().__init__(client, description, (), -1, is_addressable=False)

    def memory_stats(self) -> AllocatorStats:
        raise self.elsewhere("the state of its memory")

    def poison_execution(self, launch_id: int, error: PjrtError) -> bool:
        raise self.elsewhere("its executions")

    def __str__(self) -> str:
        return self.description.debug_string
