"""A transformer in JAX, trained on all devices: by data along one axis of a mesh, by tensors along the other.

Nothing in it is written for any device, nor for this package:

    python examples/transformer/transformer.py

It prints the loss of each step. The number of devices must be a multiple of 4. In the processes of ``pjrt launch`` it
trains on the devices of all of them. ``everywhere.py`` runs it on one machine, in a job, on a server and on a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

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


def train(devices: Sequence[Any]) -> Iterator[float]:
    """Train on devices; yield the loss of each step."""
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
        yield float(value)


def main() -> None:
    """Train on the default devices, in a job where one has been started."""
    if address := os.environ.get("PJRT_COORDINATOR_ADDRESS"):
        count, index = (int(os.environ[f"PJRT_PROCESS_{name}"]) for name in ("COUNT", "INDEX"))
        jax.distributed.initialize(address, count, index)
    for value in train(jax.devices()):
        print("loss", value, flush=True)


if __name__ == "__main__":
    main()
