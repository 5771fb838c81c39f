"""Time the reference device against the StableHLO project's interpreter in C++: realistic programs, the same inputs.

Both have one thread: numpy's BLAS would start more, and on a busy machine it would wait for them longer than it
computes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported

import jax
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import pjrt
from benchmarks.models import resnet50, transformer
from benchmarks.side_by_side import Aim, Report, Timing, duration, main, table, take_turns
from pjrt.stablehlo import read, to_module

OURS, THEIRS = "reference", "eval_module"


@dataclasses.dataclass(frozen=True)
class Case:
    """A program with its arguments."""

    name: str
    text: str
    arguments: tuple[np.ndarray, ...]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def function(arguments: dict[str, str], result: str, body: str, value: str = "%r") -> str:
    parameters = ", ".join(f"%{name}: {type_}" for name, type_ in arguments.items())
    return f"func.func @main({parameters}) -> {result} {{\n{body}\n  return {value} : {result}\n}}"


def elementwise(side: int) -> Case:
    t = f"tensor<{side}x{side}xf32>"
    body = f"""
  %a = stablehlo.tanh %x : {t}
  %b = stablehlo.exponential %a : {t}
  %c = stablehlo.multiply %b, %x : {t}
  %d = stablehlo.sine %c : {t}
  %e = stablehlo.add %d, %a : {t}
  %r = stablehlo.logistic %e : {t}"""
    return Case("chain of 6 elementwise ops", function({"x": t}, t, body), (normal(side, side),))


def reduction(side: int) -> Case:
    t, row = f"tensor<{side}x{side}xf32>", f"tensor<{side}xf32>"
    body = f"""
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%x init: %n) applies stablehlo.maximum across dimensions = [1] : ({t}, tensor<f32>) -> {row}
  %b = stablehlo.broadcast_in_dim %m, dims = [0] : ({row}) -> {t}
  %d = stablehlo.subtract %x, %b : {t}
  %e = stablehlo.exponential %d : {t}
  %r = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1] : ({t}, tensor<f32>) -> {row}"""
    return Case("logsumexp of rows", function({"x": t}, row, body), (normal(side, side),))


def matmul(side: int) -> Case:
    t = f"tensor<{side}x{side}xf32>"
    body = f"  %r = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({t}, {t}) -> {t}"
    return Case(f"matmul {side}", function({"x": t, "y": t}, t, body), (normal(side, side), normal(side, side)))


def convolution(side: int, channels: int) -> Case:
    x = f"tensor<1x{side}x{side}x{channels}xf32>"
    k = f"tensor<3x3x{channels}x{channels}xf32>"
    body = f"""
  %r = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [1, 1], pad = [[1, 1], [1, 1]]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({x}, {k}) -> {x}"""
    arguments = normal(1, side, side, channels), normal(3, 3, channels, channels)
    return Case(f"convolution {side}×{side}×{channels}", function({"x": x, "k": k}, x, body), arguments)


def attention(heads: int, length: int, width: int) -> Case:
    t, s = f"tensor<{heads}x{length}x{width}xf32>", f"tensor<{heads}x{length}x{length}xf32>"
    row = f"tensor<{heads}x{length}xf32>"
    body = f"""
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : ({t}, {t}) -> {s}
  %m = stablehlo.reduce(%s init: %n) applies stablehlo.maximum across dimensions = [2] : ({s}, tensor<f32>) -> {row}
  %b = stablehlo.broadcast_in_dim %m, dims = [0, 1] : ({row}) -> {s}
  %d = stablehlo.subtract %s, %b : {s}
  %e = stablehlo.exponential %d : {s}
  %u = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [2] : ({s}, tensor<f32>) -> {row}
  %c = stablehlo.broadcast_in_dim %u, dims = [0, 1] : ({row}) -> {s}
  %p = stablehlo.divide %e, %c : {s}
  %r = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : ({s}, {t}) -> {t}"""
    arguments = tuple(normal(heads, length, width) for _ in range(3))
    return Case(f"attention {heads}×{length}×{width}", function({"q": t, "k": t, "v": t}, t, body), arguments)


def scatter(rows: int, width: int, updates: int) -> Case:
    t, u = f"tensor<{rows}x{width}xf32>", f"tensor<{updates}x{width}xf32>"
    body = f"""
  %r = "stablehlo.scatter"(%x, %i, %u) ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
    : ({t}, tensor<{updates}x1xi32>, {u}) -> {t}"""
    indices = np.random.default_rng(0).integers(0, rows, (updates, 1), dtype=np.int32)
    types = {"x": t, "i": f"tensor<{updates}x1xi32>", "u": u}
    return Case(
        f"scatter-add of {updates} rows",
        function(types, t, body),
        (normal(rows, width), indices, normal(updates, width)),
    )


def sort(rows: int, width: int) -> Case:
    t = f"tensor<{rows}x{width}xf32>"
    body = f"""
  %r = "stablehlo.sort"(%x) ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }}) {{dimension = 1 : i64, is_stable = true}} : ({t}) -> {t}"""
    return Case(f"sort {rows}×{width}", function({"x": t}, t, body), (normal(rows, width),))


def loop(steps: int, side: int) -> Case:
    t = f"tensor<{side}x{side}xf32>"
    body = f"""
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<{steps}> : tensor<i32>
  %half = stablehlo.constant dense<0.5> : {t}
  %w:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, {t}
    cond {{
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    }} do {{
      %j = stablehlo.add %i, %one : tensor<i32>
      %a = stablehlo.multiply %v, %half : {t}
      %b = stablehlo.tanh %a : {t}
      %c = stablehlo.add %b, %x : {t}
      stablehlo.return %j, %c : tensor<i32>, {t}
    }}"""
    return Case(f"while of {steps} steps on {side}×{side}", function({"x": t}, t, body, "%w#1"), (normal(side, side),))


def cases(quick: bool) -> list[Case]:
    if quick:
        return [
            elementwise(32),
            reduction(32),
            matmul(16),
            convolution(8, 4),
            attention(2, 16, 8),
            scatter(32, 8, 32),
            sort(8, 64),
            loop(10, 16),
        ]
    return [
        elementwise(512),
        reduction(512),
        matmul(128),
        convolution(28, 16),
        attention(4, 64, 32),
        scatter(1024, 64, 1024),
        sort(64, 1024),
        loop(100, 64),
    ]


def ours(case: Case) -> Callable[[], object]:
    """Return a call that runs the program on our device, up to the result on the host."""
    client = pjrt.client("reference")
    executable = client.compile(case.text)
    buffers = [client.buffer_from_host(array) for array in case.arguments]

    def run() -> object:
        (result,) = executable(*buffers)
        result.ready().result()
        return result

    return run


def theirs(case: Case) -> Callable[[], object]:
    """Return a call that runs the program in the C++ interpreter; parsing and converting arguments are not timed."""
    with to_module(read(case.text), trusted=True) as module, ir.Location.unknown():
        types = [argument.type for argument in module.body.operations[0].arguments]
        attributes = [_attribute(array, type_) for array, type_ in zip(case.arguments, types, strict=True)]

    def run() -> object:
        with module.context:
            return stablehlo.eval_module(module, attributes)

    return run


def _attribute(array: np.ndarray, type_: ir.Type) -> ir.DenseElementsAttr:
    """Return an array as an attribute, by its bits: MLIR does not read arrays of ``ml_dtypes``."""
    return ir.DenseElementsAttr.get(np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}"), type=type_)


def check(case: Case) -> None:
    """Check that both compute the same; the tolerance of 1e-3 allows sums in another order."""
    result = np.asarray(ours(case)())
    expected = np.asarray(theirs(case)()[0])
    if not np.allclose(result, expected, rtol=1e-3, atol=1e-3):
        raise RuntimeError(f"{case.name}: the results differ by {np.abs(result - expected).max()}")


def measure(quick: bool) -> Report:
    """Compare the reference device with the StableHLO project's interpreter."""
    report = Report(
        "Reference device",
        'Each program on `pjrt.client("reference")`, from buffers to a ready result, and in `stablehlo.eval_module`, '
        "the interpreter in C++ that jaxlib brings. The latter takes seconds, so it runs in fewer rounds. Compiling is "
        "timed in seconds of the processor, for chains of elementwise operations.",
    )
    ratios, rows = [], []
    for case in cases(quick):
        check(case)
        mine = take_turns({OURS: ours(case)}, rounds=5 if quick else 15)[OURS]
        other = Timing(tuple(_seconds(theirs(case)) for _ in range(1 if quick else 3)))
        ratios.append(other.median / mine.median)
        rows.append((case.name, duration(mine.median), duration(other.median), f"{ratios[-1]:,.0f}×"))
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    rows.append(("geometric mean", "", "", f"{mean:,.0f}×"))
    report.tables.append(table(["", OURS, THEIRS, "faster by"], rows))
    step = seconds_a_step()
    report.tables.append(table(["", "a step"], [("a loop of 1000 rounds with 21 scalar additions", duration(step))]))
    compiling = {count: compilation(count, 3 if quick else 11) for count in (2, 100, 1_000, 10_000)}
    lines = [(f"{count:,}", duration(seconds), duration(seconds / count)) for count, seconds in compiling.items()]
    report.tables.append(table(["operations of a program", "to compile it", "for each"], lines))
    report.aims.append(Aim("a program of 2 operations compiled in 2 ms", compiling[2] * 1e3, 2))
    report.aims.append(Aim("a program of 10,000 operations compiled in 2 s", compiling[10_000], 2))
    report.aims.append(Aim("10 times the operations, 12 times as long", compiling[10_000] / compiling[1_000], 12))
    report.aims.append(Aim("2,000× faster than the C++ interpreter, geometric mean", mean, 2000, at_least=True))
    report.aims.append(Aim("under 3 µs a step for tiny ops", step * 1e6, 3))
    memory = list(memories(quick))
    lines = [
        (name, f"{live / 1e6:.4g} MB", f"{peak / 1e6:.4g} MB", f"{peak / live:.2f}×") for name, live, peak in memory
    ]
    report.tables.append(table(["", "live arrays at most", "memory at most", ""], lines))
    worst = max(peak / live for _, live, peak in memory)
    report.aims.append(Aim("memory at most 1.5× of the live arrays", worst, 1.5))
    return report


