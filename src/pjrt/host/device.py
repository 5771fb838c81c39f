"""The devices of the host runtime, and their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.checks import expect, expect_int
from pjrt.api.device import (
    AllocatorStats,
    AsyncTrackingEvent,
    Attributes,
    Device,
    DeviceDescription,
    MemorySpaceDescription,
)
from pjrt.api.errors import DeadlineExceededError, FailedPreconditionError, PjrtError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.device_memory.allocation import Allocation
from pjrt.host.device_memory.fence_waiter import FenceWaiter
from pjrt.host.infeed import Feed
from pjrt.host.memory_space import HostMemorySpace
from pjrt.host.storage import freeze
from pjrt.host.work_queue import WorkQueue
from pjrt.host_memory.array import HostArray

if TYPE_CHECKING:
    from pjrt.host.client import HostClient
    from pjrt.host.execution import Execution
    from pjrt.host.platform_spec import PlatformSpec


class HostDeviceDescription(DeviceDescription):
    """The description of a device of the host runtime."""

    __slots__ = ("attributes", "id", "kind", "memory_space_descriptions", "process_index")

    attributes: Attributes
    id: int
    kind: str
    memory_space_descriptions: Sequence[MemorySpaceDescription]
    process_index: int

    def __init__(
        self, device_id: int, process_index: int, kind: str, attributes: Attributes, memory_kinds: Sequence[str]
    ) -> None:
        self.id = device_id
        self.process_index = process_index
        self.kind = kind
        self.attributes = dict(attributes)
        kinds = enumerate(memory_kinds)
        self.memory_space_descriptions = tuple(MemorySpaceDescription(name, number) for number, name in kinds)


class HostDevice(Device):
    """A device whose programs run on a thread of this process.

    Attributes:
        compute: the queue on which programs run, one after the other.
        transfers: the queue on which large copies run, so that they do not wait for programs.
        launches: the executions under way that have a launch id, in the order in which they came.
        fences: the work that programs have enqueued on hardware of the device.
        awaits_infeed: whether the host has asked for ``infeed``: a program then waits for its values without a limit.
        outfeed: values from running programs for the host.
    """

    __slots__ = (
        "_infeed",
        "_tracked",
        "awaits_infeed",
        "client",
        "compute",
        "description",
        "fences",
        "is_addressable",
        "launches",
        "local_hardware_id",
        "memory_spaces",
        "outfeed",
        "transfers",
    )

    client: HostClient
    description: HostDeviceDescription
    is_addressable: bool
    local_hardware_id: int
    memory_spaces: tuple[HostMemorySpace, ...]

    def __init__(self, client: HostClient, description: HostDeviceDescription, platform: PlatformSpec) -> None:
        self.client = client
        self.description = description
        member = platform.membership
        self.is_addressable = description.process_index == member.process_index
        memories = description.memory_space_descriptions if self.is_addressable else ()
        first = description.id * len(memories)
        limits = platform.memory_limits
        self.memory_spaces = tuple(
            HostMemorySpace(self, first + m.kind_id, m.kind, m.kind_id, limits.get(m.kind)) for m in memories
        )
        first_here = member.first_device_ids[member.process_index]
        self.local_hardware_id = description.id - first_here if self.is_addressable else -1
        self.launches: dict[Execution, None] = {}
        self._infeed = Feed(f"infeed of {description}")
        self.awaits_infeed = False
        self.outfeed = Feed(f"outfeed of {description}")
        self._tracked: set[HostAsyncTrackingEvent] = set()
        name = f"{platform.name}:{description.id}"
        self.compute = WorkQueue(name)
        self.transfers = WorkQueue(name, "transfers")
        self.fences = FenceWaiter(name)

    @property
    def default_memory_space(self) -> HostMemorySpace:
        if not self.is_addressable:
            raise FailedPreconditionError(
                f"{self} belongs to process {self.process_index}; its memory cannot be reached from here"
            )
        return self.memory_spaces[0]

    @property
    def infeed(self) -> Feed:
        """The values from the host for running programs."""
        self.awaits_infeed = True
        return self._infeed

    def next_infeed(self, timeout: float | None, check: Callable[[], object]) -> Any:
        """Return the next value of the infeed, for a program; see ``Feed.get``.

        Where the host never asks for ``infeed``, as a framework never does, nobody feeds the device. So the program
        waits no longer than it would for another device.

        Raises:
            DeadlineExceededError: no value came in time.
        """
        limit = self.client.collective_timeout if timeout is None else timeout
        try:
            return self._infeed.get(limit, check)
        except DeadlineExceededError as error:
            if timeout is None and self.awaits_infeed:
                return self._infeed.get(None, check)
            raise DeadlineExceededError(
                f"{error.message}: a program waits for values that the host gives to device.infeed.put"
            ) from error

    def memory_space(self, kind: str) -> HostMemorySpace:
        space = super().memory_space(kind)
        assert isinstance(space, HostMemorySpace)
        return space

    def stored(self, array: HostArray, spec: ShapeSpec, space: HostMemorySpace) -> Any:
        """Return a new host array as the value of a storage: frozen, or copied into memory of the device's own."""
        memory = self.client.memory
        return freeze(array) if memory is None else Allocation.of_array(memory, array, spec, space)

    def wait_for_memory(self) -> bool:
        """Wait until work under way has returned memory that it alone holds; return whether there was such work."""
        return self.client.dispatcher.wait_for_memory(self)

    def memory_stats(self) -> AllocatorStats:
        space, memory = self.default_memory_space, self.client.memory
        stats = space.account.stats()
        return stats if memory is None else stats._replace(**memory.stats(space))

    def clear_memory_stats(self) -> None:
        self.default_memory_space.account.clear_peak()

    def poison_execution(self, launch_id: int, error: PjrtError) -> bool:
        expect_int(launch_id, "a launch id as a whole number")
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        # What the device's own queue has begun came before what still waits for its inputs.
        if self.fences.poison_first(error, launch_id):
            return True
        running = [execution for execution in list(self.launches) if execution.launch_id == launch_id]
        return any(execution.poison(error) for execution in running)

    def create_async_tracking_event(self, description: str) -> HostAsyncTrackingEvent:
        expect(description, str, "a description as a str")
        event = HostAsyncTrackingEvent(self._tracked, description)
        self._tracked.add(event)
        return event

    @property
    def tracked(self) -> list[str]:
        """The descriptions of the asynchronous operations under way that ``create_async_tracking_event`` marked."""
        return sorted(event.description for event in list(self._tracked))


class HostAsyncTrackingEvent(AsyncTrackingEvent):
    """A mark that an asynchronous operation goes on, until it is closed.

    Attributes:
        description: the operation.
    """

    __slots__ = ("_among", "description")

    def __init__(self, among: set[HostAsyncTrackingEvent], description: str) -> None:
        self._among = among
        self.description = description

    def close(self) -> None:
        self._among.discard(self)
