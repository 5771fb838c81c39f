"""10,000 executions in one process: does the resident memory stay flat?"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.side_by_side import Aim, Report, main, table

ROOT = Path(__file__).parents[1]
DIGITS = ROOT / "examples" / "digits"
SETTLED = 0.1  # the part of the executions after which memory counts: pools and caches have filled by then
FLAT_MIB = 2.0  # the allocator's own comings and goings stay within this

Step = Callable[[], object]


def arguments() -> list[np.ndarray]:
    """The digits example's weights and images."""
    with np.load(DIGITS / "weights.npz") as weights:
        return [*(weights[name] for name in weights.files), np.load(DIGITS / "images.npy")]


def pjrt_step() -> Step:
    """All arguments in, one execution, the result out, with pjrt."""
    import pjrt

    executable = pjrt.client("cpu").compile((DIGITS / "digits.stablehlo").read_bytes())
    arrays = arguments()
    return lambda: np.asarray(executable(*arrays)[0])


def raw_step() -> Step:
    """The same with raw jaxlib."""
    from benchmarks.raw_jaxlib import RawClient

    client = RawClient()
    executable = client.compile((DIGITS / "digits.stablehlo").read_bytes(), [((360, 10), np.dtype(np.float32))])
    arrays = arguments()
    return lambda: np.asarray(executable(*(client.put(array) for array in arrays))[0])


STEPS = {"pjrt": pjrt_step, "raw jaxlib": raw_step}


def measure(quick: bool) -> Report:
    """10,000 times the whole digits example, arguments in and result out: the process's resident memory."""
    count = 500 if quick else 10_000
    noted = {name: _in_fresh_process(name, count) for name in STEPS}
    marks = sorted(noted["pjrt"])
    rows = [
        (name, *(f"{samples[mark]:.1f} MiB" for mark in marks), f"{_growth(samples):+.2f} MiB")
        for name, samples in noted.items()
    ]
    report = Report(
        "Soak",
        "Resident memory of a process after so many executions of the digits example; each puts seven host arrays on "
        "the device, runs, and reads the result. Growth is counted from the second column on.",
        [table(["executions", *(f"{mark:,}" for mark in marks), "growth"], rows)],
    )
    text = f"resident memory flat over {count:,} executions (growth within {FLAT_MIB:g} MiB)"
    report.aims.append(Aim(text, max(_growth(noted["pjrt"]), 0.0), FLAT_MIB))
    return report


def _growth(samples: dict[int, float]) -> float:
    marks = sorted(samples)
    return samples[marks[-1]] - samples[marks[1]]


def _in_fresh_process(name: str, count: int) -> dict[int, float]:
    command = [sys.executable, "-m", "benchmarks.soak", "--contestant", name, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    return {int(mark): size for mark, size in json.loads(done.stdout).items()}


def _contestant(name: str, count: int) -> None:
    """What the fresh process does: run, and print the resident memory in MiB after some numbers of executions."""
    step = STEPS[name]()
    marks = {1, int(SETTLED * count), count // 4, count // 2, count}
    samples = {}
    for number in range(1, count + 1):
        step()
        if number in marks:
            gc.collect()
            samples[number] = _resident_mib()
    print(json.dumps(samples))


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contestant"]:
        _contestant(sys.argv[2], int(sys.argv[3]))
    else:
        main(measure)
