"""Waiting: blocking with and without a limit, callbacks, asyncio, Ctrl-C.

A result that is not there yet is one that the test holds back.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.xla.future import CompletionWatcher, Waiters


def test_executions_return_before_they_are_done(hold: Callable[[], Any]) -> None:
    held = hold()
    ready = held.result.ready()
    assert held.entered.wait(60)
    assert not ready.done()
    held.let_go()
    assert ready.result() is None
    assert ready.done()
    assert ready.exception() is None


def test_a_limit(hold: Callable[[], Any]) -> None:
    held = hold()
    ready = held.result.ready()
    with pytest.raises(pjrt.DeadlineExceededError, match=r"was not there within 0.01 s"):
        ready.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        ready.exception(timeout=0.01)
    held.let_go()
    assert ready.result(timeout=120) is None


def test_callbacks_come_on_their_own_and_in_the_order_of_completion(hold: Callable[[], Any]) -> None:
    order: list[str] = []
    long, shorts = hold(), []
    # XLA runs what one thread starts one after the other.
    starter = threading.Thread(target=lambda: shorts.append(hold()))
    starter.start()
    starter.join(60)
    (short,) = shorts

    def note(name: str, noted: threading.Event) -> Callable[[object], None]:
        return lambda _: (order.append(name), noted.set())

    long_done, short_done = threading.Event(), threading.Event()
    long.result.ready().add_done_callback(note("long", long_done))
    short.result.ready().add_done_callback(note("short", short_done))
    short.let_go()
    assert short_done.wait(60)
    long.let_go()
    assert long_done.wait(60)
    assert order == ["short", "long"]


def test_asyncio(hold: Callable[[], Any]) -> None:
    async def awaited(future: pjrt.Future[Any]) -> Any:
        return await future

    async def main() -> list[float]:
        all_held = [hold() for _ in range(3)]
        reads = [asyncio.ensure_future(awaited(held.result.to_host())) for held in all_held]
        await asyncio.sleep(0)  # now they wait
        assert not any(read.done() for read in reads)
        for held in all_held:
            held.let_go()
        return [float(value[2, 2]) for value in await asyncio.gather(*reads)]

    assert asyncio.run(main()) == [1.0, 1.0, 1.0]


def test_many_threads_wait_for_one(hold: Callable[[], Any]) -> None:
    held = hold()
    ready = held.result.ready()
    seen: list[object] = []
    threads = [threading.Thread(target=lambda: seen.append(ready.result(timeout=120))) for _ in range(4)]
    threads += [threading.Thread(target=lambda: seen.append(ready.result())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert seen == []
    held.let_go()
    for thread in threads:
        thread.join(60)
    assert seen == [None] * 8


def test_a_value_is_copied_once(hold: Callable[[], Any]) -> None:
    """The destination is the caller's again when the future is done: a second copy would still write to it."""
    held = hold()
    copied: list[int] = []
    together = threading.Barrier(4)

    def take(_: Any) -> None:
        copied.append(threading.get_ident())
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # where others copy too, all of them are here at once

    future = held.result.when_there(take)
    threads = [threading.Thread(target=future.settle) for _ in range(4)]
    for thread in threads:
        thread.start()
    held.let_go()
    for thread in threads:
        thread.join(60)
    future.result(60)
    assert len(copied) == 1


def noticing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pjrt-cpu-completion-watcher"]


def test_the_notifying_thread_ends_when_there_is_nothing_to_notice(hold: Callable[[], Any]) -> None:
    for thread in noticing():  # what tests before this one watched
        thread.join(60)
    held, told = hold(), threading.Event()
    held.result.ready().add_done_callback(lambda _: told.set())
    (thread,) = noticing()
    held.let_go()
    assert told.wait(60)
    thread.join(60)
    assert not thread.is_alive()


def test_a_thread_that_waited_takes_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt.devices.xla.future._LINGER_SECONDS", 60)
    rests = threading.Semaphore(0)

    class Given(queue.SimpleQueue):  # type: ignore[type-arg]
        def get(self, *arguments: Any, **keywords: Any) -> Any:
            rests.release()
            return super().get(*arguments, **keywords)

    monkeypatch.setattr(queue, "SimpleQueue", Given)
    noticer, threads = CompletionWatcher(), set()
    for _ in range(3):
        promise: pjrt.Promise[None] = pjrt.Promise()
        told = threading.Event()

        def settle(promise: pjrt.Promise[None] = promise, told: threading.Event = told) -> None:
            threads.add(threading.current_thread())
            promise.future.result(60)
            told.set()

        noticer.watch(promise.future, settle)
        promise.set_result(None)
        assert told.wait(60)
        assert rests.acquire(timeout=120)
    assert len(threads) == 1
    noticer.stop()
    assert not any(thread.is_alive() for thread in threads)


