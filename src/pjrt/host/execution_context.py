"""Execution contexts: what a running program can ask about its run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.execute_options import ExecuteOptions
from pjrt.host.launch import Launch

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice


class ExecutionContext:
    """One device's share of a launch, as the function that computes it sees it.

    Attributes:
        device: the device that runs it.
        replica_id: which replica this is.
        partition_id: which partition of the replica.
        device_assignment: the devices of all replicas and partitions.
        options: how the caller wants it run.
        launch: what the shares have in common.
    """

    __slots__ = ("device", "device_assignment", "launch", "options", "partition_id", "replica_id")

    def __init__(
        self,
        device: HostDevice,
        replica_id: int,
        partition_id: int,
        device_assignment: DeviceAssignment,
        options: ExecuteOptions,
        launch: Launch,
    ) -> None:
        self.device = device
        self.replica_id = replica_id
        self.partition_id = partition_id
        self.device_assignment = device_assignment
        self.options = options
        self.launch = launch

    @property
    def run_id(self) -> int:
        """The number of the launch: the same on all of its devices, another for each launch."""
        return self.launch.run_id

    @property
    def launch_id(self) -> int:
        """The number that the caller gave the launch, 0 if none."""
        return self.launch.launch_id

    @property
    def logical_id(self) -> tuple[int, int]:
        """Replica and partition."""
        return self.replica_id, self.partition_id

    def rendezvous(
        self,
        key: Hashable,
        value: Any = None,
        *,
        participants: Sequence[tuple[int, int]] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Meets other shares of the launch under a key and exchanges values: the ground of collectives.

        Args:
            key: names the meeting, such as the operation's number in the program; the same for all who meet.
            value: what this share brings; not copied, so the others must not write to it.
            participants: replica and partition of each who meets, in an order that all agree on; all shares of the
                launch, replica by replica, if not said.
            timeout: the longest time to wait for the others, in seconds; the client's ``collective_timeout`` if not
                said.

        Returns:
            The values of all participants, in their order.

        Raises:
            DeadlineExceededError: somebody did not come in time.
            AbortedError: another share failed, so that it will never come.
        """
        if participants is None:
            rows = self.device_assignment
            participants = [(r, p) for r in range(rows.num_replicas) for p in range(rows.num_partitions)]
        if timeout is None:
            timeout = self.device.client.collective_timeout
        return self.launch.rendezvous(key, self.logical_id, participants, value, timeout)

    def check(self) -> None:
        """Returns if the launch goes on; for long work to look in from time to time.

        Raises:
            AbortedError: another share failed, or the execution was poisoned.
        """
        self.launch.check()
