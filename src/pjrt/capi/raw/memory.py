"""Memory that a call is given: the structs of its arguments, and what they point to."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pjrt.host_memory.array import aligned_empty


class Memory:
    """Memory that a call is given; it lives as long as this object."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def allocate(self, size: int) -> int:
        """Return the address of new memory of zeros, aligned as host arrays are."""
        array = aligned_empty((max(size, 1),), np.dtype(np.uint8))
        array.fill(0)
        return self.keep(array)

    def copy(self, data: bytes | memoryview) -> int:
        """Return the address of a copy of some bytes, with a zero behind them."""
        address = self.allocate(len(data) + 1)
        if len(data):
            ctypes.memmove(address, np.frombuffer(data, np.uint8).ctypes.data, len(data))
        return address

    def keep(self, array: np.ndarray[Any, Any]) -> int:
        """Keep an array, and return its address."""
        self._kept.append(array)
        return int(array.ctypes.data)

    def keep_object(self, value: object) -> None:
        """Keep an object that the memory refers to, such as a function."""
        self._kept.append(value)
