"""Work that must not go on: fences that are cancelled, a time limit for them, and devices that are reset."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anydevice.simulated_memory import SimulatedMemory
from waiting import wait_until

import pjrt
from pjrt import native
from pjrt.host import Compiled, Enqueued, HostClient
from pjrt.host.execution import DeviceExecution

SPEC = pjrt.ShapeSpec((4,), np.float32)
X = np.arange(4, dtype=np.float32)
SOON = 0.02
"""Seconds after which the watchdog bites."""


class Work:
    """A fence of a chip that hangs until somebody ends it."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def wait(self) -> None:
        self.end.wait()
        raise RuntimeError("chip error 7: given up")


class Cancellable(Work):
    def cancel(self) -> None:
        self.end.set()


class Chip:
    """A device: the first ``hang`` executions hang, the others are done at once."""

    def __init__(self, fence: Callable[[], Work], hang: int = 1, **options: Any) -> None:
        self.memory = SimulatedMemory()
        self.begun: list[Work] = []
        self.resets: list[pjrt.Device] = []

        def run(handle: int) -> Any:
            result = self.memory.allocate(SPEC, None)  # type: ignore[arg-type]
            self.memory.copy_in(result, self.memory.read(handle) * 2)
            if len(self.begun) == hang:
                return Enqueued(result, lambda: None)
            self.begun.append(fence())
            return Enqueued(result, self.begun[-1])

        program = Compiled(run=run, parameters=[SPEC], outputs=[SPEC], name="step", runs_on_caller=False)
        self.client = HostClient("chip", compile=lambda *_: program, memory=self.memory, **options)
        self.executable = self.client.compile("any program")

    def reset(self, device: pjrt.Device) -> None:
        self.resets.append(device)
        for work in self.begun:
            work.end.set()

    def __enter__(self) -> Chip:
        return self

    def __exit__(self, *_: object) -> None:
        for work in self.begun:
            work.end.set()
        self.client.close()


def check_goes_on(chip: Chip) -> None:
    (y,) = chip.executable(X)
    np.testing.assert_array_equal(np.asarray(y), X * 2)


def test_work_that_takes_too_long_is_cancelled_and_the_next_program_runs() -> None:
    with Chip(Cancellable, watchdog_seconds=SOON) as chip:
        (y,) = chip.executable(X)
        (z,) = chip.executable(y)
        for result in (y, z):
            with pytest.raises(pjrt.DeadlineExceededError, match=r"'step' on chip:0 has not ended within 0.02 s"):
                result.to_host().result()
        assert chip.begun[0].end.is_set()
        check_goes_on(chip)
        del y, z, result
        wait_until(lambda: not chip.memory.contents)  # all memory is free again


def test_a_device_that_does_not_answer_is_reset() -> None:
    class Deaf(Work):
        cancel = lambda self: None  # noqa: E731  # it is asked, and does not help

    for fence in (Work, Deaf):
        resets: list[Chip] = []
        with Chip(fence, hang=2, watchdog_seconds=SOON, reset=lambda device: resets[0].reset(device)) as chip:  # noqa: B023
            resets.append(chip)
            results = [chip.executable(X)[0] for _ in range(2)]  # both are in the queue
            for result in results:
                with pytest.raises(pjrt.DeadlineExceededError):
                    result.to_host().result()
            wait_until(lambda: chip.resets)
            assert set(chip.resets) == {chip.client.devices[0]}
            check_goes_on(chip)


def test_without_cancel_and_reset_the_memory_is_kept_until_the_work_ends() -> None:
    with Chip(Work, watchdog_seconds=SOON) as chip:
        (y,) = chip.executable(X)
        with pytest.raises(pjrt.DeadlineExceededError):
            y.to_host().result()
        del y
        assert chip.memory.contents  # the chip may be writing there
        chip.begun[0].end.set()
        wait_until(lambda: not chip.memory.contents)
        check_goes_on(chip)


