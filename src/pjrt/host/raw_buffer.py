"""Raw access to the memory of host buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from pjrt.api.expecting import expect_int
from pjrt.api.future import Future
from pjrt.api.raw_buffer import RawBuffer
from pjrt.host.copying import schedule
from pjrt.host.foreign import writable_bytes
from pjrt.host.storage import Array, Storage

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace


class HostRawBuffer(RawBuffer):
    """The bytes behind a host buffer; keeps them alive until it is released."""

    __slots__ = ("_device", "_size", "_space", "_storage")

    def __init__(self, device: HostDevice, space: HostMemorySpace, storage: Storage, size: int) -> None:
        self._device = device
        self._space = space
        self._storage: Storage | None = storage
        self._size = size

    @property
    def memory_space(self) -> HostMemorySpace:
        return self._space

    @property
    def on_device_size(self) -> int:
        return self._size

    def host_pointer(self) -> int:
        storage = self._use()
        storage.definition.result()
        assert storage.array is not None
        return int(storage.array.ctypes.data)

    def copy_from_host(self, source: Any, offset: int = 0) -> Future[None]:
        storage = self._use()
        data = readable(source)
        check_range(offset, data.nbytes, self._size)
        if not storage.mutable:
            raise FailedPreconditionError(
                "the memory of this buffer belongs to somebody who was promised that it is not written to "
                "(IMMUTABLE_ZERO_COPY or a view); copy the buffer first"
            )

        def copy(array: Array) -> None:
            writable_bytes(array)[offset : offset + data.nbytes] = data

        return schedule(self._device, storage, copy, data.nbytes)

    def copy_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        return copy_raw(self._device, self._use(), self._size, out, offset, size)

    def release(self) -> None:
        self._storage = None

    def _use(self) -> Storage:
        if self._storage is None:
            raise FailedPreconditionError("the raw buffer was released; take a new one with buffer.raw()")
        return self._storage


def copy_raw(
    device: HostDevice, storage: Storage, available: int, out: Any, offset: int, size: int | None
) -> Future[None]:
    """Copies bytes of a storage, as they lie, into a writable object with the buffer protocol."""
    target = writable(out)
    count = target.nbytes if size is None else expect_int(size, "a number of bytes, or None, as size")
    if count > target.nbytes:
        raise InvalidArgumentError(f"{count} bytes were asked for, the place to put them has {target.nbytes}")
    check_range(offset, count, available)

    def copy(array: Array) -> None:
        target[:count] = writable_bytes(array)[offset : offset + count]

    return schedule(device, storage, copy, count)


def check_range(offset: int, count: int, available: int) -> None:
    """Checks that bytes lie within a buffer.

    Raises:
        OutOfRangeError: they do not.
    """
    expect_int(offset, "an offset in bytes as a whole number")
    if offset < 0 or count < 0 or offset + count > available:
        raise OutOfRangeError(
            f"bytes {offset} to {offset + count} were asked for, the buffer has {available}; offset and size count "
            "bytes within it"
        )


def readable(source: Any) -> Array:
    """The bytes of an object with the buffer protocol, or of a numpy array of any dtype.

    Raises:
        InvalidArgumentError: it has none, or they do not lie together.
    """
    if isinstance(source, np.ndarray):
        if not source.flags.c_contiguous:
            raise InvalidArgumentError("the bytes of a strided array do not lie together; pass a contiguous copy")
        return source.reshape(-1).view(np.uint8)
    try:
        return np.frombuffer(memoryview(source).cast("B"), np.uint8) if memoryview(source).nbytes else _NOTHING
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"expected an object with the buffer protocol whose bytes lie together, found {type(source).__name__}: "
            f"{error}"
        ) from error


def writable(out: Any) -> Array:
    """As ``readable``, for an object whose bytes are going to be written.

    Raises:
        InvalidArgumentError: it is read-only besides.
    """
    target = readable(out)
    if not target.flags.writeable and target.nbytes:
        raise InvalidArgumentError(f"expected a writable object to copy to, found a read-only {type(out).__name__}")
    return target


_NOTHING = np.empty(0, np.uint8)
