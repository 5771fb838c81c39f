"""Work queues: the start of their threads, amid others, amid failures."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest
import toys
from waiting import wait_until

import pjrt
from pjrt.host.work_queue import Call, WorkQueue


def test_putting_tasks_while_threads_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a thread waits for its first steps, which may collect garbage whose end puts tasks."""
    queues = [WorkQueue("first"), WorkQueue("second")]
    others: list[threading.Thread] = []
    inner = [Call(lambda: 1), Call(lambda: 2)]
    start = threading.Thread.start

    def start_amid_others(thread: threading.Thread) -> None:
        if thread.name == "pjrt first":
            for queue, call in zip(queues, inner, strict=True):
                others.append(threading.Thread(target=queue.put, args=(call,), daemon=True))
                start(others[-1])
                others[-1].join(toys.TIMEOUT)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_amid_others)
    outer = Call(lambda: 3)
    queues[0].put(outer)
    assert [thread.is_alive() for thread in others] == [False, False]
    assert [call.future.result(toys.TIMEOUT) for call in (*inner, outer)] == [1, 2, 3]
    for queue in queues:
        queue.close()


def failing_start(error: BaseException, starts: bool, meanwhile: Callable[[], object]) -> Callable[..., None]:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        meanwhile()
        if starts:
            start(thread)
        raise error

    return fail


@pytest.mark.parametrize("starts", [False, True])
def test_ctrl_c_while_the_thread_starts(monkeypatch: pytest.MonkeyPatch, starts: bool) -> None:
    queue = WorkQueue("interrupted")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", failing_start(KeyboardInterrupt(), starts, lambda: None))
        with pytest.raises(KeyboardInterrupt):
            queue.put(Call(lambda: 1))
    numbers: list[int] = []
    calls = [Call(lambda n=n: (numbers.append(n), queue.is_current_thread)[1]) for n in range(100)]  # type: ignore[misc]
    for call in calls:
        queue.put(call)
    assert all(call.future.result(toys.TIMEOUT) for call in calls)
    assert numbers == list(range(100))
    assert not queue.is_current_thread
    assert queue.drain(toys.TIMEOUT)
    queue.close()


def test_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = WorkQueue("unlucky")
    ran: list[int] = []
    meanwhile = Call(lambda: ran.append(1))
    with monkeypatch.context() as patch:
        error = RuntimeError("can't start new thread")
        patch.setattr(threading.Thread, "start", failing_start(error, False, lambda: queue.put(meanwhile)))
        with pytest.raises(pjrt.UnavailableError, match="unlucky cannot be started: can't start new thread"):
            queue.put(Call(lambda: 2))
    with pytest.raises(pjrt.UnavailableError):
        meanwhile.future.result(toys.TIMEOUT)
    after = Call(lambda: 3)
    queue.put(after)
    assert after.future.result(toys.TIMEOUT) == 3
    assert ran == []
    queue.close()


def test_a_queue_that_was_drained_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when its thread is put off right after whoever drains it was told; closing a client would ask again."""
    queue, gate, seen = WorkQueue("drained"), threading.Event(), threading.Event()
    complete, completions, found = pjrt.Future._complete, itertools.count(), []

    def put_off(future: pjrt.Future[object], *arguments: object) -> bool:
        completed = complete(future, *arguments)
        if queue.is_current_thread and next(completions) == 1:  # the first is that of the call
            seen.wait(toys.TIMEOUT)
        return completed

    monkeypatch.setattr(pjrt.Future, "_complete", put_off)
    queue.put(Call(gate.wait))
    drains = threading.Thread(target=lambda: found.append((queue.drain(toys.TIMEOUT), queue.is_busy)))
    drains.start()
    wait_until(lambda: len(queue.tasks()) == 2)
    gate.set()
    drains.join(toys.TIMEOUT)
    seen.set()
    assert found == [(True, False)]
    queue.close()