def test_poisoned_work_is_cancelled() -> None:
    with Chip(Cancellable) as chip:
        (y,) = chip.executable.execute([[chip.client.buffer_from_host(X)]], pjrt.ExecuteOptions(launch_id=3))[0]
        wait_until(lambda: chip.client.devices[0].fences.is_busy)
        assert chip.client.devices[0].poison_execution(3, pjrt.AbortedError("no longer wanted"))
        with pytest.raises(pjrt.AbortedError):
            y.to_host().result()
        chip.begun[0].end.wait()
        check_goes_on(chip)
    with Chip(Cancellable) as chip:
        (y,) = chip.executable(X)
        wait_until(lambda: chip.client.devices[0].fences.is_busy)
        chip.client.give_up_work(pjrt.CancelledError("the user pressed Ctrl-C"))
        with pytest.raises(pjrt.CancelledError, match="pressed"):
            y.to_host().result()
        chip.begun[0].end.wait()


@pytest.mark.parametrize("how", ["poison", "give up"])
def test_work_is_cancelled_that_has_a_fence_and_is_still_in_its_queue(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, hand_over = threading.Event(), DeviceExecution._wait_for_fence

    def hand_over_and_stay(execution: DeviceExecution) -> None:
        hand_over(execution)
        assert leave.wait(60)

    monkeypatch.setattr(DeviceExecution, "_wait_for_fence", hand_over_and_stay)
    with Chip(Cancellable) as chip:
        (y,) = chip.executable.execute([[chip.client.buffer_from_host(X)]], pjrt.ExecuteOptions(launch_id=3))[0]
        wait_until(lambda: chip.client.devices[0].fences.is_busy)
        error = pjrt.CancelledError("not wanted")
        if how == "poison":
            assert chip.client.devices[0].poison_execution(3, error)
        else:
            chip.client.give_up_work(error)
        assert chip.begun[0].end.is_set()
        leave.set()
        with pytest.raises(pjrt.CancelledError, match="not wanted"):
            y.to_host().result()


def test_one_execution_is_given_up_and_the_others_go_on() -> None:
    with Chip(Cancellable, hang=2) as chip:
        first, second = (chip.executable(X)[0] for _ in range(2))
        wait_until(lambda: len(chip.begun) == 2)
        chip.client.give_up_work(pjrt.CancelledError("not wanted"), of=second.ready())
        with pytest.raises(pjrt.CancelledError, match="not wanted"):
            second.to_host().result()
        assert [work.end.is_set() for work in chip.begun] == [False, True]
        assert not first.ready().done()
        chip.begun[0].end.set()


def test_a_step_that_is_waited_for_is_cancelled() -> None:
    """The program waits for the kernel's value, for an operation on the host."""
    chip = Chip(Cancellable)
    program = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
%0 = stablehlo.add %x, %x : tensor<4xf32>
%1 = stablehlo.sine %0 : tensor<4xf32>
return %1 : tensor<4xf32>
}"""

    def add(operation: Any, x: int, y: int) -> Any:
        chip.begun.append(Cancellable())
        return Enqueued(chip.memory.allocate(SPEC, None), chip.begun[-1])  # type: ignore[arg-type]

    kernels = {"stablehlo.add": add}
    with chip, pjrt.StableHloClient("chip", kernels=kernels, fallback="reference", memory=chip.memory) as client:
        (y,) = client.compile(program)(X)
        wait_until(lambda: chip.begun)
        client.give_up_work(pjrt.CancelledError("not wanted"), of=y.ready())
        with pytest.raises(pjrt.CancelledError, match="not wanted"):
            y.to_host().result()
        chip.begun[0].end.wait()
        client.close()


@pytest.mark.parametrize("fence", [Work, Cancellable])
def test_the_fence_of_a_kernel_has_the_limit_too(fence: Callable[[], Work]) -> None:
    chips: list[Chip] = []
    chip = Chip(fence)
    begun = chip.begun

    def add(operation: Any, x: int, y: int) -> Any:
        result = chip.memory.allocate(SPEC, None)  # type: ignore[arg-type]
        begun.append(fence())
        return Enqueued(result, begun[-1])

    chips.append(chip)
    program = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n %0 = stablehlo.add %x, %x : tensor<4xf32>\n"
    with (
        chip,
        pjrt.StableHloClient(
            "kernels",
            kernels={"stablehlo.add": add},
            fallback="reference",
            memory=chip.memory,
            watchdog_seconds=SOON,
            reset=chip.reset,
        ) as client,
    ):
        (y,) = client.compile(program + " return %0 : tensor<4xf32>\n}")(X)
        with pytest.raises(pjrt.DeadlineExceededError, match=r"the kernel of stablehlo.add.* \(in stablehlo.add"):
            y.to_host().result()
        assert bool(chip.resets) == (fence is Work)


class Links(SimulatedMemory):
    """Memory whose copies hang as long as ``fence`` says, of one kind."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method
        self.fence: Callable[[], Work] | None = None
        self.begun: list[Work] = []

    def end_of(self, method: str) -> Work | None:
        if method != self.method or self.fence is None:
            return None
        self.begun.append(self.fence())
        return self.begun[-1]

    def copy_in(self, handle: int, array: Any) -> Any:
        super().copy_in(handle, array)
        return self.end_of("copy_in")

    def copy_out(self, handle: int, array: Any) -> Any:
        super().copy_out(handle, array)
        return self.end_of("copy_out")

    def copy(self, source: int, target: int, spec: pjrt.ShapeSpec) -> Any:
        self.contents[target] = self.contents[source]
        return self.end_of("copy")


