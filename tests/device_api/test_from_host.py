"""Buffers from host arrays: element types, strides, layouts, places, and the four semantics."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from anydevice import Absent, Backend, aligned
from waiting import wait_until

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.client import Client
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.shape_spec import StridedLayout, TiledLayout

ARRAY_TYPES = [each for each in ElementType if each not in (ElementType.INVALID, ElementType.TOKEN)]
COPYING = (HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL, HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES)
ZERO_COPY = (HostBufferSemantics.IMMUTABLE_ZERO_COPY, HostBufferSemantics.MUTABLE_ZERO_COPY)


def sample(element_type: ElementType, shape: tuple[int, ...] = (2, 3)) -> np.ndarray[Any, Any]:
    """Small whole numbers that every type can hold."""
    top = 2 if element_type.bits < 3 or element_type is ElementType.PRED else 3
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % top).astype(element_type.dtype)


@pytest.mark.parametrize("element_type", ARRAY_TYPES, ids=lambda each: each.name)
def test_every_element_type_makes_the_round_trip(backend: Backend, client: Client, element_type: ElementType) -> None:
    if element_type in backend.element_types_left_out:
        raise Absent(f"elements of type {element_type.name}")
    try:
        array = sample(element_type)
    except (PjrtError, TypeError) as error:
        pytest.skip(f"no numpy dtype: {error}")
    try:
        buffer = client.buffer_from_host(array)
    except UnimplementedError as error:
        pytest.skip(str(error))
    assert buffer.element_type is element_type
    assert buffer.dtype == array.dtype
    back = np.asarray(buffer)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back.astype(np.complex64), array.astype(np.complex64))


@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (3, 0, 2), (5,), (2, 3), (2, 1, 3), (1, 1, 1, 1), (2, 3, 2, 2, 2, 2)]
)
def test_every_shape_makes_the_round_trip(client: Client, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    buffer = client.buffer_from_host(array)
    assert buffer.shape == shape
    assert buffer.ndim == len(shape)
    assert buffer.size == array.size
    back = np.asarray(buffer)
    assert back.shape == shape
    np.testing.assert_array_equal(back, array)


BASE = np.arange(24, dtype=np.float32).reshape(4, 6)
STRIDED = {
    "transposed": BASE.T,
    "every second": BASE[::2, ::3],
    "backwards": BASE[::-1, ::-1],
    "broadcast": np.broadcast_to(np.float32(7), (3, 4)),
    "fortran": np.asfortranarray(BASE),
    "window": np.lib.stride_tricks.sliding_window_view(np.arange(6, dtype=np.float32), 3),
    "misaligned": np.frombuffer(b"x" + np.arange(4, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32),
}


@pytest.mark.parametrize("semantics", HostBufferSemantics, ids=lambda each: each.name.lower())
@pytest.mark.parametrize("name", STRIDED)
def test_strides_are_honoured(client: Client, name: str, semantics: HostBufferSemantics) -> None:
    array = STRIDED[name]
    try:
        buffer = client.buffer_from_host(array, semantics=semantics)
    except InvalidArgumentError:  # a device that would write must not borrow what cannot be written
        assert semantics is HostBufferSemantics.MUTABLE_ZERO_COPY
        assert not array.flags.writeable
    else:
        np.testing.assert_array_equal(np.asarray(buffer), array)


def test_a_layout_changes_the_bytes_and_not_the_value(client: Client) -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    buffer = client.buffer_from_host(array, layout=TiledLayout((0, 1)))
    assert buffer.layout == TiledLayout((0, 1))
    np.testing.assert_array_equal(np.asarray(buffer), array)
    raw = np.zeros(6, np.int32)
    buffer.copy_raw_to_host(raw).result()
    np.testing.assert_array_equal(raw, array.T.reshape(-1))


def test_a_strided_layout_is_taken_where_it_is_dense(client: Client) -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    buffer = client.buffer_from_host(array, layout=StridedLayout((4, 8)))
    np.testing.assert_array_equal(np.asarray(buffer), array)
    with pytest.raises((InvalidArgumentError, UnimplementedError)):
        client.buffer_from_host(array, layout=StridedLayout((400, 8)))


def test_a_layout_of_another_rank_is_refused(client: Client) -> None:
    with pytest.raises(InvalidArgumentError):
        client.buffer_from_host(np.zeros((2, 3), np.float32), layout=TiledLayout((2, 1, 0)))


def test_a_buffer_goes_where_it_is_sent(client: Client) -> None:
    array = np.arange(3, dtype=np.float32)
    assert client.buffer_from_host(array).device == client.addressable_devices[0]
    for device in client.addressable_devices:
        buffer = client.buffer_from_host(array, device=device)
        assert buffer.device == device
        assert buffer.memory_space == device.default_memory_space
        for space in device.memory_spaces:
            buffer = client.buffer_from_host(array, memory_space=space)
            assert (buffer.device, buffer.memory_space) == (device, space)
            np.testing.assert_array_equal(np.asarray(buffer), array)


def test_device_and_memory_space_must_agree(client: Client, second: Device) -> None:
    with pytest.raises(InvalidArgumentError):
        client.buffer_from_host(
            np.zeros(2, np.float32), device=client.addressable_devices[0], memory_space=second.default_memory_space
        )


def test_a_device_of_another_client_is_refused(new_client: Callable[..., Client]) -> None:
    here, there = new_client(), new_client()
    with pytest.raises(InvalidArgumentError):
        here.buffer_from_host(np.zeros(2, np.float32), device=there.devices[0])


@pytest.mark.parametrize(
    "what", ["text", np.array(["a", "b"]), np.array([object()])], ids=["str", "strings", "objects"]
)
def test_what_is_no_array_of_numbers_is_refused(client: Client, what: Any) -> None:
    with pytest.raises((PjrtError, TypeError)):
        client.buffer_from_host(what)


def test_lists_and_scalars_are_taken(client: Client) -> None:
    assert np.asarray(client.buffer_from_host(np.float32(2.5))) == 2.5
    np.testing.assert_array_equal(np.asarray(client.buffer_from_host([[1, 2], [3, 4]])), [[1, 2], [3, 4]])


# The four semantics.


class Releases:
    """Counts the calls of the release callback, and can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._arrived = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self._arrived.set()

    def wait(self) -> None:
        assert self._arrived.wait(60), "the release callback never came"


