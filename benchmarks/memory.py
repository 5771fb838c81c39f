"""Measure the memory of clients, executables and buffers of the `cpu` device, and that executions leave none."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.side_by_side import Aim, Report, main, table

OURS, RAW = "pjrt", "raw jaxlib"
COUNTS = {"a client": 20, "an executable": 100, "a buffer": 100_000}
MOST_LEFT = 0.5
"""The most bytes that an execution may leave on average: over 10⁷ of them the noise of the allocator is below that."""

SCALAR = np.array(1, np.float32)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def program(number: int) -> str:
    """Return a small program that differs from those of other numbers."""
    return (
        "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n"
        f"  %c = stablehlo.constant dense<{number}.0> : tensor<f32>\n"
        "  %y = stablehlo.add %x, %c : tensor<f32>\n  return %y : tensor<f32>\n}"
    )


def makers(who: str) -> dict[str, Callable[[int], Any]]:
    """Return for each thing the function that makes the n-th one."""
    if who == OURS:
        import pjrt

        client = pjrt.client("cpu")
        return {
            "a client": lambda number: pjrt.client("cpu"),
            "an executable": lambda number: client.compile(program(number)),
            "a buffer": lambda number: client.buffer_from_host(SCALAR),
        }
    from benchmarks.raw_jaxlib import RawClient

    raw = RawClient()
    results = [((), SCALAR.dtype)]
    return {
        "a client": lambda number: RawClient(),
        "an executable": lambda number: raw.compile(program(number), results),
        "a buffer": lambda number: raw.put(SCALAR),
    }


def bytes_each(who: str, what: str, count: int) -> float:
    """Return the bytes that one of many things takes, in this process."""
    make = makers(who)[what]
    things = [make(number) for number in range(max(2, count // 20))]  # the first ones fill caches
    before = resident_bytes()
    things += [make(len(things) + number) for number in range(count)]
    return (resident_bytes() - before) / count


def live_buffers(count: int) -> float:
    """Return the bytes that each of many live buffers takes; look at the first and the last."""
    import pjrt

    client = pjrt.client("cpu")
    before = resident_bytes()
    buffers = [client.buffer_from_host(np.array(number, np.int32)) for number in range(count)]
    size = (resident_bytes() - before) / count
    if [int(buffers[0]), int(buffers[-1])] != [0, count - 1]:
        raise RuntimeError("buffers have wrong values")
    return size


def left_by_executions(count: int) -> float:
    """Return the bytes that an execution leaves, on average of many."""
    import pjrt

    client = pjrt.client("cpu")
    executable = client.compile(program(1))
    x = client.buffer_from_host(SCALAR)
    for _ in range(10_000):
        executable(x)
    before = resident_bytes()
    for _ in range(count):
        executable(x)
    return (resident_bytes() - before) / count


def _rows(counts: dict[str, int]) -> Iterator[tuple[str, str, str, str]]:
    for what, count in counts.items():
        ours, raw = (_in_process("bytes_each", who, what, count) for who in (OURS, RAW))
        yield what, f"{ours:,.0f} B", f"{raw:,.0f} B", f"{ours / raw:.2f}×" if raw > 0 else ""


def measure(quick: bool) -> Report:
    """Compare the memory of ours with that of raw jaxlib, and look whether it stays flat."""
    counts = {what: count // 10 for what, count in COUNTS.items()} if quick else COUNTS
    live, executions = (20_000, 20_000) if quick else (1_000_000, 10_000_000)
    each = _in_process("live_buffers", live)
    left = _in_process("left_by_executions", executions)
    report = Report(
        "Memory",
        "Resident memory of one more client, executable (an addition) and buffer (a scalar), on average of "
        f"{', '.join(f'{count:,}' for count in counts.values())}; each in a process of its own. {live:,} live buffers "
        f"take {each:,.0f} B each. {executions:,} executions of an addition leave {left:.3f} B each.",
        [table(["", OURS, RAW, "pjrt takes"], _rows(counts))],
    )
    report.aims.append(Aim(f"{executions:,} executions leave at most {MOST_LEFT} B each", left, MOST_LEFT))
    return report


def _in_process(function: str, *arguments: Any) -> float:
    """Return what a function of this module returns in a new process."""
    command = [sys.executable, "-c", f"import benchmarks.memory as m; print(m.{function}(*{arguments!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return float(json.loads(done.stdout))


if __name__ == "__main__":
    main(measure)
