"""Time a transformer of eight layers on a device with memory for two, whose weights come over a link."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import jax
import numpy as np

import pjrt
from benchmarks.side_by_side import Aim, Report, Timing, duration, main, table, take_turns
from pjrt.host import Compiled, HostClient

LAYERS = 8
LINK_TIMES = (0.5, 1.0, 2.0)
"""The times that the link takes for the weights of a layer, in times that the layer computes."""

LATE = "A link that is as slow as the device makes up for nothing when a thread wakes late on a busy machine."

LAYER_SECONDS = 0.02
"""The time that the simulated device computes a layer."""

RESIDENT, PREFETCH, IN_TURN = "resident", "offloaded", "offloaded, no prefetch"


class LinkedClient(HostClient):
    """A simulated accelerator with a memory of its own, into which arrays come over a link.

    It computes with XLA's CPU, and then sleeps until the time is over that reading the arguments from its memory would
    take. A transfer takes its time on a thread that sleeps, as a DMA engine that needs no processor; transfers follow
    one another. Nothing is copied. So times depend on when work begins, and hardly on how busy this machine is.

    Args:
        inner: the client that computes.
        memory_bandwidth: bytes of arguments that a program reads in a second.
        link_bandwidth: bytes that the link moves in a second.
        memory_limit: bytes of its memory.
    """

    def __init__(
        self, inner: pjrt.Client, memory_bandwidth: float, link_bandwidth: float, memory_limit: int | None
    ) -> None:
        self._inner = inner
        self._memory_bandwidth = memory_bandwidth
        self._link_bandwidth = link_bandwidth
        self._link: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._transfer, daemon=True).start()
        super().__init__("linked", compile=self._compile_inside, memory_limit=memory_limit)

    def _compile_inside(self, program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        executable = self._inner.compile(program)
        shared = pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY

        def run(*arrays: np.ndarray) -> list[np.ndarray]:
            end = time.perf_counter() + sum(array.nbytes for array in arrays) / self._memory_bandwidth
            buffers = [self._inner.buffer_from_host(array, semantics=shared) for array in arrays]
            results = [np.asarray(result) for result in executable(*buffers)]
            time.sleep(max(0.0, end - time.perf_counter()))
            return results

        outputs = map(pjrt.ShapeSpec, executable.output_shapes, executable.output_element_types)
        return Compiled(run=run, outputs=list(outputs))

    def buffer_from_host(self, array: Any, **options: Any) -> pjrt.Buffer:
        """Return a buffer whose value comes when the link has moved it; its memory is taken at once."""
        array = np.asarray(array)
        shared = {**options, "semantics": pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY}
        value = super().buffer_from_host(array, **shared)
        buffer, fulfillment = self.create_alias_buffer(pjrt.ShapeSpec(value.shape, value.element_type))
        self._link.put((array.nbytes, value, fulfillment))
        return buffer

    def _transfer(self) -> None:
        end = 0.0
        while True:
            size, value, fulfillment = self._link.get()
            end = max(end, time.perf_counter()) + size / self._link_bandwidth
            time.sleep(max(0.0, end - time.perf_counter()))
            fulfillment.fulfill(value)
            del value, fulfillment


def transformer(width: int, tokens: int) -> tuple[bytes, dict[str, Any], np.ndarray]:
    """Return the program of a transformer as a file of `jax.export`, its weights, and an input."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return aligned((rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def layer(p: dict[str, Any], x: Any) -> Any:
        x = x / jax.numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        scores = jax.nn.softmax(x @ p["q"] @ (x @ p["k"]).T / np.sqrt(width).astype(np.float32))
        x = x + scores @ (x @ p["v"]) @ p["o"]
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    def run(params: Any, x: Any) -> Any:
        for p in params:
            x = layer(p, x)
        return x

    shapes = dict.fromkeys("qkvo", (width, width)) | {"up": (width, 4 * width), "down": (4 * width, width)}
    params = [{name: weight(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
    x = weight(tokens, width)
    return jax.export.export(jax.jit(run))(params, x).serialize(), {"params": params}, x


def aligned(array: np.ndarray) -> np.ndarray:
    """Copy an array to an address that is a multiple of 64 bytes, which XLA's CPU can use in place."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def timed(client: Any, limit: int, model: Any, weights: Any, x: np.ndarray, rounds: int) -> dict[str, Timing]:
    """Time the model with all its weights on the device, and offloaded in two ways; compare the results first."""
    file = pjrt.models.ModelFile.of(model)
    executable = client(None).compile(file.program)
    leaves = [leaf for p in weights["params"] for _, leaf in sorted(p.items())]
    resident = [executable.client.buffer_from_host(leaf) for leaf in leaves]
    offloaded = {
        name: pjrt.offload(file, client(limit), weights=weights, memory_limit=limit, prefetch=prefetch)
        for name, prefetch in ((PREFETCH, True), (IN_TURN, False))
    }
    plan = offloaded[PREFETCH].plan()
    if plan.peak_bytes > limit or len(plan.stages) < LAYERS:
        raise RuntimeError("the plan is not that of eight layers in memory for two")

    def in_memory() -> np.ndarray:
        (result,) = executable(*resident, executable.client.buffer_from_host(x))
        return np.asarray(result)

    calls = {RESIDENT: in_memory}
    calls |= {name: lambda model=model: np.asarray(model(x=x)[0]) for name, model in offloaded.items()}
    expected = calls[RESIDENT]()
    for call in calls.values():
        np.testing.assert_allclose(call(), expected, rtol=1e-4, atol=1e-4)
    return take_turns(calls, rounds=rounds, round_seconds=0)


def hidden(timings: dict[str, Timing]) -> float:
    """Return the part of the transfers' time that passes while the device computes, by the medians."""
    resident, prefetch, in_turn = (timings[name].median for name in (RESIDENT, PREFETCH, IN_TURN))
    return (in_turn - prefetch) / (in_turn - resident)


def measure(quick: bool) -> Report:
    """Compare a model with resident weights and the same model offloaded, with and without prefetch."""
    width, tokens, rounds = (128, 8, 3) if quick else (256, 8, 11)
    model, weights, x = transformer(width, tokens)
    layer = sum(array.nbytes for array in weights["params"][0].values())
    limit = 2 * layer + 16 * x.nbytes
    cpu = pjrt.client("cpu")
    memory_bandwidth = layer / LAYER_SECONDS
    rows, aims = [], []
    for factor in LINK_TIMES:
        link = memory_bandwidth / factor
        timings = timed(
            lambda limit, b=link: LinkedClient(cpu, memory_bandwidth, b, limit), limit, model, weights, x, rounds
        )
        part = hidden(timings)
        rows.append((f"{factor:g}×", *_cells(timings), f"{part:.0%}"))
        possible = min(1, 1 / factor) * (LAYERS - 1) / LAYERS
        text = f"a link of {factor:g}×: hidden, of the {possible:.0%} that can be"
        aims.append(Aim(text, part / possible, 0.9, at_least=True, reason=LATE))
    direct = timed(lambda limit: cpu, limit, model, weights, x, rounds)
    rows.append(("`cpu` itself: arrays are used in place", *_cells(direct), ""))
    about = (
        f"A transformer of {LAYERS} layers ({tokens} tokens of width {width}, {LAYERS * layer / 1e6:.1f} MB of "
        f"weights), on a device whose memory is limited to {limit / 1e6:.1f} MB: two layers and the activations. "
        "*Resident* has no limit and all weights on the device. Without prefetch each stage waits for its "
        "weights. *Hidden* is the part of the time between *resident* and *no prefetch* that prefetching saves. "
        f"The first layer's transfer has nothing to hide behind (1 of {LAYERS}), nor has half of the time of a "
        "link of 2×. Medians.\n\n"
        "The device is simulated: XLA's CPU computes the numbers, then a thread sleeps until the time is over "
        f"that reading the arguments from the device's memory would take, {LAYER_SECONDS * 1e3:.0f} ms for a "
        "layer. The link to it is simulated, too: a thread sleeps for the time of the bytes, as long as the layer "
        "computes (1×), or half or twice as long. So the table shows what the order of transfers and computations "
        "hides, and nothing about a real link. The last line is XLA's CPU itself, which uses the arrays in place, "
        "under a limit that it does not enforce: it shows what stages cost."
    )
    header = ["link", RESIDENT, PREFETCH, "no prefetch", "of resident", "hidden"]
    return Report("Offloading", about, [table(header, rows)], aims)


def _cells(timings: dict[str, Timing]) -> list[str]:
    medians = [duration(timings[name].median) for name in (RESIDENT, PREFETCH, IN_TURN)]
    return [*medians, f"{timings[PREFETCH].ratio_to(timings[RESIDENT]):.2f}×"]


if __name__ == "__main__":
    main(measure)
