"""Buffers from host arrays: a copy where a copy is due, none where none is due, the release callback exactly once."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import toys
from waiting import wait_until

import pjrt
from pjrt.host import HostClient

S = pjrt.HostBufferSemantics
LARGE = 1 << 17
"""Elements of an array that is copied by the device's thread for transfers."""


class Calls:
    """A release callback that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture(name="client")
def a_client() -> Any:
    with toys.negate() as client:
        yield client


def put(client: HostClient, array: Any, semantics: S, **options: Any) -> tuple[pjrt.Buffer, Calls]:
    calls = Calls()
    return client.buffer_from_host(array, semantics=semantics, on_done_with_host_buffer=calls, **options), calls


@pytest.mark.parametrize("size", [4, LARGE])
def test_immutable_only_during_call_copies_before_it_returns(client: HostClient, size: int) -> None:
    array = np.arange(size, dtype=np.float32)
    buffer, calls = put(client, array, S.IMMUTABLE_ONLY_DURING_CALL)
    assert calls.count == 1
    assert buffer.ready().done()
    array[:] = -1
    np.testing.assert_array_equal(np.asarray(buffer), np.arange(size, dtype=np.float32))
    buffer.delete()
    gc.collect()
    assert calls.count == 1


@pytest.mark.parametrize("size", [4, LARGE])
def test_immutable_until_transfer_completes_copies_and_then_says_so(client: HostClient, size: int) -> None:
    array = np.arange(size, dtype=np.float32)
    buffer, calls = put(client, array, S.IMMUTABLE_UNTIL_TRANSFER_COMPLETES)
    buffer.ready().result(toys.TIMEOUT)
    assert calls.count == 1
    array[:] = -1
    np.testing.assert_array_equal(np.asarray(buffer), np.arange(size, dtype=np.float32))
    del buffer
    gc.collect()
    assert calls.count == 1


def test_a_large_transfer_does_not_hold_up_the_caller_nor_wait_for_programs() -> None:
    client, gate = toys.gated()
    (out,) = client.compile("program")(toys.floats())
    gate.wait_entered()
    buffer, calls = put(client, np.zeros(LARGE, np.float32), S.IMMUTABLE_UNTIL_TRANSFER_COMPLETES)
    buffer.ready().result(toys.TIMEOUT)
    assert calls.count == 1
    assert not out.ready().done()
    gate.open()
    client.close()


@pytest.mark.parametrize("semantics", [S.IMMUTABLE_ZERO_COPY, S.MUTABLE_ZERO_COPY])
def test_zero_copy_uses_the_arrays_own_memory_until_the_buffer_is_gone(client: HostClient, semantics: S) -> None:
    array = toys.floats()
    buffer, calls = put(client, array, semantics)
    assert buffer.unsafe_pointer() == array.ctypes.data
    assert np.asarray(buffer).ctypes.data == array.ctypes.data
    assert array.flags.writeable
    assert calls.count == 0
    buffer.delete()
    assert calls.count == 1
    del buffer
    gc.collect()
    assert calls.count == 1


def test_zero_copy_memory_is_not_released_while_anybody_can_see_it(client: HostClient) -> None:
    buffer, calls = put(client, toys.floats(), S.IMMUTABLE_ZERO_COPY)
    view = np.asarray(buffer)[1:]
    reference = buffer.external_reference()
    capsule = buffer.__dlpack__()
    buffer.delete()
    assert calls.count == 0
    reference.release()
    del view
    assert calls.count == 0
    del capsule
    assert calls.count == 1


def test_zero_copy_memory_is_not_released_while_work_uses_it() -> None:
    client, gate = toys.gated()
    buffer, calls = put(client, toys.floats(), S.IMMUTABLE_ZERO_COPY)
    (out,) = client.compile("program").execute_sharded([buffer], client.devices[0])
    gate.wait_entered()
    buffer.delete()
    assert calls.count == 0
    gate.open()
    out.ready().result(toys.TIMEOUT)
    client.close()
    assert calls.count == 1


@pytest.mark.parametrize(
    "array",
    [
        np.arange(8, dtype=np.float32)[::2],
        np.arange(8, dtype=np.float32)[::-1],
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.broadcast_to(np.float32(3), (4,)),
        np.arange(4, dtype=">f4"),
        np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float32),
        np.zeros((0, 3), np.float32),
    ],
    ids=["strided", "negative", "transposed", "broadcast", "byte order", "unaligned", "empty"],
)
def test_zero_copy_copies_what_the_device_cannot_use_where_it_lies(client: HostClient, array: np.ndarray) -> None:
    buffer, calls = put(client, array, S.IMMUTABLE_ZERO_COPY)
    assert calls.count == 1
    assert buffer.shape == array.shape
    assert buffer.dtype == np.dtype(np.float32)
    if array.size:
        assert buffer.unsafe_pointer() != array.ctypes.data
    np.testing.assert_array_equal(np.asarray(buffer), array)


def test_zero_copy_copies_what_is_not_aligned_as_the_device_needs_it() -> None:
    with toys.negate(alignment=64) as client:
        block = np.zeros(64, np.float32)
        start = (-block.ctypes.data % 64) // 4
        aligned, shifted = block[start : start + 4], block[start + 1 : start + 5]
        assert put(client, aligned, S.IMMUTABLE_ZERO_COPY)[0].unsafe_pointer() == aligned.ctypes.data
        made, calls = put(client, shifted, S.IMMUTABLE_ZERO_COPY)
        assert made.unsafe_pointer() % 64 == 0
        assert calls.count == 1


def test_a_layout_makes_other_strides_fit(client: HostClient) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    column_major = pjrt.TiledLayout((0, 1))
    buffer, calls = put(client, array, S.IMMUTABLE_ZERO_COPY, layout=column_major)
    assert buffer.unsafe_pointer() == array.ctypes.data
    assert buffer.layout == column_major
    assert calls.count == 0
    np.testing.assert_array_equal(np.asarray(buffer), array)
    copy, _ = put(client, array, S.IMMUTABLE_ONLY_DURING_CALL, layout=pjrt.StridedLayout((4, 12)))
    assert copy.layout == column_major
    assert np.asarray(copy).strides == (4, 12)
    np.testing.assert_array_equal(np.asarray(copy), array)


@pytest.mark.parametrize(
    ("layout", "error", "message"),
    [
        (pjrt.TiledLayout((1, 0), ((8, 128),)), pjrt.UnimplementedError, "without tiles"),
        (pjrt.TiledLayout((0,)), pjrt.InvalidArgumentError, r"found \{0\} of 1"),
        (pjrt.StridedLayout((16, 4)), pjrt.UnimplementedError, "dense"),
        (pjrt.StridedLayout((12,)), pjrt.InvalidArgumentError, "found 1"),
    ],
)
def test_layouts_that_host_memory_cannot_have(
    client: HostClient, layout: pjrt.Layout, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        client.buffer_from_host(np.zeros((2, 3), np.float32), layout=layout)


def test_mutable_zero_copy_writes_to_the_array_and_needs_one_that_can_be_written_to() -> None:
    def add_in_place(x: np.ndarray) -> np.ndarray:
        x += 1
        return x

    with toys.client(add_in_place, facts={"aliases": {0: 0}}) as client:
        exe = client.compile("program")
        array = toys.floats()
        buffer, _ = put(client, array, S.MUTABLE_ZERO_COPY)
        (out,) = exe(buffer)
        out.ready().result(toys.TIMEOUT)
        np.testing.assert_array_equal(array, toys.floats() + 1)
        del out, buffer
        immutable, _ = put(client, array, S.IMMUTABLE_ZERO_COPY)
        (out,) = exe(immutable)
        np.testing.assert_array_equal(np.asarray(out), toys.floats() + 2)
        np.testing.assert_array_equal(array, toys.floats() + 1)
        array.setflags(write=False)
        with pytest.raises(pjrt.InvalidArgumentError, match="read-only"):
            client.buffer_from_host(array, semantics=S.MUTABLE_ZERO_COPY)


def test_a_release_callback_that_raises_harms_nobody(client: HostClient, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("callback")

    for semantics in S:
        buffer = client.buffer_from_host(toys.floats(), semantics=semantics, on_done_with_host_buffer=fail)
        np.testing.assert_array_equal(np.asarray(buffer), toys.floats())
        del buffer
    wait_until(lambda: caplog.text.count("RuntimeError: callback") == len(S), "the end of all arrays")


def test_a_refused_array_is_not_released(client: HostClient) -> None:
    calls = Calls()
    for array in (np.array(["text"]), np.array([object()]), np.zeros(2, np.longdouble)):
        with pytest.raises(pjrt.InvalidArgumentError, match="not an element type"):
            client.buffer_from_host(array, on_done_with_host_buffer=calls)
    with toys.negate(memory_limit=8) as small:
        for semantics in S:
            with pytest.raises(pjrt.ResourceExhaustedError):
                small.buffer_from_host(toys.floats(), semantics=semantics, on_done_with_host_buffer=calls)
    assert calls.count == 0


@pytest.mark.parametrize("element_type", [t for t in pjrt.ElementType if t not in (0, 23, 30, 31)])
def test_every_element_type_goes_in_and_out(client: HostClient, element_type: pjrt.ElementType) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(element_type.dtype)
    buffer = client.buffer_from_host(array)
    assert buffer.element_type is element_type
    assert buffer.on_device_size == 4 * element_type.dtype.itemsize
    back = np.asarray(buffer)
    assert back.dtype == element_type.dtype
    assert back.tobytes() == array.tobytes()


def test_what_numpy_makes_an_array_of_is_taken(client: HostClient) -> None:
    assert client.buffer_from_host(3.5).element_type is pjrt.ElementType.F64
    assert client.buffer_from_host(np.int8(3)).shape == ()
    assert client.buffer_from_host([[True, False]]).element_type is pjrt.ElementType.PRED
    assert client.buffer_from_host(np.array(2, ml_dtypes.int4)).element_type is pjrt.ElementType.S4
    assert client.buffer_from_host(client.buffer_from_host(toys.floats())).shape == (4,)


def test_views_that_are_handed_out_cannot_be_made_writable(client: HostClient) -> None:
    (out,) = client.compile("program")(toys.floats())
    for buffer in (client.buffer_from_host(toys.floats()), out):
        view = np.asarray(buffer)
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.setflags(write=True)
