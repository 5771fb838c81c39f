"""The threads of a server: no session takes them all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from waiting import wait_until

from pjrt.remote.server.session import Workers

PATIENCE = 60


class Stuck:
    """Work that does not end before the test lets it."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.end = threading.Event()

    def __call__(self) -> None:
        self.begun.release()
        assert self.end.wait(PATIENCE)

    def wait_begun(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=PATIENCE)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.end.set()


def test_a_session_has_a_thread_whatever_the_others_do(stuck: Stuck) -> None:
    workers = Workers(2)
    first = workers.for_session()
    for _ in range(10):
        first.submit(stuck)
    stuck.wait_begun(3)  # its own thread, and those that all share
    assert not stuck.begun.acquire(blocking=False)
    for _ in range(3):
        done = threading.Event()
        workers.for_session().submit(done.set)
        assert done.wait(PATIENCE)


def test_a_free_thread_goes_to_the_session_that_has_the_fewest() -> None:
    workers = Workers(2)
    greedy, other = Stuck(), Stuck()
    first, second = workers.for_session(), workers.for_session()
    for _ in range(5):
        first.submit(greedy)
    greedy.wait_begun(3)
    for _ in range(2):
        second.submit(other)
    other.wait_begun()
    later = threading.Event()
    first.submit(later.set)
    second.submit(later.set)
    other.end.set()
    assert later.wait(PATIENCE)
    greedy.end.set()
    assert workers.close(PATIENCE)


def test_work_that_waits_is_dropped(stuck: Stuck) -> None:
    workers = Workers(0)
    session = workers.for_session()
    session.submit(stuck)
    stuck.wait_begun()
    dropped = threading.Event()
    session.submit(dropped.set)
    session.cancel()
    stuck.end.set()
    assert workers.close(PATIENCE)
    assert not dropped.is_set()


def test_the_end_of_the_work_of_a_session(stuck: Stuck) -> None:
    workers = Workers(1)
    session, idle = workers.for_session(), threading.Event()
    session.when_idle(idle.set)
    assert idle.is_set()  # it has no work
    for _ in range(2):
        session.submit(stuck)
    stuck.wait_begun(2)
    idle.clear()
    session.when_idle(idle.set)
    assert not idle.is_set()
    stuck.end.set()
    assert idle.wait(PATIENCE)


def test_work_that_does_not_end_does_not_keep_the_server(stuck: Stuck) -> None:
    workers = Workers(1)
    workers.for_session().submit(stuck)
    stuck.wait_begun()
    assert not workers.close(0)
    stuck.end.set()
    assert workers.close(PATIENCE)


def test_work_that_fails_leaves_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers(0)
    session, done = workers.for_session(), threading.Event()
    session.submit(int, "none")
    session.submit(done.set)
    assert done.wait(PATIENCE)
    assert "ValueError" in caplog.text


def test_no_more_threads_stay_than_are_shared() -> None:
    workers = Workers(1)
    many = Stuck()
    for _ in range(8):
        workers.for_session().submit(many)
    many.wait_begun(8)
    many.end.set()
    wait_until(lambda: workers._count <= 2, "the end of the threads")
    assert workers.close(PATIENCE)
