"""Foreign memory: arrays over memory that somebody else owns, who is told when nobody uses it any more."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

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

    def __init__(self, pointer: int, size: int, keep: object, on_release: Callable[[], object] | None) -> None:
        self.__array_interface__ = {"data": (pointer, False), "shape": (size,), "typestr": "|u1", "version": 3}
        self._keep = keep
        self._on_release = on_release

    @staticmethod
    def over(array: Array, on_release: Callable[[], object]) -> Array:
        """An array of the same memory, shape and strides as a dense one; ``on_release`` is called when it and all its
        views are gone.
        """
        memory = np.asarray(ForeignMemory(array.ctypes.data, array.nbytes, array, on_release))
        made: Array = np.ndarray(array.shape, array.dtype, memory, 0, array.strides)
        return made

    def __del__(self) -> None:
        on_release: Any = getattr(self, "_on_release", None)
        if on_release is None:
            return
        self._on_release = None
        try:
            on_release()
        except Exception:
            _log.exception("the callback that says memory is not used any more raised; the exception goes no further")
