"""Time calls through the C API: plugins in C, called by us, by jaxlib and by a ctypes client on the same library."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import pjrt
from benchmarks.raw_jaxlib import RawClient
from benchmarks.side_by_side import Aim, Call, Report, Timing, duration, main, table, take_turns, timing_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "plugins"))

X = np.zeros((), np.float32)
OURS, RAW, CTYPES, EMPTY = "pjrt", "jaxlib", "pypjrt", "an empty call"
PROGRAM = "func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }"
SIZES = [4 << 10, 1 << 20, 16 << 20]
COUNTS = [1, 10, 100]
THREADS = [1, 2, 8]
F32 = int(pjrt.ElementType.F32)

# What is done with the plugin, in each contestant's own words below.
EXECUTE, WAIT, PUT = "execute, one argument and one result", "the same, and wait", "a buffer from the host"
SIZE, DELETED, SHAPE, DEVICE = "its size on the device", "whether it is deleted", "its shape", "its device"
METADATA = [SIZE, DELETED, SHAPE, DEVICE]


class RawPluginClient(RawClient):
    """jaxlib's client of a plugin's library."""

    def __init__(self, library: Path) -> None:
        from jaxlib import _jax, xla_client

        name = library.stem
        if not _jax.pjrt_plugin_loaded(name):
            _jax.load_pjrt_plugin(name, str(library), None)
            _jax.initialize_pjrt_plugin(name)
        self.client = xla_client.make_c_api_client(name, {})
        self.device = self.client.local_devices()[0]
        self.devices = _jax.DeviceList((self.device,))
        self.sharding = _jax.GSPMDSharding(self.devices, xla_client.HloSharding.replicate())


Executions = dict[int, dict[str, Callable[[], Call]]]
"""By the number of arguments and by name: what makes an execution that has its arguments for itself."""


def executions(library: Path) -> Executions:
    """Return an execution with each number of arguments, as ours and as jaxlib's; the plugin ignores the program."""
    from jaxlib import xla_client

    client = pjrt.load_plugin(library).client()
    device = client.devices[0]
    rival = RawPluginClient(library)
    rival_executable = rival.client.compile_and_load(PROGRAM, rival.devices, xla_client.CompileOptions())

    def ours_with(count: int) -> Call:
        parameters = ", ".join(f"%x{number}: tensor<f32>" for number in range(count))
        executable = client.compile(f"func.func @main({parameters}) -> tensor<f32> {{ return %x0 : tensor<f32> }}")
        row = [client.buffer_from_host(X) for _ in range(count)]
        return lambda: executable.execute_sharded(row, device)

    def theirs_with(count: int) -> Call:
        row = [rival.put(X) for _ in range(count)]
        return lambda: rival_executable.execute_sharded(row)

    return {count: {OURS: partial(ours_with, count), RAW: partial(theirs_with, count)} for count in COUNTS}


def calls_per_second(make_call: Callable[[], Call], threads: int, seconds: float) -> float:
    """Return how many calls all threads together finish in a second; each thread has its own arguments."""
    counts, start, stop = [0] * threads, threading.Barrier(threads + 1), threading.Event()

    def work(number: int) -> None:
        call = make_call()
        start.wait()
        while not stop.is_set():
            for _ in range(100):
                call()
            counts[number] += 100

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - begin)


def nothing() -> None:
    """Do nothing: an empty Python call."""


def ours(library: Path) -> dict[str, Call]:
    """Return our calls into the plugin, by what they do."""
    client = pjrt.load_plugin(library).client()
    executable = client.compile(PROGRAM)
    buffer, device = client.buffer_from_host(X), client.devices[0]
    arguments = [buffer]
    return {
        EXECUTE: lambda: executable.execute_sharded(arguments, device),
        WAIT: lambda: executable.execute_sharded(arguments, device)[0].ready().result(),
        PUT: lambda: client.buffer_from_host(X),
        SIZE: lambda: buffer.on_device_size,
        DELETED: lambda: buffer.is_deleted,
        SHAPE: lambda: buffer.shape,
        DEVICE: lambda: buffer.device,
    }


