"""The page of a benchmark: the devices side by side, with the distribution of their times."""

from __future__ import annotations

import dataclasses
from typing import Any

from pjrt.models.benchmark.benchmark import Benchmark, DeviceBenchmark
from pjrt.models.benchmark.latency import PERCENTILES, Latencies
from pjrt.models.report.page import page

_BINS = 40
_COLUMNS = 300
_CURVE = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 100)
"""The percentiles of the curve that compares the devices."""


def benchmark_page(benchmark: Benchmark) -> str:
    """Return the page of a benchmark as HTML."""
    data = {
        **benchmark.as_dict(),
        "percentiles": [*PERCENTILES],
        "plots": [_plots(device) for device in benchmark.devices],
    }
    return page(f"{benchmark.program} - pjrt bench", data, ("elements.js", "benchmark.js"))


def _plots(device: DeviceBenchmark) -> dict[str, Any]:
    return {
        "percentiles": [device.execute.percentile(percent) for percent in PERCENTILES],
        "curve": [[percent, device.execute.percentile(percent)] for percent in _CURVE],
        **{name: _plot(latencies) for name, latencies in device.parts.items()},
    }


def _plot(latencies: Latencies) -> dict[str, Any]:
    return {
        **dataclasses.asdict(latencies.histogram(_BINS)),
        "over_time": latencies.over_time(_COLUMNS),
        "count": latencies.count,
    }
