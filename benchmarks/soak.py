"""Repeat each call of a serving loop 100,000 times and measure the growth of memory, where jax cannot be imported."""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.side_by_side import Aim, Report, main, table

ROOT = Path(__file__).parents[1]
DEVICES = ("cpu", "reference", "exported-cpu", "exported-reference", "tiny")
TIMES = 100_000
BATCH = 500
"""The number of calls between two waits, as in a server that limits the work in progress."""

FLAT_BLOCKS = 0.05
"""The most of Python's blocks that a call may leave: jaxlib and Python keep some dropped objects for a while."""
MEASUREMENTS = 3
"""The most measurements of one call; the smallest growth counts."""
FLAT_BYTES = 16.0
"""The most bytes of resident memory that a call may add: the allocator's own changes stay within this."""

SIZE = 1024

Step = Callable[[], object]


class Growth(NamedTuple):
    """The average that one call adds to Python's allocated blocks and to the bytes of resident memory."""

    blocks: float
    bytes: float


def measure(quick: bool) -> Report:
    """Repeat each call of a serving loop on each device, in processes that cannot import jax."""
    return report(DEVICES, 2_000 if quick else TIMES)


def report(devices: tuple[str, ...], times: int) -> Report:
    """Run each device's calls in a subprocess, and report what they left behind."""
    by_device = {device: in_fresh_process(device, times) for device in devices}
    names = list(dict.fromkeys(name for growths in by_device.values() for name in growths))
    rows = [(name, *(_cell(by_device[device].get(name)) for device in devices)) for name in names]
    result = Report(
        "Soak",
        f"What a call leaves behind, on average of {times:,} calls: of Python's blocks, and of resident memory in "
        "bytes. The processes cannot import jax. An exported device is loaded back through the C API; *tiny* is a "
        "functional plugin in C. A dash is for what a device does not have.",
        [table(["call", *devices], rows)],
    )
    for device, growths in by_device.items():
        blocks = max(growths, key=lambda name: growths[name].blocks)
        size = max(growths, key=lambda name: growths[name].bytes)
        result.aims.append(
            Aim(f"{device}: blocks left by a call flat", growths[blocks].blocks, FLAT_BLOCKS, reason=f"It is {blocks}.")
        )
        result.aims.append(
            Aim(f"{device}: bytes left by a call flat", growths[size].bytes, FLAT_BYTES, reason=f"It is {size}.")
        )
    return result


def _cell(growth: Growth | None) -> str:
    return "–" if growth is None else f"{growth.blocks:.3f}, {growth.bytes:.1f} B"


