"""The loaded executables of the host runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.future import Future
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host import process_life
from pjrt.host.arguments import Arguments
from pjrt.host.buffer import HostBuffer
from pjrt.host.device import HostDevice
from pjrt.host.executable import HostExecutable
from pjrt.host.execution import Execution
from pjrt.host.execution_context import ExecutionContext
from pjrt.host.launch import Launch
from pjrt.host.memory_space import HostMemorySpace

if TYPE_CHECKING:
    from pjrt.host.client import HostClient

_DEFAULT_OPTIONS = ExecuteOptions()


class Share(NamedTuple):
    """The place of one device in a program's device assignment.

    Attributes:
        device: the device.
        replica: which replica it runs.
        partition: which partition of that.
        spaces: the memory of each output; the last one serves for all further outputs.
    """

    device: HostDevice
    replica: int
    partition: int
    spaces: tuple[HostMemorySpace, ...]


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
        self._shares: dict[Device, Share] = {}
        if not executable.origin.options.compile_portable_executable:
            by_id = {device.id: device for device in client.addressable_devices}
            for replica, row in enumerate(assignment.device_ids):
                for partition, device_id in enumerate(row):
                    if device_id in by_id:
                        self._shares[by_id[device_id]] = self._share(by_id[device_id], replica, partition)
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
        options = options or _DEFAULT_OPTIONS
        shares = list(self._shares.values())
        if len(arguments) != len(shares):
            raise InvalidArgumentError(
                f"{self.name!r} runs on {len(shares)} devices: expected as many lists of arguments, found "
                f"{len(arguments)}"
            )
        launch = Launch(options.launch_id)
        return self._run(shares, arguments, options, launch, returned_futures)

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
        options = options or _DEFAULT_OPTIONS
        launch = None
        if len(self._shares) > 1:
            launch = self._join_launch(device, options.launch_id)
        return self._run([share], [arguments], options, launch, returned_futures)[0]

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
        share = self._share(device, 0, 0)
        return self._run([share], [arguments], options or _DEFAULT_OPTIONS, None, returned_futures)[0]

    # Its end.

    @property
    def is_deleted(self) -> bool:
        return self._deleted

    def delete(self) -> None:
        self._deleted = True

    def _share(self, device: HostDevice, replica: int, partition: int) -> Share:
        kinds = self.compiled.output_memory_kinds
        if not kinds:
            return Share(device, replica, partition, (device.default_memory_space,))
        spaces = tuple(device.memory_space(kind) for kind in kinds)
        return Share(device, replica, partition, spaces)  # type: ignore[arg-type]

    def _join_launch(self, device: Device, launch_id: int) -> Launch:
        """The launch that a share belongs to which is run alone: the n-th share of each device are one launch."""
        with process_life.lock:
            number = self._started[device]
            self._started[device] = number + 1
            launch = self._launches.get(number)
            if launch is None:
                launch = self._launches[number] = Launch(launch_id)
            if all(started > number for started in self._started.values()):
                del self._launches[number]
            return launch

    def _run(
        self,
        shares: Sequence[Share],
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions,
        launch: Launch | None,
        returned_futures: list[Future[None]] | None,
    ) -> list[list[Buffer]]:
        if self._deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        self._client.check_open()
        compiled = self.compiled
        kept = options.non_donatable_input_indices
        taken = self._arguments.take(arguments, [share.device for share in shares], kept)
        donated = self._arguments.donated(kept)
        executions = []
        if launch is None and (compiled.takes_context or options.launch_id):
            launch = Launch(options.launch_id)
        for place, (share, inputs) in enumerate(zip(shares, taken, strict=True)):
            context = None
            if compiled.takes_context and launch is not None:
                context = ExecutionContext(
                    share.device, share.replica, share.partition, self._assignment, options, launch, place
                )
            executions.append(Execution(compiled, share.device, inputs, donated, share.spaces, launch, context))
        self._client.enqueue(executions, [share.device for share in shares])
        if returned_futures is not None:
            returned_futures.extend(execution.definition for execution in executions)
        return [_output_buffers(e, share, compiled.outputs) for e, share in zip(executions, shares, strict=True)]


def _output_buffers(execution: Execution, share: Share, specs: Sequence[ShapeSpec] | None) -> list[Buffer]:
    if specs is None:
        # What there will be, only the function knows.
        execution.definition.result()
        specs = [ShapeSpec.of(storage.array) for storage in execution.outputs or ()]
    storages = execution.outputs or ()
    last = len(share.spaces) - 1
    return [
        HostBuffer(share.device, share.spaces[min(number, last)], spec.shape, spec.element_type, storages[number])
        for number, spec in enumerate(specs)
    ]
