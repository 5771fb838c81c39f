"""The memory of a session: host buffers, by handle, and the memory of arrays and programs, as its limit counts it.

Host buffers are the bytes of arrays on their way between a client and its session. One is the smallest part of memory
that has all elements of an array: from its first byte on, in steps of the byte strides, which are positive.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
    UnimplementedError,
)
from pjrt.api.future import Future, Promise
from pjrt.host_memory.array import aligned_empty
from pjrt.ifrt.array import Array, ArraySpec
from pjrt.remote.security.limits import Limits, SessionUsage
from pjrt.remote.transport.host_buffers import Pieces, pieces

if TYPE_CHECKING:
    from pjrt.remote.server.executables import SessionExecutable


def array_in(
    data: Any, element_type: ElementType, shape: tuple[int, ...], strides: Sequence[int] | None
) -> np.ndarray[Any, Any]:
    """Return the array that is in the bytes of a host buffer, without a copy.

    Args:
        data: the bytes.
        element_type: the type of the elements; those of less than a byte take a byte each.
        shape: the shape.
        strides: for each dimension the distance of neighbors in bytes; ``None`` is C order.

    Raises:
        InvalidArgumentError: the array is larger or smaller than the host buffer.
        UnimplementedError: a stride is not a positive multiple of the size of an element.
    """
    dtype = element_type.dtype
    size = memoryview(data).nbytes
    needed = region_size(dtype.itemsize, shape, strides)
    if size != needed:
        raise InvalidArgumentError(
            f"expected a host buffer of {needed} bytes for {element_type.name} {list(shape)} with the strides "
            f"{strides}, found {size} bytes"
        )
    try:
        return np.ndarray(shape, dtype, data, strides=strides if needed else None)
    except ValueError as error:  # an empty array whose other dimensions overflow
        raise InvalidArgumentError(f"expected an array that numpy can hold, found {list(shape)}: {error}") from error


def bytes_of(value: np.ndarray[Any, Any], strides: Sequence[int] | None) -> Any:
    """Return the bytes of an array as a host buffer has them; without a copy if they lie so already.

    Raises:
        UnimplementedError: a stride is not a positive multiple of the size of an element.
        InvalidArgumentError: there is not one stride for each dimension.
    """
    if strides is None or not value.size:
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    region = np.zeros(region_size(value.dtype.itemsize, value.shape, strides), np.uint8)
    np.ndarray(value.shape, value.dtype, region.data, strides=tuple(strides))[...] = value
    return region


def region_size(itemsize: int, shape: tuple[int, ...], strides: Sequence[int] | None) -> int:
    """Return the number of bytes from the first byte of an array to its last.

    Raises:
        UnimplementedError: a stride is not a positive multiple of the size of an element.
        InvalidArgumentError: there is not one stride for each dimension.
    """
    if strides is None:
        return itemsize * math.prod(shape)
    if len(strides) != len(shape):
        raise InvalidArgumentError(f"expected {len(shape)} byte strides for {list(shape)}, found {list(strides)}")
    if not math.prod(shape):
        return 0
    end = itemsize
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if stride <= 0 or stride % itemsize:
            raise UnimplementedError(
                f"expected byte strides that are positive multiples of {itemsize}, found {list(strides)}"
            )
        end += stride * (size - 1)
    return end


_LONGEST_TEXT = 4096


class ArrayMemory:
    """The count of the memory of arrays by their handles, and of the texts of errors that came instead of them.

    Args:
        usage: the usage of the session.
    """

    def __init__(self, usage: SessionUsage) -> None:
        self._usage = usage

    def hold(self, handle: int, value: Array | PjrtError) -> None:
        """Count an array; raise ``ResourceExhaustedError`` if the session would use too much memory."""
        if isinstance(value, PjrtError):
            self.hold_text(handle, value)
        else:
            self._usage.add_array(handle, _bytes_on_devices(value.spec))

    def hold_text(self, handle: int, error: PjrtError) -> None:
        """Count the text of the error that an array has; raise ``ResourceExhaustedError`` as ``hold`` does."""
        self._usage.add_other(("text", handle), _text_size(error))

    def release(self, handle: int) -> None:
        """Count the array of a handle no more."""
        self._usage.remove_array(handle)
        self._usage.remove_other(("text", handle))


class ProgramMemory:
    """The count of the memory of loaded programs by their handles: the bytes of each, with its constants.

    Args:
        usage: the usage of the session.
    """

    def __init__(self, usage: SessionUsage) -> None:
        self._usage = usage

    def hold(self, handle: int, value: SessionExecutable | PjrtError) -> None:
        """Count a program; raise ``ResourceExhaustedError`` if the session would use too much memory."""
        if not isinstance(value, PjrtError):
            self._usage.add_other(("program", handle), value.size)

    def release(self, handle: int) -> None:
        """Count the program of a handle no more."""
        self._usage.remove_other(("program", handle))


def shortened(error: PjrtError) -> PjrtError:
    """Return an error with no more text than a session may keep with each of its objects: 4 KiB."""
    if _text_size(error) <= _LONGEST_TEXT:
        return error
    left = len(error.message) - _LONGEST_TEXT
    message = f"{error.message[:_LONGEST_TEXT]} … ({left} characters more)" if left > 0 else error.message
    return PjrtError.of(int(error.code), message)


def _text_size(error: PjrtError) -> int:
    return len(error.message) + sum(len(key) + len(value) for key, value in error.payloads.items())


def _bytes_on_devices(spec: ArraySpec) -> int:
    """Return the bytes of an array on all devices of this process; each device with a copy of a part has one."""
    count = len(spec.sharding.devices.addressable_devices)
    try:
        shape = spec.sharding.shard_shape(spec.shape)
    except PjrtError:  # a sharding that does not know its parts
        shape, count = spec.shape, 1
    return math.ceil(math.prod(shape) * spec.element_type.bits / 8) * count


HostBuffer = Any
"""Bytes with the buffer protocol: ``bytes``, a ``memoryview`` or a numpy array of ``uint8``."""


class HostBuffers:
    """The host buffers of one session. The transport and the session's requests use them in several threads.

    Args:
        usage: counts the memory of the buffers.
    """

    def __init__(self, usage: SessionUsage | None = None) -> None:
        self._usage = SessionUsage(Limits()) if usage is None else usage
        self._lock = threading.Lock()
        self._buffers: dict[int, HostBuffer | PjrtError] = {}
        self._arriving: dict[int, int] = {}  # by handle: bytes
        self._memory: dict[int, np.ndarray[Any, Any]] = {}  # of those of which something has come
        self._awaited: dict[int, Promise[None]] = {}
        self._progress = time.monotonic()
        self._closed: PjrtError | None = None

    def expect(self, handle: int, size: int) -> None:
        """Count the memory of a buffer that begins to arrive, before it is allocated.

        Raises:
            AlreadyExistsError: there is a buffer under that handle, or one arrives.
            ResourceExhaustedError: it is too large, or the session would use too much memory.
            PjrtError: the session has ended.
        """
        with self._lock:
            self._check_new(handle)
            if handle in self._arriving:
                raise AlreadyExistsError(f"expected a new handle for a host buffer, found {handle}, which arrives")
            self._usage.add_host_buffer(handle, size)
            self._arriving[handle] = size
        self.progress()

    def progress(self) -> None:
        """Note that something of a buffer has come."""
        self._progress = time.monotonic()

    def abandon(self, handle: int) -> None:
        """Forget a buffer that does not arrive any more; one that is complete stays."""
        with self._lock:
            self._memory.pop(handle, None)
            if self._arriving.pop(handle, None) is not None:
                self._usage.remove_host_buffer(handle)

    def store(self, handle: int, data: HostBuffer) -> None:
        """Keep bytes, which nobody changes any more, under a handle.

        Raises:
            AlreadyExistsError: there is a buffer under that handle.
            ResourceExhaustedError: it is too large, or the session would use too much memory.
            PjrtError: the session has ended.
        """
        with self._lock:
            self._check_new(handle)
            self._usage.add_host_buffer(handle, memoryview(data).nbytes)
            self._arriving.pop(handle, None)
            self._memory.pop(handle, None)
            self._buffers[handle] = data
            promise = self._awaited.pop(handle, None)
        self.progress()
        if promise is not None:
            promise.set_result(None)

    def write(self, handle: int, position: int, data: np.ndarray[Any, Any]) -> None:
        """Keep a piece of a buffer that arrives."""
        self._memory_of(handle)[position : position + len(data)] = data
        self.progress()

    def complete(self, handle: int) -> None:
        """Store a buffer of which all pieces are there; raise the errors of ``store``."""
        self.store(handle, self._memory_of(handle))

    def _memory_of(self, handle: int) -> np.ndarray[Any, Any]:
        with self._lock:
            if self._closed is not None:
                raise self._closed
            if handle not in self._memory:
                self._memory[handle] = aligned_empty((self._arriving[handle],), np.dtype(np.uint8))
            return self._memory[handle]

    def stored(self, handle: int) -> Future[None] | None:
        """Return a future that is done when the buffer of a handle is there, or ``None`` if it is there already.

        It is also done when the buffer comes no more; ``take`` raises the error then.
        """
        with self._lock:
            if handle in self._buffers:
                return None
            if self._closed is not None:
                return Future.failed(self._closed)
            promise = self._awaited.get(handle)
            if promise is None:
                promise = self._awaited[handle] = Promise()
                self._progress = time.monotonic()
            return promise.future

    def give_up_after(self, seconds: float) -> None:
        """Wait no more for buffers if nothing of any buffer has come for so long; their requests fail."""
        with self._lock:
            if not self._awaited or time.monotonic() - self._progress < seconds:
                return
            awaited, self._awaited = self._awaited, {}
            for handle in awaited:
                self._buffers[handle] = DeadlineExceededError(
                    f"the host buffer {handle} did not come within {seconds:g} s"
                )
        for promise in awaited.values():
            promise.set_result(None)

    def pieces(self, handle: int) -> Pieces:
        """Return the messages with the pieces of a buffer; raise the errors of ``lookup``."""
        data = memoryview(self.lookup(handle)).cast("B")
        return Pieces(data.nbytes, pieces(data))

    def lookup(self, handle: int) -> HostBuffer:
        """Return the bytes under a handle.

        Raises:
            NotFoundError: there is no such host buffer.
            DeadlineExceededError: the host buffer did not come.
        """
        with self._lock:
            data = self._buffers.get(handle)
        return self._checked(handle, data)

    def take(self, handle: int) -> HostBuffer:
        """Return the bytes under a handle and forget them; raise the errors of ``lookup``."""
        with self._lock:
            data = self._buffers.pop(handle, None)
            self._usage.remove_host_buffer(handle)
        return self._checked(handle, data)

    def delete(self, handle: int) -> None:
        """Forget the bytes under a handle; raise the errors of ``lookup``."""
        self.take(handle)

    def close(self, error: PjrtError) -> None:
        """Forget all bytes, and fail all futures of buffers, those of now and those of later."""
        with self._lock:
            self._closed = error
            self._buffers.clear()
            self._memory.clear()
            awaited, self._awaited = self._awaited, {}
        for promise in awaited.values():
            promise.set_error(error)

    def _check_new(self, handle: int) -> None:
        if self._closed is not None:
            raise self._closed
        if handle in self._buffers:
            raise AlreadyExistsError(f"expected a new handle for a host buffer, found {handle}, which is in use")

    def _checked(self, handle: int, data: HostBuffer | PjrtError | None) -> HostBuffer:
        if isinstance(data, PjrtError):
            raise data.with_traceback(None)
        if data is not None:
            return data
        if self._closed is not None:
            raise NotFoundError(f"the host buffer {handle} is gone: {self._closed.message}")
        raise NotFoundError(f"expected the handle of a host buffer of this session, found {handle}")