def test_more_is_noticed_than_there_are_threads_that_wait(hold: Callable[[], Any]) -> None:
    for thread in noticing():  # what tests before this one watched
        thread.join(60)
    many, others = [hold() for _ in range(3 * Waiters.MOST)], []
    told = [threading.Event() for _ in many]
    for held, noted in zip(many, told, strict=True):
        held.result.ready().add_done_callback(lambda _, noted=noted: noted.set())
    assert len(noticing()) == Waiters.MOST + 1
    starter = threading.Thread(target=lambda: others.append(hold()))
    starter.start()
    starter.join(60)
    (other,), other_told = others, threading.Event()
    other.result.ready().add_done_callback(lambda _: other_told.set())
    other.let_go()
    assert other_told.wait(60)
    assert not any(noted.is_set() for noted in told)
    for held in many:
        held.let_go()
    assert all(noted.wait(60) for noted in told)
    for thread in noticing():
        thread.join(60)
    assert noticing() == []


def test_watching_while_the_notifying_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a thread waits for its first steps, which may collect garbage whose end is watched."""
    noticer = CompletionWatcher()
    promises: list[pjrt.Promise[None]] = [pjrt.Promise() for _ in range(3)]
    start = threading.Thread.start
    others: list[threading.Thread] = []

    def start_amid_others(thread: threading.Thread) -> None:
        if thread.name == "pjrt-cpu-completion-watcher":
            for promise in promises[1:]:
                others.append(threading.Thread(target=noticer.watch, args=(promise.future,), daemon=True))
                start(others[-1])
                others[-1].join(60)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_amid_others)
    for thread in noticing():
        thread.join(60)
    noticer.watch(promises[0].future)
    assert [other.is_alive() for other in others] == [False, False]
    (thread,) = noticing()
    for promise in promises:
        promise.set_result(None)
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("starts", [False, True])
def test_a_notifying_thread_whose_start_fails_is_made_up_for(
    hold: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, error: type[BaseException], starts: bool
) -> None:
    """Ctrl-C may come before the thread is there, and when it is already."""
    for thread in noticing():
        thread.join(60)
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if starts:
            start(thread)
        raise error("start")

    held, told = hold(), threading.Event()
    ready = held.result.ready()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(error, match="start"):
            ready.result(timeout=120)
    ready.add_done_callback(lambda _: told.set())
    with pytest.raises(TimeoutError):
        ready.result(timeout=0.01)
    held.let_go()
    assert told.wait(60)
    for thread in noticing():
        thread.join(60)
    assert noticing() == []


def test_an_error_in_the_middle_arrives_at_the_end(client: pjrt.Client, programs: Any) -> None:
    def fail(x: Any, y: Any) -> None:
        raise pjrt.PjrtError.of(pjrt.StatusCode.ABORTED, "stopped in the middle")

    client.register_ffi_handler("test_future.fail", fail)
    failing = client.compile(programs.call("test_future.fail"))
    add = client.compile(programs.add)
    (first,) = failing(np.zeros(4, np.float32))
    (second,) = add(first, first)
    for buffer in (first, second):
        with pytest.raises(pjrt.AbortedError, match="stopped in the middle"):
            buffer.to_host().result()


@pytest.mark.full
@pytest.mark.parametrize("wait", ["result()", "result(timeout=90)", "exception()"])
def test_ctrl_c_interrupts_the_wait_not_the_work(run_script: Callable[..., str], wait: str) -> None:
    said = run_script(
        f"""
import os, signal
client = pjrt.client("cpu")
held = Holder(client)()
ready = held.result.ready()
assert held.entered.wait(60)
try:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    ready.{wait}
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", ready.done())
held.let_go()
print(held.result.to_host().result()[4, 4], ready.result(), ready.done())
"""
    )
    assert said.split() == ["interrupted", "False", "1.0", "None", "True"]
