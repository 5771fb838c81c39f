"""Storage: the array behind a buffer, which may come later, its aliases, and its share of a memory's account."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.device import AllocatorStats
from pjrt.api.element_type import AnyDType
from pjrt.api.errors import ResourceExhaustedError
from pjrt.api.future import Future, when_all_done
from pjrt.host.shutdown import runtime_lock
from pjrt.host_memory import references
from pjrt.host_memory.array import HostArray, aligned_copy

if TYPE_CHECKING:
    from pjrt.host.work_queue import WorkQueue


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


# Storage: the array behind a buffer, which may come later, and its share of a memory's account.

TOKEN: HostArray = np.empty(0, np.bool_)
"""The value of every token."""

READY: Future[None] = Future.completed(None)
"""The definition event of a value that is there from the start."""


class Storage:
    """An array with its definition event: shared by a buffer and the work that uses it.

    A deleted buffer drops its storage; work under way holds it and finishes first. When the last holder is gone, the
    bytes are returned to the account.

    Attributes:
        definition: done when ``array`` is there, or failed with the error that came instead.
        array: the value, row-major unless the buffer has another layout, read-only; ``None`` until ``definition`` is
            done.
        queue: the work queue of the task that makes the value; a task that is put there later runs after it.
        placed: for a value whose work is put on a queue later: done when ``queue`` is known, or the value is there or
            failed. ``None`` for all others.
        mutable: whether the runtime may write to the memory when nothing else uses it.
        keep: the other storage that owns the memory, if one does.
    """

    __slots__ = ("__weakref__", "_account", "_charged", "array", "definition", "keep", "mutable", "placed", "queue")

    def __init__(self, definition: Future[None], array: HostArray | None = None, *, mutable: bool = True) -> None:
        self.definition = definition
        self.array = array
        self.queue: WorkQueue | None = None
        self.placed: Future[None] | None = None
        self.mutable = mutable
        self.keep: Storage | None = None
        self._account: MemoryAccount | None = None
        self._charged = 0

    @property
    def is_token(self) -> bool:
        """Whether this is the value of a token."""
        return self.array is TOKEN

    def value(self) -> HostArray:
        """Wait for the value and return it.

        Raises:
            PjrtError: the value has failed.
        """
        self.definition.result()
        assert self.array is not None
        return self.array

    def charge(self, account: MemoryAccount, size: int) -> None:
        """Charge bytes to an account until the storage is gone.

        Raises:
            ResourceExhaustedError: the account has fewer bytes left.
        """
        account.charge(size)
        self._account = account
        self._charged = size

    def take_charge_of(self, other: Storage) -> None:
        """Take over the bytes that another storage was charged."""
        self._account, other._account = other._account, None
        self._charged = other._charged

    def give_back(self) -> None:
        """Return the bytes before the storage is gone, because it will never have a value."""
        account, self._account = self._account, None
        if account is not None:
            account.release(self._charged)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        account = self._account
        if account is not None and not is_finalizing():
            account.release(self._charged)


def take_writable(storages: list[Storage], number: int) -> HostArray | None:
    """Return a writable array of a storage in a list: its own memory if nothing else can see it, otherwise a copy.

    References decide. Every user of a value holds its storage or its array: buffers, work that waits, views, external
    references, aliases. (CPython counts references exactly; where a count is higher than necessary, there is a needless
    copy, and nothing wrong.)
    """
    is_free = references.to_item(storages, number) == 1 and storages[number].mutable
    is_free = is_free and references.to_attribute(storages[number], "array") == 1
    storage = storages[number]
    array = storage.array
    if array is None:
        return None
    if is_free and references.is_sole_base(array):
        storage.array = None
        return thaw(array)
    return aligned_copy(array, array.dtype)


def is_any_alone(storages: list[Storage]) -> bool:
    """Whether a list is the only holder of one of its storages."""
    return any(references.to_item(storages, number) == 1 for number in range(len(storages)))


def freeze(array: HostArray) -> HostArray:
    """Make an array read-only, and the arrays below it that own its memory, so that its views cannot be made writable
    either; return it.
    """
    array.setflags(write=False)
    base = array.base
    if type(base) is np.ndarray and (base.base is None or type(base.base) is np.ndarray):
        freeze(base)
    return array


def thaw(array: HostArray) -> HostArray:
    """Undo ``freeze``."""
    base = array.base
    if type(base) is np.ndarray and not base.flags.writeable:
        thaw(base)
    array.setflags(write=True)
    return array


# Storages that use the memory of another one: aliases, bitcasts and control dependencies.


def follow(storage: Storage, source: Storage) -> None:
    """Give a storage the array of another as soon as that has it; both use the same memory then."""

    def pass_on(_: Future[None]) -> None:
        error = source.definition._error
        if error is None:
            storage.keep = source
            storage.mutable = source.mutable
            storage.array = source.array
        storage.definition._complete(None, error)

    source.definition.add_done_callback(pass_on)


def depend(source: Storage, dependency: Future[Any]) -> Storage:
    """Return a storage that takes over another's memory and is ready when the dependency is done, too."""
    storage = Storage(Future(), mutable=source.mutable)

    def pass_on() -> None:
        error = source.definition._error or dependency.exception()
        if error is None:
            storage.take_charge_of(source)
            storage.array = source.array
        storage.definition._complete(None, error)

    when_all_done([source.definition, dependency], pass_on)
    return storage


def reinterpret(
    source: Storage,
    source_order: tuple[int, ...],
    dtype: AnyDType,
    shape: tuple[int, ...],
    order: tuple[int, ...],
) -> Storage:
    """Return a storage that takes over another's memory and reads the same bytes as another type and shape.

    Args:
        source: the other storage.
        source_order: its dimensions from the slowest to the fastest varying.
        dtype: the new dtype.
        shape: the new shape, of the same number of bytes.
        order: the new dimensions from the slowest to the fastest varying.
    """
    storage = Storage(Future(), mutable=source.mutable)

    def pass_on(_: Future[None]) -> None:
        error = source.definition._error
        if error is None:
            assert source.array is not None
            storage.take_charge_of(source)
            storage.array = freeze(_read_as(source.array, source_order, dtype, shape, order))
        storage.definition._complete(None, error)

    source.definition.add_done_callback(pass_on)
    return storage


def _read_as(
    array: HostArray, source_order: tuple[int, ...], dtype: AnyDType, shape: tuple[int, ...], order: tuple[int, ...]
) -> HostArray:
    array = array.transpose(source_order).reshape(-1).view(np.uint8).view(dtype).reshape([shape[d] for d in order])
    return array.transpose(np.argsort(order)) if order else array
