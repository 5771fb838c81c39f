"""SavedModels of TensorFlow with a program of jax2tf, with the values of variables and without them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import pjrt

WEIGHT, BIAS = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1, 2, 3], np.float32)
FOLDER = Path(__file__).parents[2] / "stablehlo" / "data" / "saved_model"


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_saved_model_is_called(device: str) -> None:
    with pjrt.load_model(FOLDER, device) as model:
        assert [each.name for each in model.parameters] == ["x"]
        assert [each.name for each in model.results] == ["sum", "y"]
        for batch in (2, 3):
            x = np.random.default_rng(0).standard_normal((batch, 4)).astype(np.float32)
            total, y = model(x=x)
            np.testing.assert_allclose(total, x.sum(), rtol=1e-5)
            np.testing.assert_allclose(y, np.sin(x @ WEIGHT) + BIAS, rtol=1e-4)


def test_variables_without_values_are_arguments(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "saved_model.pb", tmp_path)
    x = np.ones((2, 4), np.float32)
    with pjrt.load_model(tmp_path, "cpu") as model:
        assert [each.name for each in model.parameters] == ["Variable_1", "Variable", "x"]
        _, y = model(x=x, Variable_1=np.eye(4, 3, dtype=np.float32), Variable=BIAS)
        np.testing.assert_allclose(y, np.sin(x[:, :3]) + BIAS, rtol=1e-5)