def raw(library: Path) -> dict[str, Call]:
    """Return the same calls with jaxlib."""
    from jaxlib import xla_client

    client = RawPluginClient(library)
    executable = client.client.compile_and_load(PROGRAM, client.devices, xla_client.CompileOptions())
    array = client.put(X)
    handled = client.compile(PROGRAM, [((), X.dtype)])
    arguments = [array]
    return {
        EXECUTE: lambda: executable.execute_sharded(arguments),
        WAIT: lambda: handled(array)[0].block_until_ready(),
        PUT: lambda: client.put(X),
        SIZE: lambda: array.on_device_size_in_bytes(),
        DELETED: lambda: array.is_deleted(),
        SHAPE: lambda: array.aval.shape,
    }


def ctypes_client(library: Path, stack: contextlib.ExitStack) -> dict[str, Call]:
    """Return the same calls with pypjrt, a client in pure Python that always waits; none if it is not installed."""
    if importlib.util.find_spec("pypjrt") is None:
        return {}
    client, device = _ctypes_device(library, stack)
    executable = client.compile(PROGRAM)
    buffer = client.buffer_from_host(X, F32, [], device)
    return {
        WAIT: lambda: executable(buffer),
        PUT: lambda: client.buffer_from_host(X, F32, [], device),
        SIZE: lambda: buffer.nbytes,
        DELETED: lambda: buffer.is_deleted,
        SHAPE: lambda: buffer.dimensions,
        DEVICE: lambda: buffer.device,
    }


def _ctypes_device(library: Path, stack: contextlib.ExitStack) -> tuple:
    import pypjrt

    client = stack.enter_context(pypjrt.Client.create(str(library)))
    return client, stack.enter_context(client.devices())[0]


