"""Values in memory that the host can read: numpy copies them in place once the plugin's transfers were late."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny.control import Control
from waiting import wait_until

import pjrt
from pjrt.api.client import Client

X = np.arange(6, dtype=np.float32).reshape(2, 3)
DTYPES = [np.bool_, np.int8, np.uint16, np.int32, np.float16, np.float32, np.float64, pjrt.ElementType.BF16.dtype]


def read_late(client: Client, control: Control) -> None:
    """Read a value that is there by a transfer that ends after its call has returned, twice."""
    buffer = client.buffer_from_host(X)
    buffer.ready().result()
    for _ in range(2):
        with control.held():
            reader = threading.Thread(target=np.asarray, args=(buffer,))
            reader.start()
            wait_until(lambda reader=reader: _waits(reader), "the reader's wait")  # type: ignore[misc]
        reader.join()


def _waits(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "_wait_in_slices"


@pytest.fixture
def in_place(client: Client, tiny_control: Control) -> Client:
    """A client whose transfers were late, and fail from now on."""
    read_late(client, tiny_control)
    tiny_control.fault("Buffer_ToHostBuffer", 13, "a transfer")
    return client


@given(data=st.data(), dtype=st.sampled_from(DTYPES))
@settings(max_examples=20)
def test_values_are_read_in_place(tiny_library: Path, data: st.DataObject, dtype: type) -> None:
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=4, max_side=5))
    bits = np.random.default_rng(0).integers(0, 2, shape)
    control = Control(tiny_library)
    with pjrt.load_plugin(tiny_library).client(num_devices=1) as client:
        read_late(client, control)
        with control.counted():
            found = np.asarray(client.buffer_from_host(bits.astype(dtype)))
            assert control.calls("Buffer_ToHostBuffer") == 0
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.int64), bits)


def test_what_was_read_is_a_copy(in_place: Client) -> None:
    buffer = in_place.buffer_from_host(X)
    first, second = np.asarray(buffer), np.array(buffer)
    first[...] = second[...] = 9
    np.testing.assert_array_equal(np.asarray(buffer), X)
    buffer.delete()
    assert (first == 9).all()


def test_a_plugin_that_refuses_references(client: Client, tiny_control: Control) -> None:
    """It is asked once, and copies each value itself."""
    read_late(client, tiny_control)
    buffer = client.buffer_from_host(X)
    tiny_control.fault("Buffer_IncreaseExternalReferenceCount", 12, "no references")
    with tiny_control.counted():
        np.testing.assert_array_equal(np.asarray(buffer), X)
        np.testing.assert_array_equal(np.asarray(buffer), X)
        asked = tiny_control.calls("Buffer_IncreaseExternalReferenceCount")
        assert (asked, tiny_control.calls("Buffer_ToHostBuffer")) == (1, 2)


def test_a_plugin_without_a_pointer(client: Client, tiny_control: Control) -> None:
    read_late(client, tiny_control)
    before = tiny_control.live()
    buffer = client.buffer_from_host(X)
    tiny_control.fault("Buffer_OpaqueDeviceMemoryDataPointer", 12, "no pointers")
    np.testing.assert_array_equal(np.asarray(buffer), X)
    del buffer
    assert tiny_control.left_over(before) == {}


def test_a_value_that_failed(in_place: Client, tiny_control: Control) -> None:
    tiny_control.clear()
    buffer = in_place.create_error_buffer(pjrt.DataLossError("lost"), pjrt.ShapeSpec((2,), pjrt.ElementType.F32))
    with pytest.raises(pjrt.DataLossError, match="lost"):
        np.asarray(buffer)


def test_a_buffer_that_is_gone(in_place: Client) -> None:
    buffer, other = in_place.buffer_from_host(X), in_place.buffer_from_host(X)
    buffer.delete()
    with pytest.raises(pjrt.FailedPreconditionError, match="deleted"):
        np.asarray(buffer)
    np.testing.assert_array_equal(np.asarray(other), X)


def test_another_order_is_the_plugins_to_copy(in_place: Client) -> None:
    buffer = in_place.buffer_from_host(X, layout=pjrt.TiledLayout((0, 1)))
    with pytest.raises(pjrt.InternalError, match="a transfer"):
        np.asarray(buffer)
