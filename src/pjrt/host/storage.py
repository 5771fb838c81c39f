"""Storage: what lies behind a buffer; an array that may come later, and the memory it takes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.api.errors import ResourceExhaustedError
from pjrt.api.future import Future

if TYPE_CHECKING:
    from pjrt.host.accounting import MemoryAccount
    from pjrt.host.queue import WorkQueue

Array = np.ndarray[Any, Any]
"""Any numpy array."""

ALIGNMENT = 64
"""The alignment in bytes of the memory that the runtime allocates: what compilers for CPUs like."""

TOKEN: Array = np.empty(0, np.bool_)
"""What stands for the value of every token."""

READY: Future[None] = Future.completed(None)
"""The definition event of whatever has its value from the start."""


class Storage:
    """An array with its definition event: shared by a buffer and the work that uses it.

    A buffer that is deleted lets go of its storage; work under way holds on to it and finishes first. When the last
    holder is gone, the bytes are given back to the account.

    Attributes:
        definition: done when ``array`` is there, failed with the error that came instead.
        array: the value, row-major unless the buffer has another layout, read-only; ``None`` until ``definition`` is
            done.
        queue: the work queue to which the task that makes the value was given; what is put there later runs after it.
        mutable: whether the memory is the runtime's to write to when nobody else looks at it.
        keep: the storage whose memory this one shares, if it is another's.
    """

    __slots__ = ("__weakref__", "_account", "_charged", "array", "definition", "keep", "mutable", "queue")

    def __init__(self, definition: Future[None], array: Array | None = None, *, mutable: bool = True) -> None:
        self.definition = definition
        self.array = array
        self.queue: WorkQueue | None = None
        self.mutable = mutable
        self.keep: Storage | None = None
        self._account: MemoryAccount | None = None
        self._charged = 0

    @property
    def is_token(self) -> bool:
        """Whether this is the value of a token, which has none."""
        return self.array is TOKEN

    def charge(self, account: MemoryAccount, size: int) -> None:
        """Takes bytes from an account until the storage is gone.

        Raises:
            ResourceExhaustedError: there are not that many left.
        """
        account.charge(size)
        self._account = account
        self._charged = size

    def take_charge_of(self, other: Storage) -> None:
        """Takes over the bytes that another storage was charged."""
        self._account, other._account = other._account, None
        self._charged = other._charged

    def give_back(self) -> None:
        """Gives the bytes back before the storage is gone, because it will never have a value."""
        account, self._account = self._account, None
        if account is not None:
            account.release(self._charged)

    def __del__(self) -> None:
        account = self._account
        if account is not None:
            account.release(self._charged)


def take_writable(storages: list[Storage], number: int) -> Array | None:
    """The array of a storage in a list, to be written to: its own memory if nobody else can see it, otherwise a copy.

    References tell who can see it. Whoever uses a value holds its storage or its array: buffers, work that waits,
    views that were handed out, external references, aliases. (CPython counts references exactly; where a count is
    higher than need be, there is a copy too many, and nothing wrong.)
    """
    storage = storages[number]
    # The list's reference, the local variable's, and the call's.
    if storage.mutable and sys.getrefcount(storage) == 3:
        array, storage.array = storage.array, None
        if array is None:
            return None
        # The local variable's and the call's.
        if sys.getrefcount(array) == 2 and is_sole_base(array):
            return thaw(array)
        return copied(array, array.dtype)
    return None if storage.array is None else copied(storage.array, storage.array.dtype)


def is_sole_base(array: Array) -> bool:
    """Whether an array's memory cannot be seen through any other array than this one."""
    base = array.base
    if type(base) is not np.ndarray:
        return True
    # The reference of the array's slot, the local variable's and the call's.
    return sys.getrefcount(base) == 3 and is_sole_base(base)


def freeze(array: Array) -> Array:
    """Makes an array read-only, and the arrays below it that own its memory, so that nobody can make its views
    writable either; returns it.
    """
    array.setflags(write=False)
    base = array.base
    if type(base) is np.ndarray and (base.base is None or type(base.base) is np.ndarray):
        freeze(base)
    return array


def thaw(array: Array) -> Array:
    """Undoes ``freeze``."""
    base = array.base
    if type(base) is np.ndarray and not base.flags.writeable:
        thaw(base)
    array.setflags(write=True)
    return array


def aligned_empty(shape: tuple[int, ...], dtype: AnyDType, order: tuple[int, ...] | None = None) -> Array:
    """A new array without particular values, aligned to ``ALIGNMENT``.

    Args:
        shape: its shape.
        dtype: its dtype.
        order: the dimensions from the slowest to the fastest varying; row-major if not said.

    Raises:
        ResourceExhaustedError: the process gets no more memory.
    """
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    try:
        raw = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # the latter where no address space is as large
        raise ResourceExhaustedError(
            f"there is no memory for {size} bytes of {dtype}{list(shape)}; delete buffers, or use a smaller shape"
        ) from error
    start = -raw.ctypes.data % ALIGNMENT
    laid = shape if order is None else tuple(shape[d] for d in order)
    array: Array = np.ndarray(laid, dtype, raw, start)
    return array if order is None else array.transpose(np.argsort(order))


def copied(array: Any, dtype: AnyDType, order: tuple[int, ...] | None = None) -> Array:
    """A copy of an array in new aligned memory."""
    made = aligned_empty(np.shape(array), dtype, order)
    np.copyto(made, array)
    return made
