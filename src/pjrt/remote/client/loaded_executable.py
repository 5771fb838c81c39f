"""Executables of a server, loaded on its devices: an execution is one message that nobody waits for.

The checks of its arguments need no answer of the server. On several devices, buffers become arrays, and the resulting
arrays become buffers. The client asks for the end of an execution when the caller asks for it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import Buffer
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.api.future import Future, Promise
from pjrt.api.launch import CheckedExecutable, Parameters
from pjrt.api.loaded_executable import ExecuteOptions
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout
from pjrt.ifrt.hlo_sharding import HloSharding
from pjrt.ifrt.sharding import ConcreteEvenSharding, DeviceList, Sharding
from pjrt.remote.client.buffer import ADDRESSABLE_SHARDS, REUSE_INPUT, BufferType, RemoteBuffer, ShardedArray, array_of
from pjrt.remote.client.connection import AskedFuture, Connection
from pjrt.remote.client.device import RemoteDevice
from pjrt.remote.client.executable import CompiledProgram, RemoteExecutable, ValueType, shares_values
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import element_type_proto, shape_proto, sharding_proto
from pjrt.remote.protocol.versions import EXECUTE_RESULT

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient


@dataclass(slots=True)
class ValuePlacement:
    """One parameter or result of a program on its devices.

    Attributes:
        spec: its type on one device; ``None`` if its shape is known only when the program runs.
        whole: its type in the program; ``None`` as above.
        kind: the kind of memory that it is in.
        layout: its layout.
        types: the type of its buffer on each device of the server. For a parameter, the last one that fitted: comparing
            with it first saves most of the checks of an execution.
        sharding: the array over all devices, as a serialized ``ShardingProto``; empty for one device.
    """

    spec: ShapeSpec | None
    whole: ShapeSpec | None
    kind: str
    layout: TiledLayout | None
    types: list[BufferType | None]
    sharding: bytes


def placements(
    client: RemoteClient,
    values: Sequence[ValueType],
    kinds: Sequence[str],
    layouts: Sequence[Layout] | None,
    devices: Sequence[RemoteDevice],
    num_replicas: int,
) -> list[ValuePlacement]:
    """Return where the values of a program are.

    Args:
        client: the client.
        values: the parameters or the results.
        kinds: the kind of memory of each.
        layouts: the layout of each; ``None`` if they are unknown.
        devices: the devices, one for each partition, and those of the next replica after those of the first; in a job,
            also those of other processes.
        num_replicas: the number of replicas.
    """
    return [
        _placement(client, value, kind, None if layouts is None else layouts[number], devices, num_replicas)
        for number, (value, kind) in enumerate(zip(values, kinds, strict=True))
    ]


def _placement(
    client: RemoteClient,
    value: ValueType,
    kind: str,
    layout: Layout | None,
    devices: Sequence[RemoteDevice],
    num_replicas: int,
) -> ValuePlacement:
    tiled = layout if isinstance(layout, TiledLayout) else None
    sharding = b""
    if len(devices) > 1 and value.whole is not None and value.local is not None:
        sharding = _sharding(value, value.whole, value.local, kind, devices, num_replicas).SerializeToString()
    placement = ValuePlacement(value.local, value.whole, kind, tiled, [], sharding)
    placement.types.extend(_buffer_type(client, placement, device) for device in devices if device.is_addressable)
    return placement


def _buffer_type(client: RemoteClient, placement: ValuePlacement, device: RemoteDevice) -> BufferType | None:
    """Return the type of a value's buffer on a device; ``None`` if its shape is known only when the program runs."""
    spec = placement.spec
    if spec is None:
        return None
    layout = placement.layout or TiledLayout.row_major(len(spec.shape))
    space = device.memory_space(placement.kind)
    return BufferType(client, client.connection, device, space, spec.shape, spec.element_type, layout)


def _sharding(
    value: ValueType,
    whole: ShapeSpec,
    local: ShapeSpec,
    kind: str,
    devices: Sequence[RemoteDevice],
    num_replicas: int,
) -> Any:
    """Return the sharding that the array of a value has on the server: that of ``pjrt.ifrt.LoadedExecutable``."""
    device_list = DeviceList(devices)
    sharding: Sharding
    if num_replicas == 1 and value.sharding is not None:
        sharding = HloSharding.from_proto(device_list, value.sharding, kind)
    else:  # each replica has data of its own
        sharding = ConcreteEvenSharding(device_list, whole.shape, local.shape, kind)
    return sharding_proto(sharding)


