"""Run contexts: the facts about its run that a running program can read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.errors import UnimplementedError
from pjrt.api.loaded_executable import ExecuteOptions
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host import host_callbacks
from pjrt.host.collective import Collective, LaunchCollective
from pjrt.host.execute_context import HostExecuteContext
from pjrt.host.launch import Launch
from pjrt.host.process_collective import ProcessCollective
from pjrt.host_memory.array import HostArray

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
        program: the name of the program.
        fingerprint: tells the program from others of this name, if it runs on devices of several processes.
    """

    __slots__ = (
        "device",
        "device_assignment",
        "fingerprint",
        "launch",
        "options",
        "partition_id",
        "place",
        "program",
        "replica_id",
    )

    def __init__(
        self,
        run: DeviceRun,
        device_assignment: DeviceAssignment,
        options: ExecuteOptions,
        launch: Launch,
        place: int,
        program: str = "main",
        fingerprint: str = "",
    ) -> None:
        self.device = run.device
        self.replica_id = run.replica
        self.partition_id = run.partition
        self.device_assignment = device_assignment
        self.options = options
        self.launch = launch
        self.place = place
        self.program = program
        self.fingerprint = fingerprint

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
                If they are in several processes, the same in its ``repr``.
            value: this device's value; not copied, so the other devices must not write to it. For devices of other
                processes it consists of arrays, numbers, strings, bytes, lists, tuples and dictionaries.
            participants: the replica and partition of each participant, in an order that all agree on; by default the
                whole launch, replica by replica.
            timeout: the longest time to wait for the others, in seconds; the client's ``collective_timeout`` by
                default.

        Returns:
            The values of all participants, in their order.

        Raises:
            DeadlineExceededError: a participant did not come in time.
            AbortedError: another device of the launch failed, so that it will never come.
            UnavailableError: another process is lost.
            FailedPreconditionError: another process runs another program.
            UnimplementedError: a participant runs in another process, and the processes do not compute together.
        """
        return self.collective(key, participants=participants, timeout=timeout).rendezvous(value)

    def collective(
        self,
        key: Hashable,
        *,
        participants: Sequence[tuple[int, int]] | None = None,
        timeout: float | None = None,
    ) -> Collective:
        """Return a collective of devices of the launch, for one call of one of its methods.

        Where devices of several processes take part, its methods move fewer bytes than a ``rendezvous``.

        Args:
            key, participants, timeout: as ``rendezvous`` has them.

        Raises:
            UnimplementedError: a participant runs in another process, and the processes do not compute together.
        """
        ids = self.device_assignment.device_ids
        if participants is None:
            participants = [(r, p) for r in range(len(ids)) for p in range(len(ids[0]))]
        client = self.device.client
        processes = client.processes
        roster = (
            None
            if processes.is_alone
            else processes.roster(self.device_assignment, participants, f"the collective {key!r}")
        )
        if roster is not None:
            wait = processes.timeout if timeout is None else timeout
            program = (self.program, self.fingerprint)
            return ProcessCollective(self.launch, self.logical_id, key, program, roster, processes, wait)
        wait = client.collective_timeout if timeout is None else timeout
        launch, me, places = self.launch, self.logical_id, participants
        return LaunchCollective(
            lambda value: launch.rendezvous(key, me, places, value, wait), places.index(me) if me in places else -1
        )

    def check_in_process(self, participants: Sequence[tuple[int, int]], name: str) -> None:
        """Raise an error if a participant runs in another process: ``post`` and ``take`` are for devices of one.

        Args:
            participants: replicas and partitions.
            name: a name of the operation, for the message.

        Raises:
            UnimplementedError: a participant runs in another process.
        """
        processes, ids = self.device.client.processes, self.device_assignment.device_ids
        others = [ids[r][p] for r, p in participants if not processes.is_here(ids[r][p])]
        if others:
            raise UnimplementedError(
                f"{name} needs the devices {others} of other processes: values are sent from device to device within a "
                "process only; use a collective, such as collective_permute"
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
        """Return the next value that the host gave to ``HostDevice.infeed.put``; wait for it.

        Raises:
            DeadlineExceededError: none came within the timeout; by default, within the client's ``collective_timeout``
                if the host never asked for ``HostDevice.infeed``, and without a limit if it did.
        """
        return self.device.next_infeed(timeout, self.check)

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
