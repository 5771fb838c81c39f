"""A device whose queue does everything in order: what one fence sets off must not wait there for the next one."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from anydevice.simulated_memory import SimulatedMemory
from test_device_memory import SPEC, X

import pjrt
from pjrt.api.future import Promise
from pjrt.host import Compiled, Enqueued, HostClient

LIMIT = 100.0  # seconds, for what must not wait for ever


def as_promise(work: concurrent.futures.Future[Any]) -> Any:
    promise: Promise[None] = Promise()

    def settle(done: concurrent.futures.Future[Any]) -> None:
        error = done.exception()
        if error is None:
            promise.set_result(None)
        else:
            promise.set_error(error)

    work.add_done_callback(settle)
    return promise.future


class Event:
    """A fence as libraries have them."""

    def __init__(self, work: concurrent.futures.Future[Any]) -> None:
        self.synchronize = work.result


FENCES: dict[str, Callable[[concurrent.futures.Future[Any]], Any]] = {
    "future": lambda work: work,
    "pjrt future": as_promise,
    "event": Event,
    "function": lambda work: work.result,
}


class Queue(SimulatedMemory):
    """A device's memory and its one queue: copies and programs run there, and each gives a fence."""

    def __init__(self, fence: Callable[[concurrent.futures.Future[Any]], Any]) -> None:
        super().__init__()
        self.fence = fence
        self.worker = concurrent.futures.ThreadPoolExecutor(1)
        self.gate = threading.Event()

    def copy_in(self, handle: int, array: Any) -> Any:
        return self.fence(self.worker.submit(super().copy_in, handle, array))

    def copy_out(self, handle: int, array: Any) -> Any:
        return self.fence(self.worker.submit(super().copy_out, handle, array))

    def run(self, handle: int) -> Enqueued:
        """Enqueue a program, which waits for the gate; a negative first element is its error."""
        result = self.allocate(SPEC, None)  # type: ignore[arg-type]  # it does not look at the space

        def work() -> None:
            assert self.gate.wait(LIMIT)
            array = np.empty_like(X)
            SimulatedMemory.copy_out(self, handle, array)
            if array[0] < 0:
                raise ValueError("the queue met a negative element")
            SimulatedMemory.copy_in(self, result, array * 2)

        return Enqueued(result, self.fence(self.worker.submit(work)))


@pytest.fixture(params=FENCES.values(), ids=FENCES)
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    queue = Queue(request.param)
    yield queue
    queue.worker.shutdown()


@pytest.fixture
def client(queue: Queue) -> Iterator[pjrt.Client]:
    def compile(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        return Compiled(run=queue.run, parameters=[SPEC], outputs=[SPEC])

    with HostClient("queue", compile=compile, memory=queue, num_devices=2) as client:
        yield client
        queue.gate.set()


def read_again(buffer: pjrt.Buffer) -> Any:
    """Read when the result is there, in a callback."""
    promise: Promise[Any] = Promise()

    def begin(_: pjrt.Future[Any]) -> None:
        buffer.to_host().add_done_callback(lambda end: promise.set_result(end.result()))

    buffer.ready().add_done_callback(begin)
    return promise.future.result(LIMIT)


def write_again(buffer: pjrt.Buffer) -> Any:
    """Put what was read on the device when it is there, in a callback."""
    promise: Promise[pjrt.Buffer] = Promise()
    client = buffer.device.client

    def begin(end: pjrt.Future[Any]) -> None:
        promise.set_result(client.buffer_from_host(np.array(end.result())))

    buffer.to_host().add_done_callback(begin)
    return promise.future.result(LIMIT).to_host().result(LIMIT)


def fill(buffer: pjrt.Buffer) -> Any:
    """Fill a buffer in a callback, by a transfer manager."""
    manager = buffer.device.client.create_buffers_for_async_host_to_device([SPEC], memory_space=buffer.memory_space)
    filled = manager.retrieve_buffer(0)

    def begin(_: pjrt.Future[Any]) -> None:
        manager.transfer_literal(0, X * 2)

    buffer.ready().add_done_callback(begin)
    return filled.to_host().result(LIMIT)


def raw(buffer: pjrt.Buffer) -> Any:
    out = np.zeros_like(X)
    buffer.copy_raw_to_host(out).result(LIMIT)
    return out


def write_raw(buffer: pjrt.Buffer) -> Any:
    buffer.raw().copy_from_host(X * 2).result(LIMIT)
    return buffer.to_host().result(LIMIT)


USES: dict[str, Callable[[pjrt.Buffer], Any]] = {
    "to_host": lambda buffer: buffer.to_host().result(LIMIT),
    "to_host into an array": lambda buffer: buffer.to_host(np.zeros_like(X)).result(LIMIT),
    "copy_to": lambda buffer: buffer.copy_to(buffer.device.client.devices[1]).to_host().result(LIMIT),
    "bitcast": lambda buffer: buffer.bitcast(pjrt.ElementType.F32, (4,)).to_host().result(LIMIT),
    "raw": raw,
    "write_raw": write_raw,
    "read in a callback": read_again,
    "write in a callback": write_again,
    "fill in a callback": fill,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_result_is_used_before_it_is_there(
    queue: Queue, client: pjrt.Client, use: Callable[[pjrt.Buffer], Any]
) -> None:
    (result,) = client.compile("any program")(client.buffer_from_host(X))
    opener = threading.Timer(0.05, queue.gate.set)  # most uses have begun by then; it is right either way
    opener.start()
    np.testing.assert_array_equal(use(result), X * 2)
    opener.join()


def test_an_error_on_the_queue_goes_on_to_what_depends_on_it(queue: Queue, client: pjrt.Client) -> None:
    program = client.compile("any program")
    (failed,) = program(client.buffer_from_host(-1 - X))
    reading = failed.to_host()
    queue.gate.set()
    with pytest.raises(pjrt.PjrtError, match="met a negative element"):
        reading.result(LIMIT)
    (result,) = program(client.buffer_from_host(X))
    np.testing.assert_array_equal(result.to_host().result(LIMIT), X * 2)
