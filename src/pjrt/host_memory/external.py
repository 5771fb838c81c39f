"""External memory: arrays over memory that numpy does not own. Its owner learns when the last of them is gone."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.host_memory.aligned import HostArray

_log = logging.getLogger("pjrt")


class ExternalMemory:
    """The base of every array over the memory: numpy keeps it alive for as long as there is a view.

    Args:
        pointer: the address at which the memory begins.
        size: its number of bytes.
        owner: a Python object that keeps the memory alive, if one does.
        on_release: called exactly once, when the last array over the memory is gone.
    """

    __slots__ = ("__array_interface__", "_on_release", "_owner")

    def __init__(
        self, pointer: int, size: int, owner: object = None, on_release: Callable[[], object] | None = None
    ) -> None:
        self.__array_interface__ = {"data": (pointer, False), "shape": (size,), "typestr": "|u1", "version": 3}
        self._owner = owner
        self._on_release = on_release

    def array(self, shape: tuple[int, ...], dtype: AnyDType, strides: tuple[int, ...] | None = None) -> HostArray:
        """Return a writable array over the memory."""
        array: HostArray = np.ndarray(shape, dtype, self.bytes(), 0, strides)
        return array

    def bytes(self) -> HostArray:
        """Return the memory as a writable array of bytes."""
        return np.asarray(self)

    @staticmethod
    def over(array: HostArray, on_release: Callable[[], object] | None = None) -> HostArray:
        """Return a writable array of the same memory, shape and strides as a dense array, which may be read-only.

        ``on_release`` is called when the new array and all its views are gone.
        """
        memory = ExternalMemory(array.ctypes.data, array.nbytes, array, on_release)
        return memory.array(array.shape, array.dtype, array.strides)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter. Those that the
        # owner's callback needs may be, too.
        on_release: Any = getattr(self, "_on_release", None)
        if on_release is not None and not is_finalizing():
            self._on_release = None
            notify_owner(on_release)


def notify_owner(on_release: Callable[[], object]) -> None:
    """Call an owner's callback and log what it raises: there is no caller that could handle it."""
    try:
        on_release()
    except BaseException:  # The memory is often dropped by the garbage collector, which must go on.
        _log.exception("the callback for the release of memory raised; the exception is ignored")


def memory_of(array: HostArray) -> HostArray:
    """Return the memory of a dense array, in the order of its addresses, as writable bytes that keep it alive."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    return ExternalMemory(array.ctypes.data, array.nbytes, array).bytes()
