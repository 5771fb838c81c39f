"""Whole programs on the reference device and on XLA's CPU: the files of ``programs/``, with the same arguments.

Both are right, and differ by rounding: XLA fuses, reassociates sums and multiplies and adds in one step. The tolerance
is relative to the largest element of a result: 64 ULP of f32 for most, since sums of up to a few hundred terms are
taken in another order; 2,000 where a loop of ten training steps or a solver lets the differences grow; 4 ULP of bf16
where products are rounded to it. Integers, booleans and random bits are equal.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.stablehlo.ir.types import TensorType

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.mlir"))
ULP = float(np.finfo(np.float32).eps)
TOLERANCE = {"training": 2000 * ULP, "solve": 2000 * ULP, "cholesky": 256 * ULP, "mixed_precision": 4 * 2.0**-8}

# XLA's CPU has no such custom calls: JAX makes others for it.
NOT_FOR_XLA = frozenset({"qr"})


@pytest.fixture(scope="module")
def xla() -> Any:
    with pjrt.client("cpu") as client:
        yield client


def arguments(evaluator: Evaluator) -> list[Any]:
    random = np.random.default_rng(0)
    made: list[Any] = []
    for type_ in evaluator.arguments:
        assert isinstance(type_, TensorType)
        if type_.element.is_floating:
            made.append((random.standard_normal(type_.sizes) * 0.5).astype(type_.dtype))
        else:
            info = np.iinfo(type_.dtype)
            made.append(random.integers(info.min, info.max, type_.sizes, dtype=type_.dtype))
    return made


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_same_results(xla: Any, path: Path) -> None:
    evaluator = Evaluator(mlir.parse(path.read_text()))
    args = arguments(evaluator)
    results = evaluator.run(args)
    if path.stem in NOT_FOR_XLA:
        matrix = args[0].astype(np.float64)
        triangle = results[0].astype(np.float64)
        assert np.allclose(triangle.T @ triangle, matrix.T @ matrix, rtol=0, atol=256 * ULP * np.abs(matrix).max() ** 2)
        return
    for found, expected in zip(results, (np.asarray(out) for out in xla.compile(path.read_text())(*args)), strict=True):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        if found.dtype.kind in "fc":
            finite = np.isfinite(expected)
            assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)
            scale = np.abs(expected[finite]).max(initial=1e-30)
            difference = np.abs(found[finite] - expected[finite]).max(initial=0)
            assert difference <= TOLERANCE.get(path.stem, 64 * ULP) * scale
        else:
            assert np.array_equal(found, expected)


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 20


@pytest.mark.full
def test_random_programs() -> None:
    """A short part of the fuzzing job that compares the devices."""
    command = [sys.executable, "-m", "benchmarks.fuzz.worker", "--target=compare", "--seed=1", "--binary=0", "0", "30"]
    done = subprocess.run(command, capture_output=True, timeout=300, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, b"o" * 30), done.stderr.decode()[-4000:]
