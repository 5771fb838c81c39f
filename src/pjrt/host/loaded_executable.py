"""The loaded executables of the host runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_sequence
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.future import Future
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.host.arguments import Arguments
from pjrt.host.device import HostDevice
from pjrt.host.device_run import DeviceRun, device_runs
from pjrt.host.executable import HostExecutable
from pjrt.host.execution import Execution
from pjrt.host.fork_safety import runtime_lock
from pjrt.host.launch import Launch
from pjrt.host.run_context import RunContext
from pjrt.host.storage import Storage

if TYPE_CHECKING:
    from pjrt.host.client import HostClient

_MOST_OPEN_LAUNCHES = 1024
"""How many launches whose shares are run one by one may lack some of them."""


class HostLoadedExecutable(HostExecutable, LoadedExecutable):
    """A compiled program on its devices."""

    __slots__ = (
        "_arguments",
        "_assignment",
        "_client",
        "_deleted",
        "_executable",
        "_launches",
        "_shares",
        "_started",
    )

    def __init__(self, client: HostClient, executable: HostExecutable, assignment: DeviceAssignment) -> None:
        super().__init__(executable.compiled, executable.origin)
        self._client = client
        self._executable = executable
        self._assignment = assignment
        self._arguments = Arguments(executable.compiled)
        self._deleted = False
        portable = executable.origin.options.compile_portable_executable
        devices = () if portable else client.addressable_devices
        self._shares = device_runs(executable.compiled, assignment, devices)
        # For shares that are run one by one: how many each device has run, and launches that are not complete.
        self._started: dict[Device, int] = dict.fromkeys(self._shares, 0)
        self._launches: dict[int, Launch] = {}

    # What it is.

    @property
    def platform_name(self) -> str:
        return self.origin.platform_name

    @property
    def client(self) -> HostClient:
        return self._client

    @property
    def executable(self) -> HostExecutable:
        return self._executable

    @property
    def addressable_devices(self) -> Sequence[HostDevice]:
        return [share.device for share in self._shares.values()]

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return [(share.replica, share.partition) for share in self._shares.values()]

    @property
    def device_assignment(self) -> DeviceAssignment:
        return self._assignment

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
        shares = list(self._shares.values())
        if len(arguments) != len(shares):
            raise InvalidArgumentError(
                f"{self.name!r} runs on {len(shares)} devices: expected as many lists of arguments, found "
                f"{len(arguments)}"
            )
        if len(shares) == 1:
            return [self._run_one(shares[0], arguments[0], options, returned_futures)]
        self._check_usable()
        if returned_futures is not None:
            expect(returned_futures, list, "a list, or None, as returned_futures")
        taken = self._arguments.take(arguments, [share.device for share in shares], options.non_donatable_input_indices)
        launch = Launch(options.launch_id)
        executions = [
            self._execution(share, inputs, options, launch, place)
            for place, (share, inputs) in enumerate(zip(shares, taken, strict=True))
        ]
        self._client.enqueue(executions, [share.device for share in shares])
        if returned_futures is not None:
            returned_futures.extend(execution.definition for execution in executions)
        return [share.buffers(execution) for execution, share in zip(executions, shares, strict=True)]

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        share = self._shares.get(device)
        if share is None:
            raise InvalidArgumentError(
                f"{self.name!r} does not run on {device}; it runs on {', '.join(map(str, self._shares)) or 'any'}"
            )
        return self._run_one(share, arguments, ExecuteOptions.of(options), returned_futures)

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        if self._shares:
            raise InvalidArgumentError(
                f"{self.name!r} was compiled for its own devices; compile it with compile_portable_executable, or use "
                "execute_sharded"
            )
        if not isinstance(device, HostDevice) or device.client is not self._client:
            raise InvalidArgumentError(f"{device} is no device of this client; use one of client.addressable_devices")
        share = DeviceRun.of(self.compiled, device)
        return self._run_one(share, arguments, ExecuteOptions.of(options), returned_futures)

    # Its end.

    @property
    def is_deleted(self) -> bool:
        return self._deleted

    def delete(self) -> None:
        self._deleted = True

    def _run_one(
        self,
        share: DeviceRun,
        arguments: Sequence[Buffer],
        options: ExecuteOptions,
        returned_futures: list[Future[None]] | None,
    ) -> list[Buffer]:
        self._check_usable()
        if returned_futures is not None:
            expect(returned_futures, list, "a list, or None, as returned_futures")
        device = share.device
        (inputs,) = self._arguments.take((arguments,), (device,), options.non_donatable_input_indices)
        launch = None
        if len(self._shares) > 1:
            launch = self._join_launch(device, options.launch_id)
        elif self.compiled.takes_context or options.launch_id:
            launch = Launch(options.launch_id)
        execution = self._execution(share, inputs, options, launch, 0)
        self._client.enqueue((execution,), (device,))
        if returned_futures is not None:
            returned_futures.append(execution.definition)
        return share.buffers(execution)

    def _execution(
        self, share: DeviceRun, inputs: list[Storage], options: ExecuteOptions, launch: Launch | None, place: int
    ) -> Execution:
        compiled = self.compiled
        context = None
        if compiled.takes_context and launch is not None:
            context = RunContext(share.device, share.replica, share.partition, self._assignment, options, launch, place)
        donated = self._arguments.donated(options.non_donatable_input_indices)
        return Execution(compiled, share.device, inputs, donated, share.spaces, launch, context)

    def _join_launch(self, device: Device, launch_id: int) -> Launch:
        """The launch that a share belongs to which is run alone: the n-th share of each device are one launch."""
        with runtime_lock:
            number = self._started[device]
            self._started[device] = number + 1
            launch = self._launches.get(number)
            if launch is None:
                launch = self._launches[number] = Launch(launch_id)
            if all(started > number for started in self._started.values()):
                del self._launches[number]
            elif len(self._launches) > _MOST_OPEN_LAUNCHES:
                # The oldest is not waited for any more: its other devices were never going to be run.
                del self._launches[next(iter(self._launches))]
            return launch

    def _check_usable(self) -> None:
        if self._deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        self._client.check_open()
