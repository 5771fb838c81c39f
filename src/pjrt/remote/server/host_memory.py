"""Arrays of numpy in the bytes of host buffers.

A host buffer is the smallest part of memory that has all elements of an array: from its first byte on, in steps of the
byte strides, which are positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError


def array_in(
    data: Any, element_type: ElementType, shape: tuple[int, ...], strides: Sequence[int] | None
) -> np.ndarray[Any, Any]:
    """Return the array that is in the bytes of a host buffer, without a copy.

    Args:
        data: the bytes.
        element_type: the type of the elements; those of less than a byte take a byte each.
        shape: the shape.
        strides: for each dimension the distance of neighbors in bytes; ``None`` is C order.

    Raises:
        InvalidArgumentError: the array is larger or smaller than the host buffer.
        UnimplementedError: a stride is not a positive multiple of the size of an element.
    """
    dtype = element_type.dtype
    size = memoryview(data).nbytes
    needed = region_size(dtype.itemsize, shape, strides)
    if size != needed:
        raise InvalidArgumentError(
            f"expected a host buffer of {needed} bytes for {element_type.name} {list(shape)} with the strides "
            f"{strides}, found {size} bytes"
        )
    try:
        return np.ndarray(shape, dtype, data, strides=strides if needed else None)
    except ValueError as error:  # an empty array whose other dimensions overflow
        raise InvalidArgumentError(f"expected an array that numpy can hold, found {list(shape)}: {error}") from error


def bytes_of(value: np.ndarray[Any, Any], strides: Sequence[int] | None) -> Any:
    """Return the bytes of an array as a host buffer has them; without a copy if they lie so already.

    Raises:
        UnimplementedError: a stride is not a positive multiple of the size of an element.
        InvalidArgumentError: there is not one stride for each dimension.
    """
    if strides is None or not value.size:
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    region = np.zeros(region_size(value.dtype.itemsize, value.shape, strides), np.uint8)
    np.ndarray(value.shape, value.dtype, region.data, strides=tuple(strides))[...] = value
    return region


def region_size(itemsize: int, shape: tuple[int, ...], strides: Sequence[int] | None) -> int:
    """Return the number of bytes from the first byte of an array to its last.

    Raises:
        UnimplementedError: a stride is not a positive multiple of the size of an element.
        InvalidArgumentError: there is not one stride for each dimension.
    """
    if strides is None:
        return itemsize * math.prod(shape)
    if len(strides) != len(shape):
        raise InvalidArgumentError(f"expected {len(shape)} byte strides for {list(shape)}, found {list(strides)}")
    if not math.prod(shape):
        return 0
    end = itemsize
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if stride <= 0 or stride % itemsize:
            raise UnimplementedError(
                f"expected byte strides that are positive multiples of {itemsize}, found {list(strides)}"
            )
        end += stride * (size - 1)
    return end
