"""Ranges of bytes of a buffer that are read or written in place, and the caller's memory for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.checks import expect_int
from pjrt.api.errors import InvalidArgumentError, OutOfRangeError
from pjrt.host_memory.aligned import HostArray


def source_bytes(source: Any, offset: int, available: int) -> HostArray:
    """Return the bytes of the caller's that are written to a buffer from an offset on.

    Args:
        source: an object with the buffer protocol, or a numpy array of any dtype.
        offset: the byte of the buffer that is written first.
        available: the buffer's number of bytes.

    Raises:
        InvalidArgumentError: the source has no bytes, or gaps between them.
        OutOfRangeError: the buffer is too small for them.
    """
    data = bytes_of(source)
    _check_range(offset, data.nbytes, available)
    return data


def target_bytes(out: Any, offset: int, size: int | None, available: int) -> HostArray:
    """Return the bytes of the caller's that bytes of a buffer are copied to.

    Args:
        out: a writable object with the buffer protocol, or a writable numpy array of any dtype.
        offset: the byte of the buffer that is read first.
        size: how many bytes are copied; ``None`` for as many as ``out`` holds.
        available: the buffer's number of bytes.

    Raises:
        InvalidArgumentError: the target is read-only or too small, has no bytes, or gaps between them.
        OutOfRangeError: the buffer does not have these bytes.
    """
    target = bytes_of(out)
    if not target.flags.writeable and target.nbytes:
        raise InvalidArgumentError(f"expected a writable object to copy to, found a read-only {type(out).__name__}")
    count = target.nbytes if size is None else expect_int(size, "a number of bytes, or None, as size")
    if count > target.nbytes:
        raise InvalidArgumentError(f"expected room for {count} bytes to copy to, found {target.nbytes}")
    _check_range(offset, count, available)
    return target[:count]


def bytes_of(memory: Any) -> HostArray:
    """Return the bytes of an object with the buffer protocol, or of a numpy array of any dtype, without a copy.

    Raises:
        InvalidArgumentError: the object has no bytes, or gaps between them.
    """
    if isinstance(memory, np.ndarray):
        if not memory.flags.c_contiguous:
            raise InvalidArgumentError("the bytes of a strided array do not lie together; pass a contiguous copy")
        return memory.reshape(-1).view(np.uint8)
    try:
        view = memoryview(memory)
        return np.frombuffer(view.cast("B"), np.uint8) if view.nbytes else np.empty(0, np.uint8)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"expected an object with the buffer protocol whose bytes lie together, found {type(memory).__name__}: "
            f"{error}"
        ) from error


def _check_range(offset: int, count: int, available: int) -> None:
    expect_int(offset, "an offset in bytes as a whole number")
    if offset < 0 or count < 0 or offset + count > available:
        raise OutOfRangeError(
            f"expected a range within the buffer's {available} bytes, found bytes {offset} to {offset + count}"
        )
