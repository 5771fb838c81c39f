"""Executables of a server, loaded on its devices: an execution is one message that nobody waits for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_sequence, wrong_number_of_rows
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.future import Future
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.remote.client.arguments import Arguments, check_options
from pjrt.remote.client.buffer import RemoteBuffer
from pjrt.remote.client.device import RemoteDevice
from pjrt.remote.client.executable import CompiledProgram, RemoteExecutable
from pjrt.remote.client.execution_future import ExecutionFuture
from pjrt.remote.client.launch import Launch
from pjrt.remote.client.program_types import shares_values
from pjrt.remote.client.value_placement import placements
from pjrt.remote.protocol.messages import wire

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient


class RemoteLoadedExecutable(RemoteExecutable, LoadedExecutable):
    """A program on devices of a server.

    Attributes:
        parameters: the parameters on their devices.
        results: the results on their devices.
        arguments: the checks of the arguments.
    """

    __slots__ = (
        "__dict__",
        "_alone",
        "_is_deleted",
        "_is_dynamic",
        "_launches",
        "addressable_devices",
        "arguments",
        "client",
        "device_assignment",
        "executable",
        "parameters",
        "results",
    )

    addressable_devices: Sequence[RemoteDevice]
    client: RemoteClient
    device_assignment: DeviceAssignment
    executable: RemoteExecutable

    def __init__(self, client: RemoteClient, compiled: CompiledProgram) -> None:
        super().__init__(compiled)
        self.client = client
        self.executable = RemoteExecutable(compiled)
        assignment = self.device_assignment = _assignment(compiled)
        is_portable = compiled.options.compile_portable_executable
        ids = [] if is_portable else [number for row in assignment.device_ids for number in row]
        devices = [device for number in ids if isinstance(device := client.lookup_device(number), RemoteDevice)]
        self.addressable_devices = tuple(device for device in devices if device.is_addressable)
        self._is_deleted = False
        self._alone: dict[RemoteDevice, RemoteLoadedExecutable] = {}
        types = compiled.types
        self._is_dynamic = any(value.local is None for value in types.results)
        self.parameters = placements(
            client, types.parameters, self.parameter_memory_kinds, None, devices, self.num_replicas
        )
        self.results = placements(
            client,
            types.results,
            self.output_memory_kinds,
            None if self._is_dynamic else self.output_layouts,
            devices,
            self.num_replicas,
        )
        self.arguments = Arguments(client, self.name, self.parameters, compiled.donated)
        # On one device of a job's several, the arguments and results are arrays over all of them, too.
        self._launches = client.launches_of(self) if len(devices) > 1 and self.addressable_devices else None

    @property
    def platform_name(self) -> str:
        return self.compiled.platform_name

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return [self.device_assignment.logical_ids(device.id) for device in self.addressable_devices]

    # Running it.

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        options = self._begin(options, returned_futures)
        rows = expect_sequence(arguments, "one list of arguments a device")
        devices = self.addressable_devices
        if len(rows) != len(devices):
            raise wrong_number_of_rows(self.name, len(devices), len(rows))
        if self._launches is None and devices:
            return [self._run_one(rows[0], 0, options, returned_futures)]
        rows = [expect_sequence(row, "the arguments as a list of buffers") for row in rows]
        for place, (row, device) in enumerate(zip(rows, devices, strict=True)):
            self.arguments.check(row, place, device)
            for buffer in row:
                buffer.check()  # type: ignore[attr-defined]  # a RemoteBuffer; before any is donated
        launch = Launch(self, options)
        results: list[list[Buffer]] = []
        for place, row in enumerate(rows):
            buffers, future = launch.start(place, row, returned_futures is not None)
            results.append(list(buffers))
            if returned_futures is not None and future is not None:
                returned_futures.append(future)
        launch.send()
        return results

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        options = self._begin(options, returned_futures)
        devices = self.addressable_devices
        if device not in devices:
            raise InvalidArgumentError(
                f"{self.name!r} does not run on {device}; it runs on {', '.join(map(str, devices)) or 'any'}"
            )
        place = devices.index(device)
        if self._launches is None:
            return self._run_one(arguments, place, options, returned_futures)
        if self._is_independent:
            alone = self._for_device(devices[place])
            return alone.execute_sharded(arguments, device, options, returned_futures=returned_futures)
        row = expect_sequence(arguments, "the arguments as a list of buffers")
        self.arguments.check(row, place, devices[place])
        results, future = self._launches.start(place, row, options, returned_futures is not None)
        if returned_futures is not None and future is not None:
            returned_futures.append(future)
        return list(results)

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        options = self._begin(options, returned_futures)
        if self.addressable_devices:
            raise InvalidArgumentError(
                f"{self.name!r} was compiled for its own devices; compile it with compile_portable_executable, or use "
                "execute_sharded"
            )
        if not isinstance(device, RemoteDevice) or device.client is not self.client:
            raise InvalidArgumentError(f"{device} is no device of this client; use one of client.addressable_devices")
        place = self._for_device(device)
        return place.execute_sharded(arguments, device, options, returned_futures=returned_futures)

    @functools.cached_property
    def _is_independent(self) -> bool:
        """Whether each device computes by itself, so that a run on one of them need not wait for the others.

        PyTorch/XLA compiles each program for all devices, and runs it on one of them.
        """
        return self.num_partitions == 1 and not shares_values(self.compiled.program)

    def _for_device(self, device: RemoteDevice) -> RemoteLoadedExecutable:
        """Return this executable for one device alone: the server compiles it there at the first use.

        The protocol's executions are on all devices of an executable.
        """
        executable = self._alone.get(device)
        if executable is None:
            options = replace(
                self.compiled.options,
                num_replicas=1,
                compile_portable_executable=False,
                device_assignment=DeviceAssignment(((device.id,),)),
            )
            executable = self._alone[device] = self.client.compile(self.compiled.program, options)
        return executable

    def _run_one(
        self,
        arguments: Sequence[Buffer],
        place: int,
        options: ExecuteOptions,
        returned_futures: list[Future[None]] | None,
    ) -> list[Buffer]:
        row: Any = expect_sequence(arguments, "the arguments as a list of buffers")
        self.arguments.check(row, place, self.addressable_devices[place])
        donated = self.arguments.donated(options)
        handles = [buffer.handle() for buffer in row]
        self.arguments.take((row,), donated)
        connection = self.client.connection
        future = None if returned_futures is None else ExecutionFuture(connection)
        status = 0 if future is None else future.handle
        results: list[RemoteBuffer] = [
            RemoteBuffer(result.types[place], connection.new_handle())  # type: ignore[arg-type]  # static shapes
            for result in self.results
        ]
        self.send(handles, [buffer.handle() for buffer in results], options, status)
        if donated:
            self.arguments.release((row,), donated)
        if returned_futures is not None and future is not None:
            for buffer in results:
                buffer.set_ready(future)
            returned_futures.append(future)
        return results  # type: ignore[return-value]  # buffers

    def send(
        self,
        arguments: Sequence[int],
        results: Sequence[int],
        options: ExecuteOptions,
        status: int,
    ) -> None:
        """Send an execution.

        Args:
            arguments: the handles of the arguments.
            results: the handles that the results get.
            options: the execute options.
            status: the handle that the end of the execution gets; 0 for none.
        """
        request = wire.IfrtRequest()
        body = request.loaded_executable_execute_request
        body.loaded_executable_handle = self.compiled.handle
        body.args_handles.extend(arguments)
        body.result_array_handle.extend(results)
        settings = body.execute_options
        settings.SetInParent()
        if status:
            body.result_status_handle = status
            settings.fill_status = True
        if options.launch_id:
            settings.launch_id = options.launch_id
        if options.non_donatable_input_indices:
            settings.non_donatable_input_indices.extend(sorted(options.non_donatable_input_indices))
        self.client.connection.send(request)

    def _begin(self, options: ExecuteOptions | None, returned_futures: list[Future[None]] | None) -> ExecuteOptions:
        """Return the execute options, if the executable can be used.

        Raises:
            FailedPreconditionError: it was deleted, or the client is closed.
            UnavailableError: the connection is broken.
            UnimplementedError: the options, or the program's results, have no place in the protocol.
        """
        if self._is_deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        connection = self.client.connection
        connection.wait_for_room()
        connection.check()
        if self._is_dynamic:
            raise UnimplementedError(
                f"{self.name!r} has results whose shapes are known only when it runs, and the IFRT proxy protocol has "
                "none of these; compile it with shapes=…"
            )
        if returned_futures is not None:
            expect(returned_futures, list, "a list, or None, as returned_futures")
        if options is None:
            return _DEFAULT
        check_options(ExecuteOptions.of(options), self.name)
        return options

    # Its end.

    @property
    def is_deleted(self) -> bool:
        return self._is_deleted

    def delete(self) -> None:
        self._is_deleted = True


_DEFAULT = ExecuteOptions()


def _assignment(compiled: CompiledProgram) -> DeviceAssignment:
    """Return the devices that a program was compiled for: the server lists those of the first replica first."""
    ids = list(compiled.response.device_ids or compiled.response.addressable_device_ids)
    count = compiled.options.partitioning.num_partitions
    return DeviceAssignment(tuple(tuple(ids[start : start + count]) for start in range(0, len(ids), count)))