def in_fresh_process(device: str, times: int) -> dict[str, Growth]:
    """Measure the growth by each call on a device, in a subprocess."""
    command = [sys.executable, "-m", "benchmarks.soak", "--contestant", device, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{device} failed:\n{done.stderr}")
    return {name: Growth(*growth) for name, growth in json.loads(done.stdout).items()}


def steps(client: Any, program: Any) -> tuple[dict[str, Step], Step]:
    """Return the calls of a serving loop by name, and a function that waits until the work of all of them is done."""
    import numpy as np

    import pjrt

    x = np.arange(SIZE, dtype=np.float32)
    out = np.empty_like(x)
    first, second = client.addressable_devices[:2]
    exe = client.compile(program)
    both = client.compile(program, pjrt.CompileOptions(num_replicas=2))
    here, there = (client.buffer_from_host(x, device=device) for device in (first, second))
    spec = pjrt.ShapeSpec(x.shape, pjrt.ElementType.F32)
    launched = pjrt.ExecuteOptions(launch_id=7)
    named = pjrt.HostBufferSemantics

    def put(semantics: pjrt.HostBufferSemantics, on_done: Callable[[], object] | None) -> Step:
        return lambda: client.buffer_from_host(x, semantics=semantics, on_done_with_host_buffer=on_done)

    def alias() -> object:
        buffer, fulfillment = client.create_alias_buffer(spec)
        fulfillment.fulfill(here)
        return buffer

    def transfer() -> object:
        manager = client.create_buffers_for_async_host_to_device([spec])
        buffer = manager.retrieve_buffer(0)
        manager.transfer_data(0, x)
        return buffer

    def sum_of_dropped() -> object:
        (result,) = exe(here)
        result.to_host()
        result.ready()
        result.copy_raw_to_host(out)
        return None

    calls: dict[str, Step] = {
        **{f"buffer_from_host, {s.name.lower()}": put(s, None) for s in named},
        **{f"buffer_from_host, {s.name.lower()}, told": put(s, lambda: None) for s in named},
        "exe(buffer)": lambda: exe(here),
        "exe(array)": lambda: exe(x),
        "execute": lambda: exe.execute([[here]]),
        "execute, with options and futures": lambda: exe.execute([[here]], launched, returned_futures=[]),
        "execute on two devices": lambda: both.execute([[here], [there]]),
        "execute on two devices, and read": lambda: [np.asarray(row[0]) for row in both.execute([[here], [there]])],
        "execute_sharded": lambda: exe.execute_sharded([here], first),
        "execute_sharded, with a future": lambda: exe.execute_sharded([here], first, returned_futures=[]),
        "to_host of one buffer": lambda: here.to_host().result(),
        "to_host of a result": lambda: exe(here)[0].to_host().result(),
        "to_host into an array": lambda: here.to_host(out).result(),
        "numpy.asarray of one buffer": lambda: np.asarray(here),
        "numpy.asarray of a result": lambda: np.asarray(exe(here)[0]),
        "ready of one buffer": lambda: here.ready().result(),
        "ready of a result": lambda: exe(here)[0].ready().result(),
        "a callback": lambda: exe(here)[0].ready().add_done_callback(lambda _: None),
        "futures that are dropped": sum_of_dropped,
        "copy_raw_to_host": lambda: here.copy_raw_to_host(out).result(),
        "copy_raw_to_host of a result": lambda: exe(here)[0].copy_raw_to_host(out).result(),
        "copy_to": lambda: here.copy_to(second),
        "copy_to, and read": lambda: np.asarray(here.copy_to(second)),
        "delete": lambda: exe(here)[0].delete(),
        "dlpack": lambda: np.from_dlpack(here),
        "dlpack of a result": lambda: np.from_dlpack(exe(here)[0]),
        "external_reference": lambda: here.external_reference().pointer,
        "raw": lambda: here.raw().copy_to_host(out).result(),
        "on_device_size": lambda: here.on_device_size,
        "an alias buffer": alias,
        "a transfer in pieces": transfer,
    }

    def settle() -> None:
        # Nothing but waiting: where a new buffer is made, jaxlib drops what it has kept, and so would hide a leak.
        for results in both.execute([[here], [there]]):
            results[0].ready().result()
        exe(here)[0].ready().result()
        for buffer in (here, there):
            buffer.to_host(out).result()

    return calls, settle


def growth_of(step: Step, settle: Step, times: int) -> Growth:
    """Measure what a call adds, after so many calls that the caches that are kept on purpose are full.

    What jaxlib keeps for a while may grow in one measurement, more so on a busy machine. A leak grows in each.
    """
    _repeat(step, settle, max(times // 5, BATCH))
    growths: list[Growth] = []
    while len(growths) < MEASUREMENTS and (not growths or growths[-1].blocks > FLAT_BLOCKS):
        before = sys.getallocatedblocks(), _resident_bytes()
        _repeat(step, settle, times)
        after = sys.getallocatedblocks(), _resident_bytes()
        growths.append(Growth(*((new - old) / times for old, new in zip(before, after, strict=True))))
    return min(growths)


def _repeat(step: Step, settle: Step, times: int) -> None:
    for number in range(1, times + 1):
        step()
        if number % BATCH == 0:
            settle()
    settle()
    gc.collect()


def _contestant(device: str, times: int) -> None:
    """Go through the calls and print the growth by each: the script of the fresh process."""
    sys.modules["jax"] = None  # type: ignore[assignment]  # from now on there is none to import
    import pjrt
    from benchmarks.devices import client_of, doubling_program

    client = client_of(device, num_devices=2)
    calls, settle = steps(client, doubling_program(device, SIZE))
    growths = {}
    for name, step in calls.items():
        try:
            step()
        except pjrt.UnimplementedError:
            continue
        growths[name] = growth_of(step, settle, times)
    print(json.dumps(growths))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contestant"]:
        _contestant(sys.argv[2], int(sys.argv[3]))
    elif {"--device", "--times"}.isdisjoint(sys.argv):
        main(measure)
    else:
        parser = argparse.ArgumentParser(description=measure.__doc__)
        parser.add_argument("--device", action="append", choices=DEVICES, help="default: all")
        parser.add_argument("--times", type=int, default=TIMES, help="how often to repeat each call")
        arguments = parser.parse_args()
        print(report(tuple(arguments.device or DEVICES), arguments.times))
