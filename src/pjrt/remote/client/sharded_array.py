"""Arrays over several devices of a server, and their parts, which are the buffers of this API.

The protocol's executions take and return whole arrays; this API has a buffer on each device. A result becomes buffers
without a message: the client asks the server for the parts when the caller uses one alone. Buffers that together are an
array of the server again go into an execution as that array.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from pjrt.api.errors import FailedPreconditionError
from pjrt.api.future import Future
from pjrt.remote.client.connection import Connection
from pjrt.remote.protocol.messages import wire

_REUSE_INPUT = 2
ADDRESSABLE_SHARDS = 1
"""The number of ``SingleDeviceShardSemantics`` for the shards of the server's own process."""


class ShardedArray:
    """An array over several devices, as a server has it.

    Args:
        connection: the server's connection.
        handle: the array's handle.
        sharding: its devices and shards, as a serialized ``ShardingProto``.
        count: the number of its parts on the server's devices.
        parts: the handles of the parts, if the array was made of them.
        sent: as the attribute.

    Attributes:
        handle: the array's handle.
        sharding: its devices and shards, as a serialized ``ShardingProto``.
        is_whole: whether the server still has the array, and not only its parts.
        sent: done when the request that makes the array is sent; ``None`` if it was sent.
    """

    __slots__ = (
        "_alive", "_connection", "_count", "_gone", "_lock", "_parts", "handle", "is_whole",
        "sent", "sharding",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        handle: int,
        sharding: bytes,
        count: int,
        parts: Sequence[int] | None = None,
        sent: Future[None] | None = None,
    ) -> None:
        self._connection = connection
        self.handle = handle
        self.sharding = sharding
        self.is_whole = True
        self.sent = sent
        self._parts = None if parts is None else list(parts)
        self._alive = self._count = count
        self._gone: list[int] = []
        self._lock = threading.Lock()

    def part(self, index: int) -> int:
        """Return the handle of a part, for a request that is sent at once."""
        if self._parts is None:
            with self._lock:
                if self._parts is None:
                    self._parts = self._taken_apart()
        return self._parts[index]

    def _taken_apart(self) -> list[int]:
        if self.sent is not None:
            raise FailedPreconditionError(
                "this result has no value yet: execute_sharded was called for some devices of the program only; call "
                "it for the others first"
            )
        request = wire.IfrtRequest()
        body = request.disassemble_into_single_device_arrays_request
        body.array_handle = self.handle
        body.copy_semantics = _REUSE_INPUT
        body.single_device_shard_semantics = ADDRESSABLE_SHARDS
        parts = [self._connection.new_handle() for _ in range(self._count)]
        body.result_handles.extend(parts)
        self._connection.send(request)
        return parts

    def forget(self, index: int) -> None:
        """Note that a part is not used any more; ``to_release`` follows soon."""
        with self._lock:
            self._alive -= 1
            self._gone.append(index)

    def to_release(self) -> list[int]:
        """Return the handles of the array and of the parts that are not used any more.

        The array holds the memory of all parts. If some are gone and others are not, it goes, and leaves the others.
        """
        with self._lock:
            if self._alive and self._parts is None:
                self._parts = self._taken_apart()
            handles = [self.handle] if self.is_whole else []
            self.is_whole = False
            gone, self._gone = self._gone, []
            return handles if self._parts is None else handles + [self._parts[index] for index in gone]


def array_of(column: Sequence[Any], sharding: bytes) -> ShardedArray | None:
    """Return the array whose parts a column of buffers is, in order; ``None`` if there is none of this sharding."""
    array: ShardedArray | None = column[0].array
    if array is None or array.sharding != sharding or not array.is_whole:
        return None
    for index, buffer in enumerate(column):
        if buffer.array is not array or buffer.index != index:
            return None
    return array
