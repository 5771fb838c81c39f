"""Time the beginning of a job of 2, 4 and 8 processes: ``pjrt.distributed``, and jaxlib used directly, in one run.

``python -m benchmarks.join RANK COUNT ADDRESS RAW_PORTS`` on this module is one of the processes.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from jaxlib import _jax

from benchmarks.side_by_side import Aim, Report, Timing, main, timing_table
from pjrt import distributed

COUNTS = (2, 4, 8)
OURS, THEIRS = "pjrt", "raw jaxlib"
AIM = 1.1


def join_raw(rank: int, count: int, port: int) -> Callable[[], None]:
    """Begin a job with jaxlib's service and client; return the function that ends it."""
    service = _jax.get_distributed_runtime_service(f"127.0.0.1:{port}", count) if rank == 0 else None
    client = _jax.get_distributed_runtime_client(f"127.0.0.1:{port}", rank, init_timeout=60, use_compression=True)
    client.connect()

    def end() -> None:
        client.shutdown()
        if service is not None:
            service.shutdown()

    return end


def work(rank: int, count: int, address: str, raw_ports: Sequence[int]) -> None:
    """Be one of the processes; the first one prints the seconds of each contestant in each round."""
    outer = distributed.initialize(address, count, rank)
    noted: dict[str, list[float]] = {OURS: [], THEIRS: []}
    chance = random.Random(0)
    for number, port in enumerate(raw_ports):
        for contestant in chance.sample(list(noted), len(noted)):
            outer.barrier(f"{number} {contestant}")
            start = time.perf_counter()
            if contestant == OURS:
                end = distributed.join(outer.store, rank, count, name=f"round {number}").shutdown
            else:
                end = join_raw(rank, count, port)
            seconds = time.perf_counter() - start
            end()
            if number:
                noted[contestant].append(seconds)
    distributed.shutdown()
    if rank == 0:
        print("\ntimes " + json.dumps(noted), flush=True)


def measure(quick: bool) -> Report:
    """Start the processes, and compare."""
    report = Report(
        "Join a job",
        "The seconds until a job of several processes of one machine has begun, in process 0, from the moment when all "
        "processes are ready to begin. `pjrt` finds a port and meets through a store; raw jaxlib has a port that is "
        "given. The processes share the processors of the machine.",
    )
    for count in COUNTS:
        timings = _time(count, 4 if quick else 11)
        report.tables += [f"### {count} processes", timing_table(timings, ours=OURS)]
        ratio = timings[OURS].ratio_to(timings[THEIRS])
        report.aims.append(Aim(f"{count} processes join within {AIM}x of raw jaxlib's time", ratio, AIM))
    return report


def _time(count: int, rounds: int) -> dict[str, Timing]:
    ports = _free_ports(rounds + 1)
    arguments = [str(count), f"127.0.0.1:{ports[0]}", ",".join(map(str, ports[1:]))]
    commands = [[sys.executable, "-m", "benchmarks.join", str(rank), *arguments] for rank in range(count)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a process of the benchmark failed")
    line = next(line for line in outputs[0].splitlines() if line.startswith("times "))
    return {name: Timing(tuple(seconds)) for name, seconds in json.loads(line.partition(" ")[2]).items()}


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


if __name__ == "__main__":
    if len(sys.argv) > 4:
        work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], [int(port) for port in sys.argv[4].split(",")])
    else:
        main(measure)
