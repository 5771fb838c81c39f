"""Devices with memory of their own."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from anydevice.simulated_memory import SimulatedMemory
from waiting import wait_until

import pjrt
from pjrt.api.future import Promise
from pjrt.host import Allocation, Compiled, Enqueued, HostClient, Memory

SPEC = pjrt.ShapeSpec((4,), np.float32)
X = np.arange(4, dtype=np.float32)


class Device:
    """A client of one program: ``function(memory, *handles)``."""

    def __init__(
        self, function: Callable[..., Any], memory: SimulatedMemory | None = None, **declarations: Any
    ) -> None:
        self.memory = memory or SimulatedMemory()
        declared = {"parameters": [SPEC], "outputs": [SPEC], **declarations}
        self.client = HostClient(
            "own",
            compile=lambda program, options: Compiled(run=lambda *h: function(self.memory, *h), **declared),
            num_devices=2,
            memory=self.memory,
        )
        self.executable = self.client.compile("any program")

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


def doubled(memory: SimulatedMemory, handle: int) -> int:
    result = memory.allocate(SPEC, None)  # type: ignore[arg-type]  # it does not look at the space
    memory.copy_in(result, memory.read(handle) * 2)
    return result


def in_place(memory: SimulatedMemory, handle: int) -> int:
    memory.copy_in(handle, memory.read(handle) * 2)
    return handle


def test_programs_take_and_return_handles() -> None:
    with Device(doubled) as device:
        x = device.client.buffer_from_host(X)
        (y,) = device.executable(x)
        np.testing.assert_array_equal(np.asarray(y), X * 2)
        assert not y.is_on_cpu
        assert y.unsafe_pointer() in device.memory.contents
        assert len(device.memory.contents) == 2
        x.delete()
        del y
        wait_until(lambda: not device.memory.contents)  # each was freed, once


class VisibleMemory(SimulatedMemory):
    """Memory that the host can see."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[int, Any] = {}

    def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> int:
        address = super().allocate(spec, space)
        self.arrays[address] = np.zeros(spec.size_in_bytes, np.uint8)
        return address

    def free(self, handle: int) -> None:
        super().free(handle)
        del self.arrays[handle]

    def copy_in(self, handle: int, array: Any) -> None:
        self.arrays[handle][:] = array.reshape(-1).view(np.uint8)

    def copy_out(self, handle: int, array: Any) -> None:
        array[...] = self.arrays[handle].view(array.dtype).reshape(array.shape)

    def host_view(self, handle: int) -> Any:
        return self.arrays[handle]


def test_memory_that_the_host_can_see_is_not_copied_and_lives_as_long_as_its_views() -> None:
    memory = VisibleMemory()
    with Device(in_place, memory, aliases={0: 0}) as device:
        x = device.client.buffer_from_host(X)
        address = x.unsafe_pointer()
        view = np.asarray(x)
        assert view.__array_interface__["data"] == (memory.arrays[address].ctypes.data, True)
        (y,) = device.executable(x)  # the view keeps its values: the donation is a copy
        np.testing.assert_array_equal(np.asarray(y), X * 2)
        np.testing.assert_array_equal(view, X)
        row = view[1:]
        del view, x
        assert address in memory.arrays
        np.testing.assert_array_equal(row, X[1:])
        del row
        wait_until(lambda: gc.collect() is not None and address not in memory.arrays)


def test_a_host_view_of_another_size_is_an_error() -> None:
    memory = VisibleMemory()
    memory.host_view = lambda handle: np.zeros(3)  # type: ignore[method-assign]
    with Device(doubled, memory) as device:
        future = device.client.buffer_from_host(X).to_host()
        with pytest.raises(pjrt.InternalError, match=r"gave an array of 24 bytes, expected .* of f32\[4\]"):
            future.result()


@pytest.mark.parametrize("handle", [(1, 2), [1], None])
def test_what_cannot_be_a_handle_is_an_error(handle: Any) -> None:
    memory = SimulatedMemory()
    memory.allocate = lambda spec, space: handle  # type: ignore[method-assign]
    with Device(doubled, memory) as device, pytest.raises(pjrt.InvalidArgumentError, match="make the handle an object"):
        device.client.buffer_from_host(X)


def test_a_result_without_a_handle_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with Device(lambda memory, handle: None) as device:
        (result,) = device.executable(device.client.buffer_from_host(X))
        with pytest.raises(pjrt.InternalError, match=r"gave None for output 0, expected a handle of f32\[4\]"):
            result.ready().result()
    assert not [record for record in caplog.records if record.name == "pjrt"]  # nothing was freed that is no handle


