"""The promises between a caller and a device about the memory of a host array (``PJRT_HostBufferSemantics``)."""

from __future__ import annotations

import enum


class HostBufferSemantics(enum.IntEnum):
    """The caller's promise about the memory of a host array, and the device's right to use it."""

    IMMUTABLE_ONLY_DURING_CALL = 0
    """The array may change as soon as the call returns: the device copies it before that."""

    IMMUTABLE_UNTIL_TRANSFER_COMPLETES = 1
    """The array stays unchanged until the device has a copy and calls the release callback."""

    IMMUTABLE_ZERO_COPY = 2
    """The device may use the array's own memory as long as the buffer exists; the caller does not change it. The
    release callback is called when the buffer is gone.
    """

    MUTABLE_ZERO_COPY = 3
    """As ``IMMUTABLE_ZERO_COPY``, and the device may also write to the memory, for example after a donation."""
