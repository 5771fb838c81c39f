"""Buffers that do not come from a host array: uninitialized, failed, aliases, views, and filled piece by piece."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from anydevice import Backend, aligned

from pjrt.api.client import Client
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    PjrtError,
    ResourceExhaustedError,
    StatusCode,
    UnimplementedError,
)
from pjrt.api.shape_spec import ShapeSpec, TiledLayout

SPEC = ShapeSpec((2, 3), ElementType.F32)
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_an_uninitialized_buffer_has_its_shape(client: Client) -> None:
    for space in client.memory_spaces:
        buffer = client.create_uninitialized_buffer(SPEC, memory_space=space)
        assert (buffer.shape, buffer.element_type, buffer.memory_space) == ((2, 3), ElementType.F32, space)
        buffer.ready().result(60)
        assert buffer.to_host().result(60).shape == (2, 3)


@pytest.mark.parametrize("code", [code for code in StatusCode if code], ids=lambda code: code.name)
def test_an_error_buffer_passes_its_error_on(backend: Backend, client: Client, code: StatusCode) -> None:
    error = PjrtError.of(code, "born broken", {"type.example/what": b"wheel"})
    buffer = client.create_error_buffer(error, SPEC)
    assert buffer.shape == (2, 3)
    for use in (buffer.ready, buffer.to_host):
        with pytest.raises(type(error), match="born broken") as caught:
            use().result(60)
        assert caught.value.code == code
        if backend.has_payloads:
            assert caught.value.payloads["type.example/what"] == b"wheel"


def test_an_error_travels_through_copies_and_programs(backend: Backend, client: Client) -> None:
    buffer = client.create_error_buffer(DataLossError("lost"), SPEC)
    with pytest.raises(DataLossError, match="lost"):
        buffer.copy_to(client.memory_spaces[1]).ready().result(60)
    (doubled,) = client.compile(backend.programs.double((2, 3)))(buffer)
    with pytest.raises(DataLossError, match="lost"):
        doubled.to_host().result(60)


# Aliases.


def test_an_alias_becomes_the_buffer_it_is_fulfilled_with(client: Client) -> None:
    alias, fulfillment = client.create_alias_buffer(SPEC)
    assert (alias.shape, alias.element_type) == ((2, 3), ElementType.F32)
    assert not alias.ready().done()
    future = alias.to_host()
    fulfillment.fulfill(client.buffer_from_host(ARRAY))
    np.testing.assert_array_equal(future.result(60), ARRAY)
    np.testing.assert_array_equal(alias.to_host().result(60), ARRAY)


def test_an_alias_can_be_computed_with_before_it_is_fulfilled(backend: Backend, client: Client) -> None:
    executable = client.compile(backend.programs.double((2, 3)))
    alias, fulfillment = client.create_alias_buffer(SPEC)
    (doubled,) = executable(alias)
    assert not doubled.ready().done()
    fulfillment.fulfill(client.buffer_from_host(ARRAY))
    np.testing.assert_array_equal(doubled.to_host().result(60), ARRAY * 2)


def test_an_alias_may_fail(client: Client) -> None:
    alias, fulfillment = client.create_alias_buffer(SPEC)
    fulfillment.fail(ResourceExhaustedError("nothing left"))
    with pytest.raises(ResourceExhaustedError, match="nothing left"):
        alias.ready().result(60)


def test_an_alias_is_fulfilled_once(client: Client) -> None:
    alias, fulfillment = client.create_alias_buffer(SPEC)
    buffer = client.buffer_from_host(ARRAY)
    fulfillment.fulfill(buffer)
    with pytest.raises(FailedPreconditionError):
        fulfillment.fulfill(buffer)
    with pytest.raises(FailedPreconditionError):
        fulfillment.fail(DataLossError("too late"))
    np.testing.assert_array_equal(alias.to_host().result(60), ARRAY)


def test_an_alias_takes_no_other_shape(client: Client) -> None:
    alias, fulfillment = client.create_alias_buffer(SPEC)
    with pytest.raises(InvalidArgumentError):
        fulfillment.fulfill(client.buffer_from_host(ARRAY.T))
    try:
        fulfillment.fulfill(client.buffer_from_host(ARRAY))
    except FailedPreconditionError:  # the attempt counted: then the alias has failed
        with pytest.raises(PjrtError):
            alias.ready().result(60)
    else:
        np.testing.assert_array_equal(alias.to_host().result(60), ARRAY)


def test_an_alias_that_is_forgotten_fails(client: Client) -> None:
    alias, fulfillment = client.create_alias_buffer(SPEC)
    del fulfillment
    gc.collect()
    with pytest.raises(PjrtError):
        alias.ready().result(60)


# Views.


@pytest.mark.usefixtures("host_memory")
def test_a_view_shows_memory_of_others(client: Client, device: Device) -> None:
    memory = aligned((2, 3))
    memory[:] = ARRAY
    deleted = threading.Event()
    calls: list[int] = []

    def on_delete() -> None:
        calls.append(1)
        deleted.set()

    view = client.create_view_of_device_buffer(memory.ctypes.data, SPEC, device=device, on_delete=on_delete)
    np.testing.assert_array_equal(view.to_host().result(60), ARRAY)
    assert view.unsafe_pointer() == memory.ctypes.data
    assert calls == []
    view.delete()
    assert deleted.wait(60)
    del view
    gc.collect()
    assert calls == [1]


@pytest.mark.usefixtures("host_memory")
def test_a_view_goes_into_programs(backend: Backend, client: Client, device: Device) -> None:
    memory = aligned((2, 3))
    memory[:] = ARRAY
    view = client.create_view_of_device_buffer(memory.ctypes.data, SPEC, device=device)
    (doubled,) = client.compile(backend.programs.double((2, 3)))(view)
    np.testing.assert_array_equal(doubled.to_host().result(60), ARRAY * 2)
    np.testing.assert_array_equal(memory, ARRAY)


# Filled piece by piece.


def test_a_manager_knows_its_buffers(client: Client, device: Device) -> None:
    other = ShapeSpec((5,), ElementType.S8)
    with client.create_buffers_for_async_host_to_device(
        [SPEC, other], memory_space=device.default_memory_space
    ) as manager:
        assert manager.device == device
        assert manager.buffer_count == 2
        assert (manager.buffer_size(0), manager.buffer_size(1)) == (24, 5)
        manager.add_metadata({"step": 3, "who": "a test"})
        for bad in (-1, 2):
            with pytest.raises((InvalidArgumentError, OutOfRangeError)):
                manager.buffer_size(bad)
        for index, spec in enumerate((SPEC, other)):
            buffer = manager.retrieve_buffer(index)
            assert (buffer.shape, buffer.element_type) == (spec.shape, spec.element_type)
            with pytest.raises(FailedPreconditionError):
                manager.retrieve_buffer(index)


def test_a_buffer_is_filled_piece_by_piece(client: Client) -> None:
    data = ARRAY.tobytes()
    with client.create_buffers_for_async_host_to_device([SPEC]) as manager:
        buffer = manager.retrieve_buffer(0)
        future = buffer.to_host()
        manager.transfer_data(0, data[16:], 16, is_last_transfer=False).result(60)
        manager.transfer_data(0, data[:8], 0, is_last_transfer=False).result(60)
        assert not buffer.ready().done()
        manager.transfer_data(0, data[8:16], 8, is_last_transfer=True).result(60)
        np.testing.assert_array_equal(future.result(60), ARRAY)
        with pytest.raises(FailedPreconditionError):
            manager.transfer_data(0, data[:8], 0)


def test_a_buffer_is_filled_at_once(client: Client) -> None:
    with client.create_buffers_for_async_host_to_device([SPEC, SPEC]) as manager:
        first, second = manager.retrieve_buffer(0), manager.retrieve_buffer(1)
        manager.transfer_literal(1, ARRAY)
        manager.transfer_literal(0, np.asfortranarray(ARRAY * 2)).result(60)
        np.testing.assert_array_equal(first.to_host().result(60), ARRAY * 2)
        np.testing.assert_array_equal(second.to_host().result(60), ARRAY)


def test_bytes_are_in_the_layout_of_the_buffer(client: Client) -> None:
    """A literal is an array; ``transfer_data`` takes the bytes as they lie in the buffer."""
    spec = ShapeSpec(SPEC.shape, SPEC.element_type, TiledLayout((0, 1)))
    try:
        manager = client.create_buffers_for_async_host_to_device([spec, spec])
    except UnimplementedError:
        pytest.skip("the device has no new buffers of other layouts than the default")
    with manager:
        first, second = manager.retrieve_buffer(0), manager.retrieve_buffer(1)
        manager.transfer_data(0, ARRAY.tobytes("F")).result(60)
        manager.transfer_literal(1, ARRAY).result(60)
        for buffer in (first, second):
            np.testing.assert_array_equal(buffer.to_host().result(60), ARRAY)


def test_pieces_must_fit(client: Client) -> None:
    with client.create_buffers_for_async_host_to_device([SPEC]) as manager:
        for data, offset in ((bytes(25), 0), (bytes(8), 20), (bytes(4), -4)):
            with pytest.raises((InvalidArgumentError, OutOfRangeError)):
                manager.transfer_data(0, data, offset).result(60)
        with pytest.raises(InvalidArgumentError):
            manager.transfer_literal(0, ARRAY.T).result(60)


def test_a_buffer_may_be_failed(client: Client) -> None:
    with client.create_buffers_for_async_host_to_device([SPEC, SPEC]) as manager:
        broken, whole = manager.retrieve_buffer(0), manager.retrieve_buffer(1)
        manager.set_buffer_error(0, DataLossError("the wire was cut"))
        manager.transfer_literal(1, ARRAY)
        with pytest.raises(DataLossError, match="the wire was cut"):
            broken.ready().result(60)
        np.testing.assert_array_equal(whole.to_host().result(60), ARRAY)


def test_buffers_that_were_not_filled_fail_when_the_manager_closes(client: Client) -> None:
    manager = client.create_buffers_for_async_host_to_device([SPEC])
    buffer = manager.retrieve_buffer(0)
    manager.transfer_data(0, bytes(8), 0, is_last_transfer=False).result(60)
    manager.close()
    manager.close()
    with pytest.raises(PjrtError):
        buffer.ready().result(60)
    with pytest.raises(FailedPreconditionError):
        manager.transfer_data(0, bytes(8), 8)


def test_transfers_go_on_after_the_manager_is_gone(backend: Backend, client: Client) -> None:
    with backend.held(client):
        manager = client.create_buffers_for_async_host_to_device([SPEC])
        buffer = manager.retrieve_buffer(0)
        manager.transfer_literal(0, ARRAY.copy())
        manager.close()
        del manager
        gc.collect()
    np.testing.assert_array_equal(buffer.to_host().result(60), ARRAY)