# Of two executions that donate the same buffer, one must fail. Its holder can enter it again, because the garbage
# collector may run inside, and end something whose end runs a program.
_donation = threading.RLock()


class RemoteParameters(Parameters[RemoteBuffer]):
    """The parameters of a program, on each of its devices.

    Args:
        client: the client.
        program: the program's name.
        placements: the parameters on their devices.
        donated: the numbers of the parameters that an execution uses up.
    """

    __slots__ = ("_placements",)

    def __init__(
        self, client: RemoteClient, program: str, placements: Sequence[ValuePlacement], donated: frozenset[int]
    ) -> None:
        super().__init__(program, client, RemoteBuffer, [each.spec for each in placements], donated)
        self._placements = placements

    def checked_at(self, place: int, arguments: Sequence[Buffer], device: RemoteDevice) -> Sequence[RemoteBuffer]:
        """Do as ``checked``, on the device of this number among those of the program.

        The types of buffers are objects, and those of the last arguments are compared first.
        """
        placements = self._placements
        if (type(arguments) is list or type(arguments) is tuple) and len(arguments) == len(placements):
            for buffer, each in zip(arguments, placements, strict=True):
                if type(buffer) is not RemoteBuffer or buffer.type is not each.types[place]:
                    break
            else:
                return arguments
        row = self.checked(arguments, device)
        for buffer, each in zip(row, placements, strict=True):
            each.types[place] = buffer.type
        return row

    def take(self, rows: Sequence[Sequence[RemoteBuffer]], donated: frozenset[int]) -> None:
        """Check that buffers have their values, and mark the donated ones as deleted; ``release`` must follow.

        Raises:
            FailedPreconditionError: a buffer was deleted or donated before.
            InvalidArgumentError: a donated buffer is another argument too.
            UnavailableError: the connection is broken.
        """
        if not donated:
            for row in rows:
                for buffer in row:
                    buffer.check()
            return
        with _donation:
            for row in rows:
                for buffer in row:
                    buffer.check()
                self.check_donated_once(row, donated)
            for row in rows:
                for number in donated:
                    row[number].donate()

    @staticmethod
    def release(rows: Sequence[Sequence[Any]], donated: frozenset[int]) -> None:
        """Release the handles of the donated buffers, after the execution was sent."""
        for row in rows:
            for number in donated:
                row[number].release()


class ExecutionFuture(AskedFuture):
    """A future that is done when an execution has ended, and fails if the execution failed.

    Args:
        connection: the server's connection.

    Attributes:
        handle: the handle of the execution's status on the server, which can be asked once.
    """

    __slots__ = ("_connection", "handle")

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self.handle = connection.new_handle()

    def _send_question(self) -> None:
        self._connection.send(_question(self._connection, self.handle), self._arrive)

    def _arrive(self, _: Any, error: PjrtError | None) -> None:
        self._complete(None, error)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The server keeps a status until it is asked, or until the interpreter's end has ended the session. Then the
        # names of the module may be gone, but for those bound as defaults.
        if not getattr(self, "_is_asked", True) and not is_finalizing():
            connection = self._connection
            connection.release(functools.partial(_forget, connection, self.handle))


def _forget(connection: Connection, handle: int) -> None:
    connection.send(_question(connection, handle))


def _question(connection: Connection, handle: int) -> Any:
    request = wire.IfrtRequest()
    if connection.version.protocol >= EXECUTE_RESULT:
        request.loaded_executable_fetch_execute_result_request.result_status_handle = handle
    else:
        request.check_future_request.future_handle = handle
    return request


