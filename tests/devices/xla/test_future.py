"""Waiting: blocking with and without a limit, callbacks, asyncio, Ctrl-C."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pjrt

EYE = np.eye(512, dtype=np.float32)


def slow(power: pjrt.LoadedExecutable, steps: int) -> pjrt.Buffer:
    return power(EYE, np.int64(steps))[0]


def test_executions_return_before_they_are_done(power: pjrt.LoadedExecutable) -> None:
    result = slow(power, 100)
    ready = result.ready()
    assert not ready.done()
    assert ready.result() is None
    assert ready.done()
    assert ready.exception() is None


def test_a_limit(power: pjrt.LoadedExecutable) -> None:
    ready = slow(power, 200).ready()
    with pytest.raises(pjrt.DeadlineExceededError, match=r"was not there within 0.01 s"):
        ready.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        ready.exception(timeout=0.01)
    assert ready.result(timeout=60) is None


def test_callbacks_come_on_their_own_and_in_the_order_of_completion(power: pjrt.LoadedExecutable) -> None:
    order: list[str] = []
    both = threading.Barrier(2)
    long, shorts = slow(power, 300), []
    # XLA runs what one thread starts one after the other.
    starter = threading.Thread(target=lambda: shorts.append(slow(power, 1)))
    starter.start()
    starter.join(60)
    (short,) = shorts

    def note(name: str) -> Callable[[object], None]:
        def noted(_: object) -> None:
            order.append(name)
            if len(order) == 2:
                both.wait(60)

        return noted

    long.ready().add_done_callback(note("long"))
    short.ready().add_done_callback(note("short"))
    both.wait(60)
    assert order == ["short", "long"]


def test_asyncio(power: pjrt.LoadedExecutable) -> None:
    async def main() -> list[float]:
        values = await asyncio.gather(*(_awaited(slow(power, steps).to_host()) for steps in (60, 1, 30)))
        return [float(value[2, 2]) for value in values]

    async def _awaited(future: pjrt.Future[Any]) -> Any:
        return await future

    assert asyncio.run(main()) == [1.0, 1.0, 1.0]


def test_many_threads_wait_for_one(power: pjrt.LoadedExecutable) -> None:
    ready = slow(power, 60).ready()
    seen: list[object] = []
    threads = [threading.Thread(target=lambda: seen.append(ready.result(timeout=60))) for _ in range(4)]
    threads += [threading.Thread(target=lambda: seen.append(ready.result())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [None] * 8


def test_the_notifying_thread_ends_when_there_is_nothing_to_notice(power: pjrt.LoadedExecutable) -> None:
    told = threading.Event()
    slow(power, 300).ready().add_done_callback(lambda _: told.set())
    assert [t.name for t in threading.enumerate()].count("pjrt-cpu-notifier") == 1
    assert told.wait(60)
    for thread in threading.enumerate():
        if thread.name == "pjrt-cpu-notifier":
            thread.join(60)
            assert not thread.is_alive()


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


@pytest.mark.parametrize("wait", ["result()", "result(timeout=50)", "exception()"])
def test_ctrl_c_interrupts_the_wait_not_the_work(run_script: Callable[..., str], wait: str) -> None:
    said = run_script(
        f"""
import os, signal, threading
client = pjrt.client("cpu")
(slow,) = client.compile(POWER)(np.eye(512, dtype=np.float32), np.int64(500))
ready = slow.ready()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    ready.{wait}
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", ready.done())
print(slow.to_host().result()[4, 4], ready.done())
"""
    )
    assert said.split() == ["interrupted", "False", "1.0", "True"]
