"""Host callbacks: the values that running programs send to the host and receive from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.api.execute_options import RecvCallback, SendCallback
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec
from pjrt.api.transfer import CopyToDeviceStream
from pjrt.host.fork_safety import runtime_lock
from pjrt.host_memory.aligned import HostArray, aligned_empty
from pjrt.host_memory.byte_range import bytes_of
from pjrt.host_memory.layout import array_dtype

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
            stream = HostCopyToDeviceStream(spec)
            entry.callback(stream)
            return stream.wait(check)
    raise _no_callback("recv", channel_id, [entry.channel_id for entry in callbacks])


def _no_callback(what: str, channel_id: int, known: list[int]) -> NotFoundError:
    return NotFoundError(
        f"the program wants to {what} on channel {channel_id}, but its {what}_callbacks for this device are for "
        f"the channels {known}"
    )


class HostCopyToDeviceStream(CopyToDeviceStream):
    """Collects the bytes of one array, chunk by chunk, from any thread."""

    __slots__ = ("_array", "_bytes", "_complete", "_copied", "current_bytes", "granule_size")

    current_bytes: int
    granule_size: int

    def __init__(self, spec: ShapeSpec) -> None:
        dtype = array_dtype(spec.element_type)
        self._array = aligned_empty(spec.shape, dtype)
        self._bytes: Any = self._array.reshape(-1).view(np.uint8)
        self.granule_size = dtype.itemsize
        self.current_bytes = 0
        self._copied = 0
        self._complete = threading.Event()
        if not self._bytes.nbytes:
            self._complete.set()

    @property
    def total_bytes(self) -> int:
        return self._array.nbytes

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
            self._complete.set()
        return Future.completed(None)

    def wait(self, check: Callable[[], object]) -> HostArray:
        """Return the array, when all of its bytes are there."""
        while not self._complete.wait(_WAIT_SLICE_SECONDS):
            check()
        return self._array
