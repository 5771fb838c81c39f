"""A transformer in JAX, trained on all devices of a job: by data along one axis of a mesh, by tensors along the other.

Nothing in it is written for this package but the line that registers the device:

    python tests/frameworks/transformer_job.py reference 8                        # one process with eight devices
    python tests/frameworks/transformer_job.py reference 2 127.0.0.1:7000 4 RANK  # one of four processes with two

It prints the loss of each step. ``DEVICE`` may be ``FILE.py:FUNCTION``, a function that makes clients.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pjrt

STEPS = 4
LAYERS, WIDTH, HEADS, HIDDEN = 2, 16, 4, 32
VOCABULARY, LENGTH, BATCH = 24, 8, 8
LEARNING_RATE = 0.5

# Heads and hidden units are divided along the axis ``model``, examples along ``data``.
SHARDINGS = {
    "query": P(None, "model", None),
    "key": P(None, "model", None),
    "value": P(None, "model", None),
    "output": P("model", None, None),
    "up": P(None, "model"),
    "down": P("model", None),
}


def initial(key: Any) -> dict[str, Any]:
    """Return the parameters."""

    def normal(key: Any, *shape: int) -> Any:
        return jax.random.normal(key, shape) * shape[0] ** -0.5

    keys = iter(jax.random.split(key, 2 + 6 * LAYERS))
    size = WIDTH // HEADS
    layers = [
        {
            "query": normal(next(keys), WIDTH, HEADS, size),
            "key": normal(next(keys), WIDTH, HEADS, size),
            "value": normal(next(keys), WIDTH, HEADS, size),
            "output": normal(next(keys), HEADS, size, WIDTH),
            "up": normal(next(keys), WIDTH, HIDDEN),
            "down": normal(next(keys), HIDDEN, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {
        "layers": layers,
        "embedding": normal(next(keys), VOCABULARY, WIDTH),
        "positions": normal(next(keys), LENGTH, WIDTH),
    }


def loss(parameters: dict[str, Any], tokens: Any) -> Any:
    """Return the mean loss of the prediction of each token from those before it."""
    x = parameters["embedding"][tokens[:, :-1]] + parameters["positions"]
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    for layer in parameters["layers"]:
        y = normalized(x)
        query, key, value = (jnp.einsum("btd,dhk->bthk", y, layer[name]) for name in ("query", "key", "value"))
        scores = jnp.einsum("bqhk,bthk->bhqt", query, key) * query.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        x += jnp.einsum("bhqt,bthk,hkd->bqd", weights, value, layer["output"])
        x += jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    logits = normalized(x) @ parameters["embedding"].T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1))


def normalized(x: Any) -> Any:
    """Return vectors with mean 0 and variance 1."""
    x -= x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def step(parameters: dict[str, Any], tokens: Any) -> tuple[dict[str, Any], Any]:
    """Return the parameters after a step of training, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(parameters, tokens)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, parameters, gradients), value


def train() -> None:
    """Train on all devices, and print the losses."""
    devices = jax.devices()
    mesh = Mesh(np.array(devices).reshape(-1, 4), ("data", "model"))
    shardings = jax.tree.map_with_path(
        lambda path, _: NamedSharding(mesh, SHARDINGS.get(getattr(path[-1], "key", ""), P())),
        jax.eval_shape(initial, jax.random.key(0)),
    )
    parameters = jax.jit(initial, out_shardings=shardings)(jax.random.key(0))
    by_example = NamedSharding(mesh, P("data"))
    train_step = jax.jit(step, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P())))
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        first = random.integers(0, VOCABULARY, (BATCH, 1))
        batch = ((first + np.arange(LENGTH + 1)) % VOCABULARY).astype(np.int32)  # each token is one more than the last
        tokens = jax.make_array_from_callback(batch.shape, by_example, batch.__getitem__)
        parameters, value = train_step(parameters, tokens)
        print("loss", float(value), flush=True)


def main(device: str, num_devices: str, *job: str) -> None:
    """Register the device, and train."""
    platform = pjrt.frameworks.jax.register(device, platform="mine", num_devices=int(num_devices))
    jax.config.update("jax_platforms", platform)
    if job:
        address, processes, rank = job
        jax.distributed.initialize(address, int(processes), int(rank))
    print("devices", len(jax.devices()), len(jax.local_devices()), flush=True)
    train()
    if job:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
