"""Time what a device pays for being a plugin: JAX on our exported `cpu` device against JAX's own CPU backend."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import pjrt
from benchmarks.models import resnet50, transformer
from benchmarks.side_by_side import Aim, Call, Report, Timing, duration, main, table, take_turns, timing_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "plugins"))

OURS, JAX, NOTHING = "exported cpu", "JAX's own CPU", "a C plugin that does nothing"
REFERENCE = "exported reference"
AGAIN = "JAX's own CPU, again"
PYTHON = "a Python device that does nothing"
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
X = np.array(2, np.float32)

TINY = (
    "What is added is one entry into Python for each execution and one for each buffer that is given up, and for `cpu` "
    "jaxlib's own Python binding, which takes as long as JAX's whole call."
)


def devices() -> dict[str, Any]:
    """Return the device of each contestant; they are registered with JAX before it is first used."""
    import jax
    from jax._src import xla_bridge
    from tiny import build

    ours = pjrt.frameworks.jax.register("cpu")
    library = build.build_other("noop", Path(tempfile.gettempdir()) / "pjrt-benchmark-plugins")
    xla_bridge.register_plugin("noop", library_path=str(library), priority=-100)
    python = pjrt.frameworks.jax.register(pjrt.export(nothing_in_python, name="python_noop"), experimental=False)
    names = {OURS: ours, JAX: "cpu", NOTHING: "noop", PYTHON: python}
    return {who: jax.devices(name)[0] for who, name in names.items()}


def nothing_in_python(**options: Any) -> pjrt.Client:
    """Make a client of a device that returns a new array for each argument, on the thread that asks for it."""
    scalar = pjrt.ShapeSpec((), pjrt.ElementType.F32)
    program = pjrt.host.Compiled(
        run=lambda _: [np.empty((), np.float32)], outputs=[scalar], parameters=[scalar], runs_on_caller=True
    )
    return pjrt.host.HostClient("python_noop", compile=lambda *_: program, **options)


def tiny_calls() -> tuple[dict[str, Call], dict[str, Call]]:
    """Return `jax.jit` of `x + 1` on each device: as it returns, and with a wait for the result."""
    import jax

    returning, waiting = {}, {}
    for name, device in devices().items():
        function, x = jax.jit(lambda x: x + 1), jax.device_put(X, device)
        if name not in (NOTHING, PYTHON) and function(x) != X + 1:
            raise RuntimeError(f"{name} gives {function(x)}")
        returning[name] = lambda function=function, x=x: function(x)
        waiting[name] = lambda function=function, x=x: function(x).block_until_ready()
    return returning, waiting


MODEL = (
    "The program and the compiler are the same, and donated memory is reused. What is added is a buffer and an event "
    "across the C API for each result, 82 in the training step, and two threads that wait beside the two that compute: "
    "they take 0.4 ms of processor time in a ResNet-50."
)


class Step:
    """A jitted function with its arguments on a device; donated state is replaced by the first result."""

    def __init__(self, function: Callable[..., Any], arguments: list[Any], device: Any, *, donates: bool) -> None:
        import jax

        self._function = jax.jit(function, donate_argnums=(0,) if donates else ())
        self._state, *self._others = (jax.device_put(argument, device) for argument in arguments)
        self._donates = donates

    def __call__(self) -> Any:
        """Run once, wait, and return the model's value."""
        import jax

        result = jax.block_until_ready(self._function(self._state, *self._others))
        if self._donates:
            self._state, result = result
        return result


MODELS: dict[str, Callable[[Any], Step]] = {
    "ResNet-50 inference, batch 1": lambda device: Step(
        resnet50.inference, [resnet50.weights(), resnet50.images(1)], device, donates=False
    ),
    "Training step of a 4-layer transformer, batch 4": lambda device: Step(
        transformer.train_step, [transformer.state(), transformer.tokens(4)], device, donates=True
    ),
}


def measure_model(name: str, rounds: int) -> list[dict[str, Timing]]:
    """Time one model on our device and twice on JAX's own, which shows what chance does, in a subprocess.

    Returns:
        the times by the clock, and the processor times of all threads.
    """
    contestants = devices()
    steps = {who: MODELS[name](contestants[of]) for who, of in ((OURS, OURS), (JAX, JAX), (AGAIN, JAX))}
    ours, *theirs = (np.asarray(step()) for step in steps.values())
    for other in theirs:
        np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-3)
    # Several steps in a round: one alone would be the first after the search for garbage between the rounds, when the
    # other processor has slept, and takes up to half as long again.
    return [
        take_turns(steps, rounds=rounds, round_seconds=0.5, clock=clock)
        for clock in (time.perf_counter, time.process_time)
    ]


