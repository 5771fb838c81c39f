"""Futures: three ways to wait, completion once, and nobody left waiting."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest

import pjrt

TIMEOUT = 60.0


def in_thread(function: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread


# Blocking.


def test_a_result_is_waited_for_and_stays() -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    assert not promise.future.done()
    thread = in_thread(promise.set_result, 3)
    assert promise.future.result(TIMEOUT) == 3
    thread.join()
    assert promise.future.done()
    assert promise.future.result() == 3
    assert promise.future.exception() is None


def test_many_threads_wait_for_one_future(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt.api.future._WAIT_SLICE_SECONDS", 10 * TIMEOUT)  # nobody looks by himself
    promise: pjrt.Promise[int] = pjrt.Promise()
    found: list[int] = []
    threads = [in_thread(lambda: found.append(promise.future.result(2 * TIMEOUT))) for _ in range(8)]
    while promise.future._waiter is None:  # until somebody waits
        threads[0].join(0.001)
    promise.set_result(5)
    for thread in threads:
        thread.join(TIMEOUT)
    assert found == [5] * 8


def test_a_wait_ends_with_its_limit_and_can_be_begun_again() -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    for limit in (0, 0.01):
        with pytest.raises(pjrt.DeadlineExceededError, match="the work goes on"):
            promise.future.result(limit)
        with pytest.raises(TimeoutError):
            promise.future.exception(limit)
    promise.set_result(1)
    assert promise.future.result(0) == 1


def test_an_error_arrives_each_time_without_a_growing_traceback() -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    promise.set_error(ValueError("bad"))
    lengths = []
    for _ in range(3):
        with pytest.raises(pjrt.InvalidArgumentError, match="ValueError: bad") as caught:
            promise.future.result()
        lengths.append(len(caught.traceback))
    assert lengths[0] == lengths[1] == lengths[2]
    assert isinstance(promise.future.exception(), pjrt.InvalidArgumentError)


def test_a_raised_error_makes_no_circle_that_keeps_the_callers_objects() -> None:
    class Thing:
        pass

    def fail() -> weakref.ref[Thing]:
        thing = Thing()
        with contextlib.suppress(pjrt.PjrtError):
            pjrt.Future.failed(ValueError("bad")).result()
        return weakref.ref(thing)

    gc.collect()
    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()


def test_ready_made_futures() -> None:
    assert pjrt.Future.completed("x").result() == "x"
    error = pjrt.AbortedError("no")
    assert pjrt.Future.failed(error).exception() is error
    assert isinstance(pjrt.Future.failed(MemoryError()).exception(), pjrt.ResourceExhaustedError)
    assert repr(pjrt.Future.completed(1)) == "<Future done>"
    assert repr(pjrt.Future.failed(error)) == "<Future failed: ABORTED: no>"
    assert repr(pjrt.Promise().future) == "<Future pending>"


def test_ctrl_c_interrupts_the_wait() -> None:
    code = (
        "import os, signal, threading, pjrt\n"
        "promise = pjrt.Promise()\n"
        "try:\n    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n    promise.future.result()\n"
        "except KeyboardInterrupt:\n    print('interrupted', promise.future.done())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "interrupted False\n"


# Promises.


def test_a_promise_is_kept_once() -> None:
    for first in (lambda p: p.set_result(1), lambda p: p.set_error(ValueError())):
        promise: pjrt.Promise[int] = pjrt.Promise()
        first(promise)
        for again in (lambda p: p.set_result(2), lambda p: p.set_error(KeyError())):
            with pytest.raises(pjrt.FailedPreconditionError, match="completed once"):
                again(promise)


def test_of_many_threads_one_keeps_the_promise() -> None:
    for _ in range(50):
        promise: pjrt.Promise[int] = pjrt.Promise()
        calls: list[int] = []
        promise.future.add_done_callback(lambda future, calls=calls: calls.append(future.result()))
        start = threading.Barrier(4)
        kept: list[int] = []

        def keep(number: int, promise: pjrt.Promise[int] = promise, start: Any = start, kept: list[int] = kept) -> None:
            start.wait(TIMEOUT)
            try:
                promise.set_result(number)
            except pjrt.FailedPreconditionError:
                return
            kept.append(number)

        for thread in [in_thread(keep, number) for number in range(4)]:
            thread.join(TIMEOUT)
        assert len(kept) == 1
        assert calls == kept == [promise.future.result()]


def test_a_dropped_promise_fails_its_future() -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    future = promise.future
    calls = []
    future.add_done_callback(calls.append)
    del promise
    gc.collect()
    with pytest.raises(pjrt.InternalError, match="dropped"):
        future.result(TIMEOUT)
    assert calls == [future]


def test_a_dropped_promise_wakes_whoever_waits() -> None:
    promises: list[pjrt.Promise[int]] = [pjrt.Promise()]
    future = promises[0].future
    waiting = threading.Event()
    errors: list[Any] = []

    def wait() -> None:
        waiting.set()
        errors.append(future.exception(TIMEOUT))

    thread = in_thread(wait)
    assert waiting.wait(TIMEOUT)
    promises.clear()
    gc.collect()
    thread.join(TIMEOUT)
    assert isinstance(errors[0], pjrt.InternalError)


def test_futures_and_promises_are_collected_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        promise: pjrt.Promise[int] = pjrt.Promise()
        derived = promise.future.then(lambda value: value + 1)
        references = [weakref.ref(promise), weakref.ref(promise.future), weakref.ref(derived)]
        promise.set_result(1)
        assert derived.result() == 2
        del promise, derived
        assert [r() for r in references] == [None] * 3
    finally:
        gc.enable()


# Callbacks.


def test_callbacks_are_called_once_in_order_in_the_completing_thread() -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    calls: list[tuple[int, Any, Any]] = []
    for number in range(3):
        promise.future.add_done_callback(
            lambda future, number=number: calls.append((number, future, threading.current_thread()))
        )
    thread = in_thread(promise.set_result, 1)
    thread.join(TIMEOUT)
    assert calls == [(number, promise.future, thread) for number in range(3)]
    promise.future.add_done_callback(lambda future: calls.append((9, future, threading.current_thread())))
    assert calls[3:] == [(9, promise.future, threading.current_thread())]


def test_callbacks_added_while_it_is_completed_are_each_called_once() -> None:
    for _ in range(50):
        promise: pjrt.Promise[int] = pjrt.Promise()
        calls: list[int] = []
        start = threading.Barrier(3)

        def add(
            number: int, promise: pjrt.Promise[int] = promise, start: Any = start, calls: list[int] = calls
        ) -> None:
            start.wait(TIMEOUT)
            for step in range(20):
                promise.future.add_done_callback(lambda _, n=number * 20 + step: calls.append(n))

        threads = [in_thread(add, number) for number in range(2)]
        start.wait(TIMEOUT)
        promise.set_result(0)
        for thread in threads:
            thread.join(TIMEOUT)
        assert sorted(calls) == list(range(40))


def test_a_callback_may_use_its_future_and_add_more() -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    calls: list[str] = []

    def outer(future: pjrt.Future[int]) -> None:
        calls.append(f"outer {future.result()}")
        future.add_done_callback(lambda _: calls.append("inner"))
        other: pjrt.Promise[int] = pjrt.Promise()
        other.future.add_done_callback(lambda _: calls.append("other"))
        other.set_result(2)

    promise.future.add_done_callback(outer)
    promise.set_result(1)
    assert calls == ["outer 1", "inner", "other"]


def test_an_exception_in_a_callback_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    calls: list[int] = []

    def fail(_: object) -> None:
        raise RuntimeError("in a callback")

    promise.future.add_done_callback(fail)
    promise.future.add_done_callback(lambda future: calls.append(future.result()))
    with caplog.at_level(logging.ERROR, "pjrt"):
        promise.set_result(1)
        promise.future.add_done_callback(fail)
    assert calls == [1]
    assert caplog.text.count("RuntimeError: in a callback") == 2


def test_ctrl_c_in_a_callback_does_not_cost_the_others_their_call() -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    calls: list[int] = []

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    promise.future.add_done_callback(interrupted)
    promise.future.add_done_callback(lambda future: calls.append(future.result()))
    with pytest.raises(KeyboardInterrupt):
        promise.set_result(1)
    assert calls == [1]


@pytest.mark.parametrize("raised", [SystemExit(3), GeneratorExit(), KeyboardInterrupt()])
def test_nothing_that_a_callback_raises_ends_the_thread_that_completes(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    calls: list[object] = []

    def end(_: object) -> None:
        raise raised

    def complete() -> None:
        promise.future.add_done_callback(end)
        promise.future.add_done_callback(lambda future: calls.append(future.result()))
        promise.set_result(1)
        promise.future.add_done_callback(end)  # at once, and in this thread, too
        calls.append("went on")

    with caplog.at_level(logging.ERROR, "pjrt"):
        thread = threading.Thread(target=complete)
        thread.start()
        thread.join(60)
    assert calls == [1, "went on"]
    assert caplog.text.count("goes no further") == 2


def test_a_callback_cannot_end_the_program(caplog: pytest.LogCaptureFixture) -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    promise.future.add_done_callback(lambda _: sys.exit(3))
    with caplog.at_level(logging.ERROR, "pjrt"):
        promise.set_result(1)
        promise.future.add_done_callback(lambda _: sys.exit(3))
    assert caplog.text.count("SystemExit: 3") == 2
    broken = promise.future.then(lambda _: sys.exit(3))
    assert "SystemExit" in str(broken.exception())


# Combinations.


def test_then_passes_values_and_errors_on() -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    doubled = promise.future.then(lambda value: value * 2)
    broken = promise.future.then(lambda value: [][value])
    promise.set_result(4)
    assert doubled.result() == 8
    with pytest.raises(pjrt.InternalError, match="IndexError"):
        broken.result()
    error = pjrt.DataLossError("gone", payloads={"k": b"v"})
    assert pjrt.Future.failed(error).then(str).exception() is error


def test_all_waits_for_all_and_reports_the_first_in_order() -> None:
    promises: list[pjrt.Promise[int]] = [pjrt.Promise() for _ in range(3)]
    together = pjrt.Future.all(promise.future for promise in promises)
    promises[2].set_error(pjrt.AbortedError("second to fail in order"))
    promises[0].set_result(1)
    assert not together.done()
    promises[1].set_error(pjrt.DataLossError("first in order"))
    with pytest.raises(pjrt.DataLossError, match="first in order"):
        together.result()
    assert pjrt.Future.all([]).result() is None
    assert pjrt.Future.all([pjrt.Future.completed(1)] * 3).result() is None


# asyncio.


def test_await_gives_values_and_errors() -> None:
    async def main() -> None:
        assert await pjrt.Future.completed(1) == 1
        promise: pjrt.Promise[str] = pjrt.Promise()
        thread = in_thread(promise.set_result, "later")
        assert await promise.future == "later"
        thread.join()
        failing: pjrt.Promise[int] = pjrt.Promise()
        asyncio.get_running_loop().call_soon(failing.set_error, pjrt.AbortedError("no"))
        with pytest.raises(pjrt.AbortedError, match="no"):
            await failing.future

    asyncio.run(main())


def test_many_tasks_and_loops_await_one_future() -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()
    awaiting = threading.Barrier(3)
    found: list[list[int]] = []

    async def one() -> int:
        return await promise.future

    async def main() -> None:
        tasks = [asyncio.create_task(one()) for _ in range(5)]
        await asyncio.sleep(0)
        awaiting.wait(TIMEOUT)
        found.append(list(await asyncio.gather(*tasks)))

    threads = [in_thread(lambda: asyncio.run(main())) for _ in range(2)]
    awaiting.wait(TIMEOUT)
    promise.set_result(7)
    for thread in threads:
        thread.join(TIMEOUT)
    assert found == [[7] * 5] * 2


def test_a_task_that_is_cancelled_or_whose_loop_is_closed_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    promise: pjrt.Promise[int] = pjrt.Promise()

    async def one() -> int:
        return await promise.future

    async def main() -> None:
        task = asyncio.create_task(one())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(one(), 0.01)

    asyncio.run(main())
    with caplog.at_level(logging.WARNING, "pjrt"):
        promise.set_result(1)
    assert promise.future.result() == 1
    assert not [record for record in caplog.records if record.name == "pjrt"]


def test_a_cancelled_task_whose_future_is_done_later_in_the_same_loop() -> None:
    mishaps: list[Any] = []

    async def main() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: mishaps.append(context))
        promise: pjrt.Promise[int] = pjrt.Promise()

        async def one() -> int:
            return await promise.future

        task = asyncio.create_task(one())
        await asyncio.sleep(0)
        task.cancel()
        promise.set_result(3)
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        return await promise.future

    assert asyncio.run(main()) == 3
    assert not mishaps


# Subclasses: where the value comes from elsewhere.


class Polled(pjrt.Future[int]):
    """Asks a source; notices by itself only when it is watched."""

    __slots__ = ("asked", "source", "watched")

    def __init__(self) -> None:
        super().__init__()
        self.source: list[int] = []
        self.asked = 0
        self.watched = 0

    def _poll(self) -> None:
        self.asked += 1
        if self.source:
            self._complete(self.source[0])

    def _block(self, timeout: float | None) -> None:
        self.source.append(11)
        self._poll()

    def _watch(self) -> None:
        self.watched += 1


def test_a_subclass_is_polled_blocked_on_and_watched_once() -> None:
    future = Polled()
    assert not future.done()
    calls: list[int] = []
    future.add_done_callback(lambda f: calls.append(f.result()))
    future.add_done_callback(lambda f: calls.append(f.result()))
    assert future.watched == 1
    assert future.result() == 11
    assert calls == [11, 11]
    asked = future.asked
    assert future.done()
    assert future.asked == asked


# Forks.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_futures_work_in_the_child_of_a_fork_made_while_others_complete_theirs() -> None:
    code = """
import os, threading, warnings
from pjrt import Promise  # before the threads: a child cannot import what another thread was importing
warnings.simplefilter("ignore", DeprecationWarning)
stop = threading.Event()
def busy():
    while not stop.is_set():
        promise = Promise()
        promise.future.add_done_callback(id)
        promise.set_result(1)
thread = threading.Thread(target=busy)
thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        promise = Promise()
        promise.set_result(2)
        os._exit(promise.future.result(60))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
stop.set()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
