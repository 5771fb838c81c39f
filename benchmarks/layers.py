"""Time what layers at the C ABI add: to a call, to a tiny program of JAX, and to a training step."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import pjrt
import pjrt.layers
from benchmarks.models import resnet50
from benchmarks.side_by_side import Aim, Report, Timing, duration, main, table, take_turns, timing_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "plugins"))

CALLS = {
    "time_process_index": "`Client_ProcessIndex`",
    "time_devices": "`Client_Devices`",
    "time_on_ready": "an event: `ReadyEvent`, `OnReady`, `Destroy`",
}
DIRECT, OFF, ON, RECORD = "without layers", "trace, switched off", "trace, recording", "record"
CHECKED, INJECT, ADAPT = "validate", "inject, no rule for the call", "adapt"
X = np.array(2, np.float32)
BATCH = 4
DATA = 1 << 24


def trace_options(folder: Path, name: str) -> dict[str, Any]:
    """Return options that write to a file of this name."""
    return {"file": str(folder / f"{name}.trace")}


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Return a folder for trace files, for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="pjrt-benchmark-layers-") as folder:
        yield Path(folder)


REAL_PLUGIN = "PJRT_BENCHMARK_PLUGIN"
"""The environment variable with the path of a vendor's library, whose calls are measured too."""


def measure_calls(rounds: int, library: Path | None = None) -> dict[str, dict[str, float]]:
    """Return the seconds of each call on a plugin, by default the tiny one, without layers and with each layer."""
    from tiny import build

    cache = Path(tempfile.gettempdir()) / "pjrt-benchmark-plugins"
    loop = ctypes.CDLL(str(build.build([Path(__file__).with_name("layer_calls.c")], cache, "liblayercalls.so")))
    loop.make_client.restype, loop.make_client.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    library = library or build.build_tiny(cache)
    with temporary_folder() as folder:
        direct: Any = pjrt.load_plugin(library)
        off = pjrt.layers.wrap(library, ["trace"], trace=trace_options(folder, "off"))
        pjrt.layers.disable(off, "trace")
        silent = pjrt.layers.wrap(library, ["trace"], trace={**trace_options(folder, "silent"), "on": 0})
        recording = pjrt.layers.wrap(library, ["trace"], trace=trace_options(folder, "on"))
        plugins: dict[str, Any] = {
            DIRECT: direct,
            OFF: off,
            "trace, off by its file": silent,
            "pass": pjrt.layers.wrap(library, ["pass"]),
            ON: recording,
            CHECKED: pjrt.layers.wrap(library, ["validate"]),
            INJECT: pjrt.layers.wrap(library, ["inject"], inject="call=Client_Compile,error=ABORTED"),
            ADAPT: pjrt.layers.wrap(library, ["adapt"]),
            RECORD: pjrt.layers.wrap(library, ["record"], record={"file": str(folder / "calls.record")}),
        }
        clients = {name: loop.make_client(plugin.address) for name, plugin in plugins.items()}
        rows: dict[str, dict[str, float]] = {}
        for call in CALLS:
            function = getattr(loop, call)
            function.restype, function.argtypes = ctypes.c_double, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)
            count = 2_000 if call == "time_on_ready" else 200_000
            times: dict[str, list[float]] = {name: [] for name in plugins}
            for _ in range(rounds):
                for name, plugin in plugins.items():
                    # Recordings grow without limit.
                    some = count // 20 if name == RECORD else count
                    times[name].append(function(plugin.address, clients[name], some))
            rows[call] = {name: float(np.median(values)) for name, values in times.items()}
    return rows


