"""Events of a plugin as futures: nothing blocks, no thread waits for an event, the GIL is free."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
from collections.abc import Callable

import numpy as np
import pytest
from tiny import TinyProgram
from tiny.control import Control

import pjrt
from pjrt.api.client import Client

X = np.arange(4, dtype=np.float32)


@pytest.fixture
def pending(client: Client, tiny_control: Control) -> Callable[[], pjrt.Buffer]:
    """Makes buffers whose value is still to come while the plugin is held."""
    program = TinyProgram("later")
    executable = client.compile(pjrt.Program(program.result(program.let("fill", "f32[4]", 1)).code, format="tiny"))
    return lambda: executable()[0]


def test_a_thousand_pending_events_need_no_threads(
    client: Client, tiny_control: Control, pending: Callable[[], pjrt.Buffer]
) -> None:
    before = threading.active_count()
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    with tiny_control.held():
        futures = [pending().ready() for _ in range(500)] + [pending().to_host() for _ in range(500)]
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: done.put(number))  # type: ignore[misc]
        assert not any(future.done() for future in futures)
        assert threading.active_count() <= before  # threads of tests before this one may end meanwhile
    pjrt.Future.all(futures).result(60)
    assert sorted(done.get(timeout=120) for _ in futures) == list(range(1000))
    assert done.empty()
    assert threading.active_count() <= before + 1  # the plugin's thread, as Python sees it


def test_asyncio_awaits_events(tiny_control: Control, pending: Callable[[], pjrt.Buffer]) -> None:
    async def main() -> list[object]:
        with tiny_control.held():
            futures = [pending().to_host() for _ in range(50)]
            tasks = [asyncio.ensure_future(_await(future)) for future in futures]
            await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
        return list(await asyncio.gather(*tasks))

    async def _await(future: pjrt.Future[object]) -> object:
        return await future

    for array in asyncio.run(main()):
        np.testing.assert_array_equal(array, np.ones(4, np.float32))


def test_a_wait_with_a_limit(tiny_control: Control, pending: Callable[[], pjrt.Buffer]) -> None:
    with tiny_control.held():
        future = pending().ready()
        with pytest.raises(pjrt.DeadlineExceededError):
            future.result(0.05)
    future.result(60)


def test_other_threads_run_while_one_waits(tiny_control: Control, pending: Callable[[], pjrt.Buffer]) -> None:
    results: list[object] = []
    with tiny_control.held():
        future = pending().to_host()
        waiter = threading.Thread(target=lambda: results.append(future.result(60)))
        waiter.start()
        assert sum(range(100_000)) == 4999950000  # the GIL is not held by the one who waits
        assert results == []
    waiter.join(60)
    np.testing.assert_array_equal(results[0], np.ones(4, np.float32))


def test_many_threads_wait_for_one_event(tiny_control: Control, pending: Callable[[], pjrt.Buffer]) -> None:
    results: list[object] = []
    with tiny_control.held():
        future = pending().ready()
        waiters = [threading.Thread(target=lambda: results.append(future.result(60))) for _ in range(16)]
        for waiter in waiters:
            waiter.start()
    for waiter in waiters:
        waiter.join(60)
    assert results == [None] * 16


def test_the_destination_lives_until_the_copy_is_done_though_nobody_keeps_it(
    client: Client, tiny_control: Control, pending: Callable[[], pjrt.Buffer]
) -> None:
    with tiny_control.held():
        for _ in range(100):
            pending().to_host()  # dropped at once: the plugin will write to the array all the same
        gc.collect()
        noise = [np.full(4, 9, np.float32) for _ in range(1000)]
    client.buffer_from_host(X).to_host().result()
    pending().ready().result(60)
    assert all((array == 9).all() for array in noise)


def test_a_borrowed_array_lives_until_the_plugin_is_done_with_it(client: Client, tiny_control: Control) -> None:
    released: list[int] = []
    with tiny_control.held():
        buffer = client.buffer_from_host(
            np.full(1000, 7, np.float32),
            semantics=pjrt.HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES,
            on_done_with_host_buffer=lambda: released.append(1),
        )
        gc.collect()
        noise = [np.full(1000, 9, np.float32) for _ in range(100)]
        assert released == []
    assert (np.asarray(buffer) == 7).all()
    assert released == [1]
    assert len(noise) == 100


def test_nothing_is_left_of_events_that_nobody_asked(
    client: Client, tiny_control: Control, pending: Callable[[], pjrt.Buffer]
) -> None:
    gc.collect()
    before, everything = tiny_control.live("event"), tiny_control.live()
    with tiny_control.held():
        for _ in range(50):
            future = pending().ready()
            future.done()
        del future
        gc.collect()
        assert tiny_control.live("event") <= before  # those of tests before this one may end meanwhile
    for _ in range(50):
        pending().ready().result(60)
    assert tiny_control.left_over(everything) == {}


def test_a_callback_that_raises_harms_nobody(pending: Callable[[], pjrt.Buffer], tiny_control: Control) -> None:
    seen: list[int] = []
    arrived = threading.Event()
    with tiny_control.held():
        future = pending().ready()
        future.add_done_callback(lambda _: 1 / 0)
        future.add_done_callback(lambda _: (seen.append(1), arrived.set()))
    future.result(60)
    assert arrived.wait(60)
    assert seen == [1]


def test_raw_copies_into_memory_that_comes_later(client: Client) -> None:
    buffer = client.buffer_from_host(X)
    promise: pjrt.Promise[bytearray] = pjrt.Promise()
    memory = bytearray(16)
    done = buffer.copy_raw_to_host_future(promise.future)
    assert not done.done()
    promise.set_result(memory)
    done.result(60)
    assert memory == X.tobytes()
    failing: pjrt.Promise[bytearray] = pjrt.Promise()
    failed = buffer.copy_raw_to_host_future(failing.future)
    failing.set_error(pjrt.UnavailableError("no memory came"))
    with pytest.raises(pjrt.UnavailableError, match="no memory came"):
        failed.result(60)
    small = buffer.copy_raw_to_host_future(pjrt.Future.completed(bytearray(3)))
    with pytest.raises(pjrt.OutOfRangeError):
        small.result(60)


def test_a_donation_waits_for_its_dependency(client: Client) -> None:
    buffer = client.buffer_from_host(X)
    promise: pjrt.Promise[None] = pjrt.Promise()
    donated = buffer.donate_with_control_dependency(promise.future)
    assert buffer.is_deleted
    assert not donated.ready().done()
    promise.set_result(None)
    np.testing.assert_array_equal(np.asarray(donated), X)
    poisoned = donated.donate_with_control_dependency(pjrt.Future.failed(pjrt.AbortedError("given up")))
    with pytest.raises(pjrt.AbortedError, match="given up"):
        poisoned.ready().result(60)


def test_the_value_arrives_whoever_is_first(
    client: Client, tiny_control: Control, pending: Callable[[], pjrt.Buffer]
) -> None:
    """The thread that waits and the plugin's thread, which watches, learn of the end at the same time."""
    for _ in range(300):
        with tiny_control.held():
            future = pending().to_host()
        assert isinstance(future.result(60), np.ndarray)
