"""The life of memory of a device's own: each handle is freed once, and not before the device is done with it."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from anydevice.simulated_memory import SimulatedMemory
from scripts import run_python
from test_device_memory import SPEC, Device, X, doubled, in_place
from waiting import wait_until

import pjrt
from pjrt.api.future import Promise
from pjrt.host import Enqueued


class AddressMemory(SimulatedMemory):
    """Memory whose addresses have no type, and whose allocations and frees are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated = self.freed = 0

    def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> int:
        self.allocated += 1
        return super().allocate(spec, space)

    def free(self, handle: int) -> None:
        super().free(handle)  # a second time, it raises
        self.freed += 1

    def spec_of(self, handle: int) -> None:
        return None


@pytest.fixture(autouse=True)
def no_logged_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Errors of ``free`` are logged."""
    yield
    gc.collect()
    assert not [record for record in caplog.records if record.name == "pjrt"]


@pytest.mark.parametrize("same", [lambda handle: handle, lambda handle: int(str(handle))], ids=["object", "address"])
def test_a_handle_with_another_type_has_one_owner(same: Any) -> None:
    square = pjrt.ShapeSpec((2, 2), np.float32)
    memory = AddressMemory()
    with Device(lambda memory, handle: [same(handle), same(handle)], memory, outputs=[square, SPEC]) as device:
        x = device.client.buffer_from_host(X)
        y, z = device.executable(x)
        x.delete()
        np.testing.assert_array_equal(np.asarray(y), X.reshape(2, 2))
        del y
        np.testing.assert_array_equal(np.asarray(z), X)
        del z
        wait_until(lambda: (memory.allocated, memory.freed) == (1, 1))


def test_no_program_writes_to_memory_that_has_two_types() -> None:
    square = pjrt.ShapeSpec((2, 2), np.float32)
    memory = AddressMemory()
    reshape = Device(lambda memory, handle: handle, memory, outputs=[square])
    with reshape, Device(in_place, memory, aliases={0: 0}) as double:
        x = double.client.buffer_from_host(X)
        (y,) = reshape.executable(x.copy_to(reshape.client.devices[0]))
        np.testing.assert_array_equal(np.asarray(y), X.reshape(2, 2))
        (twice,) = double.executable(x)
        np.testing.assert_array_equal(np.asarray(twice), X * 2)
        np.testing.assert_array_equal(np.asarray(y), X.reshape(2, 2))
        del x, y, twice


@pytest.mark.parametrize("count", [1, 3])
def test_results_of_a_wrong_number_are_freed(count: int) -> None:
    memory = AddressMemory()
    with Device(lambda m, h: [doubled(m, h) for _ in range(count)], memory, outputs=[SPEC] * 2) as device:
        y, z = device.executable(device.client.buffer_from_host(X))
        with pytest.raises(pjrt.InternalError, match=f"gave {count} results, it declared 2"):
            np.asarray(y)
        del y, z
    assert memory.allocated == memory.freed


def test_a_missing_result_is_an_error_that_names_it() -> None:
    with Device(lambda memory, handle: None, AddressMemory()) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        with pytest.raises(pjrt.InternalError, match=r"gave None for output 0, expected a handle of f32\[4\]"):
            np.asarray(y)


class Queue:
    """A device's queue whose fences the test reaches."""

    def __init__(self, kind: str) -> None:
        self.fences: list[Any] = []
        self.called = threading.Semaphore(0)
        self._kind = kind

    def fence(self) -> Any:
        future: Any = Promise() if self._kind == "pjrt" else concurrent.futures.Future()
        self.fences.append(future)
        self.called.release()
        if self._kind == "wait":
            return future.result
        return future.future if self._kind == "pjrt" else future

    def reach(self, number: int = 0) -> None:
        self.fences[number].set_result(None)


KINDS = ["pjrt", "concurrent", "wait"]


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_nobody_keeps_are_freed_when_the_device_is_done(kind: str) -> None:
    memory, queue = AddressMemory(), Queue(kind)
    with Device(lambda m, h: Enqueued(doubled(m, h), queue.fence()), memory) as device:
        x = device.client.buffer_from_host(X)
        (y,) = device.executable(x)
        assert queue.called.acquire(timeout=120)
        device.client.devices[0].compute.drain()
        x.delete()
        y.delete()
        del y
        assert (memory.allocated, memory.freed) == (2, 0)
        queue.reach()
    assert memory.freed == 2


