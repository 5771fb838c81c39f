"""Foreign memory: arrays over memory that numpy does not own, whose owner is told when nobody uses it any more."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.host.storage import Array

_log = logging.getLogger("pjrt")


class ForeignMemory:
    """The base of every array over the memory: numpy keeps it alive for as long as there is a view.

    Args:
        pointer: where the memory begins.
        size: its bytes.
        keep: what keeps the memory alive, if a Python object does.
        on_release: called exactly once, when the last array over the memory is gone.
    """

    __slots__ = ("__array_interface__", "_keep", "_on_release")

    def __init__(
        self, pointer: int, size: int, keep: object = None, on_release: Callable[[], object] | None = None
    ) -> None:
        self.__array_interface__ = {"data": (pointer, False), "shape": (size,), "typestr": "|u1", "version": 3}
        self._keep = keep
        self._on_release = on_release

    def array(self, shape: tuple[int, ...], dtype: AnyDType, strides: tuple[int, ...] | None = None) -> Array:
        """An array over the memory, writable."""
        made: Array = np.ndarray(shape, dtype, self.bytes(), 0, strides)
        return made

    def bytes(self) -> Array:
        """The memory as an array of bytes, writable."""
        return np.asarray(self)

    @staticmethod
    def over(array: Array, on_release: Callable[[], object] | None = None) -> Array:
        """An array of the same memory, shape and strides as a dense one, writable whatever the given one is;
        ``on_release`` is called when it and all its views are gone.
        """
        memory = ForeignMemory(array.ctypes.data, array.nbytes, array, on_release)
        return memory.array(array.shape, array.dtype, array.strides)

    def __del__(self) -> None:
        on_release: Any = getattr(self, "_on_release", None)
        if on_release is None:
            return
        self._on_release = None
        tell(on_release)


def tell(callback: Callable[[], object]) -> None:
    """Calls a release callback; what it raises is logged, for there is nobody to raise it to."""
    try:
        callback()
    except BaseException:  # whoever drops the memory, often the garbage collector, is not to be ended by it
        _log.exception("the callback that says memory is not used any more raised; the exception goes no further")


def writable_bytes(array: Array) -> Array:
    """The memory of a dense array as it lies, as writable bytes that keep it alive."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    return ForeignMemory(array.ctypes.data, array.nbytes, array).bytes()
