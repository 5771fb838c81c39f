"""Devices of a cluster and their descriptions: each is a device of one member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from pjrt.api.device import AllocatorStats, Attributes, Device, DeviceDescription, MemorySpace, MemorySpaceDescription
from pjrt.api.errors import FailedPreconditionError, PjrtError, UnimplementedError
from pjrt.clusters.client.memory_space import ClusterMemorySpace

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient
    from pjrt.clusters.client.member import Member


T = TypeVar("T")


class ClusterDeviceDescription(DeviceDescription):
    """A device of a member, with its host and its process.

    Args:
        inner: the description of the member's client.
        member: the member.
        spaces: the memory spaces of the device, its default one first.
    """

    __slots__ = ("attributes", "id", "kind", "memory_space_descriptions", "text", "worker")

    attributes: Attributes
    id: int
    kind: str
    memory_space_descriptions: Sequence[MemorySpaceDescription]

    def __init__(self, inner: DeviceDescription, member: Member, spaces: Sequence[ClusterMemorySpace]) -> None:
        self.id = inner.id
        self.kind = inner.kind
        self.worker = worker = member.worker_of(inner)
        self.text = member.describe(inner)
        self.attributes = {**inner.attributes, "host": worker.host, "process": worker.process_index}
        self.memory_space_descriptions = tuple(MemorySpaceDescription(space.kind, space.kind_id) for space in spaces)

    @property
    def process_index(self) -> int:
        return 0  # one process, the controller, addresses all of them

    @property
    def debug_string(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self.text if self.worker.loss is None else f"{self.text[:-1]}, lost)"


class ClusterDevice(Device):
    """A device of a cluster.

    Args:
        client: the client of the cluster.
        member: the member that has the device.
        inner: the device of the member's client.
        number: the number of the device among those of the cluster.
        spaces: the cluster's memory spaces by those of the member's client.

    Attributes:
        member: the member that has the device.
        worker: the member of the worker that has the device: the same one, or one of a branch.
        inner: the device of the member's client.
        spaces: the cluster's memory spaces by those of the member's client.
    """

    __slots__ = ("client", "description", "inner", "local_hardware_id", "member", "memory_spaces", "spaces", "worker")

    client: ClusterClient
    description: ClusterDeviceDescription
    local_hardware_id: int
    memory_spaces: tuple[ClusterMemorySpace, ...]

    def __init__(
        self,
        client: ClusterClient,
        member: Member,
        inner: Device,
        number: int,
        spaces: Mapping[MemorySpace, ClusterMemorySpace],
    ) -> None:
        self.client = client
        self.member = member
        self.inner = inner
        self.local_hardware_id = number
        self.spaces = spaces
        self.memory_spaces = tuple(spaces[space] for space in inner.memory_spaces)
        self.description = ClusterDeviceDescription(inner.description, member, self.memory_spaces)
        self.worker = self.description.worker

    @property
    def is_addressable(self) -> bool:
        return True

    @property
    def default_memory_space(self) -> ClusterMemorySpace:
        return self.spaces[self.inner.default_memory_space]

    def memory_stats(self) -> AllocatorStats:
        return self._ask(self.inner.memory_stats)

    def clear_memory_stats(self) -> None:
        self._ask(self.inner.clear_memory_stats)

    def poison_execution(self, launch_id: int, error: PjrtError) -> bool:
        self.worker.check()
        try:
            return self.inner.poison_execution(launch_id, error)
        except PjrtError as failure:
            self.fail(failure)

    def _ask(self, question: Callable[[], T]) -> T:
        """Return the answer of the member's client; that of its worker where the way to it has no such request."""
        from pjrt.clusters.client.host_functions import call_at  # that module knows devices

        self.worker.check()
        try:
            return question()
        except UnimplementedError as error:
            if not hasattr(self.member.client, "call_function"):
                self.fail(error)
        except PjrtError as error:
            self.fail(error)
        answer: T = call_at(self, f"pjrt.clusters.workers.host_client:{question.__name__}")
        return answer

    def named(self, error: PjrtError) -> PjrtError:
        """Return an error of the member's client with the name of this device."""
        return self.worker.named(error, self.description.text)

    def fail(self, error: PjrtError) -> NoReturn:
        """Raise an error of the member's client with the name of this device."""
        raise self.named(error) from None


class OutsideDevice(Device):
    """A device of the job that no member of the cluster has: programs may run on it, but not from here.

    An inner node of a tree of controllers has the devices of its own workers, and compiles programs for all.

    Args:
        client: the client of the cluster.
        inner: the device of a member's client.
    """

    __slots__ = ("client", "description", "local_hardware_id", "memory_spaces")

    client: ClusterClient
    description: DeviceDescription
    local_hardware_id: int
    memory_spaces: tuple[ClusterMemorySpace, ...]

    def __init__(self, client: ClusterClient, inner: Device) -> None:
        self.client = client
        self.description = inner.description
        self.local_hardware_id = -1
        self.memory_spaces = ()

    @property
    def is_addressable(self) -> bool:
        return False

    @property
    def default_memory_space(self) -> ClusterMemorySpace:
        raise FailedPreconditionError(
            f"{self} has no memory space that this client can reach; use one of client.addressable_devices"
        )
