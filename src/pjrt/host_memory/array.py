"""Arrays in host memory: new ones that compilers for CPUs can use in place, their layouts, and ranges of bytes.

An *order* is a tuple of the dimensions from the slowest to the fastest varying.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.checks import expect_int
from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError, UnimplementedError
from pjrt.api.shape_spec import Layout, ShapeSpec, StridedLayout, TiledLayout, expect_layout

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
    start = -memory.__array_interface__["data"][0] % ALIGNMENT  # without the calls that memory.ctypes makes
    shape_in_memory = shape if order is None else tuple(shape[d] for d in order)
    array: HostArray = np.ndarray(shape_in_memory, dtype, memory, start)
    return array if order is None else array.transpose(np.argsort(order))


def aligned_copy(array: Any, dtype: AnyDType, order: tuple[int, ...] | None = None) -> HostArray:
    """Return a copy of an array in new aligned memory; the arguments are those of ``aligned_empty``."""
    copy = aligned_empty(array.shape if type(array) is np.ndarray else np.shape(array), dtype, order)
    np.copyto(copy, array)
    return copy


_TOKEN_DTYPE = np.dtype(np.bool_)
_DTYPES: dict[ElementType, AnyDType] = {ElementType.TOKEN: _TOKEN_DTYPE}


def array_dtype(element_type: ElementType) -> AnyDType:
    """Return the numpy dtype in which elements are held.

    Sub-byte elements take a byte each, as in ml_dtypes. A token, which has no value, is an empty array of booleans.
    """
    dtype = _DTYPES.get(element_type)
    if dtype is None:
        dtype = _DTYPES[element_type] = element_type.dtype
    return dtype


# Elements of less than a byte, as XLA's memory has them: packed, the first one in the lowest bits. Those of six bits,
# which do not fill bytes, have a byte each there, too.


def is_packed(element_type: ElementType) -> bool:
    """Whether XLA's memory has several elements of the type in a byte."""
    return element_type.bits in (1, 2, 4)