@pytest.mark.parametrize("semantics", HostBufferSemantics, ids=lambda each: each.name.lower())
def test_the_release_callback_comes_exactly_once(client: Client, semantics: HostBufferSemantics) -> None:
    array = np.arange(1000, dtype=np.float32)
    releases = Releases()
    buffer = client.buffer_from_host(array, semantics=semantics, on_done_with_host_buffer=releases)
    np.testing.assert_array_equal(np.asarray(buffer), np.arange(1000))
    if semantics in COPYING:
        releases.wait()
    buffer.delete()
    del buffer
    gc.collect(1)  # the young alone: what this test made is not old
    releases.wait()
    client.close()
    assert releases.count == 1


def test_only_during_call_means_a_copy(backend: Backend, client: Client) -> None:
    array = np.zeros(1000, np.float32)
    buffer = client.buffer_from_host(array, semantics=HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL)
    array[:] = 1
    np.testing.assert_array_equal(np.asarray(buffer), np.zeros(1000))


def test_only_during_call_copies_before_it_returns(backend: Backend, client: Client) -> None:
    array = np.zeros(100, np.float32)
    with backend.held(client):
        buffer = client.buffer_from_host(array, semantics=HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL)
        array[:] = 1
    np.testing.assert_array_equal(np.asarray(buffer), np.zeros(100))


def test_until_transfer_completes_means_a_copy_by_then(client: Client) -> None:
    array = np.zeros(1000, np.float32)
    releases = Releases()
    buffer = client.buffer_from_host(
        array,
        semantics=HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES,
        on_done_with_host_buffer=releases,
    )
    releases.wait()
    array[:] = 1
    np.testing.assert_array_equal(np.asarray(buffer), np.zeros(1000))


def test_until_transfer_completes_reads_no_earlier_than_it_must(backend: Backend, client: Client) -> None:
    array = np.zeros(100, np.float32)
    releases = Releases()
    with backend.held(client):
        buffer = client.buffer_from_host(
            array,
            semantics=HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES,
            on_done_with_host_buffer=releases,
        )
        assert releases.count == 0
        assert not buffer.ready().done()
    releases.wait()
    np.testing.assert_array_equal(np.asarray(buffer), np.zeros(100))


@pytest.mark.usefixtures("host_memory")
@pytest.mark.parametrize("semantics", ZERO_COPY, ids=lambda each: each.name.lower())
def test_zero_copy_means_no_copy(client: Client, semantics: HostBufferSemantics) -> None:
    array = aligned((1000,))
    releases = Releases()
    buffer = client.buffer_from_host(array, semantics=semantics, on_done_with_host_buffer=releases)
    buffer.ready().result()
    assert buffer.unsafe_pointer() == array.ctypes.data
    assert releases.count == 0
    buffer.delete()
    releases.wait()


def test_zero_copy_keeps_the_array_alive(client: Client) -> None:
    array = aligned((1000,))
    array[:] = 5
    buffer = client.buffer_from_host(array, semantics=HostBufferSemantics.IMMUTABLE_ZERO_COPY)
    del array
    gc.collect()
    np.testing.assert_array_equal(np.asarray(buffer), np.full(1000, 5))


def test_an_array_that_must_not_change_survives_a_donation(backend: Backend, client: Client) -> None:
    array = aligned((16,))
    array[:] = 3
    buffer = client.buffer_from_host(array, semantics=HostBufferSemantics.IMMUTABLE_ZERO_COPY)
    doubled = client.compile(backend.programs.double((16,), donate=True))(buffer)[0]
    np.testing.assert_array_equal(np.asarray(doubled), np.full(16, 6))
    np.testing.assert_array_equal(array, np.full(16, 3))
    assert buffer.is_deleted


def test_an_exception_in_the_release_callback_goes_no_further(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()

    def release() -> None:
        called.set()
        raise RuntimeError("from the callback")

    buffer = client.buffer_from_host(np.zeros(3, np.float32), on_done_with_host_buffer=release)
    np.testing.assert_array_equal(np.asarray(buffer), np.zeros(3))
    buffer.delete()
    assert called.wait(60)
    client.close()
    wait_until(lambda: "from the callback" in caplog.text, "what the other thread logs")
    caplog.clear()  # the traceback that was logged keeps what it passed through alive


@pytest.mark.usefixtures("host_memory")
def test_a_buffer_from_another_librarys_array_shares_memory(client: Client, device: Device) -> None:
    array = aligned((16,))
    array[:] = 2
    try:
        buffer = client.buffer_from_dlpack(array, device=device)
    except UnimplementedError as error:
        pytest.skip(str(error))
    np.testing.assert_array_equal(np.asarray(buffer), np.full(16, 2))
    assert buffer.unsafe_pointer() == array.ctypes.data
