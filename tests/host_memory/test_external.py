"""External memory and references: who keeps it, and when its owner learns that it is released."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

import pjrt
from pjrt.host_memory.external import ExternalMemory, HostExternalReference, memory_of, notify_owner


def test_the_owner_learns_once_that_the_last_view_is_gone() -> None:
    owner = (ctypes.c_int32 * 4)(1, 2, 3, 4)
    released: list[bool] = []
    memory = ExternalMemory(ctypes.addressof(owner), 16, owner, lambda: released.append(True))
    array = memory.array((2, 2), np.dtype(np.int32))
    view = array[1]
    del memory, array
    gc.collect()
    assert not released
    assert view.tolist() == [3, 4]
    view[:] = 7
    assert list(owner) == [1, 2, 7, 7]
    del view
    gc.collect()
    assert released == [True]


def test_an_array_over_a_read_only_one_shares_its_memory_and_is_writable() -> None:
    source = np.arange(6, dtype=np.float32).reshape(2, 3).T
    source.setflags(write=False)
    array = ExternalMemory.over(source)
    assert array.ctypes.data == source.ctypes.data
    assert array.strides == source.strides
    array[0, 0] = 9
    assert source[0, 0] == 9


def test_memory_is_in_the_order_of_addresses() -> None:
    array = np.arange(6, dtype=np.int8).reshape(2, 3).T
    assert memory_of(array).tolist() == [0, 1, 2, 3, 4, 5]
    assert memory_of(np.empty((0, 3))).size == 0


def test_what_a_callback_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise SystemExit("no")

    notify_owner(fail)
    assert "the callback for the release of memory raised" in caplog.text


def test_a_reference_holds_the_array_until_it_is_released() -> None:
    array = np.arange(4)
    pointer = array.ctypes.data
    with HostExternalReference(array) as reference:
        del array
        gc.collect()
        assert reference.pointer == pointer
    with pytest.raises(pjrt.FailedPreconditionError, match="was released"):
        _ = reference.pointer
    reference.release()