def packed_size(count: int, element_type: ElementType) -> int:
    """Return the bytes of so many packed elements."""
    return -(-count * element_type.bits // 8)


def packed(values: HostArray, element_type: ElementType) -> HostArray:
    """Return elements of less than a byte as packed bytes."""
    bits = element_type.bits
    low = np.ascontiguousarray(values).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    size = packed_size(low.size, element_type)
    each = np.zeros(size * (8 // bits), np.uint8)
    each[: low.size] = low
    shifted = each.reshape(size, 8 // bits) << np.arange(0, 8, bits, dtype=np.uint8)
    together: HostArray = np.bitwise_or.reduce(shifted, axis=1)
    return together


def unpacked(memory: HostArray, shape: tuple[int, ...], element_type: ElementType) -> HostArray:
    """Return packed elements as a new array, in which each has a byte of its own."""
    bits = element_type.bits
    each = (memory[:, np.newaxis] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    low = each.reshape(-1)[: math.prod(shape)]
    if element_type.name[0] == "S":  # numpy keeps the sign in the bits above
        sign = np.uint8(1 << (bits - 1))
        low = (low ^ sign) - sign
    return low.view(element_type.dtype).reshape(shape)


def order_of(layout: Layout, shape: Sequence[int], element_type: ElementType) -> tuple[int, ...]:
    """Return the order of a layout.

    Raises:
        InvalidArgumentError: the layout does not fit the shape.
        UnimplementedError: the layout is tiled, or has gaps or overlaps: arrays in host memory are dense.
    """
    if isinstance(layout, TiledLayout):
        if len(layout.minor_to_major) != len(shape):
            raise InvalidArgumentError(
                f"expected a layout of {len(shape)} dimensions for the shape {list(shape)}, found {layout} of "
                f"{len(layout.minor_to_major)}"
            )
        if layout.tiles:
            raise UnimplementedError(f"expected a layout without tiles, as host memory has none, found {layout}")
        return layout.minor_to_major[::-1]
    expect_layout(layout)
    return _order_of_strides(layout, shape, array_dtype(element_type).itemsize)


def order_of_spec(spec: ShapeSpec) -> tuple[int, ...]:
    """Return the order of the layout of a spec.

    Raises:
        PjrtError: for the reasons of ``order_of``.
    """
    if spec.layout is None:
        return tuple(range(len(spec.shape)))
    return order_of(spec.layout, spec.shape, spec.element_type)


def order_and_layout(
    layout: Layout | None, shape: Sequence[int], element_type: ElementType
) -> tuple[tuple[int, ...] | None, TiledLayout | None]:
    """Return the order of a layout, and the layout as a tiled one; both ``None`` if it is row-major, the default.

    Raises:
        PjrtError: for the reasons of ``order_of``.
    """
    order = None if layout is None else order_of(layout, shape, element_type)
    tiled_layout = None if order is None else tiled(order)
    return (None if tiled_layout is None else order), tiled_layout


def _order_of_strides(layout: StridedLayout, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides = layout.byte_strides
    if len(strides) != len(shape):
        raise InvalidArgumentError(
            f"expected {len(shape)} byte strides for the shape {list(shape)}, found {len(strides)}"
        )
    # A dimension of one element may have any stride: it is skipped below, wherever the sort puts it.
    order = tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], d)))
    step = itemsize
    for dimension in reversed(order):
        if shape[dimension] > 1 and strides[dimension] != step:
            raise UnimplementedError(
                f"expected byte strides of a dense array of shape {list(shape)}, found {strides} with gaps or overlaps"
            )
        step *= shape[dimension]
    return order


def tiled(order: tuple[int, ...]) -> TiledLayout | None:
    """Return the layout of an order; ``None`` for row-major, the default."""
    if order == tuple(range(len(order))):
        return None
    return TiledLayout(order[::-1])


def is_laid_out(array: HostArray, order: tuple[int, ...] | None) -> bool:
    """Whether an array is dense in this order (``None``: row-major), aligned for its dtype and in native byte order."""
    ordered = array if order is None else array.transpose(order)
    return bool(ordered.flags.c_contiguous and ordered.flags.aligned and ordered.dtype.isnative)


def source_bytes(source: Any, offset: int, available: int) -> HostArray:
    """Return the bytes of the caller's that are written to a buffer from an offset on.

    Args:
        source: an object with the buffer protocol, or a numpy array of any dtype.
        offset: the byte of the buffer that is written first.
        available: the buffer's number of bytes.

    Raises:
        InvalidArgumentError: the source has no bytes, or gaps between them.
        OutOfRangeError: the buffer is too small for them.
    """
    data = bytes_of(source)
    _check_range(offset, data.nbytes, available)
    return data


def target_bytes(out: Any, offset: int, size: int | None, available: int) -> HostArray:
    """Return the bytes of the caller's that bytes of a buffer are copied to.

    Args:
        out: a writable object with the buffer protocol, or a writable numpy array of any dtype.
        offset: the byte of the buffer that is read first.
        size: how many bytes are copied; ``None`` for as many as ``out`` holds.
        available: the buffer's number of bytes.

    Raises:
        InvalidArgumentError: the target is read-only or too small, has no bytes, or gaps between them.
        OutOfRangeError: the buffer does not have these bytes.
    """
    target = bytes_of(out)
    if not target.flags.writeable and target.nbytes:
        raise InvalidArgumentError(f"expected a writable object to copy to, found a read-only {type(out).__name__}")
    count = target.nbytes if size is None else expect_int(size, "a number of bytes, or None, as size")
    if count > target.nbytes:
        raise InvalidArgumentError(f"expected room for {count} bytes to copy to, found {target.nbytes}")
    _check_range(offset, count, available)
    return target[:count]


def bytes_of(memory: Any) -> HostArray:
    """Return the bytes of an object with the buffer protocol, or of a numpy array of any dtype, without a copy.

    Raises:
        InvalidArgumentError: the object has no bytes, or gaps between them.
    """
    if isinstance(memory, np.ndarray):
        if not memory.flags.c_contiguous:
            raise InvalidArgumentError("the bytes of a strided array do not lie together; pass a contiguous copy")
        return memory.reshape(-1).view(np.uint8)
    try:
        view = memoryview(memory)
        return np.frombuffer(view.cast("B"), np.uint8) if view.nbytes else np.empty(0, np.uint8)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"expected an object with the buffer protocol whose bytes lie together, found {type(memory).__name__}: "
            f"{error}"
        ) from error


def _check_range(offset: int, count: int, available: int) -> None:
    expect_int(offset, "an offset in bytes as a whole number")
    if offset < 0 or count < 0 or offset + count > available:
        raise OutOfRangeError(
            f"expected a range within the buffer's {available} bytes, found bytes {offset} to {offset + count}"
        )