def test_a_donated_handle_is_used_again() -> None:
    with Device(in_place, aliases={0: 0}) as device:
        x = device.client.buffer_from_host(X)
        address = x.unsafe_pointer()
        for _ in range(3):
            (x,) = device.executable(x)
            x.ready().result()
        assert x.unsafe_pointer() == address
        assert list(device.memory.contents) == [address]
        np.testing.assert_array_equal(np.asarray(x), X * 8)


def test_a_donated_handle_that_something_else_sees_is_copied() -> None:
    with Device(in_place, aliases={0: 0}) as device:
        x = device.client.buffer_from_host(X)
        with x.external_reference() as held:
            (y,) = device.executable(x)
            np.testing.assert_array_equal(np.asarray(y), X * 2)
            assert y.unsafe_pointer() != held.pointer
            np.testing.assert_array_equal(device.memory.read(held.pointer), X)


def test_a_deleted_buffer_counts_while_it_has_an_external_reference() -> None:
    with Device(in_place) as device:
        x = device.client.buffer_from_host(X)
        counted = device.client.devices[0]
        with x.external_reference() as held:
            full = counted.memory_stats().bytes_in_use
            x.delete()
            assert counted.memory_stats().bytes_in_use == full > 0
            np.testing.assert_array_equal(device.memory.read(held.pointer), X)
        wait_until(lambda: counted.memory_stats().bytes_in_use == 0, "the end of the memory")
        assert not device.memory.contents


def test_an_argument_may_be_a_result() -> None:
    with Device(lambda memory, handle: [handle, handle], outputs=[SPEC, SPEC]) as device:
        x = device.client.buffer_from_host(X)
        y, z = device.executable(x)
        x.delete()
        y.delete()
        np.testing.assert_array_equal(np.asarray(z), X)
        assert len(device.memory.contents) == 1
        del z
        wait_until(lambda: not device.memory.contents)


def test_copies_between_devices_use_the_memory() -> None:
    with Device(doubled) as device:
        x = device.client.buffer_from_host(X)
        y = x.copy_to(device.client.devices[1])
        np.testing.assert_array_equal(np.asarray(y), X)
        assert y.unsafe_pointer() != x.unsafe_pointer()
        with pjrt.client("cpu") as other:
            np.testing.assert_array_equal(np.asarray(x.copy_to(other.devices[0])), X)


# Fences.


