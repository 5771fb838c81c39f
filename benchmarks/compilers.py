"""Which compiler is best for a program: the same programs on XLA, IREE, OpenVINO and the reference interpreter.

Needs the extra `iree`, OpenVINO, and the example package `examples/openvino_device`, which need not be installed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "openvino_device" / "src"))

import pjrt_openvino

import pjrt
from benchmarks.lowering import Lowered, lower
from benchmarks.models import resnet50
from benchmarks.side_by_side import Aim, Report, Timing, duration, main, table, take_turns, timing_table
from pjrt.models.benchmark import Benchmark, DeviceBenchmark

WIDTH, HEADS = 512, 8


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def block(x: jax.Array, qkv: jax.Array, out: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Return a transformer block: attention, and two layers with GELU."""
    centered = x - x.mean(-1, keepdims=True)
    normal = centered * jax.lax.rsqrt(jnp.mean(centered * centered, -1, keepdims=True) + 1e-5)
    query, key, value = jnp.moveaxis((normal @ qkv).reshape(*x.shape[:2], 3, HEADS, -1), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (WIDTH // HEADS) ** 0.5
    attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    x = x + attended.reshape(x.shape) @ out
    return x + jax.nn.gelu(x @ up) @ down


def chain(x: jax.Array) -> jax.Array:
    """Return sixteen elementwise functions, one of the other."""
    for _ in range(4):
        x = jnp.tanh(x * 1.5 + 0.25) * jnp.exp(-x * x)
    return x


def cholesky(size: int) -> Lowered:
    """Return a program with the operation; JAX would call LAPACK."""
    type_ = f"tensor<{size}x{size}xf32>"
    text = f"func.func @main(%x: {type_}) -> {type_} {{ %0 = stablehlo.cholesky %x : {type_} return %0 : {type_} }}"
    x = random(size, size)
    return Lowered(jnp.linalg.cholesky, text.encode(), [x @ x.T + size * np.eye(size, dtype="f")], [], 0)


def block_arguments() -> list[np.ndarray]:
    scale = np.float32(WIDTH**-0.5)
    shapes = (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
    return [random(2, 256, WIDTH), *(random(*shape) * scale for shape in shapes)]


PROGRAMS: dict[str, Callable[[], Lowered]] = {
    "ResNet-50, one image": lambda: lower(resnet50.inference, resnet50.weights(), resnet50.images(1)),
    "Transformer block, 2 × 256 × 512": lambda: lower(block, *block_arguments()),
    "Matrix product, 1024 × 1024": lambda: lower(jnp.matmul, random(1024, 1024), random(1024, 1024)),
    "Elementwise chain of a million": lambda: lower(chain, random(1024, 1024)),
    "Sort of 16,384": lambda: lower(jnp.sort, random(1 << 14)),
    "Cholesky factor, 256 × 256": lambda: cholesky(256),
    "Tiny: tanh(x) + 1 of four": lambda: lower(lambda x: jnp.tanh(x) + 1, random(4)),
}
QUICK = ("Transformer block, 2 × 256 × 512", "Cholesky factor, 256 × 256")
OWN_RUNNER = ("ResNet-50, one image", "Matrix product, 1024 × 1024")


def measure(quick: bool) -> Report:
    """Measure every program on every device, then OpenVINO's device beside OpenVINO's own runner."""
    programs = {name: make() for name, make in PROGRAMS.items() if not quick or name in QUICK}
    clients = {name: pjrt.client(name) for name in ("cpu", "iree")}
    clients |= {"openvino": pjrt_openvino.make_client(), "reference": pjrt.client("reference")}
    measured: dict[str, Benchmark] = {}
    agreement: dict[str, pjrt.models.Comparison] = {}
    for name, program in programs.items():
        print(name, file=sys.stderr)
        devices, arguments = list(clients.values()), program.arguments
        measured[name] = pjrt.bench(program.code, devices, arguments, seconds=0.5 if quick else 1.5)
        agreement[name] = pjrt.compare(program.code, devices, arguments, find_first=False)
        print(*(time_of(measured[name], label) for label in clients), sep=", ", file=sys.stderr)
    header = ["program", *clients]
    tables = [
        "The shortest time of an execution, and in brackets that of compiling:",
        table(header, ([name, *(time_of(each, label) for label in clients)] for name, each in measured.items())),
        "Operations that the fallback runs, of all:",
        table(header, ([name, *(fallback_of(each, label) for label in clients)] for name, each in measured.items())),
        "Whether results agree with those of the reference interpreter, within the tolerances of `pjrt compare`:",
        table(header, ([name, *(agrees(each, label) for label in clients)] for name, each in agreement.items())),
    ]
    report = Report("Compilers side by side", "The same StableHLO on each device.", tables)
    for name in OWN_RUNNER:
        if not quick:
            timings = beside_own_runner(programs[name])
            ratio = timings["pjrt"].ratio_to(timings["OpenVINO"])
            report.tables += [f"{name}, on the same compiled model:", timing_table(timings, ours="pjrt")]
            reason = "Its arguments are handed over in Python, some microseconds for each."
            report.aims.append(Aim(f"{name}: within 5% of OpenVINO's own runner", ratio, 1.05, reason=reason))
    return report


def device_of(benchmark: Benchmark, label: str) -> DeviceBenchmark | None:
    return next((device for device in benchmark.devices if device.label == label), None)


def time_of(benchmark: Benchmark, label: str) -> str:
    device = device_of(benchmark, label)
    return (
        "cannot run it"
        if device is None
        else f"{duration(device.execute.percentile(0))} ({device.compile_seconds:.2g} s)"
    )


def fallback_of(benchmark: Benchmark, label: str) -> str:
    device = device_of(benchmark, label)
    if device is None or device.operations is None:
        return "-"
    names = ", ".join(f"{count} `{name.removeprefix('stablehlo.')}`" for name, count in device.fallback.items())
    return f"{sum(device.fallback.values())} of {device.operations}{': ' if names else ''}{names}"


def agrees(comparison: pjrt.models.Comparison, label: str) -> str:
    if label in comparison.errors:
        return "failed"
    if label == comparison.judge:
        return "judge"
    differing = [each.difference for each in comparison.disagreements if each.device == label]
    places = sum(difference.mismatches for difference in differing)
    return f"but for {places} of {sum(math.prod(d.shape) for d in differing)}" if differing else "yes"


def beside_own_runner(program: Lowered) -> dict[str, Timing]:
    """Time the device beside a request of OpenVINO's for the same compiled model, on the same memory."""
    models: list[Recorded] = []

    class Recorded(pjrt_openvino.Model):
        """A model that keeps its last arguments: a run has its own order of them."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            models.append(self)

        def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
            self.arrays = arrays
            return super().__call__(*arrays)

    original, pjrt_openvino.Model = pjrt_openvino.Model, Recorded
    try:
        client = pjrt_openvino.make_client()
        executable = client.compile(program.code)
    finally:
        pjrt_openvino.Model = original
    (model,) = models  # the whole program is one model
    buffers = [client.buffer_from_host(array) for array in program.arguments]

    def ours() -> None:
        for result in executable(*buffers):
            result.ready().result()

    ours()
    request = model.compiled.create_infer_request()
    layouts = zip(model.parameters, model.arrays, strict=True)
    tensors = {number: layout.tensor(array) for number, (layout, array) in enumerate(layouts)}

    def theirs() -> None:
        request.infer(tensors, share_outputs=True)

    return take_turns({"pjrt": ours, "OpenVINO": theirs}, round_seconds=0.2)


if __name__ == "__main__":
    main(measure)
