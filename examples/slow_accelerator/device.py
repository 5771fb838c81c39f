"""A simulated accelerator: little memory of its own, and slow. Its numbers are those of the reference interpreter.

    python examples/slow_accelerator/device.py

Copies over its bus and computations take time, in proportion. A buffer that does not fit into its memory is refused, as
on a real device. Programs do not notice the simulation: everything is asynchronous, and JAX can run on it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import pjrt
from pjrt.host import Compiled, HostClient


@dataclass(frozen=True)
class Machine:
    """The simulated machine.

    Attributes:
        memory: bytes of memory of each device.
        flops: floating-point operations a second.
        bandwidth: bytes a second between memory and the arithmetic.
        launch: seconds to begin a program.
    """

    memory: int = 1 << 20
    flops: float = 1e9
    bandwidth: float = 1e9
    launch: float = 1e-4

    def seconds(self, cost: dict[str, float]) -> float:
        """Return how long a program takes: arithmetic and memory work side by side, and the slower one counts."""
        return self.launch + max(cost.get("flops", 0) / self.flops, cost.get("bytes accessed", 0) / self.bandwidth)


def make_client(memory: int = Machine.memory, slowness: float = 1.0, **options: Any) -> pjrt.Client:
    """Make a client of the device; frameworks call it.

    Args:
        memory: bytes of memory of each device.
        slowness: the factor of all simulated times; 0 simulates no time.
        options: what ``pjrt.host.HostClient`` takes, such as ``num_devices``.
    """
    machine = Machine(memory=memory)
    inner = pjrt.client("reference")

    def compile(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        executable = inner.compile(program)
        cost = dict(executable.cost_analysis())
        seconds = machine.seconds(cost) * slowness

        def run(*arrays: Any) -> list[Any]:
            time.sleep(seconds)
            return [np.asarray(result) for result in executable(*arrays)]

        outputs = map(pjrt.ShapeSpec, executable.output_shapes, executable.output_element_types)
        return Compiled(run=run, name=executable.name, outputs=list(outputs), cost=cost)

    return HostClient("slow_accelerator", compile=compile, memory_limit={"device": memory}, **options)


def main() -> None:
    with make_client(memory=1 << 16) as client:
        device = client.addressable_devices[0]
        executable = client.compile("""
        func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
          %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
              : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
          return %0 : tensor<64x64xf32>
        }""")
        x = client.buffer_from_host(np.eye(64, dtype=np.float32))
        begin = time.perf_counter()
        (y,) = executable(x)
        returned = time.perf_counter()
        y.ready().result()
        print(f"the call returned after {1e3 * (returned - begin):.2f} ms, the value came after "
              f"{1e3 * (time.perf_counter() - begin):.2f} ms")  # fmt: skip
        print("memory:", device.memory_stats())
        kept = [x, y]
        try:
            while True:
                kept.append(client.buffer_from_host(np.zeros((64, 64), np.float32)))
        except pjrt.ResourceExhaustedError as error:
            print("full:", error)


if __name__ == "__main__":
    main()
