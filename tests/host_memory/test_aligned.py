"""New arrays: aligned, in the order that was asked for, and an error where there is no memory."""

from __future__ import annotations

import numpy as np
import pytest

import pjrt
from pjrt.host_memory.array import ALIGNMENT, aligned_copy, aligned_empty, is_laid_out


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (5, 1, 7)], ids=str)
@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.complex128])
def test_arrays_are_aligned_and_writable(shape: tuple[int, ...], dtype: type) -> None:
    array = aligned_empty(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.ctypes.data % ALIGNMENT == 0
    assert array.flags.writeable
    assert is_laid_out(array, None)


def test_a_copy_has_the_values_in_the_order_that_was_asked_for() -> None:
    source = np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::-1]
    copy = aligned_copy(source, source.dtype, (2, 0, 1))
    np.testing.assert_array_equal(copy, source)
    assert copy.ctypes.data % ALIGNMENT == 0
    assert is_laid_out(copy, (2, 0, 1))
    assert not is_laid_out(copy, None)


def test_too_large_an_array_is_an_error_with_its_size() -> None:
    with pytest.raises(pjrt.ResourceExhaustedError, match=rf"{2**62} bytes of uint8\[{2**62}\]"):
        aligned_empty((2**62,), np.dtype(np.uint8))
