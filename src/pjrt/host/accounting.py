"""Accounting: the bytes in use in a memory, and their limit."""

from __future__ import annotations

from pjrt.api.device import AllocatorStats
from pjrt.api.errors import ResourceExhaustedError
from pjrt.host.fork_safety import runtime_lock


class MemoryAccount:
    """The bytes in use in one memory.

    Args:
        owner: the memory's name, for messages.
        limit: the most bytes that may be in use at one time; ``None`` is no limit.
    """

    __slots__ = ("_allocations", "_in_use", "_largest", "_limit", "_owner", "_peak")

    def __init__(self, owner: str, limit: int | None = None) -> None:
        self._owner = owner
        self._limit = limit
        self._in_use = 0
        self._peak = 0
        self._allocations = 0
        self._largest = 0

    @property
    def in_use(self) -> int:
        """The bytes in use now."""
        return self._in_use

    @property
    def limit(self) -> int | None:
        """The most bytes that may be in use at one time; ``None`` for no limit."""
        return self._limit

    def charge(self, size: int) -> None:
        """Take ``size`` bytes.

        Raises:
            ResourceExhaustedError: the limit would be exceeded; nothing was taken.
        """
        with runtime_lock:
            used = self._in_use + size
            if self._limit is not None and used > self._limit:
                raise self._exhausted(size)
            self._in_use = used
            self._allocations += 1
            if used > self._peak:
                self._peak = used
            if size > self._largest:
                self._largest = size

    def release(self, size: int) -> None:
        """Return ``size`` bytes to the account."""
        with runtime_lock:
            self._in_use -= size

    def stats(self) -> AllocatorStats:
        """Return the state of the account in PJRT's terms."""
        with runtime_lock:
            return AllocatorStats(
                bytes_in_use=self._in_use,
                peak_bytes_in_use=self._peak,
                num_allocs=self._allocations,
                largest_alloc_size=self._largest,
                bytes_limit=self._limit,
                largest_free_block_bytes=None if self._limit is None else self._limit - self._in_use,
            )

    def clear_peak(self) -> None:
        """Reset the peak to the bytes in use now, and the largest allocation to none."""
        with runtime_lock:
            self._peak = self._in_use
            self._largest = 0

    def _exhausted(self, size: int) -> ResourceExhaustedError:
        assert self._limit is not None
        return ResourceExhaustedError(
            f"out of memory on {self._owner}: {size} bytes were asked for, {self._limit - self._in_use} of "
            f"{self._limit} are free (in use {self._in_use}, peak {self._peak}, allocations {self._allocations}, "
            f"largest {self._largest}); delete buffers, donate arguments or raise the memory limit"
        )
