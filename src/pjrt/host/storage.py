"""Storage: the array behind a buffer, which may come later, and its share of a memory's account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pjrt.api.future import Future
from pjrt.host_memory import references
from pjrt.host_memory.array import HostArray, aligned_copy

if TYPE_CHECKING:
    from pjrt.host.accounting import MemoryAccount
    from pjrt.host.work_queue import WorkQueue

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
        mutable: whether the runtime may write to the memory when nothing else uses it.
        keep: the other storage that owns the memory, if one does.
    """

    __slots__ = ("__weakref__", "_account", "_charged", "array", "definition", "keep", "mutable", "queue")

    def __init__(self, definition: Future[None], array: HostArray | None = None, *, mutable: bool = True) -> None:
        self.definition = definition
        self.array = array
        self.queue: WorkQueue | None = None
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

    def __del__(self) -> None:
        account = self._account
        if account is not None:
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