class Launch:
    """One run of a program on all of its devices, one message once the arguments of all are there.

    Args:
        executable: the executable.
        options: the execute options.

    Attributes:
        rows: the arguments of each device that is started; ``None`` for the others.
    """

    def __init__(self, executable: RemoteLoadedExecutable, options: ExecuteOptions) -> None:
        self._executable = executable
        self._options = options
        self._donated = executable.arguments.donated(options)
        self._sent: Promise[None] = Promise()
        self._futures: list[Promise[None]] = []
        connection = executable.client.connection
        count = len(executable.addressable_devices)
        self.rows: list[Sequence[Any] | None] = [None] * count
        self._arrays = [
            ShardedArray(connection, connection.new_handle(), placement.sharding, count, sent=self._sent.future)
            for placement in executable.results
        ]
        # Kept until the launch is sent: the end of a buffer releases an array that the server must have by then.
        self._results: list[list[RemoteBuffer]] = [
            [
                RemoteBuffer(placement.types[place], 0, array, place)  # type: ignore[arg-type]  # static shapes
                for array, placement in zip(self._arrays, executable.results, strict=True)
            ]
            for place in range(count)
        ]

    def start(
        self, place: int, row: Sequence[Any], wants_future: bool
    ) -> tuple[list[RemoteBuffer], Future[None] | None]:
        """Start a device; return its results, and a future of the launch's end if that is asked for."""
        self._executable.arguments.take((row,), self._donated)
        self.rows[place] = row
        results = self._results[place]
        if not wants_future:
            return results, None
        promise: Promise[None] = Promise()
        self._futures.append(promise)
        return results, promise.future

    def send(self) -> None:
        """Send the launch: all devices are started."""
        rows: list[Any] = self.rows
        executable, connection = self._executable, self._executable.client.connection
        parameters = executable.parameters
        temporary: list[int] = []
        handles = [
            self._column([row[number] for row in rows], parameter, temporary)
            for number, parameter in enumerate(parameters)
        ]
        future = ExecutionFuture(connection) if self._futures else None
        executable.send(
            handles, [array.handle for array in self._arrays], self._options, 0 if future is None else future.handle
        )
        for handle in temporary:
            connection.release(handle)
        for array in self._arrays:
            array.sent = None
        executable.arguments.release(rows, self._donated)
        self.rows, self._results = [], []
        self._sent.set_result(None)
        if future is not None:
            futures, self._futures = self._futures, []
            future.add_done_callback(lambda end: _settle(futures, end.exception()))

    def fail(self, error: PjrtError) -> None:
        """Fail the results of a launch that will never be sent."""
        futures, self._futures = self._futures, []
        self._executable.arguments.release([row for row in self.rows if row is not None], self._donated)
        self._sent.set_error(error)
        _settle(futures, error)

    def _column(self, buffers: list[Any], parameter: ValuePlacement, temporary: list[int]) -> int:
        """Return the handle of the array over all devices that an argument's buffers are."""
        array = array_of(buffers, parameter.sharding)
        if array is not None:
            return array.handle
        connection = self._executable.client.connection
        parts = [buffer.handle() for buffer in buffers]
        request = wire.IfrtRequest()
        body = request.assemble_array_from_single_device_arrays_request
        assert parameter.whole is not None
        body.shape.CopyFrom(shape_proto(parameter.whole.shape))
        body.dtype.CopyFrom(element_type_proto(parameter.whole.element_type))
        body.sharding.MergeFromString(parameter.sharding)
        body.single_device_array_handles.extend(parts)
        body.copy_semantics = REUSE_INPUT
        body.single_device_shard_semantics = ADDRESSABLE_SHARDS
        body.result_handle = connection.new_handle()
        connection.send(request)
        if any(buffer.array is not None for buffer in buffers):
            temporary.append(body.result_handle)
        else:  # so that the next execution finds the array
            array = ShardedArray(connection, body.result_handle, parameter.sharding, len(parts), parts)
            for index, buffer in enumerate(buffers):
                buffer.join(array, index)
        return int(body.result_handle)


def _settle(futures: list[Promise[None]], error: PjrtError | None) -> None:
    for promise in futures:
        if error is None:
            promise.set_result(None)
        else:
            promise.set_error(error)


class Launches:
    """The launches of one executable whose devices are started one by one: the n-th starts of all are one launch."""

    def __init__(self, executable: RemoteLoadedExecutable) -> None:
        self._executable = executable
        self._lock = threading.RLock()
        self._open: list[Launch] = []

    def start(
        self, place: int, row: Sequence[Any], options: ExecuteOptions, wants_future: bool
    ) -> tuple[list[RemoteBuffer], Future[None] | None]:
        """Start a device, and send the launch if it is the last one; return as ``Launch.start``."""
        with self._lock:
            launch = next((each for each in self._open if each.rows[place] is None), None)
            if launch is None:
                launch = Launch(self._executable, options)
                outcome = launch.start(place, row, wants_future)
                self._open.append(launch)
            else:
                outcome = launch.start(place, row, wants_future)
            if all(each is not None for each in launch.rows):
                self._open.remove(launch)
                try:
                    launch.send()
                except PjrtError as error:
                    launch.fail(error)
                    raise
            return outcome

    def abandon(self, error: PjrtError) -> None:
        """Fail the launches that lack devices."""
        with self._lock:
            launches, self._open = self._open, []
        for launch in launches:
            launch.fail(error)


