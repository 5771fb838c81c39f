"""Layouts of dense arrays in host memory, as PJRT and as numpy spell them.

An *order* is a tuple of the dimensions from the slowest to the fastest varying."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.shape_spec import Layout, ShapeSpec, StridedLayout, TiledLayout, expect_layout
from pjrt.host_memory.aligned import HostArray

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
