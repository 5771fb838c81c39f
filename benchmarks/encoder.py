"""Time a sentence encoder beside onnxruntime and JAX: a call, calls of four threads, and the start of a process.

Needs the packages `onnx` and `onnxruntime`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import onnxruntime

import pjrt
from benchmarks.models import minilm
from benchmarks.side_by_side import Aim, Report, Timing, duration, main, table, take_turns, timing_table

SHAPES = ((1, 16), (1, 32), (4, 21))
LIMITS = {(1, 16): 1.1, (1, 32): 1.0, (4, 21): 1.0}
THREADS = 4
FLAT, NESTED, JIT, ONNX = "pjrt exe(x)", "pjrt load_model", "jax.jit", "onnxruntime"
_XLA = "jax.jit beside it runs the same program of XLA's; what it takes longer than onnxruntime is XLA's code."

# Each script prints nothing; its results are compared with those of this process.
SAVED = """
import sys, numpy as np, pjrt
model = pjrt.load_model(sys.argv[1] + "/encoder.exe", "cpu")
result = np.asarray(model(np.load(sys.argv[1] + "/ids.npy"), np.load(sys.argv[1] + "/mask.npy")))
np.save(sys.argv[2], result)
"""
SESSION = """
import sys, numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1] + "/encoder.onnx", providers=["CPUExecutionProvider"])
(result,) = session.run(None, {name: np.load(f"{sys.argv[1]}/{name}.npy") for name in ("ids", "mask")})
np.save(sys.argv[2], result)
"""
OUR_EXPORT = """
import sys, numpy as np, pjrt
with np.load(sys.argv[1] + "/weights.npz") as saved:
    leaves = [saved[name] for name in saved.files]
model = pjrt.load_model(sys.argv[1] + "/encoder.jax_export", "cpu")
result = np.asarray(model(leaves, np.load(sys.argv[1] + "/ids.npy"), np.load(sys.argv[1] + "/mask.npy")))
np.save(sys.argv[2], result)
"""
JAX_EXPORT = """
import sys, numpy as np, jax, jax.export
with np.load(sys.argv[1] + "/weights.npz") as saved:
    leaves = [saved[name] for name in saved.files]
exported = jax.export.deserialize(bytearray(open(sys.argv[1] + "/encoder.jax_export", "rb").read()))
call = jax.jit(exported.call)
result = np.asarray(call(leaves, np.load(sys.argv[1] + "/ids.npy"), np.load(sys.argv[1] + "/mask.npy")))
np.save(sys.argv[2], result)
"""
STARTS = {
    "pjrt, saved executable": SAVED,
    "onnxruntime, model": SESSION,
    "pjrt, jax.export file": OUR_EXPORT,
    "jax, jax.export file": JAX_EXPORT,
}


def calls(
    client: pjrt.Client, model: Any, session: Any, weights: Any, shape: tuple[int, int]
) -> dict[str, Callable[[], np.ndarray]]:
    """Return a call of each contestant, from numpy arrays to a numpy array; weights stay where they are."""
    example = minilm.tokens(*shape)
    ids, mask = example["ids"], example["mask"]
    jitted = jax.jit(minilm.encode)
    executable = client.compile(str(jitted.lower(weights, ids, mask).compiler_ir("stablehlo")))
    leaves, structure = jax.tree.flatten(weights)
    buffers = [client.buffer_from_host(leaf) for leaf in leaves]
    kept = jax.device_put(weights)
    placed = jax.tree.unflatten(structure, buffers)
    return {
        FLAT: lambda: np.asarray(executable(*buffers, ids, mask)[0]),
        NESTED: lambda: np.asarray(model(placed, ids, mask)),
        JIT: lambda: np.asarray(jitted(kept, ids, mask)),
        ONNX: lambda: session.run(None, example)[0],
    }


def check(results: dict[str, np.ndarray]) -> None:
    """Raise an error unless all results are the same sentences."""
    (first, expected), *others = results.items()
    for name, result in others:
        np.testing.assert_allclose(result, expected, atol=2e-5, err_msg=f"{name} and {first}")


def of_threads(call: Callable[[], object], count: int) -> list[float]:
    """Return the seconds of each of `count` calls of all threads together, and as the first element those of all."""
    seconds: list[float] = []
    begin = threading.Barrier(THREADS + 1)

    def work() -> None:
        begin.wait()
        for _ in range(count // THREADS):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    begin.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return [time.perf_counter() - start, *seconds]


def threads_table(contestants: dict[str, Callable[[], np.ndarray]], rounds: int) -> tuple[str, list[Aim]]:
    """Time calls of four threads at once; return their table and aims."""
    count = 40 * THREADS
    noted: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            whole, *each = of_threads(call, count)
            noted[name][0].append(whole / count)
            noted[name][1].append(float(np.percentile(each, 99)))
    timings = {name: (Timing(tuple(whole)), Timing(tuple(late))) for name, (whole, late) in noted.items()}
    rows = []
    aims = []
    for name, (whole, late) in timings.items():
        per_second = timings[ONNX][0].ratio_to(whole)
        slowest = late.ratio_to(timings[ONNX][1])
        rows.append([name, f"{1 / whole.median:.0f}", f"{per_second:.2f}×", duration(late.median), f"{slowest:.2f}×"])
        if name in (FLAT, NESTED):
            text = f"{name}, {THREADS} threads, 1 × 32"
            aims.append(Aim(f"{text}: as many calls as onnxruntime", per_second, 1.0, at_least=True, reason=_XLA))
            aims.append(Aim(f"{text}: p99 within 1× of onnxruntime", slowest, 1.0, reason=_XLA))
    header = [f"{THREADS} threads, 1 × 32", "calls/s", "× onnxruntime", "p99", "× onnxruntime"]
    return table(header, rows), aims


def write_files(folder: Path, weights: Any) -> np.ndarray:
    """Write what fresh processes start from, for the shape 1 × 32; return the result."""
    example = minilm.tokens(1, 32)
    pjrt.save_model(minilm.encode, weights, (example["ids"], example["mask"]), folder / "encoder.pjrt")
    command = [sys.executable, "-m", "pjrt", "compile", "encoder.pjrt", "--topology", "cpu:1", "-o", "encoder.exe"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (folder / "encoder.onnx").write_bytes(minilm.onnx_model(weights))
    leaves, structure = jax.tree.flatten(weights)

    def flat(leaves: list[Any], ids: Any, mask: Any) -> Any:
        return minilm.encode(jax.tree.unflatten(structure, leaves), ids, mask)

    exported = jax.export.export(jax.jit(flat))(leaves, example["ids"], example["mask"])
    (folder / "encoder.jax_export").write_bytes(exported.serialize())
    np.savez(folder / "weights.npz", *leaves)
    for name, value in example.items():
        np.save(folder / f"{name}.npy", value)
    return np.asarray(flat(leaves, example["ids"], example["mask"]))


def starts(weights: Any, rounds: int) -> dict[str, Timing]:
    """Time processes from their start to their end, which take turns."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    noted: dict[str, list[float]] = {name: [] for name in STARTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = {"here": write_files(folder, weights)}
        for number in range(rounds + 1):
            for start, script in STARTS.items():
                begin = time.perf_counter()
                command = [sys.executable, "-c", script, name, f"{name}/result.npy"]
                subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
                if number:  # the first round fills caches
                    noted[start].append(time.perf_counter() - begin)
                results[start] = np.load(folder / "result.npy")
        check(results)
    return {start: Timing(tuple(seconds)) for start, seconds in noted.items()}


