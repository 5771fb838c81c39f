"""Run contexts: the facts about its run that a running program can read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.errors import UnimplementedError
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host import host_callbacks
from pjrt.host.execute_context import HostExecuteContext
from pjrt.host.launch import Launch
from pjrt.host_memory.aligned import HostArray

if TYPE_CHECKING:
    from pjrt.host.device_run import DeviceRun

T = TypeVar("T")


class RunContext:
    """A run of a program on one device of a launch, as seen by the function that computes it.

    Attributes:
        device: the device.
        replica_id: the replica that it runs.
        partition_id: the partition of the replica.
        device_assignment: the devices of all replicas and partitions.
        options: the caller's execute options.
        launch: what the devices of the launch have in common.
        place: the position of this run among those that the caller started, by which host callbacks are listed.
    """

    __slots__ = ("device", "device_assignment", "launch", "options", "partition_id", "place", "replica_id")

    def __init__(
        self,
        run: DeviceRun,
        device_assignment: DeviceAssignment,
        options: ExecuteOptions,
        launch: Launch,
        place: int,
    ) -> None:
        self.device = run.device
        self.replica_id = run.replica
        self.partition_id = run.partition
        self.device_assignment = device_assignment
        self.options = options
        self.launch = launch
        self.place = place

    @property
    def run_id(self) -> int:
        """The number of the launch: the same on all of its devices, another for each launch."""
        return self.launch.run_id

    @property
    def launch_id(self) -> int:
        """The launch id that the caller gave, 0 for none."""
        return self.launch.launch_id

    @property
    def logical_id(self) -> tuple[int, int]:
        """The replica and the partition."""
        return self.replica_id, self.partition_id

    def rendezvous(
        self,
        key: Hashable,
        value: Any = None,
        *,
        participants: Sequence[tuple[int, int]] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Meet other devices of the launch under a key and exchange values: the basis of collectives.

        Args:
            key: the name of the meeting, such as the operation's number in the program; the same for all participants.
            value: this device's value; not copied, so the other devices must not write to it.
            participants: the replica and partition of each participant, in an order that all agree on; by default the
                whole launch, replica by replica.
            timeout: the longest time to wait for the others, in seconds; the client's ``collective_timeout`` by
                default.

        Returns:
            The values of all participants, in their order.

        Raises:
            DeadlineExceededError: a participant did not come in time.
            AbortedError: another device of the launch failed, so that it will never come.
            UnimplementedError: a participant runs in another process.
        """
        if participants is None:
            rows = self.device_assignment
            participants = [(r, p) for r in range(rows.num_replicas) for p in range(rows.num_partitions)]
        self._check_in_process(key, participants)
        if timeout is None:
            timeout = self.device.client.collective_timeout
        return self.launch.rendezvous(key, self.logical_id, participants, value, timeout)

    def _check_in_process(self, key: Hashable, participants: Sequence[tuple[int, int]]) -> None:
        """Refuse at once a meeting with another process, which has launches of its own and would never come."""
        client = self.device.client
        if len(client.devices) == len(client.addressable_devices):
            return
        ids = self.device_assignment.device_ids
        here = {device.id for device in client.addressable_devices}
        inside = [(r, p) for r, p in participants if 0 <= r < len(ids) and 0 <= p < len(ids[0])]
        others = sorted({ids[r][p] for r, p in inside} - here)
        if others:
            raise UnimplementedError(
                f"a collective ({key!r}) needs the devices {others} of other processes: processes of "
                f"{client.platform_name!r} see each other's devices, but do not compute together; run the program on "
                f"the devices of one process, {sorted(here)}"
            )

    def post(self, key: Hashable, value: Any) -> None:
        """Leave a value for another device of the launch under a key, without waiting: one half of a send between
        devices.

        Values under the same key are taken in the order in which they were left.
        """
        self.launch.post(key, value)

    def take(self, key: Hashable, *, timeout: float | None = None) -> Any:
        """Return the value that another device left under a key; wait for it as ``rendezvous`` does."""
        return self.launch.take(key, self.device.client.collective_timeout if timeout is None else timeout)

    def send(self, channel_id: int, array: HostArray) -> None:
        """Send an array to the host: call the caller's ``SendCallback`` of the channel.

        Raises:
            NotFoundError: the caller gave no callback for the channel.
        """
        host_callbacks.send(self._mine(self.options.send_callbacks), channel_id, array)

    def receive(self, channel_id: int, spec: ShapeSpec) -> HostArray:
        """Receive an array from the host: call the caller's ``RecvCallback`` of the channel, and wait for all bytes.

        Raises:
            NotFoundError: the caller gave no callback for the channel.
            AbortedError: another device of the launch failed, or the execution was poisoned, meanwhile.
        """
        return host_callbacks.receive(self._mine(self.options.recv_callbacks), channel_id, spec, self.check)

    def hand_out(self, callback_id: int, operands: Sequence[HostArray]) -> None:
        """Pass intermediate values to the caller's ``HloOutputCallback`` with this number, if there is one."""
        for entry in self.options.hlo_output_callbacks:
            if entry.callback_id == callback_id:
                for index, operand in enumerate(operands):
                    view = operand.view()
                    view.setflags(write=False)
                    entry.callback(self.replica_id, self.partition_id, view, index)

    def infeed(self, timeout: float | None = None) -> Any:
        """Return the next value that the host gave to ``HostDevice.infeed.put``; wait for it."""
        return self.device.infeed.get(timeout, self.check)

    def outfeed(self, value: Any) -> None:
        """Put a value where the host's ``HostDevice.outfeed.get`` takes it."""
        self.device.outfeed.put(value)

    @property
    def user_data(self) -> Mapping[int, int]:
        """The addresses of a framework's objects in the caller's execute context, by the id of their type."""
        context = self.options.context
        return context.user_data if isinstance(context, HostExecuteContext) else {}

    def check(self) -> None:
        """Raise an error if the launch has ended; long work calls this from time to time.

        Raises:
            AbortedError: another device of the launch failed, the execution was poisoned, or nobody waits for it any
                more: the interpreter is ending, or Ctrl-C ended a framework's wait.
        """
        self.launch.check()

    def _mine(self, callbacks: Sequence[Sequence[T]]) -> Sequence[T]:
        return callbacks[self.place] if self.place < len(callbacks) else ()