MANY = (
    "jaxlib's own Python binding, below the exported `cpu`, takes 1.5 µs for each result, half of JAX's whole time. "
    "And a buffer and an event cross the C API for each of them."
)


def measure_many(rounds: int) -> dict[str, Timing]:
    """Time a step with 300 arrays in and 300 out, each step on the results of the last one, in a subprocess."""
    import jax

    contestants = {OURS: pjrt.frameworks.jax.register("cpu"), JAX: "cpu"}
    contestants[REFERENCE] = pjrt.frameworks.jax.register("reference")
    step = jax.jit(lambda arrays: [array * 0.9 + 1 for array in arrays])
    calls: dict[str, Call] = {}
    for who, name in contestants.items():
        state = [jax.device_put(np.ones(16, np.float32), jax.devices(name)[0]) for _ in range(300)]

        def call(state: list[Any] = state) -> None:
            state[:] = step(state)
            state[-1].block_until_ready()

        calls[who] = call
    return take_turns(calls, rounds=rounds)


def measure_tiny(rounds: int) -> list[dict[str, Timing]]:
    """Time the tiny call, in a subprocess."""
    return [take_turns(calls, rounds=rounds) for calls in tiny_calls()]


def measure_puts(rounds: int, sizes: list[int]) -> dict[int, dict[str, Timing]]:
    """Time `device_put` of `size` bytes with a wait for its end, in a subprocess."""
    import jax

    contestants, timings = devices(), {}
    for size in sizes:
        array = np.arange(size // 4, dtype=np.float32)
        calls = {
            who: lambda a=array, d=contestants[who]: jax.device_put(a, d).block_until_ready() for who in (OURS, JAX)
        }
        timings[size] = take_turns(calls, rounds=rounds)
    return timings


def measure(quick: bool) -> Report:
    """Compare JAX on the exported `cpu` device and on its own CPU backend: a tiny call, whole models, `device_put`."""
    rounds = 3 if quick else 25
    report = Report(
        "Export: JAX on the cpu device",
        "The same JAX program on the `cpu` device as a plugin and on JAX's own CPU backend, which both run XLA's CPU "
        "code, in one process each. The C plugin that does nothing shows what JAX itself takes, the Python device that "
        "does nothing what our export and our host runtime take.",
    )
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        tiny = processes.submit(measure_tiny, rounds).result()
        for how, timings in zip(("returning", "waiting"), tiny, strict=True):
            report.tables.append(f"**`jax.jit(lambda x: x + 1)`, {how}**\n\n{timing_table(timings, ours=OURS)}")
            for who, limit in ((OURS, 2.0), (PYTHON, 2.5)):
                text = f"tiny jax.jit on {who}, {how}: at most {limit}× of JAX's own CPU"
                report.aims.append(Aim(text, timings[who].ratio_to(timings[JAX]), limit, reason=TINY))
        many = processes.submit(measure_many, rounds).result()
        report.tables.append(f"**300 arrays in, 300 out**\n\n{timing_table(many, ours=OURS)}")
        for who, limit in ((OURS, 1.1), (REFERENCE, 2.0)):
            text = f"300 arrays in and out on {who}: at most {limit}× of JAX's own CPU"
            report.aims.append(Aim(text, many[who].ratio_to(many[JAX]), limit, reason=MANY if who == OURS else ""))
        for name in MODELS:
            timings, processor_times = processes.submit(measure_model, name, 3 if quick else 25).result()
            report.tables.append(f"**{name}**\n\n{timing_table(timings, ours=OURS)}")
            report.tables.append(f"**{name}, processor time**\n\n{timing_table(processor_times, ours=OURS)}")
            ratio, noise = timings[OURS].ratio_to(timings[JAX]), timings[AGAIN].ratio_to(timings[JAX])
            text = f"{name}: within 1% of JAX's own CPU (which takes {noise:.3f}× of itself)"
            report.aims.append(Aim(text, ratio, 1.01, reason=MODEL))
        puts = processes.submit(measure_puts, 3 if quick else 11, SIZES[:3] if quick else SIZES).result()
    rows = [(who, *(duration(t[who].median) for t in puts.values())) for who in (OURS, JAX)]
    rows.append((f"{OURS} takes", *(f"{t[OURS].ratio_to(t[JAX]):.2f}×" for t in puts.values())))
    header = ["", *(f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB" for size in puts)]
    report.tables.append("**`jax.device_put`, to its end**\n\n" + table(header, rows))
    return report


if __name__ == "__main__":
    if importlib.util.find_spec("jax") is None:
        sys.exit("this benchmark needs jax: pip install jax")
    main(measure)
