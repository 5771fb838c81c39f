"""Time the CUDA plugin through this package beside JAX on the same GPU.

``PJRT_TEST_GPU=cpu`` lets another device stand in, to try the benchmark without a GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

import pjrt
from benchmarks.models import resnet50, transformer
from benchmarks.side_by_side import Aim, Call, Report, Timing, duration, main, table, take_turns, timing_table

DEVICE = os.environ.get("PJRT_TEST_GPU", "cuda")
OURS, WRAPPED, JAX, TRACED = "pjrt", "JAX on the wrapped plugin", "JAX", "JAX on the plugin with the layer trace"
CHAIN = 1_000
SIZES = (4 << 10, 1 << 20, 64 << 20, 256 << 20)


def jax_device(who: str) -> Any:
    """Return JAX's device of a contestant; a process asks for one only."""
    import jax

    options = {"memory": "on-demand"} if DEVICE == "cuda" else {}
    if who == WRAPPED:
        return jax.devices(pjrt.frameworks.jax.register(DEVICE, platform="wrapped", wrap=True, **options))[0]
    return jax.devices(DEVICE)[0]


def client() -> pjrt.Client:
    """Return a client of ours that leaves memory to JAX."""
    return pjrt.client(DEVICE, **({"memory": "on-demand"} if DEVICE == "cuda" else {}))


def tiny(rounds: int) -> list[dict[str, Timing]]:
    """Time `x + 1`: as it returns, with a wait for the result, and 1,000 of them one after the other."""
    import jax

    device = jax_device(JAX)
    function, theirs = jax.jit(lambda x: x + 1), jax.device_put(np.ones(4, np.float32), device)
    executable = client().compile(function.lower(theirs).as_text())
    ours = executable.addressable_devices[0].client.buffer_from_host(np.ones(4, np.float32))

    def chain(call: Callable[[Any], Any], value: Any) -> Any:
        for _ in range(CHAIN):
            value = call(value)
        return value

    contests: list[dict[str, Call]] = [
        {OURS: lambda: executable(ours), JAX: lambda: function(theirs)},
        {OURS: lambda: executable(ours)[0].ready().result(), JAX: lambda: function(theirs).block_until_ready()},
        {
            OURS: lambda: chain(lambda x: executable(x)[0], ours).ready().result(),
            JAX: lambda: chain(function, theirs).block_until_ready(),
        },
    ]
    return [take_turns(calls, rounds=rounds) for calls in contests]


def model(name: str, who: str, rounds: int, batch: int) -> Timing:
    """Time a model in JAX on one contestant, in bf16, with a wait for its end."""
    import jax
    import jax.numpy as jnp

    def half(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16) if np.asarray(x).dtype == np.float32 else x, tree)

    device = jax_device(who)
    if name == "ResNet-50":
        function, arguments = resnet50.inference, (half(resnet50.weights()), half(resnet50.images(batch)))
    else:
        function, arguments = transformer.train_step, (half(transformer.state()), transformer.tokens(batch))
    jitted = jax.jit(function)
    placed = jax.device_put(arguments, device)
    return take_turns({who: lambda: jax.block_until_ready(jitted(*placed))}, rounds=rounds)[who]


def transfers(rounds: int, sizes: tuple[int, ...]) -> dict[str, list[float]]:
    """Return bytes a second to the device and back, by direction and contestant, for each size."""
    import jax

    theirs, ours = jax_device(JAX), client()
    rates: dict[str, list[float]] = {}
    for size in sizes:
        array = np.ones(size // 4, np.float32)
        buffer, other = ours.buffer_from_host(array), jax.device_put(array, theirs)
        calls: dict[str, Call] = {
            f"to the device, {OURS}": lambda array=array: ours.buffer_from_host(array).ready().result(),
            f"to the device, {JAX}": lambda array=array: jax.device_put(array, theirs).block_until_ready(),
            f"from the device, {OURS}": lambda buffer=buffer, array=array: buffer.to_host(array).result(),
            f"from the device, {JAX}": lambda other=other: np.asarray(other + 0),
        }
        try:
            import cupy
        except ImportError:
            pass
        else:
            pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.float32, size // 4)
            target = cupy.empty(size // 4, np.float32)
            calls["to the device, cudaMemcpy, pinned"] = lambda pinned=pinned, target=target: target.set(pinned)
            calls["to the device, cudaMemcpy"] = lambda array=array, target=target: target.set(array)
            calls["from the device, cudaMemcpy, pinned"] = lambda pinned=pinned, target=target: target.get(out=pinned)
            calls[f"to the device, {OURS}, pinned"] = lambda pinned=pinned: (
                ours.buffer_from_host(pinned).ready().result()
            )
        for name, timing in take_turns(calls, rounds=rounds).items():
            rates.setdefault(name, []).append(size / timing.median)
    return rates


def measure(quick: bool) -> Report:
    """Compare this package on the GPU with JAX on it."""
    rounds, batch = (1, 1) if quick else (11, 32)
    description = client().addressable_devices[0].description.kind
    report = Report(
        f"On {description}",
        "This package on the CUDA plugin beside JAX on the same GPU. Tiny programs take turns in one process; each "
        "model runs in a process for each contestant, in bf16. JAX adds 0 to what it copies from the device: it keeps "
        "the copy of an array that it has read.",
    )
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        names = ("`x + 1`, returning", "`x + 1`, waiting", f"{CHAIN:,} times `x + 1`, waiting")
        for name, timings in zip(names, processes.submit(tiny, rounds).result(), strict=True):
            report.tables.append(f"**{name}**\n\n{timing_table(timings, ours=OURS)}")
            report.aims.append(Aim(f"{name}: at most JAX's time", timings[OURS].ratio_to(timings[JAX]), 1.0))
        rows = []
        for name in ("ResNet-50", "transformer, training step"):
            times = {who: processes.submit(model, name, who, rounds, batch).result() for who in (WRAPPED, JAX)}
            ratio = times[WRAPPED].median / times[JAX].median
            rows.append((name, *(duration(times[who].median) for who in (WRAPPED, JAX)), f"{ratio:.3f}×"))
            report.aims.append(Aim(f"{name}: within 1% of JAX", ratio, 1.01))
            if DEVICE == "cuda":
                os.environ["PJRT_LAYERS"] = "trace"
                traced = processes.submit(model, name, WRAPPED, rounds, batch).result()
                del os.environ["PJRT_LAYERS"]
                rows.append(
                    (f"{name}, {TRACED}", duration(traced.median), "", f"{traced.median / times[JAX].median:.3f}×")
                )
        report.tables.append(table(["", WRAPPED, JAX, "takes"], rows))
        sizes = SIZES[:2] if quick else SIZES
        rates = processes.submit(transfers, rounds, sizes).result()
    lines = [(name, *(f"{rate / 1e9:.2f}" for rate in each)) for name, each in sorted(rates.items())]
    report.tables.append(table(["GB a second", *(f"{size >> 10} KiB" for size in sizes)], lines))
    for direction in ("to the device", "from the device"):
        mine = rates.get(f"{direction}, {OURS}, pinned", rates[f"{direction}, {OURS}"])[-1]
        if (copy := rates.get(f"{direction}, cudaMemcpy, pinned")) is not None:
            report.aims.append(Aim(f"{direction}: at least 0.9 of cudaMemcpy", mine / copy[-1], 0.9, at_least=True))
    return report


if __name__ == "__main__":
    sys.exit(main(measure))