@pytest.mark.parametrize("kind", KINDS)
def test_donated_memory_that_is_no_result_is_freed_when_the_device_is_done(kind: str) -> None:
    memory, queue = AddressMemory(), Queue(kind)
    with Device(lambda m, h: Enqueued(doubled(m, h), queue.fence()), memory, donated=[0]) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        assert queue.called.acquire(timeout=120)
        device.client.devices[0].compute.drain()
        assert memory.freed == 0
        queue.reach()
        np.testing.assert_array_equal(np.asarray(y), X * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_of_work_with_wrong_results_live_until_the_device_is_done(kind: str) -> None:
    memory, queue = AddressMemory(), Queue(kind)
    with Device(lambda m, h: Enqueued([doubled(m, h)] * 2, queue.fence()), memory) as device:
        x = device.client.buffer_from_host(X)
        (y,) = device.executable(x)
        with pytest.raises(pjrt.InternalError, match="gave 2 results"):
            np.asarray(y)
        del x, y
        assert memory.freed == 0
        queue.reach()
    assert memory.freed == memory.allocated == 2


@pytest.mark.parametrize("kind", KINDS)
def test_poisoned_work_keeps_its_memory_until_the_device_is_done(kind: str) -> None:
    memory, queue = AddressMemory(), Queue(kind)
    options = pjrt.ExecuteOptions(launch_id=7)
    with Device(lambda m, h: Enqueued(doubled(m, h), queue.fence()), memory) as device:
        (place, _) = device.client.devices
        ((y,),) = device.executable.execute([[device.client.buffer_from_host(X)]], options)
        assert queue.called.acquire(timeout=120)
        place.compute.drain()
        assert not place.poison_execution(8, pjrt.AbortedError("another"))
        assert place.poison_execution(7, pjrt.AbortedError("stop"))
        assert isinstance(y.ready().exception(), pjrt.AbortedError)
        del y
        assert memory.freed == 0
        queue.reach()
    assert memory.freed == 2


def test_giving_up_work_fails_what_is_enqueued() -> None:
    memory, queue = AddressMemory(), Queue("wait")
    with Device(lambda m, h: Enqueued(doubled(m, h), queue.fence()), memory) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        assert queue.called.acquire(timeout=120)
        device.client.devices[0].compute.drain()
        device.client.give_up_work(pjrt.CancelledError("enough"))
        with pytest.raises(pjrt.CancelledError, match="enough"):
            np.asarray(y)
        queue.reach()


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_arguments_wait_for_the_work_that_makes_them(kind: str) -> None:
    """A donated argument that the caller keeps is copied. The copy is made on the host's thread, not on the queue."""
    memory, queue = AddressMemory(), Queue(kind)
    late: list[int] = []

    def enqueue(memory: SimulatedMemory, handle: int) -> Enqueued:
        late.append(memory.allocate(SPEC, None))  # type: ignore[arg-type]
        return Enqueued(late[0], queue.fence())

    with Device(enqueue, memory) as device:
        double = Device(in_place, memory, aliases={0: 0})
        double.client, double.executable = device.client, device.executable
        (y,) = device.executable(device.client.buffer_from_host(X))
        assert queue.called.acquire(timeout=120)
        device.client.devices[0].compute.drain()
        y_allocation = y.use().array  # type: ignore[attr-defined]
        copying = concurrent.futures.ThreadPoolExecutor(1).submit(y_allocation.copied, y.memory_space)
        memory.copy_in(late[0], X * 5)
        queue.reach()
        np.testing.assert_array_equal(copying.result(60).read(), X * 5)
        del copying, y_allocation, y


@pytest.mark.parametrize("kind", KINDS)
def test_closing_lets_work_end_that_waits_for_a_fence(kind: str) -> None:
    """The second execution is on another device, and waits for the first one's fence."""
    memory, queue = AddressMemory(), Queue(kind)
    with Device(lambda m, h: Enqueued(doubled(m, h), queue.fence()), memory) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        z = y.copy_to(device.client.devices[1])
        assert queue.called.acquire(timeout=120)
        assert not z.ready().done()
        threading.Timer(0.05, queue.reach).start()
        ready = z.ready()
    assert ready.done()
    ready.result()


def test_a_cancelled_fence_fails_the_results_and_closing_goes_on() -> None:
    queue = Queue("concurrent")
    with Device(lambda m, h: Enqueued(doubled(m, h), queue.fence()), AddressMemory()) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        assert queue.called.acquire(timeout=120)
        threading.Timer(0.05, queue.fences[0].cancel).start()
        ready = y.ready()
    with pytest.raises(pjrt.PjrtError, match="Cancelled"):
        ready.result()


class Sharing(SimulatedMemory):
    """Memory that other libraries share: numpy arrays as handles."""

    def from_dlpack(self, source: Any, space: pjrt.MemorySpace) -> int:
        address = self.allocate(pjrt.ShapeSpec(source.shape, source.dtype), space)
        self.copy_in(address, source)
        return address

    def to_dlpack(self, handle: int) -> Any:
        return self.read(handle)


def test_no_program_writes_to_memory_that_another_library_sees() -> None:
    with Device(in_place, Sharing(), aliases={0: 0}) as device, Device(lambda m, h: h, device.memory) as same:
        theirs = device.client.buffer_from_dlpack(X)
        address = theirs.unsafe_pointer()
        (y,) = device.executable(theirs)
        assert y.unsafe_pointer() != address  # a copy
        ours = device.client.buffer_from_host(X)
        address = ours.unsafe_pointer()
        np.from_dlpack(ours)
        (y,) = device.executable(ours)
        assert y.unsafe_pointer() != address
        del theirs, ours, y
        assert same is not None


def test_memory_from_another_library_without_a_type_is_freed() -> None:
    memory = Sharing()
    memory.spec_of = lambda handle: None  # type: ignore[method-assign,assignment]
    with Device(doubled, memory) as device:
        with pytest.raises(pjrt.UnimplementedError, match="no spec_of"):
            device.client.buffer_from_dlpack(X)
        assert not memory.contents


SCRIPT = """
import os, sys, threading, concurrent.futures
import numpy as np
import pjrt
from test_device_memory import X, doubled
from test_device_memory_life import AddressMemory, Device
from pjrt.host import Enqueued
from pjrt.api import waits
waits.PATIENCE_SECONDS = 100
memory = AddressMemory()
pool = concurrent.futures.ThreadPoolExecutor(1)
"""


@pytest.mark.full
def test_ten_thousand_executions_free_each_handle_once() -> None:
    """On four threads; with and without fences, donation, deleted results and wrong results."""
    done = run_python(
        SCRIPT
        + """
import gc, itertools
from test_device_memory import SPEC, in_place
turn = itertools.count()
def fence():
    n = next(turn) % 4
    return [None, pool.submit(int).result, pool.submit(int), pjrt.Future.completed(None)][n]
def work(m, h):
    n = next(turn) % 7
    if n == 3:
        raise ValueError("wrong")
    result = doubled(m, h) if n != 4 else [doubled(m, h), doubled(m, h)]
    f = fence()
    return result if f is None else Enqueued(result, f)
plain = Device(work, memory)
kept = Device(lambda m, h: h if next(turn) % 2 else Enqueued(in_place(m, h), fence() or int), memory, aliases={0: 0})
def many(device):
    x = device.client.buffer_from_host(X)
    for n in range(2500):
        (y,) = device.executable(x)
        if n % 5 == 0:
            try: y.ready().result()
            except pjrt.PjrtError: pass
        if device is kept or n % 9 == 0:
            x = device.client.buffer_from_host(X)
        if n % 3 == 0: y.delete()
threads = [threading.Thread(target=many, args=(d,)) for d in (plain, plain, kept, kept)]
for t in threads: t.start()
for t in threads: t.join()
plain.client.close(); kept.client.close()
del threads; gc.collect()
for device in (plain, kept):
    assert device.client.devices[0].memory_stats().bytes_in_use == 0
print(memory.allocated == memory.freed, memory.allocated > 10_000, len(memory.contents))
"""
    )
    assert (done.stdout.split(), done.stderr) == (["True", "True", "0"], "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_the_child_of_a_fork_frees_nothing() -> None:
    done = run_python(
        SCRIPT
        + """
device = Device(doubled, memory)
x = device.client.buffer_from_host(X)
pid = os.fork()
if pid == 0:
    x.delete(); del x
    os._exit(memory.freed)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    )
    assert (done.stdout.split(), done.stderr) == (["0"], "")


def test_the_interpreter_ends_with_work_enqueued() -> None:
    done = run_python(
        SCRIPT
        + """
gate = threading.Event()
for fence in (gate, gate.wait, pool.submit(gate.wait)):
    device = Device(lambda m, h: Enqueued(doubled(m, h), fence), memory)
    (y,) = device.executable(device.client.buffer_from_host(X))
threading.Timer(0.1, gate.set).start()
print("end")
"""
    )
    assert (done.stdout.split(), done.stderr) == (["end"], "")
