"""New arrays at addresses that compilers for CPUs can use in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.api.errors import ResourceExhaustedError

HostArray = np.ndarray[Any, Any]
"""Any numpy array."""

ALIGNMENT = 64
"""The alignment of new arrays in bytes. XLA's CPU backend copies what begins elsewhere."""


def aligned_empty(shape: tuple[int, ...], dtype: AnyDType, order: tuple[int, ...] | None = None) -> HostArray:
    """Return a new array without particular values, aligned to ``ALIGNMENT``.

    Args:
        shape: its shape.
        dtype: its dtype.
        order: the dimensions from the slowest to the fastest varying; ``None`` for row-major.

    Raises:
        ResourceExhaustedError: the process gets no more memory.
    """
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    try:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # a ValueError where no address space is as large
        raise ResourceExhaustedError(
            f"there is no memory for {size} bytes of {dtype}{list(shape)}; delete buffers, or use a smaller shape"
        ) from error
    start = -memory.ctypes.data % ALIGNMENT
    shape_in_memory = shape if order is None else tuple(shape[d] for d in order)
    array: HostArray = np.ndarray(shape_in_memory, dtype, memory, start)
    return array if order is None else array.transpose(np.argsort(order))


def aligned_copy(array: Any, dtype: AnyDType, order: tuple[int, ...] | None = None) -> HostArray:
    """Return a copy of an array in new aligned memory; the arguments are those of ``aligned_empty``."""
    copy = aligned_empty(np.shape(array), dtype, order)
    np.copyto(copy, array)
    return copy
