"""Models that are larger than the device: the same numbers in a fraction of the memory."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from limited_device import limited

import pjrt

NAMES = ["unrolled", "scanned", "backwards", "step"]
LAYERS = 8
OTHERS = 20_000
"""Bytes for what is not a weight of a layer: the embedding, arguments, activations."""


class Layered:
    """A transformer of ``layered_models.py``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.jax"
        arrays = dict(np.load(folder / f"{name}.npz"))
        arrays = {key: a.view(ml_dtypes.bfloat16) if a.dtype == np.uint16 else a for key, a in arrays.items()}
        self.weights = {key: array for key, array in arrays.items() if key.startswith("params")}
        self.results = [arrays[f"result_{index}"] for index in range(sum(key.startswith("result") for key in arrays))]
        self.arguments: dict[str, Any] = {"tokens": arrays["tokens"]}
        if name == "step":
            cache = [arrays[f"cache['layers'][{index}]"] for index in range(LAYERS)]
            self.arguments["cache"] = {"layers": cache, "count": arrays["cache['count']"]}
        self.layer = sum(array.nbytes for key, array in self.weights.items() if "layers" in key) // LAYERS
        self.total = sum(array.nbytes for array in self.weights.values())

    @property
    def two_layers(self) -> int:
        """Bytes for two of the eight layers."""
        return 2 * self.layer + OTHERS


@pytest.fixture(scope="session")
def layered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Layered]:
    folder = tmp_path_factory.mktemp("layered")
    script = Path(__file__).parent / "layered_models.py"
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return lambda name: Layered(folder, name)


@pytest.fixture(scope="session")
def inner() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


def leaves(result: Any) -> list[np.ndarray]:
    if isinstance(result, dict):
        return [leaf for key in sorted(result) for leaf in leaves(result[key])]
    if isinstance(result, tuple | list):
        return [leaf for each in result for leaf in leaves(each)]
    return [np.asarray(result)]


def assert_right(result: Any, model: Layered) -> None:
    found = leaves(result)
    assert len(found) == len(model.results)
    for array, expected in zip(found, model.results, strict=True):
        np.testing.assert_allclose(array, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("device", "name"), [("cpu", "unrolled"), ("cpu", "scanned"), *(("reference", name) for name in NAMES)]
)
def test_a_model_of_eight_layers_runs_in_memory_for_two(
    device: str, name: str, layered: Callable[[str], Layered]
) -> None:
    model = layered(name)
    inner = pjrt.client(device)
    assert model.two_layers < model.total / 2
    with limited(inner, model.two_layers) as client, pytest.raises(pjrt.ResourceExhaustedError):
        _ = [client.buffer_from_host(array) for array in model.weights.values()]
    with limited(inner, model.two_layers) as client:
        with pjrt.offload(model.path, client, weights=model.weights) as offloaded:
            for _ in range(2):
                assert_right(offloaded(**model.arguments), model)
            (staged,) = offloaded.compilations
            plan = offloaded.plan(staged.shapes[-len(offloaded.parameters) :])
            # One program for all layers, or for each half of a layer, and those around them.
            assert len(plan.stages) > LAYERS
            assert plan.num_executables <= 4
            stats = client.devices[0].memory_stats()
            assert plan.peak_bytes - 64 <= (stats.peak_bytes_in_use or 0) <= plan.peak_bytes <= model.two_layers
        gc.collect()
        assert client.devices[0].memory_stats().bytes_in_use == 0
