"""Kernels that enqueue their work: the program goes on, and waits only where somebody needs a value."""

from __future__ import annotations

import concurrent.futures
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from anydevice.simulated_memory import SimulatedMemory

import pjrt
from pjrt.host import Enqueued

X = np.arange(4, dtype=np.float32)
T = "tensor<4xf32>"


class Queue(SimulatedMemory):
    """A chip whose queue works only while somebody waits for a fence: what is done, and when, is in ``events``."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.commands: list[Callable[[], object]] = []
        self.done = 0
        self.errors: dict[int, str] = {}
        self.most_under_way = 0
        self.most_arrays = 0
        self.room = 1 << 30

    def put(self, name: str, command: Callable[[], object]) -> Callable[[], None]:
        self.events.append(f"put {name}")
        self.commands.append(lambda: (self.events.append(f"do {name}"), command()))
        self.most_under_way = max(self.most_under_way, len(self.commands) - self.done)
        number = len(self.commands)
        return lambda: self.work_until(number)

    def work_until(self, number: int) -> None:
        while self.done < number:
            self.done += 1
            try:
                self.commands[self.done - 1]()
            except Exception as error:
                self.errors[self.done] = str(error)
        if number in self.errors:
            raise ValueError(self.errors[number])

    def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> int:
        if len(self.contents) >= self.room:
            raise MemoryError("the chip is full")
        self.most_arrays = max(self.most_arrays, len(self.contents) + 1)
        return super().allocate(spec, space)

    def copy_in(self, handle: int, array: Any) -> Any:
        return self.put("in", lambda: SimulatedMemory.copy_in(self, handle, array))

    def copy_out(self, handle: int, array: Any) -> Any:
        return self.put("out", lambda: SimulatedMemory.copy_out(self, handle, array))

    def read_now(self, handle: int) -> Any:
        array = np.empty(4, np.float32)
        SimulatedMemory.copy_out(self, handle, array)
        return array

    def add(self, operation: Any, x: int, y: int) -> Any:
        result = self.allocate(pjrt.ShapeSpec((4,), np.float32), None)  # type: ignore[arg-type]

        def work() -> None:
            total = self.read_now(x) + self.read_now(y)
            if total[0] < 0:
                raise ValueError("chip error 3: a negative element")
            SimulatedMemory.copy_in(self, result, total)

        return Enqueued(result, self.put("add", work))


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def client(queue: Queue) -> Iterator[pjrt.Client]:
    kernels = {"stablehlo.add": queue.add}
    with pjrt.StableHloClient("queued", kernels=kernels, fallback="reference", memory=queue) as client:
        yield client


def program(*lines: str, result: str) -> str:
    body = "\n".join(f"{line} : {T}" for line in lines)
    return f"func.func @main(%x: {T}) -> {T} {{\n{body}\nreturn {result} : {T}\n}}"


def adds(count: int) -> str:
    lines = [f"%{n} = stablehlo.add {f'%{n - 1}' if n else '%x'}, %x" for n in range(count)]
    return program(*lines, result=f"%{count - 1}")


def test_kernels_do_not_wait_for_each_other(client: pjrt.Client, queue: Queue) -> None:
    (x,) = client.compile(adds(1))(X)
    x.ready().result()
    queue.events.clear()
    (y,) = client.compile(adds(3))(x)
    np.testing.assert_array_equal(np.asarray(y), 4 * X * 2)
    assert queue.events == ["put add"] * 3 + ["do add"] * 3 + ["put out", "do out"]


def test_the_fallback_waits_for_its_value_alone(client: pjrt.Client, queue: Queue) -> None:
    text = program(
        "%0 = stablehlo.add %x, %x",
        "%1 = stablehlo.add %0, %x",
        "%2 = stablehlo.negate %0",
        "%3 = stablehlo.abs %2",
        "%4 = stablehlo.add %1, %3",
        result="%4",
    )
    executable = client.compile(text)
    x = client.buffer_from_host(X)
    queue.events.clear()
    (y,) = executable(x)
    y.ready().result()
    # The copy out is behind the second sum in the queue; the fallback waits for no more, and the copy in for nothing.
    expected = ["put add", "put add", "do add", "put out", "do add", "do out", "put in", "put add", "do in", "do add"]
    assert queue.events == expected
    np.testing.assert_array_equal(np.asarray(y), 5 * X)


def test_a_value_is_read_once(client: pjrt.Client, queue: Queue) -> None:
    text = program(
        "%0 = stablehlo.add %x, %x",
        "%1 = stablehlo.negate %0",
        "%2 = stablehlo.abs %0",
        "%3 = stablehlo.multiply %1, %2",
        result="%3",
    )
    (y,) = client.compile(text)(X)
    y.ready().result()
    assert queue.events.count("put out") == 1
    np.testing.assert_array_equal(np.asarray(y), -4 * X * X)


def test_memory_that_is_written_again_is_read_again(queue: Queue) -> None:
    def compile_in_place(program: Any, options: pjrt.CompileOptions) -> Any:
        def run(x: int) -> int:
            SimulatedMemory.copy_in(queue, x, queue.read_now(x) + 1)
            return x

        spec = pjrt.ShapeSpec((4,), np.float32)
        return pjrt.host.Compiled(run=run, parameters=[spec], outputs=[spec], aliases={0: 0}, donated=[0])

    with (
        pjrt.StableHloClient("kernels", kernels={}, fallback="reference", memory=queue) as kernels,
        pjrt.StableHloClient("writes", compile=compile_in_place, memory=queue) as writes,
    ):
        negate = kernels.compile(program("%0 = stablehlo.negate %x", result="%0"))
        assert queue is kernels.memory is writes.memory  # type: ignore[attr-defined]
        (y,) = negate(X)
        y = y.copy_to(writes.devices[0])
        np.testing.assert_array_equal(np.asarray(negate(y.copy_to(kernels.devices[0]))[0]), X)
        (z,) = writes.compile(adds(1))(y)
        np.testing.assert_array_equal(np.asarray(negate(z.copy_to(kernels.devices[0]))[0]), X - 1)


def test_an_error_names_its_own_operation_and_ends_the_program(client: pjrt.Client, queue: Queue) -> None:
    text = program("%0 = stablehlo.add %x, %x", "%1 = stablehlo.negate %0", "%2 = stablehlo.add %1, %1", result="%2")
    executable = client.compile(text)
    for x in (X - 1, X + 1):  # of the first sum, and of the second
        (y,) = executable(x)
        with pytest.raises(pjrt.PjrtError, match=r"chip error 3: a negative element.*\(in stablehlo.add "):
            np.asarray(y)
    (y,) = executable(X * 0)
    np.testing.assert_array_equal(np.asarray(y), X * 0)
    del x, y
    gc.collect()  # errors that were raised hold frames
    assert not queue.contents


def test_few_steps_are_under_way(client: pjrt.Client, queue: Queue) -> None:
    (y,) = client.compile(adds(500))(X)
    np.testing.assert_array_equal(np.asarray(y), 501 * X)
    assert queue.most_under_way <= 100
    assert queue.most_arrays <= 100


def test_a_full_chip_waits_for_its_own_work(client: pjrt.Client, queue: Queue) -> None:
    queue.room = 8
    x = client.buffer_from_host(X)
    (y,) = client.compile(adds(100))(x)
    np.testing.assert_array_equal(np.asarray(y), 101 * X)
    held = [client.buffer_from_host(X) for _ in range(queue.room - len(queue.contents))]
    (z,) = client.compile(adds(2))(x)
    with pytest.raises(pjrt.ResourceExhaustedError, match="the chip is full"):
        np.asarray(z)
    del held


def test_an_observed_program_waits_for_each_step(queue: Queue) -> None:
    with pjrt.StableHloClient(
        "queued", kernels={"stablehlo.add": queue.add}, fallback="reference", memory=queue, profile=True
    ) as client:
        (y,) = client.compile(adds(2))(client.buffer_from_host(X))
        y.ready().result()
    assert queue.events == ["put in", "do in", *["put add", "do add"] * 2]


@pytest.mark.parametrize("fence", ["future", "function"])
@pytest.mark.parametrize("limit", [None, 100.0])
def test_a_queue_on_a_thread(fence: str, limit: float | None) -> None:
    memory = SimulatedMemory()
    spec = pjrt.ShapeSpec((4,), np.float32)

    with concurrent.futures.ThreadPoolExecutor(1) as worker:

        def add(operation: Any, x: int, y: int) -> Any:
            result = memory.allocate(spec, None)  # type: ignore[arg-type]
            work = worker.submit(lambda: memory.copy_in(result, memory.read(x) + memory.read(y)))
            return Enqueued(result, work if fence == "future" else work.result)

        with pjrt.StableHloClient(
            "queued",
            kernels={"stablehlo.add": add},
            fallback="reference",
            memory=memory,
            num_devices=2,
            watchdog_seconds=limit,
            reset=lambda device: None,
        ) as client:
            lines = []
            for n in range(0, 60, 2):
                lines += [f"%{n} = stablehlo.add {f'%{n - 1}' if n else '%x'}, %x", f"%{n + 1} = stablehlo.negate %{n}"]
            executable = client.compile(program(*lines, result="%59"), pjrt.CompileOptions(num_replicas=2))
            several = [
                executable.execute([[client.buffer_from_host(X, device=d)] for d in client.devices]) for _ in "123"
            ]
            for results in several:
                for (y,) in results:
                    np.testing.assert_array_equal(np.asarray(y), X)
            del several, results, y
        assert not memory.contents
