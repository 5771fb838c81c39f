"""Copies between devices in their queues: nothing waits for a fence, and errors and memory are as those of others."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anydevice.two_chips import Chips, Collecting, client_of
from waiting import wait_until

import pjrt
from pjrt.host import Compiled, Enqueued, HostClient

X = np.arange(4, dtype=np.float32)
SPEC = pjrt.ShapeSpec((4,), np.float32)
SUM = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
%0 = stablehlo.add %x, %x : tensor<4xf32>
return %0 : tensor<4xf32>
}"""
THERE_AND_BACK = ["add 0", "copy 0", "copy 1", "add 1", "copy 1", "copy 0", "add 0"]


@pytest.fixture
def memory() -> Chips:
    return Collecting()


@pytest.fixture
def client(memory: Chips) -> Iterator[pjrt.Client]:
    with client_of(memory) as client:
        yield client
        memory.gate.set()


def on(device: pjrt.Device) -> pjrt.CompileOptions:
    return pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment([[device.id]]))


def double_on_each(client: pjrt.Client, x: pjrt.Buffer) -> pjrt.Buffer:
    """Return 8 times an array of the first device: by a sum there, one on the other device, and one there again."""
    first, second = client.devices
    sums = [client.compile(SUM, on(device)) for device in client.devices]
    (x,) = sums[0](x)
    (x,) = sums[1](x.copy_to(second))
    (x,) = sums[0](x.copy_to(first))
    return x


def puts(memory: Chips) -> list[str]:
    return [event.removeprefix("put ") for event in memory.events if event.startswith("put")]


def test_the_queues_are_full(client: pjrt.Client, memory: Chips) -> None:
    """All work on both chips is enqueued before any of it is done."""
    memory.gate.clear()
    result = double_on_each(client, client.buffer_from_host(X, device=client.devices[0]))
    wait_until(lambda: len(memory.events) == len(THERE_AND_BACK))
    assert puts(memory) == THERE_AND_BACK
    assert not result.ready().done()
    memory.gate.set()
    np.testing.assert_array_equal(np.asarray(result), 8 * X)
    del result
    gc.collect()
    wait_until(lambda: not memory.contents)


def test_what_waits_for_an_argument_is_enqueued_as_soon_as_that_is_there(client: pjrt.Client, memory: Chips) -> None:
    memory.gate.clear()
    alias, fulfillment = client.create_alias_buffer(SPEC)
    result = double_on_each(client, alias)
    assert not memory.events
    fulfillment.fulfill(client.buffer_from_host(X, device=client.devices[0]))
    wait_until(lambda: len(memory.events) == len(THERE_AND_BACK))
    assert puts(memory) == THERE_AND_BACK
    memory.gate.set()
    np.testing.assert_array_equal(np.asarray(result), 8 * X)


def test_what_never_gets_its_argument_fails(client: pjrt.Client) -> None:
    alias, fulfillment = client.create_alias_buffer(SPEC)
    result = double_on_each(client, alias)
    fulfillment.fail(pjrt.AbortedError("no array came"))
    with pytest.raises(pjrt.AbortedError, match="no array came"):
        result.to_host().result()
    alias, _ = client.create_alias_buffer(SPEC)
    result = double_on_each(client, alias)
    client.close()
    with pytest.raises(pjrt.CancelledError, match="closed"):
        result_of(result)


def result_of(buffer: pjrt.Buffer) -> Any:
    storage: Any = buffer._storage  # type: ignore[attr-defined]  # the client is closed, and answers no more
    return storage.definition.result()


def test_an_error_of_the_source_is_that_of_the_copy_and_of_what_uses_it(client: pjrt.Client, memory: Chips) -> None:
    memory.gate.clear()
    result = double_on_each(client, client.buffer_from_host(X - 10, device=client.devices[0]))
    wait_until(lambda: len(memory.events) == len(THERE_AND_BACK))
    memory.gate.set()
    with pytest.raises(pjrt.PjrtError, match="chip 0 met a negative element"):
        result.to_host().result()
    np.testing.assert_array_equal(
        np.asarray(double_on_each(client, client.buffer_from_host(X, device=client.devices[0]))), 8 * X
    )
    del result
    gc.collect()  # errors that were raised hold frames
    wait_until(lambda: not memory.contents)


@pytest.mark.parametrize("has_fence", [True, False])
def test_an_error_that_is_told_late_is_not_missed(memory: Chips, has_fence: bool) -> None:
    """What uses the copy has ended, and the host knows that, before it hears of the source's error."""
    may_tell, ended = threading.Event(), threading.Event()

    def fail() -> None:
        may_tell.wait()
        raise ValueError("chip 0 has failed")

    def first(handle: int) -> Any:
        return Enqueued(memory.allocate(SPEC, client.devices[0].default_memory_space), fail)

    def second(handle: int) -> Any:
        result = memory.allocate(SPEC, client.devices[1].default_memory_space)
        return Enqueued(result, ended.set) if has_fence else result

    def compiled(program: Any, options: Any) -> Compiled:
        run = {"first": first, "second": second}[program.code.decode()]
        return Compiled(run=run, parameters=[SPEC], outputs=[SPEC], name=run.__name__)

    with HostClient("chips", compile=compiled, memory=memory, num_devices=2) as client:
        x = client.buffer_from_host(X)
        (y,) = client.compile("first")(x)
        (z,) = client.compile("second", on(client.devices[1]))(y.copy_to(client.devices[1]))
        assert not has_fence or ended.wait(100)
        for device in client.devices:
            device.compute.drain()
        is_told = z.ready().done()
        may_tell.set()
        assert not is_told
        with pytest.raises(pjrt.PjrtError, match="chip 0 has failed"):
            z.to_host().result()


