"""Count the clean ends of processes whose daemon threads are still compiling and executing."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.side_by_side import Aim, Report, duration, main, table

ROOT = Path(__file__).parents[1]
DEVICES = ("cpu", "reference", "exported-cpu", "exported-reference")
TIMES = 200
LIMIT_SECONDS = 60.0
"""A process that has not ended by then hangs."""


@dataclasses.dataclass(frozen=True)
class End:
    """The end of one process.

    Attributes:
        code: its exit status, negative for a signal; `None` for one that had to be killed.
        stderr: what it wrote to the standard error.
        seconds: the time from the end of its script to the end of the process.
    """

    code: int | None
    stderr: str
    seconds: float

    def __str__(self) -> str:
        how = "killed after a hang" if self.code is None else f"exit status {self.code}"
        last = self.stderr.strip().splitlines()[-1:]
        return ": ".join([how, *last])


def measure(quick: bool) -> Report:
    """Count for each device how often a process ends cleanly while its daemon threads compile and execute."""
    return report(DEVICES, 10 if quick else TIMES, 1)


def report(devices: Sequence[str], times: int, jobs: int) -> Report:
    """Start so many processes for each device, `jobs` at a time, and count the clean ends."""
    ends = {device: _ends(device, times, jobs) for device in devices}
    rows = [
        (
            device,
            times,
            sum(end.code == 0 for end in ended),
            sum(end.code == 0 and not end.stderr for end in ended),
            duration(statistics.median(end.seconds for end in ended)),
            duration(max(end.seconds for end in ended)),
        )
        for device, ended in ends.items()
    ]
    result = Report(
        "Exits",
        "Processes whose main thread ends while daemon threads compile, execute, copy in and out, and wait. An end is "
        "clean if the exit status is 0, and silent if nothing is written to the standard error. The time is that from "
        "the end of the script to the end of the process. An exported device is loaded back through the C API.",
        [table(["device", "processes", "clean", "and silent", "median time", "longest"], rows)],
    )
    for device, ended in ends.items():
        others = collections.Counter(str(end) for end in ended if end.code != 0)
        reason = "; ".join(f"{count}× {how}" for how, count in others.most_common(3))
        text = f"{device}: all of {times} ends clean"
        result.aims.append(Aim(text, times - others.total(), times, at_least=True, reason=reason))
    return result


def _ends(device: str, times: int, jobs: int) -> list[End]:
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda _: _end(device), range(times)))


def _end(device: str) -> End:
    command = [sys.executable, "-m", "benchmarks.exits", "--contestant", device]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=ROOT
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the script has ended, or the process has
        begin = time.monotonic()
        try:
            _, stderr = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            _, stderr = process.communicate()
            return End(None, stderr, LIMIT_SECONDS)
        return End(process.returncode, stderr, time.monotonic() - begin)


def _contestant(device: str) -> None:
    """Set daemon threads to work, and end as soon as all of them have begun: the script of each process."""
    import numpy as np

    from benchmarks.devices import client_of, doubling_program

    client = client_of(device)
    executable = client.compile(doubling_program(device, 8))
    x = np.ones(8, np.float32)
    on_device = client.buffer_from_host(x)
    sizes = itertools.count(9)
    works: list[Callable[[], object]] = [
        lambda: client.compile(doubling_program(device, next(sizes))),
        lambda: client.compile(doubling_program(device, next(sizes))),
        lambda: np.asarray(executable(on_device)[0]),
        lambda: executable(x)[0].ready().result(),
        lambda: client.buffer_from_host(x).to_host().result(),
        lambda: executable(on_device)[0].ready().add_done_callback(lambda _: None),
    ]
    begun = threading.Barrier(len(works) + 1)

    def repeat(work: Callable[[], object]) -> None:
        work()
        begun.wait()
        while True:
            work()

    for work in works:
        threading.Thread(target=repeat, args=(work,), daemon=True).start()
    begun.wait()
    print("ends", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contestant"]:
        _contestant(sys.argv[2])
    elif {"--device", "--times", "--jobs"}.isdisjoint(sys.argv):
        main(measure)
    else:
        parser = argparse.ArgumentParser(description=measure.__doc__)
        parser.add_argument("--device", action="append", choices=DEVICES, help="default: all")
        parser.add_argument("--times", type=int, default=TIMES, help="processes for each device")
        parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
        arguments = parser.parse_args()
        print(report(arguments.device or DEVICES, arguments.times, arguments.jobs))
