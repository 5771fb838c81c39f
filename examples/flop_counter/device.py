"""A device that computes with XLA's CPU compiler and counts, for each operation, FLOPs and bytes.

python examples/flop_counter/device.py
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

import pjrt
from pjrt import stablehlo
from pjrt.host import Compiled, HostClient
from pjrt.stablehlo import Operation, TensorType, Value
from pjrt.stablehlo.facts.signatures import donations

TRANSCENDENTAL = {"exponential", "log", "logistic", "tanh", "sine", "cosine", "power", "rsqrt", "sqrt", "cbrt", "atan2"}
DATA_MOVEMENT = {
    "broadcast_in_dim",
    "reshape",
    "transpose",
    "slice",
    "concatenate",
    "constant",
    "iota",
    "pad",
    "gather",
}


@dataclass
class Count:
    """The cost of one kind of operation so far."""

    runs: int = 0
    flops: int = 0
    bytes: int = 0


class Counter:
    """Counts of all programs that ran, by operation; the body of a loop counts once for each run of the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.operations: dict[str, Count] = defaultdict(Count)

    def add(self, costs: list[tuple[str, int, int]]) -> None:
        with self._lock:
            for name, flops, size in costs:
                count = self.operations[name]
                count.runs += 1
                count.flops += flops
                count.bytes += size

    def table(self) -> str:
        rows = sorted(self.operations.items(), key=lambda item: -item[1].flops)
        lines = [f"{'operation':32}{'runs':>8}{'FLOPs':>14}{'bytes':>14}"]
        lines += [f"{name:32}{c.runs:8}{c.flops:14,}{c.bytes:14,}" for name, c in rows]
        return "\n".join(lines)


COUNTER = Counter()


def size(value: Value) -> int:
    return value.type.nbytes if isinstance(value.type, TensorType) and value.type.is_static else 0


def elements(value: Value) -> int:
    return value.type.size if isinstance(value.type, TensorType) and value.type.is_static else 0


def flops(operation: Operation) -> int:
    """Count the multiplications and additions of a contraction, and one for each element of other operations."""
    name = operation.name.removeprefix("stablehlo.")
    if name in DATA_MOVEMENT or not operation.results:
        return 0
    result = elements(operation.results[0])
    if name == "dot_general":
        contracted = operation.attribute("dot_dimension_numbers").lhs_contracting_dimensions
        lhs = operation.operands[0].type
        return 2 * result * math.prod(lhs.shape[d] for d in contracted)
    if name == "convolution":
        kernel = elements(operation.operands[1])
        features = operation.attribute("dimension_numbers").kernel_output_feature_dimension
        return 2 * result * kernel // operation.operands[1].type.shape[features]
    if name in ("reduce", "reduce_window"):
        return elements(operation.operands[0])
    return result


def make_client(**options: Any) -> pjrt.Client:
    """Make a client of the device; frameworks call it."""
    inner = pjrt.client("cpu")

    def compile(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        if options.partitioning.num_devices > 1:
            raise pjrt.UnimplementedError("flop_counter runs programs of one device")
        executable = inner.compile(program)
        parsed = stablehlo.parse(program)
        costs = [
            (op.name, flops(op), sum(map(size, op.operands)) + sum(map(size, op.results)))
            for op in parsed.walk()
            if op.name.startswith("stablehlo.") and op.name != "stablehlo.return"
        ]

        def run(*arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
            results = [np.asarray(result) for result in executable(*arrays)]
            COUNTER.add(costs)
            return results

        outputs = map(pjrt.ShapeSpec, executable.output_shapes, executable.output_element_types)
        aliases, donated = donations(parsed.entry.argument_attributes)
        return Compiled(run=run, name=executable.name, outputs=list(outputs), aliases=aliases, donated=donated)

    return HostClient("flop_counter", compile=compile, partitioning=stablehlo.partitioning_of, **options)


def main() -> None:
    with make_client() as client:
        executable = client.compile("""
        func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
          %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
              : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
          %1 = stablehlo.tanh %0 : tensor<64x16xf32>
          return %1 : tensor<64x16xf32>
        }""")
        generator = np.random.default_rng(0)
        x, w = generator.standard_normal((64, 32)).astype("f"), generator.standard_normal((32, 16)).astype("f")
        for _ in range(3):
            (y,) = executable(x, w)
            np.testing.assert_allclose(np.asarray(y), np.tanh(x @ w), rtol=1e-4, atol=1e-5)
    print(COUNTER.table())


if __name__ == "__main__":
    main()
