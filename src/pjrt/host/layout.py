"""Layouts of host memory: which the runtime can hold, and how they are spelled for numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.layout import Layout, StridedLayout, TiledLayout, expect_layout
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.storage import Array

_TOKEN_DTYPE = np.dtype(np.bool_)
_DTYPES: dict[ElementType, AnyDType] = {ElementType.TOKEN: _TOKEN_DTYPE}


def array_dtype(element_type: ElementType) -> AnyDType:
    """The numpy dtype in which elements are held: sub-byte elements take a byte each, as ml_dtypes has them; a token,
    which has no value, is an empty array of booleans.
    """
    found = _DTYPES.get(element_type)
    if found is None:
        found = _DTYPES[element_type] = element_type.dtype
    return found


def order_of(layout: Layout, shape: Sequence[int], element_type: ElementType) -> tuple[int, ...]:
    """The dimensions of a layout from the slowest to the fastest varying.

    Raises:
        InvalidArgumentError: the layout does not fit the shape.
        UnimplementedError: it is tiled, or has gaps or overlaps: host memory is dense.
    """
    if isinstance(layout, TiledLayout):
        if len(layout.minor_to_major) != len(shape):
            raise InvalidArgumentError(
                f"the layout {layout} is for {len(layout.minor_to_major)} dimensions, the shape "
                f"{list(shape)} has {len(shape)}"
            )
        if layout.tiles:
            raise UnimplementedError(f"host memory is not tiled: expected a layout without tiles, found {layout}")
        return layout.minor_to_major[::-1]
    expect_layout(layout)
    return _order_of_strides(layout, shape, array_dtype(element_type).itemsize)


def order_of_spec(spec: ShapeSpec) -> tuple[int, ...]:
    """The dimensions of an array from the slowest to the fastest varying, as its spec says it.

    Raises:
        PjrtError: as ``order_of``.
    """
    if spec.layout is None:
        return tuple(range(len(spec.shape)))
    return order_of(spec.layout, spec.shape, spec.element_type)


def _order_of_strides(layout: StridedLayout, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides = layout.byte_strides
    if len(strides) != len(shape):
        raise InvalidArgumentError(f"{len(strides)} byte strides were given for a shape of {len(shape)} dimensions")
    # Dimensions of one element may have any stride; they go where they do not disturb the others.
    order = tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], d)))
    step = itemsize
    for dimension in reversed(order):
        if shape[dimension] > 1 and strides[dimension] != step:
            raise UnimplementedError(
                f"host buffers are dense: the byte strides {strides} leave gaps in the shape {list(shape)} or overlap"
            )
        step *= shape[dimension]
    return order


def tiled(order: tuple[int, ...]) -> TiledLayout | None:
    """The layout for dimensions from the slowest to the fastest varying; ``None`` for row-major, the default."""
    if order == tuple(range(len(order))):
        return None
    return TiledLayout(order[::-1])


def is_laid_out(array: Array, order: tuple[int, ...] | None) -> bool:
    """Whether an array lies densely in memory in that order, in native byte order and aligned for its type."""
    laid = array if order is None else array.transpose(order)
    return bool(laid.flags.c_contiguous and laid.flags.aligned and laid.dtype.isnative)
