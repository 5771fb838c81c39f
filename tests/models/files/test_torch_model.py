"""Models of PyTorch/XLA: weights in the folder, a dynamic batch, values that the program does not need."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch_folders import BIAS, WEIGHT, write_mlp

import pjrt
from pjrt import ifrt
from pjrt.models import ModelFile

FLAG = np.zeros(5, np.bool_)


def expected(x: np.ndarray) -> np.ndarray:
    return 2 * (x @ WEIGHT.T + BIAS)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_folder_is_called(tmp_path: Path, device: str) -> None:
    write_mlp(tmp_path)
    with pjrt.load_model(tmp_path, device) as model:
        assert [str(each) for each in model.parameters if each.argument is not None] == [
            "argument 0 (args[0]): f32[?,4]"
        ]
        for batch in (2, 5):
            x = np.random.default_rng(batch).standard_normal((batch, 4)).astype(np.float32)
            results = model(x, None, 7, flag=FLAG)
            np.testing.assert_allclose(results["y"], expected(x), rtol=1e-5)
            np.testing.assert_array_equal(results["x"][0], x)
        first, second = model.compilations
        assert (first.dynamic, second.dynamic) == ({"args[0]": (2, 4)}, {"args[0]": (5, 4)})


def test_weights_that_were_not_saved_are_arguments(tmp_path: Path) -> None:
    write_mlp(tmp_path, save_weights=False)
    with pjrt.load_model(tmp_path, "cpu") as model:
        x = np.ones((3, 4), np.float32)
        results = model(x, 7, FLAG, **{"linear.weight": WEIGHT, "linear.bias": BIAS})
        np.testing.assert_allclose(results["y"], expected(x), rtol=1e-5)
        with pytest.raises(pjrt.InvalidArgumentError, match=r"found none for argument \d \(linear.weight\)"):
            model(x, 7, FLAG, **{"linear.bias": BIAS})


def test_weights_are_put_on_the_devices_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mlp(tmp_path)
    shapes = []
    original = ifrt.Client.make_array

    def make_array(self: ifrt.Client, value: np.ndarray, sharding: ifrt.Sharding) -> ifrt.Array:
        shapes.append(value.shape)
        return original(self, value, sharding)

    monkeypatch.setattr(ifrt.Client, "make_array", make_array)
    with pjrt.load_model(tmp_path, "cpu") as model:
        for batch in (1, 1, 2):
            model(np.ones((batch, 4), np.float32), None, 7, flag=FLAG)
    assert sorted(shapes) == sorted([(1, 4), (1, 4), (2, 4), WEIGHT.shape, BIAS.shape, ()])


def test_weights_are_saved_with_an_executable(tmp_path: Path) -> None:
    write_mlp(tmp_path / "mlp")
    file = ModelFile.read(tmp_path / "mlp")
    program = file.program_for("cpu", {"args[0]": (3, 4)})
    with pjrt.client("cpu") as client:
        executable = client.compile(program)
        signature = file.compiled_signature(program)
        pjrt.save_executable(executable, tmp_path / "mlp.bin", program=signature, weights=file.weights)
    with pjrt.load_model(tmp_path / "mlp.bin", "cpu") as model:
        x = np.ones((3, 4), np.float32)
        np.testing.assert_allclose(model(x, None, 7, flag=FLAG)["y"], expected(x), rtol=1e-5)
