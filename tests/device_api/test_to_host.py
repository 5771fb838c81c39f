"""Buffers to the host: arrays, raw bytes, and the three ways to wait."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import numpy as np
import pytest
from anydevice import Backend

from pjrt.api.client import Client
from pjrt.api.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
)
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import TiledLayout

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_to_host_gives_the_value(client: Client) -> None:
    array = client.buffer_from_host(ARRAY).to_host().result()
    assert isinstance(array, np.ndarray)
    assert (array.shape, array.dtype) == (ARRAY.shape, ARRAY.dtype)
    np.testing.assert_array_equal(array, ARRAY)


@pytest.mark.full
def test_the_value_is_there_however_often_it_is_asked_for_while_it_arrives(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that the thread that brings the value and the one that asks meet in every place
    try:
        for _ in range(1500):
            assert buffer.to_host().result(60) is not None
    finally:
        sys.setswitchinterval(usual)


def test_to_host_fills_an_array_that_is_given(client: Client) -> None:
    out = np.zeros((2, 3), np.float32)
    array = client.buffer_from_host(ARRAY).to_host(out).result()
    assert array is out
    np.testing.assert_array_equal(out, ARRAY)


def test_to_host_fills_an_array_of_any_strides(client: Client) -> None:
    whole = np.full((4, 6), -1, np.float32)
    window = whole[::2, ::2]
    client.buffer_from_host(ARRAY).to_host(window).result()
    np.testing.assert_array_equal(window, ARRAY)
    assert (whole == -1).sum() == 24 - 6


@pytest.mark.parametrize(
    "out",
    [np.zeros((3, 2), np.float32), np.zeros((2, 3), np.int32), np.zeros(6, np.float32)],
    ids=["shape", "dtype", "rank"],
)
def test_to_host_refuses_another_shape_or_dtype(client: Client, out: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        client.buffer_from_host(ARRAY).to_host(out).result()


def test_to_host_refuses_an_array_that_cannot_be_written(client: Client) -> None:
    out = np.zeros((2, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises(InvalidArgumentError):
        client.buffer_from_host(ARRAY).to_host(out).result()


def test_to_host_takes_a_layout(client: Client) -> None:
    array = client.buffer_from_host(ARRAY).to_host(layout=TiledLayout((0, 1))).result()
    assert array.strides == (4, 8)
    np.testing.assert_array_equal(array, ARRAY)


def test_a_layout_of_the_device_does_not_show_on_the_host(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY, layout=TiledLayout((0, 1)))
    np.testing.assert_array_equal(buffer.to_host().result(), ARRAY)
    array = buffer.to_host(layout=TiledLayout.row_major(2)).result()
    assert array.flags.c_contiguous
    np.testing.assert_array_equal(array, ARRAY)


def test_a_buffer_is_an_array_to_numpy(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    np.testing.assert_array_equal(np.asarray(buffer), ARRAY)
    for copy in (None, True):
        np.testing.assert_array_equal(buffer.__array__(np.int32, copy=copy), ARRAY.astype(np.int32), strict=True)
    with pytest.raises(ValueError, match="without a copy"):
        buffer.__array__(np.int32, copy=False)
    assert len(buffer) == 2
    with pytest.raises(TypeError):
        len(client.buffer_from_host(np.float32(1)))


def test_writing_to_the_array_leaves_the_buffer_alone(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    array = np.array(buffer)
    array[:] = 9
    np.testing.assert_array_equal(np.asarray(buffer), ARRAY)


# Raw bytes.


def test_raw_bytes_are_copied(client: Client) -> None:
    out = bytearray(24)
    client.buffer_from_host(ARRAY).copy_raw_to_host(out).result()
    assert bytes(out) == ARRAY.tobytes()


def test_raw_bytes_are_copied_in_part(client: Client) -> None:
    out = bytearray(12)
    client.buffer_from_host(ARRAY).copy_raw_to_host(out, offset=4, size=8).result()
    assert bytes(out) == ARRAY.tobytes()[4:12] + bytes(4)


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (0, 25), (20, 8), (100, 1), (0, -4)])
def test_raw_bytes_outside_of_the_buffer_are_refused(client: Client, offset: int, size: int) -> None:
    with pytest.raises((InvalidArgumentError, OutOfRangeError)):
        client.buffer_from_host(ARRAY).copy_raw_to_host(bytearray(100), offset, size).result()


def test_raw_bytes_that_do_not_fit_are_refused(client: Client) -> None:
    with pytest.raises((InvalidArgumentError, OutOfRangeError)):
        client.buffer_from_host(ARRAY).copy_raw_to_host(bytearray(8), 0, 24).result()


def test_raw_bytes_go_where_it_is_said_later(client: Client) -> None:
    promise: Promise[bytearray] = Promise()
    done = client.buffer_from_host(ARRAY).copy_raw_to_host_future(promise.future, offset=8, size=8)
    assert not done.done()
    out = bytearray(8)
    promise.set_result(out)
    done.result(60)
    assert bytes(out) == ARRAY.tobytes()[8:16]


def test_a_place_that_fails_fails_the_copy(client: Client) -> None:
    promise: Promise[bytearray] = Promise()
    done = client.buffer_from_host(ARRAY).copy_raw_to_host_future(promise.future, size=24)
    promise.set_error(DataLossError("the disk is full"))
    with pytest.raises(DataLossError, match="the disk is full"):
        done.result(60)


# The three ways to wait.


def test_waiting_blocks(client: Client) -> None:
    future = client.buffer_from_host(ARRAY).to_host()
    np.testing.assert_array_equal(future.result(60), ARRAY)
    assert future.done()
    assert future.exception() is None


def test_waiting_ends_at_its_limit(backend: Backend, client: Client) -> None:
    with backend.held(client):
        future = client.buffer_from_host(ARRAY).to_host()
        assert not future.done()
        with pytest.raises(DeadlineExceededError):
            future.result(0.01)
    np.testing.assert_array_equal(future.result(60), ARRAY)


def test_waiting_in_asyncio(backend: Backend, client: Client) -> None:
    async def go() -> None:
        with backend.held(client):
            futures = [client.buffer_from_host(ARRAY + i).to_host() for i in range(20)]
            waiting = asyncio.gather(*(wait(future) for future in futures))
            await asyncio.sleep(0)
        for i, array in enumerate(await asyncio.wait_for(waiting, 30)):
            np.testing.assert_array_equal(array, ARRAY + i)

    async def wait(future: Future[Any]) -> Any:
        return await future

    asyncio.run(go())


def test_callbacks_come_once_and_in_any_case(backend: Backend, client: Client) -> None:
    seen: list[str] = []
    arrived = threading.Event()

    def note(_: Future[Any]) -> None:
        seen.append("late")
        arrived.set()

    with backend.held(client):
        future = client.buffer_from_host(ARRAY).to_host()
        future.add_done_callback(note)
        assert seen == []
    assert arrived.wait(60)
    future.add_done_callback(lambda _: seen.append("at once"))
    assert seen == ["late", "at once"]


def test_a_thousand_pending_futures_need_no_thousand_threads(backend: Backend, client: Client) -> None:
    before = threading.active_count()
    left = threading.Semaphore(0)
    with backend.held(client):
        futures = [client.buffer_from_host(ARRAY).to_host() for _ in range(1000)]
        for future in futures:
            future.add_done_callback(lambda _: left.release())
        assert threading.active_count() < before + 10
    assert all(left.acquire(timeout=120) for _ in futures)


def test_futures_may_be_dropped_while_they_are_pending(backend: Backend, client: Client) -> None:
    with backend.held(client):
        for _ in range(100):
            client.buffer_from_host(ARRAY).to_host()
    np.testing.assert_array_equal(np.asarray(client.buffer_from_host(ARRAY)), ARRAY)


def test_a_read_that_is_under_way_survives_the_end_of_its_buffer(backend: Backend, client: Client) -> None:
    with backend.held(client):
        buffer = client.buffer_from_host(ARRAY)
        future = buffer.to_host()
        buffer.delete()
        del buffer
    np.testing.assert_array_equal(future.result(60), ARRAY)


def test_a_deleted_buffer_is_refused(client: Client) -> None:
    buffer = client.buffer_from_host(ARRAY)
    buffer.delete()
    with pytest.raises(FailedPreconditionError):
        buffer.to_host().result()
    with pytest.raises(FailedPreconditionError):
        buffer.copy_raw_to_host(bytearray(24)).result()
