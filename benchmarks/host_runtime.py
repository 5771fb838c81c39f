"""Time executions on devices in Python that do nothing: what is left is what the host runtime adds."""

from __future__ import annotations

import _thread
import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pjrt
from benchmarks.side_by_side import Aim, Report, Timing, main, take_turns, timing_table
from pjrt.capi import load_capsule
from pjrt.host import Compiled, HostClient

SPEC = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
RETURNING, WAITING, EIGHT = "exe(x), returning", "exe(x), waiting", "execute on 8 devices, returning"
HANDOVER = "two threads hand over"
_BURST = 10  # calls that are timed together; what they have started is waited for before the next ones

Case = tuple[Callable[[], Any], Callable[[Any], None]]
"""The call to time, and a wait for what it has started, which is not timed."""


def device(num_devices: int) -> HostClient:
    """Return a client of a device whose programs give a new array, and read nothing."""
    compiled = Compiled(run=lambda x: np.empty(4, np.float32), outputs=[SPEC])
    return HostClient("nothing", compile=lambda program, options: compiled, num_devices=num_devices)


def on_one() -> Callable[[], Any]:
    """Return an execution on one device."""
    client = device(1)
    executable = client.compile("")
    x = client.buffer_from_host(np.ones(4, np.float32))
    return lambda: executable(x)


def on_eight() -> Callable[[], Any]:
    """Return an execution on eight devices at once."""
    client = device(8)
    executable = client.compile("", pjrt.CompileOptions(num_replicas=8))
    rows = [[client.buffer_from_host(np.ones(4, np.float32), device=each)] for each in client.addressable_devices]
    return lambda: executable.execute(rows)


def handover() -> Callable[[], Any]:
    """Return the least that two threads need: one gives the other a lock, which it opens."""
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def serve() -> None:
        while True:
            items.get().release()

    threading.Thread(target=serve, daemon=True).start()

    def call() -> None:
        lock = _thread.allocate_lock()
        lock.acquire()
        items.put(lock)
        lock.acquire()

    return call


def wait(results: Any) -> None:
    """Wait for the results of an execution on one device or on several."""
    for each in results:
        (each[0] if isinstance(each, list) else each).ready().result()


def cases() -> dict[str, Case]:
    """Return the calls."""
    one = on_one()

    def nothing(_: Any) -> None:
        pass

    return {
        RETURNING: (one, wait),
        WAITING: (lambda: wait(one()), nothing),
        EIGHT: (on_eight(), wait),
        HANDOVER: (handover(), nothing),
    }


def time_in_bursts(contestants: dict[str, Case], rounds: int) -> dict[str, Timing]:
    """Time a few calls of each contestant in turn."""
    noted: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, (call, finish) in contestants.items():
            start = time.perf_counter()
            results = [call() for _ in range(_BURST)]
            seconds = (time.perf_counter() - start) / _BURST
            for each in results:
                finish(each)
            if number:  # the first round warms up
                noted[name].append(seconds)
    return {name: Timing(tuple(seconds)) for name, seconds in noted.items()}


TANH = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
PYTHON, C = "the host runtime", "the runtime in C"


def gate(quick: bool) -> dict[str, dict[str, Timing]]:
    """Time the device `reference` as it is, and as a client of this package behind the runtime in C."""
    clients = {PYTHON: pjrt.client("reference")}
    exported = pjrt.export(pjrt.client("reference"), name="reference")
    clients[C] = load_capsule(exported.capsule).client()
    x = np.ones(4, np.float32)
    calls: dict[str, dict[str, Callable[[], object]]] = {"an array, waiting": {}, "a buffer, waiting": {}}
    for name, client in clients.items():
        executable, buffer = client.compile(TANH), client.buffer_from_host(x)
        for text, argument in zip(calls, (x, buffer), strict=True):
            calls[text][name] = functools.partial(wait_for, executable, argument)
    return {text: take_turns(each, rounds=5 if quick else 25) for text, each in calls.items()}


def wait_for(executable: pjrt.LoadedExecutable, argument: Any) -> None:
    """Wait for one execution."""
    executable(argument)[0].ready().result()


def measure(quick: bool) -> Report:
    """Measure what the host runtime adds to an execution."""
    timings = time_in_bursts(cases(), 50 if quick else 2000)
    report = Report(
        "Host runtime",
        "Devices in Python whose function makes an array of four numbers and nothing else. *Two threads hand over* is "
        "the floor of a wait: a queue and a lock, without anything else. The table has medians; the aims are about the "
        "shortest times, which other work on the machine does not change.",
        [timing_table(timings, ours=RETURNING)],
    )
    for text, each in gate(quick).items():
        report.tables.append(f"`reference`, `exe(x)` on {text}:\n\n{timing_table(each, ours=C)}")
        report.aims.append(
            Aim(f"exe(x) on {text}: the runtime in C within 1× of the host runtime", each[C].ratio_to(each[PYTHON]), 1)
        )
    shortest = {name: min(timing.rounds) * 1e6 for name, timing in timings.items()}
    report.aims += [
        Aim("exe(x), returning: at most 10 µs (shortest, in µs)", shortest[RETURNING], 10),
        Aim(
            "exe(x), waiting: at most 20 µs (shortest, in µs)",
            shortest[WAITING],
            20,
            reason=f"{shortest[HANDOVER]:.1f} µs of it is the way to the device's thread and back.",
        ),
        Aim("8 devices enqueued at once: at most 30 µs (shortest, in µs)", shortest[EIGHT], 30),
    ]
    return report


if __name__ == "__main__":
    main(measure)
