"""Time one execution of a tiny program: `x + 1` for a scalar that is on the device, and a sum with many arguments."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import pjrt
from benchmarks.raw_jaxlib import RawClient
from benchmarks.side_by_side import Aim, Call, Report, main, take_turns, timing_table

PROGRAM = """
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %y = stablehlo.add %x, %one : tensor<f32>
  return %y : tensor<f32>
}
"""
X = np.array(2, np.float32)
REASONS = {
    "returning": "What we add is a check of the arguments' types and a buffer object for each result.",
    "waiting": "Of what we add, 0.3 µs is `ready().result()`: it looks whether the client is alive, and asks jaxlib "
    "whether the result is there before it asks whether it failed; raw jaxlib's wait only asks the latter.",
}
MANY = (100, 1000)
LIMIT = 1.05
OURS, SHARDED, RAW, JIT = "pjrt exe(x)", "pjrt execute_sharded", "raw jaxlib", "jax.jit"
MODEL = "pjrt load_model"


def ours() -> tuple[Call, Call]:
    """Return our two ways to execute on one device: the short call and `execute_sharded`."""
    client = pjrt.client("cpu")
    executable = client.compile(PROGRAM)
    x = client.buffer_from_host(X)
    device = client.addressable_devices[0]
    return lambda: executable(x), lambda: executable.execute_sharded([x], device)


def raw() -> Call:
    """Return jaxlib's `execute_sharded` with result handlers, without jax."""
    client = RawClient()
    executable = client.compile(PROGRAM, [((), X.dtype)])
    x = client.put(X)
    return lambda: executable(x)


def jitted() -> Call:
    """Return the same function under `jax.jit`."""
    import jax

    function = jax.jit(lambda x: [x + 1])
    x = jax.device_put(X)
    return lambda: function(x)


def with_many_arguments(count: int) -> dict[str, Call]:
    """Return our call and jax.jit's of a program with many arguments, as a model's weights are, and one result."""
    import jax

    names = [f"%a{number}" for number in range(count)]
    parameters = ", ".join(f"{name}: tensor<f32>" for name in names)
    program = (
        f"func.func @main({parameters}) -> tensor<f32> {{\n"
        f"  %s = stablehlo.add {names[0]}, {names[-1]} : tensor<f32>\n  return %s : tensor<f32>\n}}"
    )
    client = pjrt.client("cpu")
    executable = client.compile(program)
    row = [client.buffer_from_host(X) for _ in names]
    function = jax.jit(lambda *arguments: [arguments[0] + arguments[-1]], keep_unused=True)
    arrays = [jax.device_put(X) for _ in names]
    return {OURS: lambda: executable(*row), JIT: lambda: function(*arrays)}


def with_nested_arguments(layers: int = 50) -> dict[str, Call]:
    """Return a call of a model by `load_model`, and jax.jit's, with weights nested in dictionaries on the device."""
    import jax
    from jax import export

    def multiply(weights: dict[str, dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for layer in weights.values():
            x = x @ layer["w"] + layer["b"]
        return x

    layer = {"w": np.eye(4, dtype=np.float32), "b": np.zeros(4, np.float32)}
    weights, x = {f"layer{number}": layer for number in range(layers)}, np.ones((2, 4), np.float32)
    function = jax.jit(multiply)
    model = pjrt.load_model(export.export(function)(weights, x).serialize(), "cpu")
    ours, theirs = model.put(weights), jax.device_put(weights)
    return {MODEL: lambda: model(ours, x), JIT: lambda: function(theirs, x)}


def contestants(with_jax: bool) -> tuple[dict[str, Call], dict[str, Call]]:
    """Return each contestant twice: as it returns, and with a wait for the result."""
    short, sharded = ours()
    calls = {OURS: short, SHARDED: sharded, RAW: raw()}
    if with_jax:
        calls[JIT] = jitted()
    for name, call in calls.items():
        (result,) = call()
        if np.asarray(result) != X + 1:
            raise RuntimeError(f"{name} gives {result}")
    return calls, {name: _until_ready(name, call) for name, call in calls.items()}


def _until_ready(name: str, call: Callable[[], list]) -> Call:
    if name in (OURS, SHARDED):
        return lambda: call()[0].ready().result()
    return lambda: call()[0].block_until_ready()


def measure(quick: bool, with_jax: bool = True) -> Report:
    """Compare one execution of a tiny program on a resident buffer: ours, raw jaxlib's and jax.jit's."""
    where = "in a process with jax" if with_jax else "in a process without jax"
    report = Report(
        f"Dispatch of a tiny program, {where}",
        "`x + 1` for a scalar that is on the one device. The first table is the call alone, which returns before the "
        "result is there; the second waits for the result.",
    )
    returning, waiting = contestants(with_jax)
    for how, calls in (("returning", returning), ("waiting", waiting)):
        timings = take_turns(calls, rounds=3 if quick else 25)
        report.tables.append(timing_table(timings, ours=SHARDED))
        for name in (OURS, SHARDED):
            ratio = timings[name].ratio_to(timings[RAW])
            text = f"{how}: {name} within {LIMIT}× of raw jaxlib"
            report.aims.append(Aim(text, ratio, LIMIT, reason=REASONS[how]))
    for count in MANY if with_jax else ():
        timings = take_turns(with_many_arguments(count), rounds=3 if quick else 25)
        report.tables += [f"The same with {count:,} arguments, returning:", timing_table(timings, ours=OURS)]
        text = f"{count:,} arguments: within {LIMIT}× of jax.jit"
        report.aims.append(Aim(text, timings[OURS].ratio_to(timings[JIT]), LIMIT, reason=REASONS["returning"]))
    if with_jax:
        timings = take_turns(with_nested_arguments(), rounds=3 if quick else 25)
        report.tables += [
            "A model of 100 weights in nested dictionaries and an array:",
            timing_table(timings, ours=MODEL),
        ]
        shortest = min(timings[MODEL].rounds) * 1e6
        report.aims.append(Aim("nested weights: at most 300 µs (shortest, in µs)", shortest, 300))
    return report


if __name__ == "__main__":
    main(measure)
