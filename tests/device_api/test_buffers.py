"""Buffers: what they say of themselves, copies, other hands, and their end."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from anydevice import Backend

from pjrt.api.client import Client
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    UnimplementedError,
)
from pjrt.api.future import Promise
from pjrt.api.shape_spec import TiledLayout

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_buffer_says_what_it_is(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    assert buffer.client is client
    assert buffer.shape == buffer.unpadded_shape == (2, 3)
    assert buffer.element_type is ElementType.F32
    assert buffer.dtype == np.float32
    assert buffer.layout == TiledLayout((1, 0))
    assert buffer.dynamic_dimensions == ()
    assert buffer.on_device_size == 24
    assert buffer.is_on_cpu in (True, False)
    assert not buffer.is_deleted
    assert "f32[2,3]" in repr(buffer)


def test_a_buffer_becomes_ready(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    assert buffer.ready().result(60) is None
    assert buffer.ready().done()


def test_deleting_is_final_and_may_be_repeated(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    buffer.delete()
    buffer.delete()
    assert buffer.is_deleted
    assert buffer.shape == (2, 3)
    assert "deleted" in repr(buffer)
    for use in (
        lambda: buffer.ready().result(),
        lambda: buffer.to_host().result(),
        lambda: buffer.copy_to(client.memory_spaces[1]),
        lambda: buffer.unsafe_pointer(),
        lambda: buffer.external_reference(),
    ):
        with pytest.raises(FailedPreconditionError):
            use()


@pytest.mark.full
def test_a_buffer_is_copied_to_devices_and_memory_spaces(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    for device in client.addressable_devices:
        for place in (device, *device.memory_spaces):
            copy = buffer.copy_to(place)
            assert copy.device == device
            assert copy.memory_space == (device.default_memory_space if place is device else place)
            np.testing.assert_array_equal(np.asarray(copy), ARRAY)


def test_a_copy_lives_by_itself(client: Client, second: Device) -> None:
    buffer = client.buffer_from_host(ARRAY)
    copy = buffer.copy_to(second)
    buffer.delete()
    np.testing.assert_array_equal(np.asarray(copy), ARRAY)


def test_a_copy_to_another_clients_device_is_refused_or_right(new_client: Callable[..., Client]) -> None:
    here, there = new_client(), new_client()
    buffer = here.buffer_from_host(ARRAY)
    try:
        copy = buffer.copy_to(there.devices[0])
    except InvalidArgumentError:
        return
    np.testing.assert_array_equal(np.asarray(copy), ARRAY)
    assert copy.client is there


def test_a_bitcast_keeps_the_bytes_and_takes_the_memory(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    cast = buffer.bitcast(ElementType.S32, (6,))
    assert (cast.element_type, cast.shape) == (ElementType.S32, (6,))
    np.testing.assert_array_equal(np.asarray(cast), ARRAY.view(np.int32).reshape(6))
    assert buffer.is_deleted


def test_a_bitcast_is_an_argument_as_what_it_became(backend: Backend, client: Client) -> None:
    programs = backend.programs
    (result,) = client.compile(programs.double((2, 3)))(ARRAY)
    for shape, element_type in (((6,), ElementType.F32), ((3, 2), ElementType.S32)):
        program = programs.identity(shape, element_type)
        expected = np.asarray(result).view(element_type.dtype).reshape(shape)
        (result,) = client.compile(program)(result.bitcast(element_type, shape))
        np.testing.assert_array_equal(np.asarray(result), expected)


def test_a_bitcast_to_another_size_is_refused(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    with pytest.raises(InvalidArgumentError):
        buffer.bitcast(ElementType.S32, (7,))
    assert not buffer.is_deleted


@pytest.mark.usefixtures("host_memory")
def test_the_address_of_a_buffer_holds_its_bytes(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    buffer.ready().result(60)
    assert ctypes.string_at(buffer.unsafe_pointer(), 24) == ARRAY.tobytes()


@pytest.mark.usefixtures("host_memory")
def test_an_external_reference_keeps_the_memory(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    buffer.ready().result(60)
    with buffer.external_reference() as reference:
        buffer.delete()
        assert ctypes.string_at(reference.pointer, 24) == ARRAY.tobytes()
        reference.release()
    assert buffer.is_deleted


def test_a_donation_waits_for_what_it_depends_on(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    dependency: Promise[None] = Promise()
    donated = buffer.donate_with_control_dependency(dependency.future)
    assert buffer.is_deleted
    assert not donated.ready().done()
    dependency.set_result(None)
    np.testing.assert_array_equal(donated.to_host().result(60), ARRAY)


@pytest.mark.full
def test_a_dependency_that_fails_fails_the_donation(client: Client) -> None:
    donated = client.buffer_from_host(ARRAY).donate_with_control_dependency(_failed())
    with pytest.raises(NotFoundError, match="gone"):
        donated.ready().result(60)


def _failed() -> object:
    promise: Promise[None] = Promise()
    promise.set_error(NotFoundError("gone"))
    return promise.future


def test_raw_buffers_share_the_memory(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    raw = buffer.raw()
    assert raw.on_device_size == 24
    assert raw.memory_space == buffer.memory_space
    out = bytearray(8)
    raw.copy_to_host(out, offset=4, size=8).result(60)
    assert bytes(out) == ARRAY.tobytes()[4:12]
    raw.copy_from_host(np.array([50, 60], np.float32), offset=4).result(60)
    assert list(np.asarray(buffer).reshape(-1)) == [0, 50, 60, 3, 4, 5]
    raw.release()
    raw.release()


def test_raw_buffers_have_bounds(client: Client) -> None:
    raw = client.buffer_from_host(ARRAY).raw()
    with pytest.raises((InvalidArgumentError, OutOfRangeError)):
        raw.copy_from_host(bytes(8), offset=20).result(60)
    with pytest.raises((InvalidArgumentError, OutOfRangeError)):
        raw.copy_to_host(bytearray(8), offset=-4).result(60)
    raw.release()


@pytest.mark.usefixtures("host_memory")
def test_dlpack_shares_the_memory(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    buffer.ready().result(60)
    try:
        array = np.from_dlpack(buffer)
    except UnimplementedError as error:
        pytest.skip(str(error))
    np.testing.assert_array_equal(array, ARRAY)
    assert array.ctypes.data == buffer.unsafe_pointer()
    del buffer
    np.testing.assert_array_equal(array, ARRAY)


def test_a_stream_can_be_waited_on(client: Client, second: Device) -> None:
    buffer = client.buffer_from_host(ARRAY, device=client.addressable_devices[0])
    buffer.wait_until_ready_on_stream(second.stream_for_external_ready_events())
    np.testing.assert_array_equal(np.asarray(buffer), ARRAY)


def test_many_buffers_come_and_go(client: Client) -> None:
    for i in range(300):
        buffer = client.buffer_from_host(np.full(10, i, np.int32))
        assert np.asarray(buffer)[0] == i
