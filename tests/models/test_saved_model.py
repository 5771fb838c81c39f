"""SavedModels of TensorFlow with a program of jax2tf: variables are arguments by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pjrt

FOLDER = Path(__file__).parents[1] / "stablehlo" / "data" / "saved_model"


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_saved_model_is_called(device: str) -> None:
    weight, bias = np.eye(4, 3, dtype=np.float32), np.ones(3, np.float32)
    with pjrt.load_model(FOLDER, device) as model:
        assert [each.name for each in model.results] == ["sum", "y"]
        for batch in (2, 3):
            x = np.random.default_rng(0).standard_normal((batch, 4)).astype(np.float32)
            total, y = model(x=x, Variable_1=weight, Variable=bias)
            np.testing.assert_allclose(total, x.sum(), rtol=1e-5)
            np.testing.assert_allclose(y, np.sin(x[:, :3]) + 1, rtol=1e-5)
