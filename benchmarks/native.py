"""Time devices that run in C, code that a compiler emitted and a chip with a queue, against JAX's own CPU."""

from __future__ import annotations

import ctypes
import runpy
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pjrt
from benchmarks.models import resnet50
from benchmarks.side_by_side import Aim, Call, Report, Timing, duration, main, table, take_turns, timing_table
from pjrt import native

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
OURS, JAX = "emitted C code under the runtime", "JAX's own CPU"
CHIP = "the chip, whose launches are done when they return"
WORKER, HERE = "the reference interpreter in a worker", "the reference interpreter in JAX's process"
CPU = "`cpu` of this package in JAX's process"
IN_WORKER = "`cpu` of this package in a worker"
X = np.arange(8, dtype=np.float32)
PLUS_ONE = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<8xf32>
  %0 = stablehlo.add %x, %c : tensor<8xf32>
  return %0 : tensor<8xf32>
}"""
LARGE = np.ones((4096, 4096), np.float32)
TO_DEVICE, TO_HOST, ALONE = "to the device", "to the host", "{}, by the driver alone"


def read_counters(driver: Path) -> tuple[int, float, int]:
    """Return what the first chip did: its launches, the seconds of its work, and how often it had none."""
    counters = (ctypes.c_int64 * 3)()
    ctypes.CDLL(str(driver)).chip_read_counters(0, counters)
    return counters[0], counters[1] / 1e9, counters[2]


def libraries(folder: Path) -> tuple[Path, Path, Path]:
    """Build the examples; return the plugins of emitted code, of the chip, and of the interpreter in a worker."""
    driver = folder / "libchip.so"
    command = (
        f"cc -O2 -shared -fPIC -I{native.get_include()} {EXAMPLES / 'native_chip' / 'chip.c'} -o {driver} -lm -lpthread"
    )
    subprocess.run(shlex.split(command), check=True)
    emitted = native.write_library(
        folder / "emitted.so", f"{EXAMPLES / 'emitted_c' / 'compiler.py'}:compile", name="emitted"
    )
    chip = native.write_library(
        folder / "chip.so", f"{EXAMPLES / 'native_chip' / 'compiler.py'}:compile", driver=driver
    )
    worker = native.write_library(
        folder / "worker.so", "pjrt.devices.reference.plugin:ReferencePlugin", driver="worker", name="worker"
    )
    return emitted, chip, worker


def tiny_calls(devices: dict[str, Any]) -> tuple[dict[str, Call], dict[str, Call]]:
    """Return `jax.jit` of `x + 1` on each device: as it returns, and with a wait for the result."""
    import jax

    returning, waiting = {}, {}
    for name, device in devices.items():
        function, x = jax.jit(lambda x: x + 1), jax.device_put(X, device)
        np.testing.assert_array_equal(function(x), X + 1)
        returning[name] = lambda function=function, x=x: function(x)
        waiting[name] = lambda function=function, x=x: function(x).block_until_ready()
    return returning, waiting


def slowest_in_a_hundred(call: Call, count: int) -> float:
    """Return the 99th percentile of a call's seconds."""
    times = np.empty(count)
    for number in range(count):
        start = time.perf_counter()
        call()
        times[number] = time.perf_counter() - start
    return float(np.percentile(times, 99))


def enqueued(device: Any, driver: Path, count: int) -> tuple[float, int]:
    """Return the seconds in which as many chained products of 64² are enqueued, and how often the chip had no work.

    Of ten tries it is the one that is enqueued first.
    """
    import jax

    function, x = jax.jit(lambda x: x @ x), jax.device_put(np.eye(64, dtype=np.float32), device)
    function(x).block_until_ready()
    tries = []
    for _ in range(10):
        before = read_counters(driver)[2]
        y, start = x, time.perf_counter()
        for _ in range(count):
            y = function(y)
        seconds = time.perf_counter() - start
        y.block_until_ready()
        tries.append((seconds, read_counters(driver)[2] - before))
        np.testing.assert_array_equal(y, np.eye(64))
    return min(tries)


