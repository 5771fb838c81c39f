"""The example package of OpenVINO: installed, used from Python and from JAX, and beside the reference interpreter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("openvino", reason="needs OpenVINO: pip install openvino")

PACKAGE = Path(__file__).parents[2] / "examples" / "openvino_device"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what ``pip install`` writes: the package and its metadata."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE / "src", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    metadata = folder / f"pjrt_openvino-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def run(site: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(site), **environment}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=280, env=variables, check=False
    )


def test_it_is_found_after_installation(site: Path) -> None:
    done = run(site, "-m", "pjrt", "devices", "openvino", "--json")
    assert done.returncode == 0, done.stderr
    assert "openvino" in done.stdout
    facts = json.loads(run(site, "-m", "pjrt", "plugins", "openvino", "--json").stdout)
    assert not facts["problem"]
    assert facts["frameworks"] == {"jax": {"platform": "openvino"}, "torch_xla": {"name": "OPENVINO"}}


TRAINING = """
import jax, jax.numpy as jnp, numpy as np

def loss(weights, x, y):
    for w, b in weights[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = weights[-1]
    return jnp.mean((x @ w + b - y) ** 2)

step = jax.jit(lambda p, x, y: jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(loss)(p, x, y)), donate_argnums=0)

def train(device):
    generator = np.random.default_rng(0)
    sizes = [2, 16, 16, 1]
    weights = [(generator.standard_normal(s).astype("f") / 2, np.zeros(s[1], "f")) for s in zip(sizes, sizes[1:])]
    x = generator.uniform(-1, 1, (64, 2)).astype("f")
    y = np.sin(3 * x[:, :1]) * x[:, 1:]
    weights, x, y = jax.device_put((weights, x, y), device)
    for _ in range(100):
        weights = step(weights, x, y)
    return float(jax.jit(loss)(weights, x, y))

(device,) = jax.devices()
assert device.platform == "openvino", device
losses = train(device), train(jax.devices("cpu")[0])
print(losses)
np.testing.assert_allclose(*losses, rtol=1e-4)
"""


def test_jax_trains_with_the_loss_of_xla(site: Path) -> None:
    done = run(site, "-c", TRAINING, JAX_PLATFORMS="openvino,cpu")
    assert done.returncode == 0, done.stderr[-3000:]
