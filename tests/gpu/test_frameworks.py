"""Frameworks on the GPU: through this package and without it, with equal results."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

TRAINING = """
import json, jax, jax.numpy as jnp, numpy as np

def loss(weights, x, y):
    for w in weights[:-1]:
        x = jax.nn.gelu(x @ w)
    return jnp.mean((x @ weights[-1] - y) ** 2)

@jax.jit
def step(weights, x, y):
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    return [w - 0.05 * g for w, g in zip(weights, gradient)], value

random = np.random.default_rng(0)
weights = [jnp.asarray(random.normal(0, 0.1, (128, 128)), jnp.float32) for _ in range(4)]
x, y = (jnp.asarray(random.normal(0, 1, (64, 128)), jnp.float32) for _ in range(2))
losses = []
for _ in range(20):
    weights, value = step(weights, x, y)
    losses.append(float(value))
device = jax.devices()[0]
kinds = sorted(memory.kind for memory in device.addressable_memories())
donating = jax.jit(lambda x: x + 1, donate_argnums=0)
given = jnp.ones(1 << 16)
jax.block_until_ready(donating(given))
print(json.dumps({"platform": device.platform, "losses": losses, "kinds": kinds, "donated": given.is_deleted()}))
"""
WRAPPED = """
import pjrt
options = {"memory": "on-demand"} if GPU == "cuda" else {}
platform = pjrt.frameworks.jax.register(GPU, platform="wrapped", wrap=True, make_default=True, **options)
import jax
assert platform == "wrapped" and jax.devices(platform) == jax.devices()
"""


def test_training_in_jax_through_this_package(python: Callable[..., str]) -> None:
    ours = json.loads(python(WRAPPED + TRAINING))
    theirs = json.loads(python(TRAINING))
    assert ours["platform"] == theirs["platform"]
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-4)
    assert ours["losses"][-1] < ours["losses"][0]
    assert (ours["kinds"], ours["donated"]) == (theirs["kinds"], theirs["donated"])


def test_training_in_pytorch_xla(python: Callable[..., str]) -> None:
    pytest.importorskip("torch_xla")
    code = """
import torch, pjrt
pjrt.frameworks.torch_xla.register(GPU)
import torch_xla
x = torch.ones(64, 64, device=torch_xla.device())
print(float((x @ x).sum().cpu()))
"""
    assert float(python(code)) == 64.0**3