def raw_calls(driver: Path) -> dict[str, Call]:
    """Return calls of the chip's driver without the runtime: `x + 1` on 8 floats, and copies of 64 MiB."""
    source, library = Path(__file__).with_name("native_driver.c"), driver.with_name("native_driver.so")
    command = f"cc -O2 -std=c11 -D_GNU_SOURCE -shared -fPIC -I{native.get_include()} {source} -o {library} -ldl"
    subprocess.run(shlex.split(command), check=True)
    compiler = runpy.run_path(str(EXAMPLES / "native_chip" / "compiler.py"))
    code = compiler["compile_kernel"](pjrt.stablehlo.parse(PLUS_ONE), pjrt.CompileOptions()).code
    raw, target = ctypes.CDLL(str(library)), np.zeros_like(LARGE)
    assert raw.raw_open(str(driver).encode(), code, ctypes.c_size_t(len(code)))
    source_address, target_address = (ctypes.c_void_p(each.ctypes.data) for each in (LARGE, target))
    raw.raw_copy_in(source_address)
    return {
        "a launch": raw.raw_launch,
        TO_DEVICE: lambda: raw.raw_copy_in(source_address),
        TO_HOST: lambda: (raw.raw_copy_out(target_address), target),
    }


def adam_step(device: Any, count: int) -> Call:
    """Return a training step of a small MLP with Adam on a device, which is waited for."""
    import jax
    import jax.numpy as jnp

    random = np.random.default_rng(0)
    sizes = {"w1": (20, 30), "b1": (30,), "w2": (30, 5), "b2": (5,)}
    params = {name: random.normal(0, 0.3, size).astype(np.float32) for name, size in sizes.items()}
    x, y = random.normal(size=(16, 20)).astype(np.float32), random.integers(0, 5, 16).astype(np.int32)

    def loss(p: Any, x: Any, y: Any) -> Any:
        z = jnp.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]
        z = z - z.max(axis=1, keepdims=True)
        return -((z - jnp.log(jnp.exp(z).sum(axis=1, keepdims=True))) * (jnp.arange(5) == y[:, None])).sum() / 16

    def step(p: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
        g = jax.grad(loss)(p, x, y)
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        return jax.tree.map(lambda a, b, c: a - 0.01 * b / (jnp.sqrt(c) + 1e-8), p, m, v), m, v

    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    zeros = jax.tree.map(np.zeros_like, params)
    state = jax.device_put((params, zeros, zeros), device)
    data = jax.device_put((x, y), device)

    def steps() -> None:
        nonlocal state
        for _ in range(count):
            state = jax.block_until_ready(compiled(*state, *data))

    steps()
    return steps


def transfers(library: Path, driver_copies: dict[str, Call] | None = None) -> dict[str, Call]:
    """Return 64 MiB to the device and back, each beside the copy that the driver makes.

    That of emitted code is the processor's copy to and from the device's memory, which it shares with the host.
    """
    client = pjrt.load_plugin(library).client()
    target, there = np.zeros_like(LARGE), client.buffer_from_host(LARGE)
    if driver_copies is None:
        memory, size = ctypes.c_void_p(there.unsafe_pointer()), LARGE.nbytes
        ours, theirs = ctypes.c_void_p(LARGE.ctypes.data), ctypes.c_void_p(target.ctypes.data)
        driver_copies = {
            TO_DEVICE: lambda: ctypes.memmove(memory, ours, size),
            TO_HOST: lambda: ctypes.memmove(theirs, memory, size),
        }
    return {
        TO_DEVICE: lambda: client.buffer_from_host(LARGE).ready().result(),
        TO_HOST: lambda: there.to_host(target).result(),
        **{ALONE.format(name): call for name, call in driver_copies.items()},
    }


def executions_per_second(library: Path, seconds: float) -> tuple[float, float]:
    """Return how often a program in C executes `x + 1` in a second: on one thread, and on two with a device each."""
    folder = library.parent
    source = Path(__file__).with_suffix("").with_name("native_threads.c")
    headers = Path(pjrt.__file__).parent / "abi"
    subprocess.run(
        shlex.split(
            f"cc -O2 -std=c11 -D_GNU_SOURCE -I{headers} {source} -o {folder / 'native_threads'} -ldl -lpthread"
        ),
        check=True,
    )
    paths = []
    with pjrt.load_plugin(library).client(num_devices=2) as client:
        for number in range(2):
            executable = client.compile(PLUS_ONE, pjrt.CompileOptions(device_assignment=[[number]]))
            paths.append(folder / f"device{number}.executable")
            paths[-1].write_bytes(executable.executable.serialize())
    command = [folder / "native_threads", library, str(seconds), *paths]
    one, two = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(one), float(two)


def in_a_worker(device: Any, here: Any, rounds: int) -> dict[str, dict[str, Timing]]:
    """Return the times of larger programs on `cpu` in a worker and in JAX's process."""
    import jax

    def calls(make: Callable[[Any], Call]) -> dict[str, Timing]:
        return take_turns({IN_WORKER: make(device), CPU: make(here)}, rounds=rounds, round_seconds=0.5)

    def plus_one(where: Any) -> Call:
        function, x = jax.jit(lambda x: x + 1), jax.device_put(LARGE, where)
        return lambda: function(x).block_until_ready()

    def resnet(where: Any) -> Call:
        function = jax.jit(resnet50.inference)
        arguments = [jax.device_put(each, where) for each in (resnet50.weights(), resnet50.images(1))]
        return lambda: jax.block_until_ready(function(*arguments))

    return {"ResNet-50 inference, batch 1": calls(resnet), "`x + 1` on 64 MiB": calls(plus_one)}


FIRST = """
import jax, pjrt
device = jax.devices(pjrt.frameworks.jax.register("reference", worker={}))[0]
print(jax.jit(lambda x: x + 1)(jax.device_put(1.0, device)))
"""


def starts(rounds: int) -> dict[str, Timing]:
    """Return how long new processes take from their first line to the first result of JAX on the interpreter."""

    def start(is_worker: bool) -> Call:
        command = [sys.executable, "-c", FIRST.format(is_worker)]
        return lambda: subprocess.run(command, check=True, capture_output=True)

    return take_turns({WORKER: start(True), HERE: start(False)}, rounds=rounds)


def create_and_close(library: Path) -> None:
    """Make a client, and close it."""
    pjrt.load_plugin(library).client().close()


def measure(quick: bool) -> Report:
    import jax

    rounds = 5 if quick else 31
    with tempfile.TemporaryDirectory() as folder:
        emitted, chip, worker = libraries(Path(folder))
        names = {
            OURS: pjrt.frameworks.jax.register(emitted, platform="emitted"),
            JAX: "cpu",
            WORKER: pjrt.frameworks.jax.register(worker, platform="worker"),
            HERE: pjrt.frameworks.jax.register("reference", worker=False),
            CPU: pjrt.frameworks.jax.register("cpu"),
        }
        names[CHIP] = pjrt.frameworks.jax.register(chip, platform="chip_at_once", at_once=True)
        chip_platform = pjrt.frameworks.jax.register(chip, platform="chip")
        larger_platform = pjrt.frameworks.jax.register("cpu", platform="cpu_worker", worker=True)
        devices = {who: jax.devices(name)[0] for who, name in names.items()}
        returning, waiting = tiny_calls(devices)
        turns = {"waited for": take_turns(waiting, rounds=rounds), "returned": take_turns(returning, rounds=rounds)}
        tails = {name: slowest_in_a_hundred(call, 500 if quick else 5000) for name, call in waiting.items()}
        driver, on_chip = Path(folder) / "libchip.so", jax.devices(chip_platform)[0]
        chained, times_empty = enqueued(on_chip, driver, 100)
        raw = raw_calls(driver)
        launch = take_turns({"a launch": raw.pop("a launch")}, rounds=rounds)["a launch"].median
        count = 10 if quick else 200
        steps = adam_step(on_chip, count)
        before, start = read_counters(driver), time.perf_counter()
        steps()
        step = (time.perf_counter() - start) / count
        after = read_counters(driver)
        launches, busy = (after[0] - before[0]) / count, (after[1] - before[1]) / count
        copies = {
            OURS: take_turns(transfers(emitted), rounds=5 if quick else 15),
            "the chip": take_turns(transfers(chip, raw), rounds=3 if quick else 9),
        }
        creation = take_turns({"a client": lambda: create_and_close(emitted)}, rounds=5 if quick else 15)["a client"]
        one, two = executions_per_second(emitted, 0.1 if quick else 1.0)
        larger = in_a_worker(jax.devices(larger_platform)[0], devices[CPU], 3 if quick else 15)
        larger["the first result of JAX in a new process"] = starts(3 if quick else 11)
    ratios = {how: timings[OURS].ratio_to(timings[JAX]) for how, timings in turns.items()}
    of_chip = {how: timings[CHIP].ratio_to(timings[JAX]) for how, timings in turns.items()}
    of_cpu = {how: timings[CPU].ratio_to(timings[JAX]) for how, timings in turns.items()}
    of_worker = {how: timings[WORKER].ratio_to(timings[JAX]) for how, timings in turns.items()}
    report = Report("Devices that run in C", __doc__ or "")
    for how, timings in turns.items():
        report.tables.append(f"`jax.jit` of `x + 1` on 8 floats, {how}:\n\n" + timing_table(timings, ours=OURS))
    report.tables.append(table(["waited for", "99 of 100 within"], [[n, duration(s)] for n, s in tails.items()]))
    for who, timings in copies.items():
        report.tables.append(table([f"64 MiB, {who}", "time"], [[name, str(each)] for name, each in timings.items()]))
    report.tables.append(
        f"100 chained products of 64² on the chip are enqueued in {duration(chained)}, while it had no work "
        f"{times_empty} times."
    )
    report.tables.append(
        f"A step of a small MLP with Adam takes {duration(step)} on the chip, which works for {duration(busy)} of it. "
        f"It has {launches:.0f} launches; one takes {duration(launch)} on the driver alone."
    )
    report.tables.append(f"A client is made and closed in {creation}.")
    report.tables.append(
        f"In C, one thread executes `x + 1` {one:,.0f} times in a second, two with a device each {two:,.0f}."
    )
    report.tables += [
        f"{what}:\n\n{timing_table(timings, ours=next(iter(timings)))}" for what, timings in larger.items()
    ]
    for (what, timings), limit in zip(larger.items(), (1.01, 1.1, 1.3), strict=True):
        in_worker, in_process = timings.values()
        report.aims.append(Aim(f"{what}: in a worker, beside this process", in_worker.ratio_to(in_process), limit))
    report.aims += [
        Aim("a tiny `jax.jit` that is waited for, beside JAX's own CPU", ratios["waited for"], 1.2),
        Aim("one that is not waited for", ratios["returned"], 0.8),
        Aim("one on the chip whose launches are done when they return, waited for", of_chip["waited for"], 1.2),
        Aim("one there that is not waited for", of_chip["returned"], 0.8),
        Aim("the slowest in a hundred, beside JAX's own CPU", tails[OURS] / tails[JAX], 3),
        Aim("the interpreter in a worker, waited for, beside JAX's own CPU", of_worker["waited for"], 2.5),
        Aim("the interpreter in a worker, not waited for", of_worker["returned"], 1),
        Aim("`cpu` of this package in JAX's process, waited for, beside JAX's own CPU", of_cpu["waited for"], 2),
        Aim("`cpu` of this package in JAX's process, not waited for", of_cpu["returned"], 2),
        Aim("milliseconds to enqueue 100 chained products on the chip", chained * 1e3, 1),
        Aim("how often the chip had no work during them", times_empty, 2),
        Aim("a step with Adam, beside the chip's work and its launches", step / (busy + launches * launch), 2),
        Aim("milliseconds to make a client and close it", creation.median * 1e3, 5),
        Aim("two threads with a device each, beside one", two / one, 1.8, at_least=True),
    ]
    report.aims += [
        Aim(f"64 MiB {way}, {who}: beside the driver's own copy", each[way].ratio_to(each[ALONE.format(way)]), 1.11)
        for who, each in copies.items()
        for way in (TO_DEVICE, TO_HOST)
    ]
    return report


if __name__ == "__main__":
    sys.exit(main(measure))
