"""Value paths through the C API: executions whose results have no buffer until one is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.capi import load_capsule
from pjrt.devices.xla.loaded_executable import XlaValuePath
from pjrt.host import Compiled, HostClient
from pjrt.host.loaded_executable import HostValuePath

F32 = pjrt.ElementType.F32
DOUBLE = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
DONATING = DOUBLE.replace("tensor<4xf32>)", "tensor<4xf32> {tf.aliasing_output = 0 : i32})", 1)
TWO = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<i32>, tensor<4xf32>) {
  return %n, %x : tensor<i32>, tensor<4xf32>
}
"""
ONES = np.ones(4, np.float32)


def doubling(run: Callable[[Any], Any], **declarations: Any) -> Compiled:
    spec = pjrt.ShapeSpec((4,), F32)
    return Compiled(run=run, outputs=[spec], parameters=[spec], runs_on_caller=True, **declarations)


def twice(x: Any) -> Any:
    return x + x


class Toy:
    """A device in Python whose function can be changed, exported and loaded back."""

    def __init__(self) -> None:
        self.run: Callable[[Any], Any] = twice
        self.inner: HostClient | None = None
        plugin = pjrt.export(self.make, name="toy")
        self.client = load_capsule(plugin.capsule).client()

    def make(self, **options: Any) -> HostClient:
        self.inner = HostClient("toy", compile=lambda program, _: doubling(lambda x: self.run(x)), **options)
        return self.inner

    @property
    def bytes_in_use(self) -> int:
        assert self.inner is not None
        return self.inner.devices[0].memory_stats().bytes_in_use


@pytest.fixture
def toy() -> Iterator[Toy]:
    toy = Toy()
    yield toy
    toy.client.close()