@contextlib.contextmanager
def linked(method: str, **options: Any) -> Iterator[tuple[Links, HostClient, pjrt.Buffer, Callable[[], Any]]]:
    """Yield a memory, a client, a buffer, and a function that begins a copy and returns its future."""
    memory = Links(method)
    compiled = Compiled(run=lambda handle: handle, parameters=[SPEC], outputs=[SPEC])
    with HostClient("chip", compile=lambda *_: compiled, memory=memory, num_devices=2, **options) as client:
        big = np.arange(1 << 18, dtype=np.float32)  # it is copied on another thread
        x = client.buffer_from_host(big, device=client.devices[0])
        x.ready().result()
        begin = {
            "copy_in": lambda: client.buffer_from_host(big, device=client.devices[0]).ready(),
            "copy_out": x.to_host,
            "copy": lambda: x.copy_to(client.devices[1]).ready(),
        }[method]
        try:
            yield memory, client, x, begin
        finally:
            for work in memory.begun:
                work.end.set()


def check_copies(memory: Links, x: pjrt.Buffer, begin: Callable[[], Any]) -> None:
    """The next copies are done, and memory is kept for none of those before."""
    memory.fence = None
    begin().result()
    np.testing.assert_array_equal(np.asarray(x), np.arange(1 << 18, dtype=np.float32))
    wait_until(lambda: len(memory.contents) == 1)


@pytest.mark.parametrize("method", ["copy_in", "copy_out", "copy"])
@pytest.mark.parametrize("fence", [Cancellable, Work])
def test_a_copy_that_takes_too_long_fails(method: str, fence: Callable[[], Work]) -> None:
    resets: list[pjrt.Device] = []
    memories: list[Links] = []

    def reset(device: pjrt.Device) -> None:
        resets.append(device)
        for work in memories[0].begun:
            work.end.set()

    with linked(method, watchdog_seconds=SOON, reset=reset) as (memory, client, x, begin):
        memories.append(memory)
        memory.fence = fence
        with pytest.raises(pjrt.DeadlineExceededError, match=rf"'Links.{method}' on chip:[01] has not ended"):
            begin().result()
        wait_until(lambda: memory.begun[0].end.is_set())
        if fence is Work:
            assert resets[0] is client.devices[method == "copy"]
        check_copies(memory, x, begin)


@pytest.mark.parametrize("method", ["copy_in", "copy_out", "copy"])
def test_the_memory_of_a_copy_is_kept_until_it_ends(method: str) -> None:
    with linked(method, watchdog_seconds=SOON) as (memory, _, x, begin):
        memory.fence = Work
        with pytest.raises(pjrt.DeadlineExceededError):
            begin().result()
        assert len(memory.contents) == (1 if method == "copy_out" else 2)  # the link may be writing there
        memory.begun[0].end.set()
        check_copies(memory, x, begin)


