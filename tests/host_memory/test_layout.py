"""The order of dimensions: from layouts to numpy and back."""

from __future__ import annotations

import numpy as np
import pytest

import pjrt
from pjrt.host_memory.array import array_dtype, is_laid_out, order_of, order_of_spec, tiled

F32 = pjrt.ElementType.F32


def test_tiled_and_strided_layouts_of_dense_arrays_have_an_order() -> None:
    assert order_of(pjrt.TiledLayout((0, 1)), (2, 3), F32) == (1, 0)
    assert order_of(pjrt.StridedLayout((12, 4)), (2, 3), F32) == (0, 1)
    assert order_of(pjrt.StridedLayout((4, 8)), (2, 3), F32) == (1, 0)
    assert order_of(pjrt.StridedLayout((1000, 4)), (1, 3), F32) == (0, 1)
    assert order_of_spec(pjrt.ShapeSpec((2, 3), F32)) == (0, 1)
    assert order_of_spec(pjrt.ShapeSpec((2, 3), F32, pjrt.TiledLayout((0, 1)))) == (1, 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
def test_the_layout_of_an_order_has_that_order(order: tuple[int, ...]) -> None:
    layout = tiled(order)
    if order == (0, 1, 2):
        assert layout is None
    else:
        assert layout is not None
        assert order_of(layout, (2, 3, 4), F32) == order


@pytest.mark.parametrize(
    ("layout", "error", "message"),
    [
        (pjrt.TiledLayout((0,)), pjrt.InvalidArgumentError, r"a layout of 2 dimensions .* found \{0\} of 1"),
        (pjrt.TiledLayout((1, 0), ((8, 128),)), pjrt.UnimplementedError, "without tiles"),
        (pjrt.StridedLayout((4,)), pjrt.InvalidArgumentError, "expected 2 byte strides .* found 1"),
        (pjrt.StridedLayout((16, 4)), pjrt.UnimplementedError, "gaps or overlaps"),
        (pjrt.StridedLayout((4, 4)), pjrt.UnimplementedError, "gaps or overlaps"),
    ],
)
def test_layouts_that_host_memory_cannot_have(
    layout: pjrt.TiledLayout | pjrt.StridedLayout, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        order_of(layout, (2, 3), F32)


def test_is_laid_out_looks_at_gaps_alignment_and_byte_order() -> None:
    array = np.zeros((4, 4), np.int32)
    assert is_laid_out(array, None)
    assert is_laid_out(array.T, (1, 0))
    assert not is_laid_out(array[:, ::2], None)
    assert not is_laid_out(array.astype(">i4"), None)
    assert not is_laid_out(np.zeros(9, np.uint8)[1:].view(np.int32), None)


def test_tokens_are_held_as_empty_arrays_of_booleans() -> None:
    assert array_dtype(pjrt.ElementType.TOKEN) == np.bool_
    assert array_dtype(F32) == np.float32
