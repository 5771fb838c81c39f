"""Accounting: the bytes in use in a memory, and their limit."""

from __future__ import annotations

from collections.abc import Callable

from pjrt.api.device import AllocatorStats
from pjrt.api.errors import ResourceExhaustedError
from pjrt.host.fork_safety import runtime_lock


class MemoryAccount:
    """The bytes in use in one memory.

    Args:
        owner: the memory's name, for messages.
        limit: the most bytes that may be in use at one time; ``None`` is no limit.
        wait_for_memory: waits until work under way has returned bytes that it alone holds, and returns whether there
            was such work. Where the limit is reached, it is called before a charge fails.
    """

    __slots__ = ("_allocations", "_in_use", "_largest", "_limit", "_owner", "_peak", "_sizes", "_wait_for_memory")

    def __init__(
        self, owner: str, limit: int | None = None, wait_for_memory: Callable[[], bool] = lambda: False
    ) -> None:
        self._owner = owner
        self._limit = limit
        self._in_use = 0
        self._peak = 0
        self._allocations = 0
        self._largest = 0
        self._sizes: dict[int, int] = {}  # how many charges of each size there are
        self._wait_for_memory = wait_for_memory

    @property
    def in_use(self) -> int:
        """The bytes in use now."""
        return self._in_use

    @property
    def limit(self) -> int | None:
        """The most bytes that may be in use at one time; ``None`` for no limit."""
        return self._limit

    def charge(self, size: int) -> None:
        """Take ``size`` bytes; where the limit is reached, wait for work under way that will return some.

        Raises:
            ResourceExhaustedError: the limit would be exceeded; nothing was taken.
        """
        while not self._take(size):
            if not self._wait_for_memory():
                raise self._exhausted(size)

    def _take(self, size: int) -> bool:
        with runtime_lock:
            used = self._in_use + size
            if self._limit is not None and used > self._limit:
                return False
            self._in_use = used
            self._allocations += 1
            self._sizes[size] = self._sizes.get(size, 0) + 1
            if used > self._peak:
                self._peak = used
            if size > self._largest:
                self._largest = size
            return True

    def release(self, size: int) -> None:
        """Return ``size`` bytes to the account."""
        with runtime_lock:
            self._in_use -= size
            left = self._sizes[size] - 1
            if left:
                self._sizes[size] = left
            else:
                del self._sizes[size]

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
        with runtime_lock:
            sizes = sorted(self._sizes.items(), key=lambda item: item[0] * item[1], reverse=True)
        held = ", ".join(f"{count} of {each} bytes" for each, count in sizes[:_SHOWN] if each)
        more = f", and {sum(count for _, count in sizes[_SHOWN:])} more" if len(sizes) > _SHOWN else ""
        return ResourceExhaustedError(
            f"out of memory on {self._owner}: {size} bytes were asked for, {self._limit - self._in_use} of "
            f"{self._limit} are free (in use {self._in_use}, peak {self._peak}, allocations {self._allocations}, "
            f"largest {self._largest}); arrays hold the memory: {held or 'none'}{more}; delete buffers, donate "
            "arguments or raise the memory limit"
        )


_SHOWN = 4
"""The most sizes of arrays that a message names."""