def transfers(client: pjrt.Client, rival: RawPluginClient, pure: tuple | None, size: int) -> dict[str, dict[str, Call]]:
    """Return calls that copy an array of `size` bytes to the device, and there and back; each waits for its last copy.

    The way back cannot be compared alone: jaxlib's array keeps the value that it has read once. It shares the memory
    of a plugin on the host, and is made to copy where the others copy.
    """
    array = np.arange(size // 4, dtype=np.float32)
    there = {
        OURS: lambda: client.buffer_from_host(array).ready().result(),
        RAW: lambda: rival.put(array).block_until_ready(),
    }
    copied = {
        OURS: lambda: np.asarray(client.buffer_from_host(array)),
        RAW: lambda: np.array(rival.put(array)._single_device_array_to_np_array_did_copy()[0]),
    }
    shared = {
        OURS: lambda: np.from_dlpack(client.buffer_from_host(array)),
        RAW: lambda: rival.put(array)._single_device_array_to_np_array_did_copy()[0],
    }
    if pure is not None:
        third, device = pure
        there[CTYPES] = lambda: third.buffer_from_host(array, F32, array.shape, device)
        copied[CTYPES] = lambda: np.frombuffer(there[CTYPES]().to_host(), np.float32)
    for name, call in [*copied.items(), *shared.items()]:
        if not np.array_equal(call(), array):
            raise RuntimeError(f"{name}: what came back from the device is not what was put there")
    return {"to the device": there, "there and back, copied": copied, "there and back, shared": shared}


def measure(quick: bool) -> Report:
    """Compare ours with our rivals' on the same plugins: execution, buffers, metadata and transfers."""
    from tiny import build

    about = (
        "A plugin in C that does nothing, as fast as possible, loaded by all: what is left is what each of them adds "
        "to a call. Waiting means a result that was there at once. Transfers are on a functional plugin in C, which "
        "copies on a thread of its own. "
    )
    if importlib.util.find_spec("pypjrt") is None:
        about += "pypjrt, a client in pure Python, is compared too where it is installed; here it is not."
    else:
        about += "pypjrt is a client in pure Python (ctypes); its call always waits."
    report = Report("Crossing the C API", about)
    folder, rounds = Path(tempfile.gettempdir()) / "pjrt-benchmark-plugins", 3 if quick else 25
    with contextlib.ExitStack() as stack:
        noop = build.build_other("noop", folder)
        _measure_calls(report, ours(noop), raw(noop), ctypes_client(noop, stack), rounds)
        _measure_executions(report, executions(noop), rounds, 0.1 if quick else 1.0)
        _measure_transfers(report, build.build_tiny(folder), stack, rounds)
    return report


def _measure_calls(
    report: Report, mine: dict[str, Call], theirs: dict[str, Call], pure: dict[str, Call], rounds: int
) -> None:
    reads = []
    for what, call in mine.items():
        rivals = {name: calls[what] for name, calls in ((RAW, theirs), (CTYPES, pure)) if what in calls}
        case = {OURS: call, **rivals, EMPTY: nothing}
        timings = take_turns(case, rounds=rounds)
        if what in METADATA:
            reads.append((what, timings))
        else:
            report.tables.append(f"**{what}**\n\n{timing_table(timings, ours=OURS)}")
    names = [name for name in (OURS, RAW, CTYPES) if name in reads[0][1]]
    rows = [
        (what, *(duration(_beyond(timings, name)) if name in timings else "" for name in names))
        for what, timings in reads
    ]
    report.tables.append("**Metadata of a buffer, beyond an empty call**\n\n" + table(["", *names], rows))
    slowest = max(_beyond(timings, OURS) for _, timings in reads) * 1e9
    reason = "Each read enters the plugin, with the interpreter's lock given up meanwhile."
    report.aims.append(Aim("any metadata read: under 100 ns beyond an empty call (ns)", slowest, 100, reason=reason))


def _measure_executions(report: Report, makers: Executions, rounds: int, seconds: float) -> None:
    timings = {
        count: take_turns({who: make() for who, make in case.items()}, rounds=rounds) for count, case in makers.items()
    }
    rows = [(who, *(duration(timing[who].median) for timing in timings.values())) for who in (OURS, RAW)]
    header = ["", *(f"{count} argument{'s' if count > 1 else ''}" for count in timings)]
    report.tables.append("**execute_sharded, by the number of arguments**\n\n" + table(header, rows))
    for count, timing in timings.items():
        text = f"execute, arguments: {count}: at most 0.3× of jaxlib"
        report.aims.append(Aim(text, timing[OURS].ratio_to(timing[RAW]), 0.3))
    rates = {who: [calls_per_second(makers[1][who], threads, seconds) for threads in THREADS] for who in (OURS, RAW)}
    rows = [(who, *(f"{rate:,.0f}" for rate in rates[who])) for who in (OURS, RAW)]
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    report.tables.append(
        f"**Executions a second of all threads together, one argument, {'with' if has_gil else 'without'} the GIL**\n\n"
        + table(["threads", *map(str, THREADS)], rows)
    )
    if not has_gil and (os.cpu_count() or 1) >= max(THREADS):
        report.aims.append(Aim("8 threads: at most 1/5 of the time of one", rates[OURS][0] / rates[OURS][-1], 0.2))


def _beyond(timings: dict[str, Timing], name: str) -> float:
    """Return the time of a call less that of an empty one, in the round where other work disturbed both least."""
    return max(min(timings[name].rounds) - min(timings[EMPTY].rounds), 0.0)


def _measure_transfers(report: Report, library: Path, stack: contextlib.ExitStack, rounds: int) -> None:
    client, rival = pjrt.load_plugin(library).client(), RawPluginClient(library)
    pure = None if importlib.util.find_spec("pypjrt") is None else _ctypes_device(library, stack)
    measured = {
        size: {way: take_turns(case, rounds=rounds) for way, case in transfers(client, rival, pure, size).items()}
        for size in SIZES
    }
    rows = []
    for way in measured[SIZES[0]]:
        rows += [
            (way, name, *(duration(measured[size][way][name].median) for size in SIZES))
            for name in measured[SIZES[0]][way]
        ]
        ratios = (measured[size][way][OURS].ratio_to(measured[size][way][RAW]) for size in SIZES)
        rows.append((way, "pjrt takes, of jaxlib", *(f"{ratio:.2f}×" for ratio in ratios)))
    header = ["", "", *(f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB" for size in SIZES)]
    report.tables.append("**A copy, to its end**\n\n" + table(header, rows))


if __name__ == "__main__":
    main(measure)
