"""The memory of a session's arrays and programs, as its limit counts it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pjrt.api.errors import PjrtError
from pjrt.ifrt.array import Array, ArraySpec
from pjrt.remote.security.limits import SessionUsage

if TYPE_CHECKING:
    from pjrt.remote.server.executables import SessionExecutable

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
