"""The digits example: what is committed works, is accurate, agrees with plain numpy, and needs no framework."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pjrt

DIGITS = Path(__file__).parents[2] / "examples" / "digits"

# Runs a script in a process in which the frameworks that the example claims not to need cannot be imported.
WITHOUT_FRAMEWORKS = """
import runpy, sys
for name in ("jax", "sklearn"):
    sys.modules[name] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    with np.load(DIGITS / "weights.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def convolve_same(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """A 3x3 convolution with stride 1 and SAME padding: NHWC by HWIO gives NHWC."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("nhwcij,ijco->nhwo", windows, kernel, optimize=True)


def scores_by_numpy(weights: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """The network once more, in float64 and without a compiler."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = images[..., None] / 16
    for layer in ("conv1", "conv2"):
        x = np.maximum(convolve_same(x, w[f"{layer}.kernel"]) + w[f"{layer}.bias"], 0)
    x = x.reshape(len(x), 4, 2, 4, 2, -1).max(axis=(2, 4))
    return x.reshape(len(x), -1) @ w["dense.kernel"] + w["dense.bias"]


@pytest.mark.full
def test_run_prints_accuracy_and_time_without_any_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_FRAMEWORKS, str(DIGITS / "run.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"accuracy (\d\.\d+)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) >= 0.97
    assert re.search(r"one run over all 360 digits \d+\.\d+ ms", done.stdout), done.stdout


def test_the_compiled_program_agrees_with_numpy(weights: dict[str, np.ndarray]) -> None:
    images = np.load(DIGITS / "images.npy")
    executable = pjrt.client("cpu").compile((DIGITS / "digits.stablehlo").read_bytes())
    (scores,) = executable(*weights.values(), images)
    np.testing.assert_allclose(np.asarray(scores), scores_by_numpy(weights, images), rtol=1e-4, atol=1e-4)


def test_held_out_digits_are_all_ten_and_labelled() -> None:
    images, labels = np.load(DIGITS / "images.npy"), np.load(DIGITS / "labels.npy")
    assert images.dtype == np.uint8
    assert images.shape == (len(labels), 8, 8)
    assert images.max() == 16
    assert set(labels.tolist()) == set(range(10))


def test_weights_are_in_the_order_of_their_names(weights: dict[str, np.ndarray]) -> None:
    assert list(weights) == sorted(weights)


def test_artifact_is_written_at_stablehlo_1_0_and_names_no_path() -> None:
    artifact = (DIGITS / "digits.stablehlo").read_bytes()
    assert b"StableHLO_v1.0.0" in artifact
    assert b".py" not in artifact


def test_committed_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in DIGITS.iterdir() if path.is_file()) < 200_000


def shown_by(cell: str, names: dict[str, object]) -> object:
    """Run a cell of a notebook, and return what stands last in it."""
    *statements, last = ast.parse(cell).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.full
def test_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DIGITS)
    cells = json.loads((DIGITS / "digits.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            value = shown_by("".join(cell["source"]), names)
            shown.append(value if isinstance(value, str) else value._repr_html_())  # type: ignore[attr-defined]
    client, device, executable, buffer, accuracy, comparison, benchmark = shown
    assert "XLA of jaxlib" in client
    assert "cpu" in device
    assert "memory needed" in executable
    assert "FLOPs" in executable
    assert "f32[10]" in buffer
    assert accuracy == "99.4% of 360 digits are read right"
    assert all("reference" in each for each in (comparison, benchmark))
