"""An all-reduce among devices in Python of two processes, beside one among XLA's CPU devices by jaxlib itself.

    python -m benchmarks.collectives [--quick]

Each process has two devices. Both contestants exchange values over gloo on the loopback. The processes take the same
turns, so a call takes as long as the slower of them needs.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.side_by_side import Aim, Report, Timing, main, timing_table

PROCESSES, DEVICES = 2, 2
COUNT = PROCESSES * DEVICES
SIZES = {"4 B": 1, "64 MiB": 16 << 20}
OURS, RIVAL = "reference", "raw jaxlib"
AIM = 2.0

Call = Callable[[], object]


def measure(quick: bool) -> Report:
    """Start the processes, and compare."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    commands = [[sys.executable, "-m", "benchmarks.collectives", "worker", address, str(n)] for n in range(PROCESSES)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "QUICK": "1" if quick else ""}
    processes = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True, env=environment) for c in commands]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a process of the benchmark failed")
    line = next(line for line in outputs[0].splitlines() if "times {" in line)
    times = json.loads(line.partition("times ")[2])
    report = Report(
        "Collectives between processes",
        f"An all-reduce of f32 among {COUNT} devices, {DEVICES} in each of {PROCESSES} processes of one machine, over "
        f"gloo: devices of `{OURS}`, whose collectives go through XLA's CPU device, and devices of XLA's CPU client, "
        "called through jaxlib. The times are those of process 0.",
    )
    for size, rounds in times.items():
        timings = {name: Timing(tuple(seconds)) for name, seconds in rounds.items()}
        report.tables += [f"### {size}", timing_table(timings, ours=OURS)]
        ratio = timings[OURS].ratio_to(timings[RIVAL])
        report.aims.append(Aim(f"an all-reduce of {size} within {AIM}x of raw jaxlib's", ratio, AIM))
    return report


def work(address: str, rank: int) -> None:
    """Take the turns of one process."""
    from pjrt import distributed

    job = distributed.initialize(address, PROCESSES, rank)
    rounds = 3 if os.environ["QUICK"] else 9
    times: dict[str, dict[str, list[float]]] = {}
    rivals = {OURS: ours(), RIVAL: raw(job)}
    for label, size in SIZES.items():
        contestants = {name: make(size) for name, make in rivals.items()}
        count = 200 if size == 1 else 2
        noted: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(rounds + 1):
            for name, call in contestants.items():
                call()
                start = time.perf_counter()
                for _ in range(count):
                    call()
                if number:
                    noted[name].append((time.perf_counter() - start) / count)
        times[label] = noted
    if rank == 0:
        print("\ntimes " + json.dumps(times), flush=True)


def program(size: int) -> str:
    """Return the program."""
    return f"""module @sum {{ func.func @main(%x: tensor<{size}xf32>) -> tensor<{size}xf32> {{
      %0 = "stablehlo.all_reduce"(%x) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
      }}) {{replica_groups = dense<[{list(range(COUNT))}]> : tensor<1x{COUNT}xi64>}}
        : (tensor<{size}xf32>) -> tensor<{size}xf32>
      return %0 : tensor<{size}xf32> }} }}"""


def ours() -> Callable[[int], Call]:
    """Return a function that makes the all-reduce of a size on the devices of `reference`."""
    import numpy as np

    import pjrt

    client = pjrt.client("reference", num_devices=DEVICES)

    def make(size: int) -> Call:
        executable = client.compile(program(size), pjrt.CompileOptions(num_replicas=COUNT))
        value = np.ones(size, np.float32)
        rows = [[client.buffer_from_host(value, device=device)] for device in executable.addressable_devices]

        def call() -> None:
            for (result,) in executable.execute(rows):
                result.ready().result()

        return call

    return make


def raw(job: object) -> Callable[[int], Call]:
    """Return a function that makes the all-reduce of a size on the devices of XLA's CPU client."""
    import numpy as np
    from jaxlib import _jax, xla_client

    from benchmarks.raw_jaxlib import Aval, result_handler

    store = job.runtime_client
    client = _jax.get_tfrt_cpu_client(
        asynchronous=True,
        distributed_client=store,
        node_id=job.process_index,
        num_nodes=PROCESSES,
        num_devices=DEVICES,
        collectives=_jax.make_gloo_tcp_collectives(distributed_client=store),
    )
    devices = sorted(client.devices(), key=lambda device: device.id)

    def sharding(chosen: list[object]) -> object:
        return _jax.GSPMDSharding(_jax.DeviceList(tuple(chosen)), xla_client.HloSharding.replicate())

    def make(size: int) -> Call:
        options = xla_client.CompileOptions()
        options.num_replicas = COUNT
        options.executable_build_options.num_replicas = COUNT
        ids = np.array([[device.id] for device in devices])
        options.executable_build_options.device_assignment = xla_client.DeviceAssignment.create(ids)
        executable = client.compile_and_load(program(size), _jax.DeviceList(tuple(devices)), options)
        aval, whole, value = Aval((size,), np.dtype("f4")), sharding(devices), np.ones(size, np.float32)
        copies = xla_client.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
        shards = [
            _jax.batched_device_put(aval, sharding([device]), [value], [device], True, True, copies, True)
            for device in client.local_devices()
        ]
        argument = _jax.ArrayImpl(aval, whole, shards, True, True)
        handler = result_handler(aval, whole)

        def call() -> None:
            (result,) = executable.execute_sharded([argument]).consume_with_handlers([handler])
            result.block_until_ready()

        return call

    return make


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        main(measure)
