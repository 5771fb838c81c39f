"""Time whole models: ResNet-50 inference, and one training step of a 4-layer transformer with donated state."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import numpy as np

import pjrt
from benchmarks.lowering import Lowered, lower
from benchmarks.models import resnet50, transformer
from benchmarks.raw_jaxlib import RawClient
from benchmarks.side_by_side import Aim, Report, Timing, main, take_turns, timing_table

OURS, RAW, RAW_AGAIN, JIT = "pjrt", "raw jaxlib", "raw jaxlib, again", "jax.jit"

MODELS: dict[str, Callable[[], Lowered]] = {
    "ResNet-50 inference, batch 1": lambda: lower(resnet50.inference, resnet50.weights(), resnet50.images(1)),
    "ResNet-50 inference, batch 4": lambda: lower(resnet50.inference, resnet50.weights(), resnet50.images(4)),
    "Training step of a 4-layer transformer, batch 4": lambda: lower(
        transformer.train_step, transformer.state(), transformer.tokens(4), donate_first=True
    ),
}

Results = Sequence[Any]


class Step:
    """A contestant: a program with its arguments on the device. Donated arguments are replaced by the first results."""

    def __init__(self, run: Callable[..., Results], arguments: list[Any], donated: int, wait: Callable[[Any], object]):
        self._run = run
        self._state = arguments[:donated]
        self._others = arguments[donated:]
        self._donated = donated
        self._wait = wait

    def __call__(self) -> Any:
        """Run once and wait; the last result is the model's value (logits or loss)."""
        results = self._run(*self._state, *self._others)
        self._wait(results[-1])
        self._state = results[: self._donated]
        return results[-1]


def contestants(program: Lowered) -> dict[str, Step]:
    """Compile the same program for each contestant with default options, and for raw jaxlib twice to see the chance.

    Arguments that are not donated are the same memory for all: the place of an array changes how fast it is read.
    """
    arguments, donated = [aligned(array) for array in program.arguments], program.donated
    sharing = pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY

    def placed(copy: Callable[[np.ndarray], Any], share: Callable[[np.ndarray], Any]) -> list[Any]:
        return [*map(copy, arguments[:donated]), *map(share, arguments[donated:])]

    def ready(x: Any) -> object:
        return x.block_until_ready()

    def raw_step() -> Step:
        raw = RawClient()
        where = placed(raw.put, lambda array: raw.put(array, copy=False))
        return Step(raw.compile(program.code, program.results), where, donated, ready)

    client = pjrt.client("cpu")
    ours = placed(client.buffer_from_host, lambda array: client.buffer_from_host(array, semantics=sharing))
    jitted = placed(lambda array: jax.numpy.array(array, copy=True), jax.device_put)
    return {
        OURS: Step(client.compile(program.code), ours, donated, lambda buffer: buffer.ready().result()),
        RAW: raw_step(),
        RAW_AGAIN: raw_step(),
        JIT: Step(program.jitted, jitted, donated, ready),
    }


def aligned(array: np.ndarray) -> np.ndarray:
    """Copy an array to an address that is a multiple of 64 bytes, which XLA's CPU can use in place."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def check(steps: dict[str, Step]) -> None:
    """Check that the first value is the same for all contestants."""
    values = {name: np.asarray(step()) for name, step in steps.items()}
    for name, value in values.items():
        np.testing.assert_allclose(value, values[JIT], rtol=1e-4, atol=1e-2, err_msg=f"{name} differs from {JIT}")


def time_model(name: str, quick: bool) -> dict[str, Timing]:
    """Time all contestants at one of `MODELS`."""
    steps = contestants(MODELS[name]())
    check(steps)
    return take_turns(steps, rounds=3 if quick else 61, round_seconds=0.1)


def measure(quick: bool) -> Report:
    """Compare ResNet-50 inference and a transformer's training step: ours, raw jaxlib's and jax.jit's."""
    report = Report(
        "Whole models",
        "One program in StableHLO, run with its arguments on the device until the result is there. All contestants run "
        "XLA's CPU code in one process for each model, so what differs is what surrounds it. The training step donates "
        "its state. Raw jaxlib takes part twice, so that two of its rows show what chance does.",
    )
    for name in MODELS:
        # In a process of its own: what earlier programs left of the heap decides which contestant's temporary memory
        # has to be fetched from the system page by page at each run, and that is worth 10% of a run.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as fresh_process:
            timings = fresh_process.submit(time_model, name, quick).result()
        report.tables.append(f"**{name}**\n\n{timing_table(timings, ours=OURS)}")
        reason = (
            f"By chance alone raw jaxlib takes {timings[RAW_AGAIN].ratio_to(timings[RAW]):.3f} times as long as itself."
        )
        for rival in (RAW, JIT):
            ratio = timings[OURS].ratio_to(timings[rival])
            report.aims.append(Aim(f"{name}: within 2% of {rival}", ratio, 1.02, reason=reason))
    return report


if __name__ == "__main__":
    main(measure)
