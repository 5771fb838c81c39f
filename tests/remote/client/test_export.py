"""The client as a plugin: unmodified JAX computes on the devices of a server in another process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

TRAINING = """
import pjrt.frameworks.jax
pjrt.frameworks.jax.register("remote")
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.config.update("jax_platforms", "remote,cpu")
devices = jax.devices("remote")
assert len(devices) == 4, devices

def step(w, x, y):
    loss, gradient = jax.value_and_grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)
    return w - 0.5 * gradient, loss

def train(w, x, y):
    run = jax.jit(step, donate_argnums=0)
    losses = []
    for _ in range(10):
        w, loss = run(w, x, y)
        losses.append(loss)
    return [float(loss) for loss in losses]

rng = np.random.default_rng(0)
w, x, y = (rng.random(shape, np.float32) for shape in ((8, 4), (16, 8), (16, 4)))
mesh = Mesh(np.array(devices), ("data",))
by_row, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
sharded = train(*(jax.device_put(a, s) for a, s in ((w, whole), (x, by_row), (y, by_row))))
with jax.default_device(devices[0]):
    single = train(*map(jnp.asarray, (w, x, y)))
with jax.default_device(jax.devices("cpu")[0]):
    local = train(*map(jnp.asarray, (w, x, y)))
np.testing.assert_allclose(single, local, rtol=1e-5)
np.testing.assert_allclose(sharded, local, rtol=1e-5)
total = jax.shard_map(lambda v: jax.lax.psum(v.sum(), "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
np.testing.assert_allclose(total(jax.device_put(x, by_row)), x.sum(), rtol=1e-5)
print("trained")
"""


def test_jax_trains_on_a_server_by_the_exported_client(served_cpu: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINING],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PJRT_REMOTE_ADDRESS": served_cpu},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == "trained"
