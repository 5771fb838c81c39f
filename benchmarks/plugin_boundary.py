"""What crossing the C API costs: a plugin that does nothing, called by us and by jaxlib from the same library."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import pjrt
from benchmarks.raw_jaxlib import RawClient
from benchmarks.side_by_side import Aim, Call, Report, main, take_turns, timing_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "plugins"))

X = np.zeros((), np.float32)
OURS, RAW = "pjrt", "jaxlib"
PROGRAM = "func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }"


class RawPluginClient(RawClient):
    """jaxlib's client of a plugin's library."""

    def __init__(self, library: Path) -> None:
        from jaxlib import _jax, xla_client

        _jax.load_pjrt_plugin("noop", str(library), None)
        _jax.initialize_pjrt_plugin("noop")
        self.client = xla_client.make_c_api_client("noop", {})
        self.device = self.client.local_devices()[0]
        self.devices = _jax.DeviceList((self.device,))
        self.sharding = _jax.GSPMDSharding(self.devices, xla_client.HloSharding.replicate())


def nothing() -> None:
    """An empty Python call."""


def ours(library: Path) -> dict[str, Call]:
    """What we do with the plugin, by what it is."""
    client = pjrt.load_plugin(library).client()
    executable = client.compile(PROGRAM)
    buffer, device = client.buffer_from_host(X), client.devices[0]
    arguments = [buffer]
    return {
        "execute, one argument and one result": lambda: executable.execute_sharded(arguments, device),
        "the same, and wait": lambda: executable.execute_sharded(arguments, device)[0].ready().result(),
        "a buffer from the host": lambda: client.buffer_from_host(X),
        "read the size on the device": lambda: buffer.on_device_size,
        "whether it is deleted": lambda: buffer.is_deleted,
    }


def raw(library: Path) -> dict[str, Call]:
    """The same with jaxlib."""
    from jaxlib import xla_client

    client = RawPluginClient(library)
    executable = client.client.compile_and_load(PROGRAM, client.devices, xla_client.CompileOptions())
    array = client.put(X)
    handled = client.compile(PROGRAM, [((), X.dtype)])
    arguments = [array]
    return {
        "execute, one argument and one result": lambda: executable.execute_sharded(arguments),
        "the same, and wait": lambda: handled(array)[0].block_until_ready(),
        "a buffer from the host": lambda: client.put(X),
        "read the size on the device": lambda: array.on_device_size_in_bytes(),
        "whether it is deleted": array.is_deleted,
    }


def measure(quick: bool) -> Report:
    """Execution, buffers and metadata through the C API: ours and jaxlib's on the same plugin."""
    from tiny import build

    report = Report(
        "Crossing the C API",
        "A plugin in C that does nothing, as fast as possible, loaded by us and by jaxlib: what is left is what each "
        "of them adds to a call. Waiting means a result that was there at once.",
    )
    library = build.build_other("noop", Path(tempfile.gettempdir()) / "pjrt-benchmark-plugins")
    mine, theirs = ours(library), raw(library)
    rounds = 3 if quick else 25
    for what, call in mine.items():
        timings = take_turns({OURS: call, RAW: theirs[what], "an empty call": nothing}, rounds=rounds)
        report.tables.append(f"**{what}**\n\n{timing_table(timings, ours=OURS)}")
        if what.startswith("execute"):
            report.aims.append(Aim("execute: at most 0.5× of jaxlib", timings[OURS].ratio_to(timings[RAW]), 0.5))
        if what.startswith("read the size"):
            beyond = (timings[OURS].median - timings["an empty call"].median) * 1e9
            report.aims.append(Aim("a metadata read: under 100 ns beyond an empty call", beyond, 100))
    return report


if __name__ == "__main__":
    main(measure)
