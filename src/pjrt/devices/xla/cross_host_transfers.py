"""Transfers between the processes of a job, by jaxlib's transfer server.

The receiver pulls: the sender's server holds an offered array under a number until the receiver has fetched it. Both
sides compute the number from the two devices and the caller's key.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect_all, expect_int
from pjrt.api.errors import InvalidArgumentError, unimplemented
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import PendingBuffer, XlaBuffer
from pjrt.devices.xla.future import in_thread
from pjrt.devices.xla.memory_space import XlaMemorySpace
from pjrt.devices.xla.peers import Peers
from pjrt.devices.xla.runtime import Runtime
from pjrt.devices.xla.special_buffers import uninitialized
from pjrt.devices.xla.transfer import type_of_spec

_ADDRESS_SECONDS = 300.0
"""The longest time to wait for a sender's address, which it makes known with its first transfer."""


class CrossHostTransfers:
    """The transfers of one client to and from other processes.

    Args:
        runtime: the runtime of the client.
        peers: the processes.
    """

    def __init__(self, runtime: Runtime, peers: Peers) -> None:
        self._runtime = runtime
        self._peers = peers
        self._lock = threading.Lock()
        self._server: Any = None
        self._connections: dict[int, Any] = {}
        peers.at_loss(self._break_connections)

    def send(
        self, buffers: Sequence[Buffer], destination_ids: Sequence[int], keys: Sequence[int]
    ) -> list[Future[None]]:
        """Offer buffers to the processes of other devices; see ``XlaClient.cross_host_send_buffers``."""
        expect_all(buffers, Buffer, "a buffer")
        for process_index in self._processes(len(buffers), destination_ids, keys):
            self._peers.check([process_index])
        futures = []
        for buffer, destination, key in zip(buffers, destination_ids, keys, strict=True):
            if not isinstance(buffer, XlaBuffer) or buffer.type.runtime is not self._runtime:
                raise InvalidArgumentError(f"expected buffers of this client to send, found {buffer!r}")
            if not buffer.type.is_row_major or buffer.type.is_packed:
                raise unimplemented("cpu", f"a cross-host transfer of {buffer.type}", "copy by way of row-major bytes")
            if 0 in buffer.shape:  # jaxlib's server never delivers an empty array: the receiver makes one
                futures.append(buffer.ready())
                continue
            number = _number(buffer.device.id, destination, key)
            future = buffer.when_there(lambda array, number=number: self._offer(array, number))  # type: ignore[misc]  # mypy cannot tell the type of a lambda's default
            future.add_done_callback(_nothing)  # so that it is offered although nobody waits for the future
            futures.append(future)
        return futures

    def receive(
        self, specs: Sequence[ShapeSpec], space: XlaMemorySpace, source_ids: Sequence[int], keys: Sequence[int]
    ) -> list[XlaBuffer]:
        """Return buffers of values that other processes send; see ``Client.cross_host_receive_buffers``."""
        expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec")
        for process_index in self._processes(len(specs), source_ids, keys):
            self._peers.check_serves(process_index)
        types = [type_of_spec(spec, space) for spec in specs]
        return [
            self._fetched(array_type, source, key)
            for array_type, source, key in zip(types, source_ids, keys, strict=True)
        ]

    def _processes(self, count: int, device_ids: Sequence[int], keys: Sequence[int]) -> set[int]:
        """Return the processes of the devices with or from which a number of buffers are exchanged.

        Raises:
            InvalidArgumentError: the numbers differ, or an id is not that of a device of another process.
        """
        if len(device_ids) != count or len(keys) != count:
            raise InvalidArgumentError(
                f"expected a device id and a transfer key for each of {count} buffers, found {len(device_ids)} and "
                f"{len(keys)}"
            )
        processes = set()
        for number in device_ids:
            device = self._runtime.jaxlib_device(expect_int(number, "the id of a device as a whole number"))
            if device.process_index == self._peers.process_index:
                raise InvalidArgumentError(
                    f"expected a device of another process, found cpu:{number} of this one; use buffer.copy_to"
                )
            processes.add(device.process_index)
        for key in keys:
            expect_int(key, "a transfer key as a whole number")
        return processes

    def _offer(self, array: _jaxlib.Array, number: int) -> None:
        """Let another process fetch an array; its memory stays until then."""
        with self._lock:
            self._started_server()._await_pull_flat(number, [array])

    def _fetched(self, array_type: ArrayType, source_id: int, key: int) -> XlaBuffer:
        """Return a buffer of an array that another process offers, now or later."""
        number = _number(source_id, array_type.memory_space.device.id, key)
        process_index = self._runtime.jaxlib_device(source_id).process_index
        if 0 in array_type.shape:
            return uninitialized(ShapeSpec(array_type.shape, array_type.element_type), array_type.memory_space)

        def fetch() -> _jaxlib.Array:
            connection = self._connection(process_index)
            place = array_type.memory_space.placement
            array = _jaxlib.pull(connection, number, self._runtime.jaxlib_client, array_type.aval, place)
            self._peers.check_serves(process_index)  # a connection that broke before fails nothing that is pulled later
            return array

        if process_index in self._connections:
            return XlaBuffer(fetch(), array_type)
        # The address of the sender is waited for in a thread, because the call itself must not wait.
        return PendingBuffer(in_thread(fetch), array_type)

    def _connection(self, process_index: int) -> Any:
        address = self._peers.published("transfers", process_index, _ADDRESS_SECONDS).decode()
        with self._lock:
            self._peers.check_serves(process_index)
            if process_index not in self._connections:
                self._connections[process_index] = self._started_server().connect(address)
            return self._connections[process_index]

    def _started_server(self) -> Any:
        if self._server is None:
            self._server = _jaxlib.start_transfer_server(self._runtime.jaxlib_client, self._peers.host)
            self._peers.publish("transfers", self._server.address().encode())
        return self._server

    def _break_connections(self, lost_process: int | None) -> None:
        with self._lock:
            for process_index, connection in self._connections.items():
                if lost_process in (process_index, None):
                    connection._poison_connection()


def _nothing(_: Future[None]) -> None:
    """Do nothing: the callback of a future that has to be completed, whoever waits for it."""


def _number(source_id: int, destination_id: int, key: int) -> int:
    """Return the number of a transfer, which no other transfer between these devices has."""
    digest = hashlib.sha256(f"{source_id} {destination_id} {key}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