@pytest.fixture(scope="module")
def cpu() -> Iterator[pjrt.Client]:
    plugin = pjrt.export(lambda **options: pjrt.client("cpu", **options), name="cpu")
    with load_capsule(plugin.capsule).client() as client:
        yield client


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The launch ids of all runs on value paths."""
    seen: list[int] = []
    for kind in (XlaValuePath, HostValuePath):
        run = kind.run

        def counted(path: Any, values: Any, launch_id: int, futures: Any, run: Any = run) -> Any:
            results = run(path, values, launch_id, futures)
            if results is not None:
                seen.append(launch_id)
            return results

        monkeypatch.setattr(kind, "run", counted)
    return seen


@pytest.fixture(params=["cpu", "toy"])
def client(request: pytest.FixtureRequest, cpu: pjrt.Client) -> Any:
    return cpu if request.param == "cpu" else request.getfixturevalue("toy").client


def test_executions_take_the_value_path(runs: list[int], client: pjrt.Client) -> None:
    executable = client.compile(DOUBLE)
    y = client.buffer_from_host(ONES)
    for _ in range(10):
        (y,) = executable.execute_sharded([y], client.devices[0], pjrt.ExecuteOptions(launch_id=7))
    np.testing.assert_array_equal(np.asarray(y), ONES * 1024)
    assert runs == [0] * 10  # the id of a launch with one part stays with the runtime


def test_several_results_of_several_types(runs: list[int], cpu: pjrt.Client) -> None:
    executable = cpu.compile(TWO)
    x, n = cpu.buffer_from_host(ONES), cpu.buffer_from_host(np.int32(3))
    for _ in range(3):
        n, x = executable(x, n)
    assert (x.shape, x.element_type, n.shape, n.element_type) == ((4,), F32, (), pjrt.ElementType.S32)
    np.testing.assert_array_equal(np.asarray(x), ONES)
    assert int(np.asarray(n)) == 3
    assert len(runs) == 3


def test_a_result_is_a_whole_buffer(client: pjrt.Client) -> None:
    executable = client.compile(DOUBLE)
    x = client.buffer_from_host(ONES)
    executable(x)
    for use in (
        lambda y: np.asarray(y.copy_to(client.devices[0])),
        lambda y: y.to_host().result(),
        np.from_dlpack,
        lambda y: y.ready().result() or np.asarray(y),
    ):
        (y,) = executable(x)
        assert (y.shape, y.element_type, y.on_device_size, y.is_deleted) == ((4,), F32, 16, False)
        assert y.device is client.devices[0]
        np.testing.assert_array_equal(use(y), 2 * ONES)


def test_results_are_ready_when_their_execution_is(client: pjrt.Client) -> None:
    executable = client.compile(DOUBLE)
    x = client.buffer_from_host(ONES)
    for _ in range(3):
        futures: list[pjrt.Future[None]] = []
        (y,) = executable.execute_sharded([x], client.devices[0], returned_futures=futures)
        futures[0].result()
        assert y.ready().done()


def test_a_deleted_result_is_no_argument_and_has_no_value(client: pjrt.Client) -> None:
    executable = client.compile(DOUBLE)
    x = client.buffer_from_host(ONES)
    executable(x)
    (y,) = executable(x)
    y.delete()
    assert y.is_deleted
    with pytest.raises(pjrt.FailedPreconditionError):
        executable(y)
    with pytest.raises(pjrt.FailedPreconditionError):
        y.to_host().result()


def test_a_deleted_argument_of_the_host(client: pjrt.Client) -> None:
    executable = client.compile(DOUBLE)
    x = client.buffer_from_host(ONES)
    executable(x)
    executable(x)
    x.delete()
    with pytest.raises(pjrt.FailedPreconditionError):
        executable(x)


def test_a_donated_result_is_gone(runs: list[int], cpu: pjrt.Client) -> None:
    executable, donating = cpu.compile(DOUBLE), cpu.compile(DONATING)
    x = cpu.buffer_from_host(ONES)
    executable(x)
    (y,) = executable(x)
    (z,) = donating(y)
    assert y.is_deleted
    with pytest.raises(pjrt.FailedPreconditionError):
        executable(y)
    np.testing.assert_array_equal(np.asarray(executable(z)[0]), 8 * ONES)
    assert len(runs) == 3  # the donating program has no value path


def test_other_types_are_checked_each_time(client: pjrt.Client) -> None:
    executable = client.compile(DOUBLE)
    x = client.buffer_from_host(ONES)
    executable(x)
    for wrong in (np.ones(5, np.float32), np.ones(4, np.int32)):
        with pytest.raises(pjrt.InvalidArgumentError):
            executable(client.buffer_from_host(wrong))
    with pytest.raises(pjrt.InvalidArgumentError):
        executable(x, x)
    np.testing.assert_array_equal(np.asarray(executable(x)[0]), 2 * ONES)


def test_a_deleted_executable_runs_no_more(client: pjrt.Client) -> None:
    executable = client.compile(DOUBLE)
    x = client.buffer_from_host(ONES)
    executable(x)
    (y,) = executable(x)
    executable.delete()
    with pytest.raises(pjrt.FailedPreconditionError):
        executable(x)
    np.testing.assert_array_equal(np.asarray(y), 2 * ONES)


def test_a_function_that_raises_is_called_once_and_fails_its_results(runs: list[int], toy: Toy) -> None:
    calls: list[int] = []

    def fail(_: Any) -> Any:
        calls.append(1)
        raise ValueError("no such luck")

    executable = toy.client.compile(DOUBLE)
    x = toy.client.buffer_from_host(ONES)
    executable(x)
    toy.run = fail
    futures: list[pjrt.Future[None]] = []
    (y,) = executable.execute_sharded([x], toy.client.devices[0], returned_futures=futures)
    for future in (*futures, y.ready()):
        with pytest.raises(pjrt.PjrtError, match="no such luck"):
            future.result()
    assert calls == [1]
    toy.run = twice
    with pytest.raises(pjrt.PjrtError, match="no such luck"):
        executable(y)[0].to_host().result()
    np.testing.assert_array_equal(np.asarray(executable(x)[0]), 2 * ONES)


def test_a_function_that_gives_too_much_fails_its_results(toy: Toy) -> None:
    executable = toy.client.compile(DOUBLE)
    x = toy.client.buffer_from_host(ONES)
    executable(x)
    for wrong, message in (([ONES, ONES], "2 results"), (np.ones(5, np.float32), r"float32\[5\]")):
        toy.run = lambda _, wrong=wrong: wrong
        with pytest.raises(pjrt.InternalError, match=message):
            executable(x)[0].ready().result()


def test_a_function_may_return_its_argument(toy: Toy) -> None:
    toy.run = lambda x: x
    executable = toy.client.compile(DOUBLE)
    x = toy.client.buffer_from_host(ONES)
    executable(x)
    (y,) = executable(x)
    x.delete()
    np.testing.assert_array_equal(np.asarray(y), ONES)


def test_results_are_charged_until_they_are_gone(toy: Toy) -> None:
    executable = toy.client.compile(DOUBLE)
    x = toy.client.buffer_from_host(ONES)
    executable(x)
    before = toy.bytes_in_use
    results = [executable(x)[0] for _ in range(5)]
    assert toy.bytes_in_use == before + 5 * 16
    results[0].delete()
    np.asarray(results[1])
    del results
    assert toy.bytes_in_use == before


def test_a_new_result_takes_no_memory_of_a_copied_function_result(toy: Toy) -> None:
    """An array that the device's function makes and forgets is used in place."""
    made: list[int] = []

    def run(x: Any) -> Any:
        result = x + x
        made.append(result.ctypes.data)
        return [result]

    toy.run = run
    executable = toy.client.compile(DOUBLE)
    x = toy.client.buffer_from_host(ONES)
    executable(x)
    (y,) = executable(x)
    assert y.unsafe_pointer() == made[-1]


