"""A walk from the shell: a step of a language model from ``jax.export``, sharded, of any batch, with a donated cache.

Each command takes the file as JAX wrote it. The numbers are JAX's own, of the same step on eight devices.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import pjrt as command

WRITER = Path(__file__).parents[2] / "models" / "language_model.py"
INPUTS = ("-i", "weights.npz", "-i", "cache.npz", "-i", "tokens=tokens_0.npy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("walk")
    written = subprocess.run([sys.executable, str(WRITER), str(made)], capture_output=True, text=True, timeout=120)
    assert written.returncode == 0, written.stderr
    return made


def pjrt(folder: Path, *arguments: str) -> str:
    """Return the output of a command that succeeds."""
    done = command(*arguments, folder=folder)
    assert done.returncode == 0, f"pjrt {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def in_json(folder: Path, *arguments: str) -> Any:
    return json.loads(pjrt(folder, *arguments, "--json"))


@pytest.mark.full
def test_inspect(folder: Path) -> None:
    shown = pjrt(folder, "inspect", "step.jax")
    assert "mesh            data=4, model=2 (8 devices)" in shown
    assert "made for        1 replicas, 8 partitions" in shown
    (keys,) = (line for line in shown.splitlines() if " cache['layers'][1]['keys'] " in line)
    assert "[b/4, 8, 2, 4]" in keys
    assert "donated to result 3" in keys
    assert " result[1]['layers'][1]['keys'] " in shown


@pytest.mark.full
def test_check(folder: Path) -> None:
    found = in_json(folder, "check", "step.jax", "-d", "cpu", "-d", "reference", "--shape", "b=8")
    assert [each["verdict"] for each in found["devices"]] == ["yes", "yes"]


@pytest.mark.full
def test_two_steps_on_eight_devices(folder: Path) -> None:
    """The second step takes the cache that the first one wrote."""
    first = pjrt(folder, "run", "step.jax", *INPUTS, "-d", "cpu", "-o", "first.npz", "--expect", "results_0.npz")
    assert "result[1]['position']             s32[] [1]" in first
    second = ("-i", "weights.npz", "-i", "cache=first.npz:result[1]", "-i", "tokens=tokens_1.npy")
    pjrt(folder, "run", "step.jax", *second, "-d", "cpu", "-o", "second.npz", "--expect", "results_1.npz")
    with np.load(folder / "second.npz") as written, np.load(folder / "results_1.npz") as expected:
        assert sorted(written) == sorted(expected)
        np.testing.assert_allclose(written["result[0]"], expected["result[0]"], rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_compiled_before(folder: Path) -> None:
    compiled = in_json(folder, "compile", "step.jax", "-t", "cpu:8", "--shape", "b=8", "-o", "step.bin")
    assert compiled["num_partitions"] == 8
    assert in_json(folder, "inspect", "step.bin")["arguments"][16]["name"] == "cache['layers'][0]['keys']"
    assert in_json(folder, "check", "step.bin", "-d", "cpu")["verdict"] == "yes"
    pjrt(folder, "run", "step.bin", *INPUTS, "-d", "cpu", "--expect", "results_0.npz")


@pytest.mark.full
def test_compare(folder: Path) -> None:
    shown = pjrt(folder, "compare", "step.jax", "-d", "cpu", "-d", "reference", *INPUTS)
    assert "cpu agrees, compared with reference" in shown


def test_bench_of_another_batch(folder: Path) -> None:
    made = ("-i", "random:0", "--shape", "b=4", "--count", "5", "--warm-up", "1")
    found = in_json(folder, "bench", "step.jax", "-d", "cpu", *made)
    (device,) = found["devices"]
    assert device["num_devices"] == 8
    assert device["execute"]["count"] == 5


@pytest.mark.vendor
def test_compile_for_a_tpu(folder: Path) -> None:
    found = in_json(folder, "compile", "step.jax", "-t", "tpu:v5e:2x4", "--shape", "b=8", "-o", "tpu.bin")
    assert found["num_partitions"] == 8
    saved = in_json(folder, "inspect", "tpu.bin")
    assert saved["platform"] == "tpu"
    assert saved["arguments"][16] == {
        "name": "cache['layers'][0]['keys']",
        "element_type": "F32",
        "shape": [8, 8, 4, 4],
        "shard_shape": [2, 8, 2, 4],
        "sharding": "P('data', None, 'model', None) over data=4, model=2",
        "axes": None,
        "parts": [4, 1, 2, 1],
        "copies": 1,
        "donated": True,
        "needed": True,
    }
    assert in_json(folder, "check", "step.jax", "-t", "tpu:v5e:2x4", "--shape", "b=8")["verdict"] == "yes"
