"""Callers that run ahead of a device whose memory has a limit wait for work that frees memory, and do not fail."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import toys
from anydevice.simulated_memory import SimulatedMemory
from test_device_memory import SPEC, X

import pjrt
from pjrt.host import Compiled, Enqueued, HostClient, RunContext

SIZE = X.nbytes


class Full(SimulatedMemory):
    """Memory with room for so many arrays."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> int:
        if len(self.contents) >= self.room:
            raise MemoryError(f"all of {self.room} arrays are in use")
        return super().allocate(spec, space)


class Queue:
    """A device with a queue of its own, on which each program adds 1."""

    def __init__(self, memory: SimulatedMemory, callback: bool, **options: Any) -> None:
        self.memory = memory
        self.worker = concurrent.futures.ThreadPoolExecutor(1)
        self.callback = callback
        self.gate = threading.Event()
        self.gate.set()
        self.enqueued = threading.Semaphore(0)

        def compile(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
            return Compiled(run=self.run, parameters=[SPEC], outputs=[SPEC])

        self.client = HostClient("queue", compile=compile, memory=memory, **options)

    def run(self, handle: int) -> Enqueued:
        result = self.memory.allocate(SPEC, None)  # type: ignore[arg-type]  # it does not look at the space

        def work() -> None:
            assert self.gate.wait(toys.TIMEOUT)
            self.memory.copy_in(result, self.memory.read(handle) + 1)

        done = self.worker.submit(work)
        self.enqueued.release()
        return Enqueued(result, done if self.callback else done.result)

    def close(self) -> None:
        self.gate.set()
        self.client.close()
        self.worker.shutdown()


LIMITS: dict[str, Callable[[bool], Queue]] = {
    "limit": lambda callback: Queue(SimulatedMemory(), callback, memory_limit=3 * SIZE),
    "allocator": lambda callback: Queue(Full(3), callback),
}


@pytest.fixture(params=[True, False], ids=["future", "function"])
def callback(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=LIMITS.values(), ids=LIMITS)
def queue(request: pytest.FixtureRequest, callback: bool) -> Iterator[Queue]:
    queue = request.param(callback)
    yield queue
    queue.close()


def test_a_loop_needs_the_memory_of_two_steps(queue: Queue) -> None:
    program = queue.client.compile("any program")
    x = queue.client.buffer_from_host(X)
    for _ in range(100):
        (x,) = program(x)
    np.testing.assert_array_equal(x.to_host().result(toys.TIMEOUT), X + 100)


def test_arguments_that_nobody_keeps_make_room_for_the_next(queue: Queue) -> None:
    program = queue.client.compile("any program")
    for number in range(100):
        (y,) = program(queue.client.buffer_from_host(X + number))
    np.testing.assert_array_equal(y.to_host().result(toys.TIMEOUT), X + 100)


def test_results_that_nobody_keeps_make_room_for_the_next(queue: Queue) -> None:
    program = queue.client.compile("any program")
    x = queue.client.buffer_from_host(X)
    for _ in range(100):
        program(x)
    np.testing.assert_array_equal(program(x)[0].to_host().result(toys.TIMEOUT), X + 1)


def test_what_the_caller_holds_is_an_error_at_once(queue: Queue) -> None:
    program = queue.client.compile("any program")
    kept = [queue.client.buffer_from_host(X) for _ in range(3)]
    with pytest.raises(pjrt.ResourceExhaustedError):
        queue.client.buffer_from_host(X)
    (y,) = program(kept[0])
    with pytest.raises(pjrt.ResourceExhaustedError):
        y.ready().result(toys.TIMEOUT)


def test_queued_programs_on_memory_of_the_host_free_their_arguments() -> None:
    gate = threading.Event()

    def run(x: Any) -> Any:
        assert gate.wait(toys.TIMEOUT)
        return x + 1

    with toys.client(run, "f32[256]", "f32[256]", memory_limit=8 * 1024) as client:
        program = client.compile("program")
        x = np.zeros(256, np.float32)
        opener = threading.Timer(0.05, gate.set)  # the caller waits by then, or finds room; both are right
        opener.start()
        results = []
        for number in range(100):
            results = [*results[-2:], *program(client.buffer_from_host(x + number))]
        np.testing.assert_array_equal(results[-1].to_host().result(toys.TIMEOUT), x + 100)
        opener.join()


def test_work_that_may_wait_for_the_caller_is_not_waited_for() -> None:
    begun = threading.Event()
    fed = threading.Event()

    def run(context: RunContext, x: Any) -> Any:
        begun.set()
        assert fed.wait(toys.TIMEOUT)
        return x

    def compile(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        spec = pjrt.ShapeSpec((256,), np.float32)
        return Compiled(run=run, parameters=[spec], outputs=[spec], takes_context=True)

    with HostClient("waits", compile=compile, memory_limit=3 * 1024) as client:
        (y,) = client.compile("program")(client.buffer_from_host(np.zeros(256, np.float32)))
        assert begun.wait(toys.TIMEOUT)
        held = client.buffer_from_host(np.zeros(256, np.float32))
        with pytest.raises(pjrt.ResourceExhaustedError, match="arrays hold the memory: 3 of 1024 bytes"):
            client.buffer_from_host(np.zeros(256, np.float32))
        fed.set()
        y.ready().result(toys.TIMEOUT)
        held.delete()


def test_a_callback_on_the_thread_that_frees_memory_does_not_wait_for_it() -> None:
    queue = Queue(SimulatedMemory(), True, memory_limit=3 * SIZE)
    try:
        program = queue.client.compile("any program")
        queue.gate.clear()
        (y,) = program(queue.client.buffer_from_host(X))
        outcomes: list[Any] = []
        said = threading.Event()

        def allocate(_: pjrt.Future[Any]) -> None:
            try:
                outcomes.extend(queue.client.buffer_from_host(X) for _ in range(5))
            except pjrt.PjrtError as error:
                outcomes.append(type(error))
            said.set()

        y.ready().add_done_callback(allocate)
        (z,) = program(y)
        del y
        for _ in range(2):
            assert queue.enqueued.acquire(timeout=toys.TIMEOUT)
        queue.gate.set()
        assert said.wait(toys.TIMEOUT)
        assert outcomes[-1] is pjrt.ResourceExhaustedError
        np.testing.assert_array_equal(z.to_host().result(toys.TIMEOUT), X + 2)
    finally:
        queue.close()
