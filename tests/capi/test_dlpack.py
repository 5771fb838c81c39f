"""DLPack: memory shared with other libraries in both directions, and given back once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny.control import Control

import pjrt
from pjrt.api.client import Client

HERE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=40
)


@HERE
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from([np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64, np.complex64]),
    data=st.data(),
)
def test_what_goes_out_comes_back(client: Client, shape: list[int], dtype: Any, data: st.DataObject) -> None:
    array = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    order = data.draw(st.permutations(range(len(shape))))
    turned = array.transpose(order)
    incoming = client.buffer_from_dlpack(turned)
    assert incoming.shape == turned.shape
    np.testing.assert_array_equal(np.asarray(incoming), turned)
    outgoing = np.from_dlpack(incoming)
    assert outgoing.dtype == turned.dtype
    np.testing.assert_array_equal(outgoing, turned)
    if array.size:
        assert outgoing.ctypes.data == turned.ctypes.data


def test_the_buffer_lives_while_the_array_does(tiny_copy: Callable[..., Control]) -> None:
    control = tiny_copy()
    with pjrt.load_plugin(control.path).client() as client:
        before = control.live()
        array = np.from_dlpack(client.buffer_from_host(np.arange(3)))
        gc.collect()
        assert control.live("buffer") == 1
        np.testing.assert_array_equal(array, [0, 1, 2])
        del array
        assert control.left_over(before) == {}


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1)])
def test_a_capsule_that_nobody_takes(tiny_copy: Callable[..., Control], version: tuple[int, int] | None) -> None:
    control = tiny_copy()
    with pjrt.load_plugin(control.path).client() as client:
        before = control.live()
        capsule = client.buffer_from_host(np.arange(3)).__dlpack__(max_version=version)
        name = "dltensor" if version is None else "dltensor_versioned"
        assert f'"{name}"' in repr(capsule)
        assert control.live("buffer") == 1
        del capsule
        assert control.left_over(before) == {}


def test_the_source_lives_while_the_buffer_does(client: Client) -> None:
    class Source:
        def __init__(self) -> None:
            self.array = np.arange(4.0)

        def __dlpack__(self, **_: Any) -> Any:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    source = Source()
    before = sys.getrefcount(source.array)
    buffer = client.buffer_from_dlpack(source)
    during = sys.getrefcount(source.array)  # not inside the assertion, which holds one more
    assert during > before
    buffer.ready().result()
    del buffer
    gc.collect()
    client.buffer_from_host(np.arange(3)).to_host().result()  # what the device's thread had to give back, it has
    after = sys.getrefcount(source.array)
    assert after == before


def test_types_that_numpy_lacks(client: Client) -> None:
    buffer = client.buffer_from_host(np.array([1.5, -2], ml_dtypes.bfloat16))
    again = client.buffer_from_dlpack(buffer)
    assert again.element_type is pjrt.ElementType.BF16
    np.testing.assert_array_equal(np.asarray(again), np.array([1.5, -2], ml_dtypes.bfloat16))
    with pytest.raises(pjrt.UnimplementedError, match="S4"):
        client.buffer_from_host(np.array([1], ml_dtypes.int4)).__dlpack__()


@pytest.mark.parametrize(
    ("array", "reason"),
    [(np.arange(8)[::2], "not dense"), (np.broadcast_to(np.arange(2.0), (3, 2)).copy()[:, ::-1], "not dense")],
    ids=["gaps", "backwards"],
)
def test_memory_in_pieces_is_refused(client: Client, array: Any, reason: str) -> None:
    with pytest.raises(pjrt.UnimplementedError, match=reason):
        client.buffer_from_dlpack(array)


def test_what_cannot_be_shared(client: Client) -> None:
    buffer = client.buffer_from_host(np.arange(3))
    with pytest.raises(BufferError, match="no streams"):
        buffer.__dlpack__(stream=3)
    with pytest.raises(BufferError, match="not on"):
        buffer.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="not copied"):
        buffer.__dlpack__(copy=True)
    with pytest.raises(pjrt.InvalidArgumentError, match="__dlpack__"):
        client.buffer_from_dlpack([1, 2])

    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(pjrt.InvalidArgumentError, match=r"device \(2, 0\)"):
        client.buffer_from_dlpack(Elsewhere())
    buffer.delete()
    with pytest.raises(pjrt.FailedPreconditionError):
        buffer.__dlpack__()
