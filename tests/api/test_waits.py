"""Waits that can never end fail with a clear error, whichever way the value would have come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pjrt
from pjrt.api.future import Future, Promise
from pjrt.api.waits import Server, server_here

TIMEOUT = 60.0


@pytest.fixture
def server() -> Iterator[Server]:
    """The calling thread, as the one that serves."""
    made = Server("the device")
    made.begin()
    yield made
    made.end()


def later(server: Server) -> Promise[int]:
    """The promise of what a later task of a server gives."""
    promise: Promise[int] = Promise()
    promise.future.need(server)
    return promise


@pytest.mark.parametrize(
    "made",
    [
        lambda future: future,
        lambda future: future.then(str),
        lambda future: future.then(str).then(len),
        lambda future: Future.all([Future.completed(1), Future(), future]),
    ],
)
def test_a_task_that_waits_for_a_later_one_is_told(server: Server, made: Callable[[Future[int]], Future[Any]]) -> None:
    promise = later(server)
    waited = made(promise.future)
    for timeout in (None, TIMEOUT):
        with pytest.raises(pjrt.FailedPreconditionError, match="the device makes only when the function has returned"):
            waited.result(timeout)
    assert server.waits_for is None
    promise.set_result(1)


def test_what_is_there_or_comes_from_elsewhere_is_waited_for(server: Server) -> None:
    promise = later(server)
    promise.set_result(1)
    assert promise.future.needs == ()
    assert promise.future.then(lambda value: value + 1).result(TIMEOUT) == 2
    elsewhere: Promise[int] = Promise()
    thread = threading.Thread(target=lambda: elsewhere.set_result(3))
    doubled = elsewhere.future.then(lambda value: 2 * value)
    thread.start()
    assert doubled.result(TIMEOUT) == 6
    thread.join()


def test_others_may_wait_for_a_servers_tasks(server: Server) -> None:
    promise = later(server)
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(promise.future.result(TIMEOUT)))
    thread.start()
    promise.set_result(5)
    thread.join()
    assert results == [5]


def test_two_servers_that_wait_for_each_other_are_told() -> None:
    servers = [Server("first"), Server("second")]
    promises = [later(server) for server in servers]
    together = threading.Barrier(2)
    errors: list[str] = []

    def serve(own: int) -> None:
        servers[own].begin()
        together.wait(TIMEOUT)
        try:
            promises[1 - own].future.result(TIMEOUT)
        except pjrt.FailedPreconditionError as error:
            errors.append(error.message)
            promises[own].set_error(error)
        servers[own].end()

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors
    assert all("would wait for ever" in error for error in errors)


def test_a_thread_that_serves_no_more_waits_as_others_do(server: Server) -> None:
    assert server_here() is server
    server.end()
    assert server_here() is None
    promise = later(server)
    with pytest.raises(pjrt.DeadlineExceededError):
        promise.future.result(0)
