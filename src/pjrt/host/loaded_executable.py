"""The loaded executables of the host runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_sequence, wrong_number_of_rows
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions, LoadedExecutable
from pjrt.host.arguments import Arguments
from pjrt.host.device import HostDevice
from pjrt.host.device_memory.execution import DeviceExecution
from pjrt.host.device_memory.short_path import ShortPath
from pjrt.host.device_run import DeviceRun, device_runs
from pjrt.host.dispatch import hand_over
from pjrt.host.executable import HostExecutable
from pjrt.host.execution import Execution
from pjrt.host.fork_safety import runtime_lock
from pjrt.host.launch import Launch
from pjrt.host.run_context import RunContext
from pjrt.host.storage import READY, Storage
from pjrt.host.value_path import HostValuePath

if TYPE_CHECKING:
    from pjrt.host.client import HostClient

_MOST_OPEN_LAUNCHES = 1024
"""The most launches that may lack devices, where ``execute_sharded`` starts them one device at a time."""


class HostLoadedExecutable(HostExecutable, LoadedExecutable):
    """A compiled program on its devices."""

    __slots__ = (
        "_arguments",
        "_fingerprint",
        "_launches",
        "_processes",
        "_runs",
        "_short_path",
        "_started",
        "_value_path",
        "client",
        "device_assignment",
        "executable",
        "is_deleted",
    )

    client: HostClient
    device_assignment: DeviceAssignment
    executable: HostExecutable
    is_deleted: bool

    def __init__(self, client: HostClient, executable: HostExecutable) -> None:
        super().__init__(executable.compiled, executable.origin)
        self.client = client
        self.executable = executable
        assignment = self.device_assignment = _assignment(client, executable.origin.options)
        self._arguments = Arguments(executable.compiled)
        self.is_deleted = False
        portable = executable.origin.options.compile_portable_executable
        devices = () if portable else client.addressable_devices
        self._runs = device_runs(executable.compiled, assignment, devices)
        self._processes = client.processes if client.processes.spans(assignment) else None
        self._fingerprint: str | None = None  # computed when it is first needed
        self._check_participants()
        self._short_path = ShortPath.of(executable.compiled, tuple(self._runs.values()), client.memory)
        self._value_path: HostValuePath | None = None
        if self._processes is None:
            self._value_path = HostValuePath.of(executable.compiled, tuple(self._runs.values()), self._lone_context)
        # For execute_sharded: how many runs each device has started, and the launches that lack devices.
        self._started: dict[Device, int] = dict.fromkeys(self._runs, 0)
        self._launches: dict[int, Launch] = {}

    # The program and its devices.

    @property
    def platform_name(self) -> str:
        return self.origin.platform_name

    @property
    def addressable_devices(self) -> Sequence[HostDevice]:
        return [run.device for run in self._runs.values()]

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return [(run.replica, run.partition) for run in self._runs.values()]

    # Running it.

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        options = ExecuteOptions.of(options)
        arguments = expect_sequence(arguments, "one list of arguments a device")
        runs = list(self._runs.values())
        if len(arguments) != len(runs):
            raise wrong_number_of_rows(self.name, len(runs), len(arguments))
        if len(runs) == 1:
            return [self._run_one(runs[0], arguments[0], options, returned_futures)]
        self._check_usable()
        if returned_futures is not None:
            expect(returned_futures, list, "a list, or None, as returned_futures")
        donated = self._arguments.donated(options.non_donatable_input_indices)
        inputs = self._arguments.take(arguments, [run.device for run in runs], donated)
        launch = Launch(options.launch_id, self._processes)
        executions = [
            self._execution(run, row, donated, options, launch, place)
            for place, (run, row) in enumerate(zip(runs, inputs, strict=True))
        ]
        self.client.dispatcher.enqueue(executions)
        if returned_futures is not None:
            returned_futures.extend(execution.definition for execution in executions)
        return [run.buffers(execution) for execution, run in zip(executions, runs, strict=True)]

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        run = self._runs.get(device)
        if run is None:
            raise InvalidArgumentError(
                f"{self.name!r} does not run on {device}; it runs on {', '.join(map(str, self._runs)) or 'any'}"
            )
        return self._run_one(run, arguments, ExecuteOptions.of(options), returned_futures)

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        if self._runs:
            raise InvalidArgumentError(
                f"{self.name!r} was compiled for its own devices; compile it with compile_portable_executable, or use "
                "execute_sharded"
            )
        if not isinstance(device, HostDevice) or device.client is not self.client:
            raise InvalidArgumentError(f"{device} is no device of this client; use one of client.addressable_devices")
        run = DeviceRun.of(self.compiled, device)
        return self._run_one(run, arguments, ExecuteOptions.of(options), returned_futures)

    def value_path(self) -> HostValuePath | None:
        return self._value_path

    # Its end.

    def delete(self) -> None:
        self.is_deleted = True
        if self._value_path is not None:
            self._value_path.is_closed = True

    def _run_one(
        self,
        run: DeviceRun,
        arguments: Sequence[Buffer],
        options: ExecuteOptions,
        returned_futures: list[Future[None]] | None,
    ) -> list[Buffer]:
        self._check_usable()
        if returned_futures is not None:
            expect(returned_futures, list, "a list, or None, as returned_futures")
        device = run.device
        donated = self._arguments.donated(options.non_donatable_input_indices)
        (inputs,) = self._arguments.take((arguments,), (device,), donated)
        outcome = None
        if self._short_path is not None and not options.launch_id:
            outcome = self._short_path.call(inputs)
            buffers = None if outcome is None else self._short_path.buffers(outcome, inputs)
            if buffers is not None:
                if returned_futures is not None:
                    returned_futures.append(READY)
                return buffers
        launch = None
        if len(self._runs) > 1:
            launch = self._join_launch(device, options.launch_id)
        elif self.compiled.takes_context or options.launch_id:
            launch = Launch(options.launch_id, self._processes)
        execution = self._execution(run, inputs, donated, options, launch, 0)
        if outcome is not None and isinstance(execution, DeviceExecution):
            execution.outcome = outcome
            execution.run()
            hand_over(execution)
        else:
            self.client.dispatcher.enqueue((execution,))
        if returned_futures is not None:
            returned_futures.append(execution.definition)
        return run.buffers(execution)

    def _execution(
        self,
        run: DeviceRun,
        inputs: list[Storage],
        donated: frozenset[int],
        options: ExecuteOptions,
        launch: Launch | None,
        place: int,
    ) -> Execution:
        context = None
        if self.compiled.takes_context and launch is not None:
            context = RunContext(
                run, self.device_assignment, options, launch, place, self.name, self._fingerprint_in_job()
            )
        execution = Execution if self.client.memory is None else DeviceExecution
        return execution(self.compiled, run, inputs, donated, launch, context)

    def _lone_context(self) -> RunContext:
        """Return a context for runs with default options on the only device."""
        (run,) = self._runs.values()
        return RunContext(run, self.device_assignment, ExecuteOptions(), Launch(), 0, self.name)

    def _fingerprint_in_job(self) -> str:
        """Return the program's fingerprint if it runs on devices of several processes; empty if not."""
        if self._fingerprint is None:
            self._fingerprint = self.client.fingerprint_of(self.executable) if self._processes is not None else ""
        return self._fingerprint

    def _join_launch(self, device: Device, launch_id: int) -> Launch:
        """Return the launch of a run that is started alone: the n-th runs of all devices are one launch."""
        with runtime_lock:
            number = self._started[device]
            self._started[device] = number + 1
            launch = self._launches.get(number)
            if launch is None:
                launch = self._launches[number] = Launch(launch_id, self._processes)
            if all(started > number for started in self._started.values()):
                del self._launches[number]
            elif len(self._launches) > _MOST_OPEN_LAUNCHES:
                # Forget the oldest: its other devices will hardly be started any more.
                del self._launches[next(iter(self._launches))]
            return launch

    def _check_participants(self) -> None:
        """Check that the devices that take part in a collective can meet.

        Raises:
            UnimplementedError: they are in processes that cannot exchange values.
        """
        participants = self.compiled.participants
        if self._processes is None or participants is None:
            return
        assignment = self.device_assignment
        for run in self._runs.values():
            place = (run.replica, run.partition)
            for group in participants(place, assignment.num_replicas, assignment.num_partitions):
                self._processes.roster(assignment, group, f"a collective of the program {self.name!r}")

    def _check_usable(self) -> None:
        if self.is_deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        self.client.check_open()


def _assignment(client: HostClient, options: CompileOptions) -> DeviceAssignment:
    """Return the devices that a program runs on by its options.

    Raises:
        NotFoundError: the client has no device with one of the ids.
    """
    assignment = options.device_assignment
    how = options.partitioning
    if assignment is None and options.device_ordinal > 0 and how.num_devices == 1:
        device = client.lookup_addressable_device(options.device_ordinal)
        assignment = DeviceAssignment(((device.id,),))
    if assignment is None:
        assignment = client.default_device_assignment(how.num_replicas, how.num_partitions)
    for row in assignment.device_ids:
        for device_id in row:
            client.lookup_device(device_id)
    return assignment