def measure_data(rounds: int) -> dict[str, Timing]:
    """Time copies of 16 MiB to the tiny plugin, without layers and recorded; each array is new, so each is written."""
    from tiny import build

    library = build.build_tiny(Path(tempfile.gettempdir()) / "pjrt-benchmark-plugins")
    generator = np.random.default_rng(0)
    with temporary_folder() as folder:
        recorded = pjrt.layers.wrap(library, ["record"], record={"file": folder / "data.rec"})
        clients = {DIRECT: pjrt.load_plugin(library).client(), RECORD: recorded.client()}

        def copy(client: Any) -> None:
            array[0] += 1  # data that was recorded before would not be written
            client.buffer_from_host(array).delete()

        array = generator.random(DATA // 8)
        return take_turns({name: lambda client=client: copy(client) for name, client in clients.items()}, rounds=rounds)


def jax_devices(folder: Path) -> dict[str, Any]:
    """Register the exported `cpu` device with JAX: as it is, with the trace off, recording, and validated."""
    import jax
    from jax._src import xla_bridge

    exported = pjrt.export(lambda **options: pjrt.client("cpu", **options), name="layered", platform_name=None)
    off = pjrt.layers.wrap(exported, ["trace"], trace=trace_options(folder, "jax-off"))
    pjrt.layers.disable(off, "trace")
    on = pjrt.layers.wrap(exported, ["trace"], trace=trace_options(folder, "jax-on"))
    checked = pjrt.layers.wrap(exported, ["validate"])
    platforms = {DIRECT: exported.address, OFF: off.address, ON: on.address, CHECKED: checked.address}
    for number, address in enumerate(platforms.values()):
        xla_bridge.register_plugin(f"layered{number}", c_api=capsule(address), priority=-100)
    return {name: jax.devices(f"layered{number}")[0] for number, name in enumerate(platforms)}


def capsule(address: int) -> Any:
    """Return the capsule of a table, as JAX takes it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(address, CAPSULE_NAME, None)


CAPSULE_NAME = b"pjrt_c_api"


def measure_tiny(rounds: int) -> dict[str, Timing]:
    """Time a tiny `jax.jit` function, with a wait for its result, in a subprocess."""
    import jax

    with temporary_folder() as folder:
        calls = {}
        for name, device in jax_devices(folder).items():
            function, x = jax.jit(lambda x: x + 1), jax.device_put(X, device)
            if function(x) != X + 1:
                raise RuntimeError(f"{name} gives {function(x)}")
            calls[name] = lambda function=function, x=x: function(x).block_until_ready()
        return take_turns(calls, rounds=rounds, clock=time.process_time)


def train_step(weights: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    """Return the weights after a step of gradient descent, and the loss."""
    import jax
    import jax.numpy as jnp

    def loss(tree: Any) -> Any:
        scores = jax.nn.log_softmax(resnet50.inference(tree, images))
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 1e-4 * g, weights, gradients), value


class TrainingStep:
    """A training step of ResNet-50 on a device, which replaces its weights."""

    def __init__(self, device: Any) -> None:
        import jax

        self._function = jax.jit(train_step, donate_argnums=0)
        labels = np.arange(BATCH, dtype=np.int32)
        self._weights, *self._others = (
            jax.device_put(value, device) for value in (resnet50.weights(), resnet50.images(BATCH), labels)
        )

    def __call__(self) -> Any:
        """Run once, wait, and return the loss."""
        import jax

        self._weights, loss = jax.block_until_ready(self._function(self._weights, *self._others))
        return loss


def measure_step(rounds: int) -> dict[str, Timing]:
    """Time a training step of ResNet-50 without layers and with the trace, in a subprocess."""
    with temporary_folder() as folder:
        devices = jax_devices(folder)
        steps: dict[str, Callable[[], Any]] = {name: TrainingStep(devices[name]) for name in (DIRECT, ON)}
        first, second = (float(step()) for step in steps.values())
        np.testing.assert_allclose(first, second, rtol=1e-3)
        return take_turns(steps, rounds=rounds, clock=time.process_time)


def _report_calls(report: Report, calls: dict[str, dict[str, float]], plugin: str) -> None:
    names = list(next(iter(calls.values())))
    rows = [(name, *(duration(times[name]) for times in calls.values())) for name in names]
    heading = f"**Calls{plugin}**\n\n" if plugin else ""
    report.tables.append(heading + table(["", *(CALLS[call] for call in calls)], rows))
    getter = calls["time_process_index"]
    for name, limit in ((OFF, 5), (ON, 100), (CHECKED, 300), (ADAPT, 100)):
        aim = f"{name}: at most {limit} ns for each call{plugin}"
        report.aims.append(Aim(aim, (getter[name] - getter[DIRECT]) * 1e9, limit))


def measure(quick: bool) -> Report:
    """Compare calls, a tiny `jax.jit` and a training step of ResNet-50 without layers, and with the layers."""
    report = Report(
        "Layers at the C ABI",
        "The tiny plugin's functions, called from C, and JAX on the exported `cpu` device, each with its table as "
        "it is and wrapped in a layer. A switched-off layer is a load and a jump. The times of JAX are those "
        "that all threads of the process compute.",
    )
    _report_calls(report, measure_calls(5 if quick else 31), "")
    if path := os.environ.get(REAL_PLUGIN):
        real = Path(path)
        _report_calls(report, measure_calls(5 if quick else 31, real), f" of {real.name}")
    data = measure_data(3 if quick else 11)
    report.tables.append(f"**A copy of 16 MiB to the tiny plugin**\n\n{timing_table(data, ours=RECORD)}")
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        tiny = processes.submit(measure_tiny, 3 if quick else 25).result()
        step = processes.submit(measure_step, 3 if quick else 9).result()
    report.tables.append(f"**`jax.jit(lambda x: x + 1)`, waiting**\n\n{timing_table(tiny, ours=ON)}")
    report.tables.append(f"**Training step of ResNet-50, batch {BATCH}**\n\n{timing_table(step, ours=ON)}")
    report.aims.append(Aim("ResNet-50 training step with the trace: within 2%", step[ON].ratio_to(step[DIRECT]), 1.02))
    return report


if __name__ == "__main__":
    if importlib.util.find_spec("jax") is None:
        sys.exit("this benchmark needs jax: pip install jax")
    main(measure)