def measure(quick: bool) -> Report:
    """Compare a sentence encoder of ours with onnxruntime and JAX: calls, threads and starts."""
    weights = minilm.weights()
    report = Report(
        "A sentence encoder beside onnxruntime",
        "An encoder of the shape of all-MiniLM-L6-v2, with random weights: 101 arrays, float32. A call takes numpy "
        "arrays, and its result is fetched; the weights are on the device. *load_model* and *jax.jit* take them as a "
        "nested dictionary.",
    )
    session = onnxruntime.InferenceSession(minilm.onnx_model(weights), providers=["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.jax_export"
        example = minilm.tokens(1, 32)
        symbolic = jax.export.symbolic_args_specs(
            (weights, example["ids"], example["mask"]),
            (None, "b, n", "b, n"),
            constraints=(f"n <= {minilm.POSITIONS}",),
        )
        path.write_bytes(jax.export.export(jax.jit(minilm.encode))(*symbolic).serialize())
        with pjrt.client("cpu") as client, pjrt.load_model(path, client) as model:
            for shape in SHAPES[1:2] if quick else SHAPES:
                contestants = calls(client, model, session, weights, shape)
                check({name: call() for name, call in contestants.items()})
                timings = take_turns(contestants, rounds=5 if quick else 15, round_seconds=0.1)
                report.tables += [f"{shape[0]} × {shape[1]}:", timing_table(timings, ours=FLAT)]
                ratio = timings[FLAT].ratio_to(timings[ONNX])
                text = f"{shape[0]} × {shape[1]}: within {LIMITS[shape]}× of onnxruntime"
                report.aims.append(Aim(text, ratio, LIMITS[shape], reason=_XLA))
                if shape == (1, 32):
                    rows, aims = threads_table(contestants, 3 if quick else 9)
                    report.tables.append(rows)
                    report.aims += aims
    timings = starts(weights, 2 if quick else 9)
    report.tables += ["A process from its start to its end, one sentence of 32 words:"]
    report.tables += [table(["", "in all (quartiles)"], timings.items())]
    for ours, theirs, limit in (
        ("pjrt, saved executable", "onnxruntime, model", 1.3),
        ("pjrt, jax.export file", "jax, jax.export file", 1.0),
    ):
        ratio = timings[ours].ratio_to(timings[theirs])
        report.aims.append(Aim(f"a start of {ours}: within {limit}× of {theirs}", ratio, limit))
    return report


if __name__ == "__main__":
    main(measure)