def seconds_a_step() -> float:
    """Return the seconds for each step in loops of scalar ops, where everything is overhead."""
    body = "\n".join(f"      %b{i + 1} = stablehlo.add %b{i}, %b{i} : tensor<f32>" for i in range(20))
    text = f"""
func.func @main(%x: tensor<f32>) -> tensor<f32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<1000> : tensor<i32>
  %w:2 = stablehlo.while(%i = %zero, %b0 = %x) : tensor<i32>, tensor<f32>
    cond {{
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    }} do {{
      %j = stablehlo.add %i, %one : tensor<i32>
{body}
      stablehlo.return %j, %b20 : tensor<i32>, tensor<f32>
    }}
  return %w#1 : tensor<f32>
}}"""
    call = ours(Case("", text, (np.float32(1),)))
    timing = take_turns({OURS: call}, rounds=7)[OURS]
    return timing.median / (1000 * 22)


def compilation(count: int, rounds: int) -> float:
    """Return the processor's seconds to compile a chain of elementwise operations, another program each time."""
    client, names = pjrt.client("reference"), itertools.count()
    t = "tensor<4xf32>"
    lines = [f"  %v0 = stablehlo.add %x, %x : {t}"]
    for i in range(1, count):
        operation = ("add", "multiply", "subtract", "maximum")[i % 4]
        lines.append(f"  %v{i} = stablehlo.{operation} %v{i - 1}, %x : {t}")
    text = function({"x": t}, t, "\n".join(lines), f"%v{count - 1}")

    def call() -> object:
        return client.compile(f"module @m{next(names)} {{\n{text}\n}}")

    return take_turns({OURS: call}, rounds=rounds, clock=time.process_time)[OURS].median


def memories(quick: bool) -> Iterator[tuple[str, int, int]]:
    """Return models with the bytes of their live arrays, where most are, and the bytes that numpy holds at most."""
    models = {"transformer, training step": (transformer.train_step, (transformer.state(), transformer.tokens(1)))}
    if not quick:
        models["ResNet-50"] = (resnet50.inference, (resnet50.weights(), resnet50.images(4)))
    client = pjrt.client("reference")
    for name, (function_, arguments) in models.items():
        executable = client.compile(jax.jit(function_).lower(*arguments).as_text())
        buffers = [client.buffer_from_host(np.asarray(leaf)) for leaf in jax.tree.leaves(arguments)]
        tracemalloc.start()
        for result in executable(*buffers):
            result.ready().result()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        inputs = sum(buffer.on_device_size for buffer in buffers)
        yield name, executable.memory_stats().peak_memory_in_bytes, inputs + peak


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(measure)