class Declining(Collecting):
    def copy_from_peer(self, source: int, target: int, spec: pjrt.ShapeSpec) -> Any:
        return NotImplemented


class Full(Collecting):
    def copy_from_peer(self, source: int, target: int, spec: pjrt.ShapeSpec) -> Any:
        raise MemoryError("no room for the descriptor")


@pytest.mark.parametrize("kind", [Chips, Declining, Full])
def test_what_the_method_does_not_copy_is_copied_when_it_is_there(kind: type[Chips]) -> None:
    memory = kind()
    with client_of(memory) as client:
        result = double_on_each(client, client.buffer_from_host(X, device=client.devices[0]))
        np.testing.assert_array_equal(np.asarray(result), 8 * X)
    assert puts(memory) == ["add 0", "add 1", "add 0"]


def test_a_copy_may_be_done_at_once(memory: Chips) -> None:
    class Quick(Chips):
        def copy_from_peer(self, source: int, target: int, spec: pjrt.ShapeSpec) -> None:
            self.work_until(self.homes[source], len(self.commands[self.homes[source]]))
            self.write(target, self.read(source))

    memory = Quick()
    with client_of(memory) as client:
        result = double_on_each(client, client.buffer_from_host(X, device=client.devices[0]))
        np.testing.assert_array_equal(np.asarray(result), 8 * X)


@pytest.mark.parametrize("fences", [[None, None], 5, [int], [int, 5]])
def test_wrong_fences_are_errors(fences: Any) -> None:
    class Wrong(Chips):
        def copy_from_peer(self, *arguments: Any) -> Any:
            return fences

    with client_of(Wrong()) as client:
        copied = client.buffer_from_host(X).copy_to(client.devices[1])
        with pytest.raises(pjrt.InternalError, match=r"Wrong.copy_from_peer"):
            np.asarray(copied)


def test_an_error_of_the_method_is_that_of_the_copy() -> None:
    class Broken(Chips):
        def copy_from_peer(self, *arguments: Any) -> Any:
            raise ValueError("no link between the chips")

    with client_of(Broken()) as client:
        result = double_on_each(client, client.buffer_from_host(X, device=client.devices[0]))
        with pytest.raises(pjrt.PjrtError, match=r"no link between the chips"):
            np.asarray(result)


class Link:
    """A fence of a copy that hangs until somebody cancels it."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def wait(self) -> None:
        self.over.wait()
        raise RuntimeError("link error 4: the copy was given up")

    def cancel(self) -> None:
        self.over.set()


class Hanging(Chips):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []

    def copy_from_peer(self, source: int, target: int, spec: pjrt.ShapeSpec) -> Any:
        self.links.append(Link())
        return self.links[-1:] * 2


def test_a_copy_that_takes_too_long_is_cancelled_and_the_next_program_runs() -> None:
    memory = Hanging()
    with client_of(memory, watchdog_seconds=1) as client:
        first, second = client.devices
        copied = client.buffer_from_host(X, device=first).copy_to(second)
        with pytest.raises(pjrt.DeadlineExceededError, match=r"'Hanging.copy_from_peer' on chips:[01] has not ended"):
            copied.to_host().result()
        assert memory.links[0].over.is_set()
        (y,) = client.compile(SUM, on(second))(client.buffer_from_host(X, device=second))
        np.testing.assert_array_equal(np.asarray(y), 2 * X)
        del copied, y
        gc.collect()
        wait_until(lambda: not memory.contents)


def test_a_copy_is_given_up_with_all_work(client: pjrt.Client) -> None:
    memory = Hanging()
    with client_of(memory) as client:
        first, second = client.devices
        (x,) = client.compile(SUM)(client.buffer_from_host(X, device=first))
        copied = x.copy_to(second)
        (y,) = client.compile(SUM, on(second))(copied)
        wait_until(lambda: memory.links)
        client.give_up_work(pjrt.CancelledError("enough"))
        for result in (copied, y):
            with pytest.raises(pjrt.CancelledError, match="enough"):
                result.to_host().result()
        assert memory.links[0].over.is_set()


JAX = """
import runpy, sys, threading
import jax, numpy as np, pjrt

chip = runpy.run_path(sys.argv[1])
gate, events = threading.Event(), []

class Gated(chip["TiledMemory"]):
    def copy_from_peer(self, source, target, spec):
        events.append("copy")
        return super().copy_from_peer(source, target, spec)

memory = Gated()

def add(op, x, y):
    events.append("add")
    return chip["elementwise"](lambda a, b: gate.wait() and a + b)(op, x, y)

def make_client(**options):
    kernels = {"stablehlo.add": add}
    return pjrt.StableHloClient("tiled", kernels=kernels, fallback="reference", memory=memory, num_devices=2, **options)

first, second = jax.devices(pjrt.frameworks.jax.register(pjrt.export(make_client, name="tiled"), platform="chips"))
double = jax.jit(lambda v: v + v)
x = jax.device_put(np.ones((2, 150), np.float32), first)
for device in (second, first):
    x = jax.device_put(double(x), device)
x = double(x)
while len(events) < 5:
    threading.Event().wait(0.005)
assert events == ["add", "copy", "add", "copy", "add"], events
assert not x.is_ready()
gate.set()
assert (np.asarray(x) == 8).all()
print("the queues were full")
"""


@pytest.mark.full
def test_jax_leaves_the_queues_full() -> None:
    file = Path(__file__).parents[2] / "examples" / "tiled_chip" / "device.py"
    done = subprocess.run([sys.executable, "-c", JAX, file], capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stdout) == (0, "the queues were full\n"), done.stderr