class RemoteLoadedExecutable(RemoteExecutable, CheckedExecutable):
    """A program on devices of a server.

    Attributes:
        parameters: the parameters on their devices.
        results: the results on their devices.
        arguments: the checks of the arguments.
    """

    __slots__ = (
        "__dict__", "_alone", "_is_dynamic", "_launches", "addressable_devices", "arguments", "client",
        "device_assignment", "executable", "is_deleted", "parameters", "results",
    )  # fmt: skip

    addressable_devices: Sequence[RemoteDevice]
    client: RemoteClient
    device_assignment: DeviceAssignment
    executable: RemoteExecutable
    is_deleted: bool

    def __init__(self, client: RemoteClient, compiled: CompiledProgram) -> None:
        super().__init__(compiled)
        self.client = client
        self.executable = RemoteExecutable(compiled)
        assignment = self.device_assignment = _assignment(compiled)
        ids = [] if self.is_portable else [number for row in assignment.device_ids for number in row]
        devices = [device for number in ids if isinstance(device := client.lookup_device(number), RemoteDevice)]
        self.addressable_devices = tuple(device for device in devices if device.is_addressable)
        self.is_deleted = False
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
        self.arguments = RemoteParameters(client, self.name, self.parameters, compiled.donated)
        # On one device of a job's several, the arguments and results are arrays over all of them, too.
        self._launches = client.launches_of(self) if len(devices) > 1 and self.addressable_devices else None

    @property
    def platform_name(self) -> str:
        return self.compiled.platform_name

    # The start of an execution.

    def _check_usable(self) -> None:
        connection = self.client.connection
        connection.wait_for_room()
        connection.check()
        if self._is_dynamic:
            raise UnimplementedError(
                f"{self.name!r} has results whose shapes are known only when it runs, and the IFRT proxy protocol has "
                "none of these; compile it with shapes=…"
            )

    def _check_options(self, options: ExecuteOptions) -> None:
        if options.send_callbacks or options.recv_callbacks or options.hlo_output_callbacks:
            raise UnimplementedError(
                f"{self.name!r} runs on a server, and the IFRT proxy protocol does not carry the callbacks of PJRT's "
                "execute options; return the values as results"
            )
        if options.context is not None:
            raise UnimplementedError(
                f"{self.name!r} runs on a server, where the addresses in an execute context mean nothing; leave it out"
            )

    def _start(
        self, rows: Sequence[Sequence[Buffer]], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[list[Buffer]]:
        devices = self.addressable_devices
        if self._launches is None and devices:
            return [self._run_one(rows[0], 0, options, futures)]
        checked = [self.arguments.checked_at(place, row, devices[place]) for place, row in enumerate(rows)]
        for row in checked:
            for buffer in row:
                buffer.check()  # before any is donated
        launch = Launch(self, options)
        results: list[list[Buffer]] = []
        for place, row in enumerate(checked):
            buffers, future = launch.start(place, row, futures is not None)
            results.append(list(buffers))
            if futures is not None and future is not None:
                futures.append(future)
        launch.send()
        return results

    def _start_at(
        self, place: int, arguments: Sequence[Buffer], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[Buffer]:
        if self._launches is None:
            return self._run_one(arguments, place, options, futures)
        device = self.addressable_devices[place]
        if self._is_independent:
            return self._start_on(device, arguments, options, futures)
        row = self.arguments.checked_at(place, arguments, device)
        results, future = self._launches.start(place, row, options, futures is not None)
        if futures is not None and future is not None:
            futures.append(future)
        return list(results)

    def _start_on(
        self, device: Any, arguments: Sequence[Buffer], options: ExecuteOptions, futures: list[Future[None]] | None
    ) -> list[Buffer]:
        return self._for_device(device).execute_sharded(arguments, device, options, returned_futures=futures)

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
        row = self.arguments.checked_at(place, arguments, self.addressable_devices[place])
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

    # Its end.

    def delete(self) -> None:
        self.is_deleted = True


def _assignment(compiled: CompiledProgram) -> DeviceAssignment:
    """Return the devices that a program was compiled for: the server lists those of the first replica first."""
    ids = list(compiled.response.device_ids or compiled.response.addressable_device_ids)
    count = compiled.options.partitioning.num_partitions
    return DeviceAssignment(tuple(tuple(ids[start : start + count]) for start in range(0, len(ids), count)))
