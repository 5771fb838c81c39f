"""The raw times of a benchmark in a file: .json, .csv or .npz."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pjrt.models.benchmark.benchmark import Benchmark
from pjrt.models.benchmark.latency import Latencies
from pjrt.models.output_path import check_output_path, writing

SUFFIXES = (".json", ".csv", ".npz")
"""The suffixes of files of times."""

_FIELDS = ("rounds", "begins", "nanoseconds")


def write_times(benchmark: Benchmark, path: str | os.PathLike[str]) -> None:
    """Write every measured time, in nanoseconds.

    A ``.csv`` file has a line for each time. A ``.json`` file has the statistics too. A ``.npz`` file has arrays with
    names such as ``cpu/execute/nanoseconds``.

    Raises:
        InvalidArgumentError: the suffix is unsupported, or the file cannot be written.
        NotFoundError: the folder does not exist.
    """
    check_output_path(path, SUFFIXES)
    writers = {".json": _write_json, ".csv": _write_csv, ".npz": _write_npz}
    with writing(path):
        writers[Path(path).suffix](benchmark, Path(path))


def _parts(benchmark: Benchmark) -> Iterator[tuple[str, str, Latencies]]:
    for device in benchmark.devices:
        for part, latencies in device.parts.items():
            yield device.label, part, latencies


def _write_json(benchmark: Benchmark, path: Path) -> None:
    contents = benchmark.as_dict()
    for device, facts in zip(benchmark.devices, contents["devices"], strict=True):
        facts["times"] = {
            part: {name: getattr(latencies, name).tolist() for name in _FIELDS}
            for part, latencies in device.parts.items()
        }
    path.write_text(json.dumps(contents, indent=1) + "\n")


def _write_csv(benchmark: Benchmark, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["device", "part", "round", "begin_nanoseconds", "nanoseconds"])
        for label, part, latencies in _parts(benchmark):
            columns = (getattr(latencies, name).tolist() for name in _FIELDS)
            writer.writerows([label, part, *row] for row in zip(*columns, strict=True))


def _write_npz(benchmark: Benchmark, path: Path) -> None:
    arrays = {
        f"{label}/{part}/{name}": getattr(latencies, name)
        for label, part, latencies in _parts(benchmark)
        for name in _FIELDS
    }
    np.savez(path, allow_pickle=False, **arrays)
