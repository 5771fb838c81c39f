"""Launches on several devices of a server: buffers become arrays, and arrays become buffers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import PjrtError
from pjrt.api.execute_options import ExecuteOptions
from pjrt.api.future import Future, Promise
from pjrt.remote.client.buffer import REUSE_INPUT, RemoteBuffer
from pjrt.remote.client.execution_future import ExecutionFuture
from pjrt.remote.client.sharded_array import ADDRESSABLE_SHARDS, ShardedArray, array_of
from pjrt.remote.client.value_placement import ValuePlacement
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import element_type_proto, shape_proto

if TYPE_CHECKING:
    from pjrt.remote.client.loaded_executable import RemoteLoadedExecutable


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
