"""JAX on the ``iree`` device: it trains, with XLA's loss, and the fallback runs what IREE lacks.

All of JAX's checks run on it by hand (``pytest -m iree``): compiling their programs takes a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.full

pytest.importorskip("jax")

SCRIPT = """
import json
import sys
import numpy as np
import pjrt

driver, cache = sys.argv[1:]
platform = pjrt.frameworks.jax.register("iree", num_devices=1, driver=driver, cache=cache)
import jax
import jax.numpy as jnp

def loss(weights, x, y):
    for a, b in weights[:-1]:
        x = jnp.tanh(x @ a + b)
    a, b = weights[-1]
    return jnp.mean((x @ a + b - y) ** 2)

@jax.jit
def step(weights, x, y):
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

def train(device):
    random = np.random.default_rng(0)
    sizes = [2, 16, 16, 1]
    weights = [
        (random.standard_normal(shape).astype("f") / 2, np.zeros(shape[1], "f")) for shape in zip(sizes, sizes[1:])
    ]
    x = random.uniform(-1, 1, (64, 2)).astype("f")
    y = np.sin(3 * x[:, :1]) * x[:, 1:]
    weights, x, y = jax.device_put((weights, x, y), device)
    losses = []
    for _ in range(100):
        weights, value = step(weights, x, y)
        losses.append(value)
    return [float(value) for value in losses]

def solve(device):
    a = np.array([[4, 1, 0], [1, 3, 1], [0, 1, 2]], "f")
    a, b = jax.device_put((a, np.array([1, 2, 3], "f")), device)
    return np.asarray(jax.jit(lambda a, b: jax.scipy.linalg.solve(a + a, b, assume_a="pos") * 2)(a, b)).tolist()

def draw(device):
    key = jax.device_put(jax.random.key(7), device)
    return np.asarray(jax.jit(lambda key: jax.random.normal(key, (8,)))(key)).tolist()

here, xla = jax.devices(platform)[0], jax.devices("cpu")[0]
print(json.dumps({name: [f(here), f(xla)] for name, f in dict(train=train, solve=solve, draw=draw).items()}))
"""


def test_jax_trains_with_xlas_loss(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SCRIPT, "local-task", str(tmp_path / "modules")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "leaked" not in done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = results["train"]
    assert ours[-1] < ours[0] / 4
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    for name in ("solve", "draw"):
        np.testing.assert_allclose(*results[name], rtol=1e-5, err_msg=name)