@pytest.mark.parametrize("method", ["copy_in", "copy_out", "copy"])
def test_copies_are_given_up_with_all_work(method: str) -> None:
    with linked(method) as (memory, client, x, begin):
        memory.fence = Cancellable
        copy = begin()
        wait_until(lambda: memory.begun and any(device.fences.is_busy for device in client.devices))
        client.give_up_work(pjrt.CancelledError("enough"))
        with pytest.raises(pjrt.CancelledError, match="enough"):
            copy.result()
        assert memory.begun[0].end.is_set()
        check_copies(memory, x, begin)


def test_a_copy_that_an_execution_waits_for_is_given_up_with_it() -> None:
    """The interpreter reads the argument, and the others' copies go on."""
    memory = Links("copy_out")
    program = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
%0 = stablehlo.sine %x : tensor<4xf32>
return %0 : tensor<4xf32>
}"""
    with pjrt.StableHloClient("chip", kernels={}, fallback="reference", memory=memory, num_devices=2) as client:
        first, second = client.devices
        executable, x = client.compile(program), client.buffer_from_host(X, device=first)
        memory.fence = Cancellable
        other = client.buffer_from_host(np.ones(1 << 18, np.float32), device=second).to_host()
        (y,) = executable(x)
        wait_until(lambda: len(memory.begun) == 2)
        client.give_up_work(pjrt.CancelledError("not wanted"), of=y.ready())
        with pytest.raises(pjrt.CancelledError, match="not wanted"):
            y.to_host().result()
        wait_until(lambda: any(work.end.is_set() for work in memory.begun))
        assert not other.done()
        for work in memory.begun:
            work.end.set()


def test_exceptions_of_cancel_and_reset_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Work):
        def cancel(self) -> None:
            raise ValueError("no such fence")

    def reset(device: pjrt.Device) -> None:
        raise ValueError("no such device")

    with caplog.at_level(logging.ERROR, "pjrt"), Chip(Broken, watchdog_seconds=SOON, reset=reset) as chip:
        (y,) = chip.executable(X)
        with pytest.raises(pjrt.DeadlineExceededError):
            y.to_host().result()
        wait_until(lambda: "no such device" in caplog.text)
        assert "no such fence" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"watchdog_seconds": 0}, "expected watchdog_seconds as a positive number of seconds, found 0"),
        ({"watchdog_seconds": "5"}, "found '5'"),
        ({"reset": 5}, "a function of a device as reset"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        HostClient("chip", compile=lambda *_: lambda x: x, **options)


HANGING = """
import runpy, threading
import pjrt
from pjrt.host import Compiled, Enqueued, HostClient
from pjrt.host.execution import DeviceExecution

begun = []


class Work:
    def __init__(self):
        self.end = threading.Event()
        begun.append(self)

    def wait(self):
        self.end.wait()
        raise RuntimeError("chip error 7: given up")

    def cancel(self):
        self.end.set()


def make_client():
    spec = pjrt.ShapeSpec((4,), "float32")
    run = lambda handle: handle if begun else Enqueued(handle, Work())
    program = Compiled(run=run, parameters=[spec], outputs=[spec], name="step")
    memory = runpy.run_path(TILED)["TiledMemory"]()
    return HostClient("chip", compile=lambda *_: program, memory=memory, watchdog_seconds=SOON)
"""


def test_the_user_of_a_worker_gets_the_error(tmp_path: Path) -> None:
    device = tmp_path / "hanging.py"
    tiled = Path(__file__).parents[3] / "examples" / "tiled_chip" / "device.py"
    device.write_text(HANGING.replace("TILED", repr(str(tiled))).replace("SOON", str(SOON)))
    library = native.write_library(tmp_path / "chip.so", f"{device}:make_client", driver="worker", name="chip")
    program = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    with pjrt.load_plugin(library).client() as client:
        executable = client.compile(program)
        (y,) = executable(X)
        with pytest.raises(pjrt.DeadlineExceededError, match="'step' on chip:0 has not ended"):
            y.to_host().result()
        (y,) = executable(X)
        np.testing.assert_array_equal(np.asarray(y), X)