class Event:
    """An event of a device's queue, as libraries have them."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set

    def synchronize(self) -> None:
        self._event.wait()


def _pjrt_future() -> tuple[Any, Callable[[], object]]:
    promise: Promise[None] = Promise()
    return promise.future, lambda: promise.set_result(None)


def _concurrent_future() -> tuple[Any, Callable[[], object]]:
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    return future, lambda: future.set_result(None)


def _event_with_wait() -> tuple[Any, Callable[[], object]]:
    event = threading.Event()
    return event, event.set


def _event_with_synchronize() -> tuple[Any, Callable[[], object]]:
    event = Event()
    return event, event.set


def _function() -> tuple[Any, Callable[[], object]]:
    event = threading.Event()
    return event.wait, event.set


FENCES = [_pjrt_future, _concurrent_future, _event_with_wait, _event_with_synchronize, _function]


@pytest.mark.parametrize("make", FENCES)
def test_results_are_ready_when_the_fence_is(make: Callable[[], tuple[Any, Callable[[], object]]]) -> None:
    fence, reach = make()
    with Device(lambda memory, handle: Enqueued(doubled(memory, handle), fence)) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        (z,) = device.executable(y)  # enqueued behind it, before it is done
        with pytest.raises(TimeoutError):
            y.ready().result(0.05)
        reach()
        np.testing.assert_array_equal(np.asarray(y), X * 2)
        np.testing.assert_array_equal(np.asarray(z), X * 4)


def test_a_device_that_enqueues_gets_the_next_program_before_the_fence() -> None:
    fence = threading.Event()
    calls = threading.Semaphore(0)

    def run(memory: SimulatedMemory, handle: int) -> Enqueued:
        calls.release()
        return Enqueued(in_place(memory, handle), fence)

    with Device(run, aliases={0: 0}) as device:
        x = device.client.buffer_from_host(X)
        address = x.unsafe_pointer()
        for _ in range(5):
            (x,) = device.executable(x)
        for _ in range(5):
            assert calls.acquire(timeout=60)  # all five are enqueued
        assert not x.ready().done()
        fence.set()
        np.testing.assert_array_equal(np.asarray(x), X * 32)
        assert x.unsafe_pointer() == address  # donated each time, although nothing was done yet


def test_a_fence_that_fails_fails_the_results_and_what_is_computed_from_them() -> None:
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    with Device(lambda memory, handle: Enqueued(doubled(memory, handle), future)) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        future.set_exception(ValueError("the queue was lost"))
        with pytest.raises(pjrt.PjrtError, match="the queue was lost"):
            np.asarray(y)
        (z,) = device.executable(y)
        with pytest.raises(pjrt.PjrtError, match="the queue was lost"):
            np.asarray(z)


def test_closing_waits_for_fences() -> None:
    fence = threading.Event()
    device = Device(lambda memory, handle: Enqueued(doubled(memory, handle), fence))
    (y,) = device.executable(device.client.buffer_from_host(X))
    ready = y.ready()
    threading.Timer(0.05, fence.set).start()
    device.client.close()
    assert ready.done()


def test_what_is_no_fence_is_an_error() -> None:
    with Device(lambda memory, handle: Enqueued(doubled(memory, handle), 3)) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        with pytest.raises(pjrt.InvalidArgumentError, match="expected a fence, found int"):
            np.asarray(y)


# Errors.


class FullMemory(SimulatedMemory):
    def allocate(self, spec: Any, space: Any) -> int:
        raise MemoryError("no slots left")


def test_memory_errors_are_resource_exhausted() -> None:
    with Device(doubled, FullMemory()) as device, pytest.raises(pjrt.ResourceExhaustedError, match="no slots left"):
        device.client.buffer_from_host(X)


class Untyped(SimulatedMemory):
    def spec_of(self, handle: int) -> None:
        return None


def test_a_wrong_handle_is_an_error() -> None:
    def wrong(memory: SimulatedMemory, handle: int) -> int:
        return memory.allocate(pjrt.ShapeSpec((2,), np.float32), None)  # type: ignore[arg-type]

    with Device(wrong) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        with pytest.raises(pjrt.InternalError, match=r"gave a handle of f32\[2\], expected f32\[4\]"):
            np.asarray(y)


def test_undeclared_outputs_need_the_types_of_handles() -> None:
    with Device(doubled, outputs=None) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        np.testing.assert_array_equal(np.asarray(y), X * 2)
    with Device(doubled, Untyped(), outputs=None) as device:
        with pytest.raises(pjrt.InternalError, match="declares no outputs"):
            device.executable(device.client.buffer_from_host(X))


def test_functions_may_take_allocations() -> None:
    seen = []

    def run(memory: SimulatedMemory, allocation: Allocation) -> int:
        seen.append(allocation)
        return doubled(memory, allocation.handle)

    with Device(run, takes_allocations=True) as device:
        (y,) = device.executable(device.client.buffer_from_host(X))
        np.testing.assert_array_equal(np.asarray(y), X * 2)
        (allocation,) = seen
        assert allocation.spec == SPEC
        np.testing.assert_array_equal(allocation.read(), X)


def test_an_object_that_is_no_memory_is_refused() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"an allocator as pjrt\.host\.Memory"):
        HostClient("wrong", compile=lambda program, options: None, memory=object())  # type: ignore[arg-type,return-value]


def test_the_memory_limit_holds() -> None:
    memory = SimulatedMemory()
    with HostClient("small", compile=lambda program, options: None, memory=memory, memory_limit=16) as client:  # type: ignore[arg-type,return-value]
        x = client.buffer_from_host(X)
        with pytest.raises(pjrt.ResourceExhaustedError):
            client.buffer_from_host(X)
        assert client.devices[0].memory_stats().bytes_in_use == 16
        del x
        wait_until(lambda: client.devices[0].memory_stats().bytes_in_use == 0, "the end of the buffer")


class TiledMemory(SimulatedMemory):
    """Memory in which each array takes whole tiles of 1 KiB."""

    def size_of(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> int:
        return -(-spec.size_in_bytes // 1024) * 1024


def test_the_bytes_that_the_memory_says_count() -> None:
    with Device(doubled, TiledMemory()) as device:
        stats = device.client.devices[0].memory_stats
        x = device.client.buffer_from_host(X)
        assert stats().bytes_in_use == 1024
        (y,) = device.executable(x)
        y.ready().result(60)
        assert stats().bytes_in_use == 2048
        z = y.copy_to(device.client.devices[0])
        z.ready().result(60)
        assert stats().bytes_in_use == 3072
        z = z.bitcast(pjrt.ElementType.U8, (16,))
        z.ready().result(60)
        u = device.client.create_uninitialized_buffer(pjrt.ShapeSpec((300,), pjrt.ElementType.F32))
        wait_until(lambda: stats().bytes_in_use == 5120, "the end of what was cast")
        del x, y, z, u
        wait_until(lambda: stats().bytes_in_use == 0, "the end of all buffers")


def test_the_memory_limit_is_one_of_the_bytes_that_the_memory_says() -> None:
    with HostClient(
        "tiled",
        compile=lambda program, options: None,  # type: ignore[arg-type,return-value]
        memory=TiledMemory(),
        memory_limit=2048,
    ) as client:
        held = [client.buffer_from_host(X) for _ in range(2)]
        with pytest.raises(pjrt.ResourceExhaustedError, match="1024 bytes were asked for"):
            client.buffer_from_host(X)
        del held


def test_a_copy_of_memory_that_the_host_can_see_has_no_array_in_between() -> None:
    class Reading(VisibleMemory):
        def copy_out(self, handle: int, array: Any) -> None:
            raise AssertionError("the host sees the memory")

    with HostClient("two", compile=lambda program, options: None, memory=Reading(), num_devices=2) as client:  # type: ignore[arg-type,return-value]
        copied = client.buffer_from_host(X).copy_to(client.devices[1])
        copied.ready().result(60)
        np.testing.assert_array_equal(np.asarray(copied), X)


class HostTensor:
    """A handle of memory that the host sees."""

    def __init__(self, array: Any) -> None:
        self.array = array


class HostTensorMemory(Memory):
    """Memory of the host, which uses aligned arrays in place."""

    is_on_host = True

    def allocate(self, spec: pjrt.ShapeSpec, space: Any) -> HostTensor:
        return HostTensor(np.zeros(spec.shape, spec.element_type.dtype))

    def copy_in(self, handle: HostTensor, array: Any) -> None:
        handle.array[...] = array

    def copy_out(self, handle: HostTensor, array: Any) -> None:
        array[...] = handle.array

    def pointer(self, handle: HostTensor) -> int:
        address: int = handle.array.ctypes.data
        return address

    def import_array(self, array: Any, spec: pjrt.ShapeSpec, space: Any) -> HostTensor | None:
        return None if spec.element_type is pjrt.ElementType.S8 else HostTensor(array)

    def spec_of(self, handle: HostTensor) -> pjrt.ShapeSpec | None:
        return SPEC if handle.array.shape == SPEC.shape and handle.array.dtype == X.dtype else None

    def stats(self, space: Any) -> dict[str, int]:
        return {"pool_bytes": 4096}


@pytest.fixture
def visible() -> Iterator[HostClient]:
    def run(handle: HostTensor) -> HostTensor:
        handle.array[...] += 1  # it is donated
        return handle

    program = Compiled(run=run, parameters=[SPEC], outputs=[SPEC], aliases={0: 0})
    with HostClient("visible", compile=lambda *_: program, memory=HostTensorMemory()) as client:
        yield client


def test_memory_of_the_host_uses_arrays_in_place(visible: HostClient) -> None:
    array, released = X.copy(), []
    buffer = visible.buffer_from_host(
        array,
        semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY,
        on_done_with_host_buffer=lambda: released.append(1),
    )
    assert buffer.is_on_cpu
    assert buffer.unsafe_pointer() == array.ctypes.data
    (out,) = visible.compile("any program")(buffer)  # the donation gets a copy
    np.testing.assert_array_equal(np.asarray(out), X + 1)
    np.testing.assert_array_equal(array, X)
    gc.collect()
    assert released == [1]


def test_an_array_that_the_memory_refuses_is_copied(visible: HostClient) -> None:
    array, released = np.arange(4, dtype=np.int8), []
    buffer = visible.buffer_from_host(
        array,
        semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY,
        on_done_with_host_buffer=lambda: released.append(1),
    )
    assert buffer.unsafe_pointer() != array.ctypes.data
    gc.collect()
    assert released == [1]


def test_large_arrays_are_in_memory_of_the_host_when_the_call_returns(visible: HostClient) -> None:
    array = np.ones(1 << 17, np.float32)
    buffer = visible.buffer_from_host(array)
    assert buffer.ready().done()
    array[...] = 2
    np.testing.assert_array_equal(np.asarray(buffer), np.ones(1 << 17))


def test_a_view_is_memory_that_nothing_writes_to(visible: HostClient) -> None:
    array = X.copy()
    buffer = visible.create_view_of_device_buffer(array.ctypes.data, SPEC)
    np.testing.assert_array_equal(np.asarray(buffer), X)
    with pytest.raises(pjrt.FailedPreconditionError, match="copy the buffer first"):
        buffer.raw().copy_from_host(bytes(16))
    assert visible.devices[0].memory_stats().pool_bytes == 4096


def test_the_owner_of_memory_that_a_device_refuses_keeps_it(visible: HostClient) -> None:
    array, released = np.arange(4, dtype=np.int8), []
    spec = pjrt.ShapeSpec((4,), np.int8)  # the memory takes no arrays of this type in place
    with pytest.raises(pjrt.UnimplementedError, match="cannot use memory at an address"):
        visible.create_view_of_device_buffer(array.ctypes.data, spec, on_delete=lambda: released.append(1))
    gc.collect()
    assert released == []
    buffer = visible.create_view_of_device_buffer(X.ctypes.data, SPEC, on_delete=lambda: released.append(2))
    del buffer
    gc.collect()
    assert released == [2]


def test_a_function_that_returns_at_once_runs_on_the_callers_thread() -> None:
    threads = []

    def run(x: Any) -> Any:
        threads.append(threading.get_ident())
        return x + 1

    program = Compiled(run=run, parameters=[SPEC], outputs=[SPEC], runs_on_caller=True)
    gate: threading.Event = threading.Event()
    slow = Compiled(run=lambda x: (gate.wait(60), x + 1)[1], parameters=[SPEC], outputs=[SPEC])
    with HostClient("here", compile=lambda code, _: slow if code.code == b"slow" else program) as client:
        here, waiting = client.compile("quick"), client.compile("slow")
        x = client.buffer_from_host(X)
        (y,) = here(x)
        assert y.ready().done()
        (z,) = here(*waiting(x))  # the device is at work: this one waits behind it
        assert not z.ready().done()
        gate.set()
        np.testing.assert_array_equal(np.asarray(z), X + 2)
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()


def visible_program(run: Callable[[HostTensor], Any]) -> HostClient:
    """Return a client whose one program runs on the thread that executes it."""
    program = Compiled(run=run, parameters=[SPEC], outputs=[SPEC], runs_on_caller=True)
    return HostClient("here", compile=lambda *_: program, memory=HostTensorMemory())


def test_results_of_short_programs_are_there_at_once() -> None:
    with visible_program(lambda handle: [HostTensor(handle.array + 1)]) as client:
        futures: list[Any] = []
        x = client.buffer_from_host(X)
        ((y,),) = client.compile("any program").execute([[x]], returned_futures=futures)
        assert y.ready().done()
        assert futures[0].done()
        np.testing.assert_array_equal(np.asarray(y), X + 1)
        assert client.devices[0].memory_stats().bytes_in_use == 32


def test_an_error_of_a_short_program_is_that_of_its_results() -> None:
    def run(handle: HostTensor) -> Any:
        raise ValueError("no")

    with visible_program(run) as client:
        (y,) = client.compile("any program")(X)
        with pytest.raises(pjrt.InvalidArgumentError, match="no"):
            np.asarray(y)


def test_a_short_program_may_return_its_argument() -> None:
    with visible_program(lambda handle: handle) as client:
        x = client.buffer_from_host(X)
        (y,) = client.compile("any program")(x)
        assert y.unsafe_pointer() == x.unsafe_pointer()
        np.testing.assert_array_equal(np.asarray(y), X)


def test_a_short_program_may_enqueue_its_work() -> None:
    gate = threading.Event()
    calls: list[int] = []

    def run(handle: HostTensor) -> Enqueued:
        calls.append(threading.get_ident())
        return Enqueued([HostTensor(handle.array + 1)], gate.wait)

    with visible_program(run) as client:
        executable = client.compile("any program")
        (y,) = executable(X)
        (z,) = executable(y)  # its argument is not there yet; the device keeps the order
        assert not z.ready().done()
        gate.set()
        np.testing.assert_array_equal(np.asarray(z), X + 2)
    assert calls[0] == threading.get_ident()
    assert len(calls) == 2


def test_the_arguments_of_a_short_program_may_come_later() -> None:
    with visible_program(lambda handle: [HostTensor(handle.array + 1)]) as client:
        x, fulfillment = client.create_alias_buffer(SPEC)
        (y,) = client.compile("any program")(x)
        assert not y.ready().done()
        fulfillment.fulfill(client.buffer_from_host(X))
        np.testing.assert_array_equal(np.asarray(y), X + 1)
