"""Host callbacks: the values that running programs send to the host and receive from it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.buffer import CopyToDeviceStream
from pjrt.api.errors import AbortedError, InvalidArgumentError, NotFoundError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import RecvCallback, SendCallback
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.fork_safety import runtime_lock
from pjrt.host_memory.array import HostArray, aligned_empty, array_dtype, bytes_of

_WAIT_SLICE_SECONDS = 0.2


def send(callbacks: Sequence[SendCallback], channel_id: int, array: HostArray) -> None:
    """Pass the bytes of an array to the callback of a channel, in one chunk."""
    for entry in callbacks:
        if entry.channel_id == channel_id:
            data = np.ascontiguousarray(array).tobytes()
            entry.callback(data, len(data), True)
            return
    raise _no_callback("send", channel_id, [entry.channel_id for entry in callbacks])


def receive(
    callbacks: Sequence[RecvCallback], channel_id: int, spec: ShapeSpec, check: Callable[[], object]
) -> HostArray:
    """Return the array that the callback of a channel supplies; wait until all of its bytes are there.

    Args:
        callbacks: the device's callbacks.
        channel_id: the channel.
        spec: shape and type of the array.
        check: called from time to time while waiting; its exceptions end the wait.
    """
    for entry in callbacks:
        if entry.channel_id == channel_id:
            incoming = _Incoming(spec)
            entry.callback(HostCopyToDeviceStream(incoming))
            return incoming.wait(check)
    raise _no_callback("recv", channel_id, [entry.channel_id for entry in callbacks])


def _no_callback(what: str, channel_id: int, known: list[int]) -> NotFoundError:
    return NotFoundError(
        f"the program wants to {what} on channel {channel_id}, but its {what}_callbacks for this device are for "
        f"the channels {known}"
    )


class _Incoming:
    """The array that a stream fills.

    Attributes:
        array: the array.
        is_complete: set when all bytes are there.
        is_abandoned: whether the stream is gone, so that no more bytes come. The garbage collector may set it, anywhere
            in the program, so it is no event, which has a lock.
    """

    def __init__(self, spec: ShapeSpec) -> None:
        self.array = aligned_empty(spec.shape, array_dtype(spec.element_type))
        self.is_complete = threading.Event()
        self.is_abandoned = False
        if not self.array.nbytes:
            self.is_complete.set()

    def abandon(self) -> None:
        """Note that no more bytes come."""
        self.is_abandoned = True

    def wait(self, check: Callable[[], object]) -> HostArray:
        """Return the array, when all of its bytes are there.

        Raises:
            AbortedError: the stream was released before.
        """
        while not self.is_complete.wait(_WAIT_SLICE_SECONDS):
            check()
            if self.is_abandoned and not self.is_complete.is_set():
                raise AbortedError(
                    "the program waits for a value of the host, whose receive callback has released the stream before "
                    f"all of its {self.array.nbytes} bytes were added; add the rest before it is released"
                )
        return self.array


class HostCopyToDeviceStream(CopyToDeviceStream):
    """Collects the bytes of one array, chunk by chunk, from any thread."""

    __slots__ = ("_bytes", "_copied", "_incoming", "current_bytes", "granule_size", "total_bytes")

    current_bytes: int
    granule_size: int
    total_bytes: int

    def __init__(self, incoming: _Incoming) -> None:
        self._incoming = incoming
        self._bytes: Any = incoming.array.reshape(-1).view(np.uint8)
        self.granule_size = incoming.array.itemsize
        self.total_bytes = incoming.array.nbytes
        self.current_bytes = 0
        self._copied = 0
        weakref.finalize(self, incoming.abandon).atexit = False

    def add_chunk(self, data: Any) -> Future[None]:
        chunk = bytes_of(data)
        with runtime_lock:
            left = self.total_bytes - self.current_bytes
            if chunk.nbytes % self.granule_size or chunk.nbytes > left:
                raise InvalidArgumentError(
                    f"a chunk must be a multiple of {self.granule_size} bytes and at most the {left} that are left of "
                    f"{self.total_bytes}, found {chunk.nbytes}"
                )
            offset = self.current_bytes
            self.current_bytes += chunk.nbytes
        self._bytes[offset : offset + chunk.nbytes] = chunk
        with runtime_lock:
            self._copied += chunk.nbytes
            is_complete = self._copied == self.total_bytes
        if is_complete:
            self._bytes = None
            self._incoming.is_complete.set()
        return Future.completed(None)