def test_threads_share_an_executable(client: pjrt.Client) -> None:
    executable = client.compile(DOUBLE)
    wrong: list[Any] = []

    def work(number: int) -> None:
        x = client.buffer_from_host(np.full(4, number, np.float32))
        for _ in range(200):
            (y,) = executable(x)
            value = np.asarray(executable(y)[0])
            if value[0] != 4 * number:
                wrong.append((number, value))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def pending(client: pjrt.Client, program: str) -> Any:
    """Return a call of a program that takes long enough to be pending when it returns."""
    executable = client.compile(program)
    x = client.buffer_from_host(np.ones((400, 400), np.float32))
    executable(x)[0].ready().result()
    return executable, x


SLOW = """
func.func @main(%x: tensor<400x400xf32>{ALIAS}) -> (tensor<400x400xf32>, tensor<400x400xf32>) {
  %a = stablehlo.dot %x, %x : (tensor<400x400xf32>, tensor<400x400xf32>) -> tensor<400x400xf32>
  %b = stablehlo.dot %a, %x : (tensor<400x400xf32>, tensor<400x400xf32>) -> tensor<400x400xf32>
  return %a, %b : tensor<400x400xf32>, tensor<400x400xf32>
}
"""


def test_ready_events_of_pending_results_follow_the_execution(cpu: pjrt.Client) -> None:
    executable, x = pending(cpu, SLOW.replace("{ALIAS}", ""))
    for _ in range(20):
        futures: list[pjrt.Future[None]] = []
        results = executable.execute_sharded([x], cpu.devices[0], returned_futures=futures)
        ready = [result.ready() for result in results]
        for result, future in zip(results, ready, strict=True):
            future.result(60)
            assert result.to_host().result()[0, 0] in (400, 160000)
        futures[0].result(60)


def test_ready_events_outlive_a_donation_of_another_result(cpu: pjrt.Client) -> None:
    executable, x = pending(cpu, SLOW.replace("{ALIAS}", ""))
    donating = cpu.compile(SLOW.replace("{ALIAS}", " {tf.aliasing_output = 0 : i32}"))
    for _ in range(20):
        futures: list[pjrt.Future[None]] = []
        first, second = executable.execute_sharded([x], cpu.devices[0], returned_futures=futures)
        events = [second.ready()]
        later = donating.execute_sharded([first], cpu.devices[0], returned_futures=futures)
        events += [second.ready(), *(result.ready() for result in later), *futures]
        for event in events:
            event.result(60)
        assert first.is_deleted
        assert second.to_host().result()[0, 0] == 160000
