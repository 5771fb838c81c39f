"""What a device may assume about a host array that it is given (``PJRT_HostBufferSemantics``)."""

from __future__ import annotations

import enum


class HostBufferSemantics(enum.IntEnum):
    """How long the caller promises to leave a host array alone, and whether the device may keep using it."""

    IMMUTABLE_ONLY_DURING_CALL = 0
    """The array may change as soon as the call returns: the device copies before returning."""

    IMMUTABLE_UNTIL_TRANSFER_COMPLETES = 1
    """The array stays unchanged until the device says that it is done with it (the release callback); the device then
    has a copy.
    """

    IMMUTABLE_ZERO_COPY = 2
    """The device may use the array's own memory for as long as the buffer lives; nobody changes it. The release
    callback comes when the buffer is gone.
    """

    MUTABLE_ZERO_COPY = 3
    """As ``IMMUTABLE_ZERO_COPY``, and the device may also write to the array's memory, for example after a donation."""
