"""Time all-reduces between two processes: of the ``cpu`` device in a job, and of jaxlib used directly, in one run.

``python -m benchmarks.distributed RANK ADDRESS RAW_ADDRESS ROUNDS`` on this module is one of the two processes.
"""

from __future__ import annotations

import gc
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import pjrt
from benchmarks.raw_jaxlib import RawJob
from benchmarks.side_by_side import Aim, Report, Timing, main, timing_table
from pjrt import distributed

PROCESSES = 2
SIZES = {"4 B": 1, "64 MiB": 1 << 24}
COUNTS = {"4 B": 200, "64 MiB": 2}
"""The number of all-reduces in a round. It is fixed: the processes make the same calls in the same order."""
OURS, THEIRS = "pjrt", "raw jaxlib"


def program(size: int) -> str:
    """Return the program that sums an array over the processes."""
    type_ = f"tensor<{size}xf32>"
    return f"""func.func @main(%x: {type_}) -> {type_} {{
      %0 = "stablehlo.all_reduce"(%x) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
      }}) {{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
           channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}} : ({type_}) -> {type_}
      return %0 : {type_}
    }}"""


def our_call(client: pjrt.Client, size: int) -> Callable[[], np.ndarray]:
    executable = client.compile(program(size), pjrt.CompileOptions(num_replicas=PROCESSES))
    rows = [[client.buffer_from_host(np.full(size, client.process_index + 1, "f4"))]]

    def call() -> np.ndarray:
        ((result,),) = executable.execute(rows)
        result.ready().result()
        return result

    return call


def work(rank: int, address: str, raw_address: str, rounds: int) -> None:
    """Be one of the processes; the first one prints the seconds of each contestant in each round."""
    raw = RawJob(raw_address, rank, PROCESSES)
    job = distributed.initialize(address, PROCESSES, rank)
    client = pjrt.client("cpu")
    chance = random.Random(0)
    seconds: dict[str, dict[str, list[float]]] = {}
    for name, size in SIZES.items():
        argument = np.full(size, rank + 1, "f4")
        calls = {OURS: our_call(client, size), THEIRS: raw.call(program(size), argument)}
        for contestant, call in calls.items():
            (part,) = call()._arrays if contestant == THEIRS else [call()]
            np.testing.assert_array_equal(np.asarray(part), np.full(size, 3, "f4"), err_msg=contestant)
        noted = seconds[name] = {contestant: [] for contestant in calls}
        gc.disable()
        for number in range(rounds + 1):
            for contestant in chance.sample(list(calls), len(calls)):
                job.barrier(f"{name} {number} {contestant}")
                call, count = calls[contestant], COUNTS[name]
                begin = time.perf_counter()
                for _ in range(count):
                    call()
                if number:  # the first round warms up
                    noted[contestant].append((time.perf_counter() - begin) / count)
        gc.enable()
    if rank == 0:
        print(json.dumps(seconds), flush=True)
    client.close()
    distributed.shutdown()
    raw.close()


def measure(quick: bool) -> Report:
    """Time the contestants in two processes."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    command = [sys.executable, "-m", "benchmarks.distributed"]
    processes = [
        subprocess.Popen([*command, str(rank), *addresses, "3" if quick else "15"], stdout=subprocess.PIPE, text=True)
        for rank in range(PROCESSES)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("a process of the job failed; see its output")
    # gloo prints lines of its own.
    seconds = json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))
    report = Report(
        "Jobs of several processes",
        "An all-reduce between two processes of this machine, one device each: the `cpu` device after "
        "`pjrt.distributed.initialize()`, and jaxlib's client over its own coordination service. Both use gloo.",
        [],
    )
    for name in SIZES:
        timings = {contestant: Timing(tuple(rounds)) for contestant, rounds in seconds[name].items()}
        report.tables += [f"All-reduce of {name}:", timing_table(timings, ours=OURS)]
        report.aims.append(Aim(f"{name}: within 1.1× of raw jaxlib", timings[OURS].ratio_to(timings[THEIRS]), 1.1))
    return report


def free_port() -> int:
    """Return a port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    if len(sys.argv) > 3:
        work(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(measure)
