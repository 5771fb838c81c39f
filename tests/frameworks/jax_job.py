"""JAX alone: a network with a convolution, data on eight devices, and everything that a loop of training needs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from framework_jobs import Results, part
from jax.sharding import NamedSharding, PartitionSpec


@part()
def convolution() -> Results:
    def loss(parameters: tuple[jax.Array, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
        kernel, head = parameters
        x = jax.nn.relu(jax.lax.conv(images, kernel, (1, 1), "SAME"))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        logits = x.reshape(len(x), -1) @ head
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])

    keys = jax.random.split(jax.random.key(0), 4)
    parameters = 0.3 * jax.random.normal(keys[0], (4, 1, 3, 3)), 0.1 * jax.random.normal(keys[1], (64, 10))
    images, labels = jax.random.normal(keys[2], (16, 1, 8, 8)), jax.random.randint(keys[3], 16, 0, 10)
    step = jax.jit(jax.value_and_grad(loss), donate_argnums=0)
    losses = []
    for _ in range(5):
        previous = jax.tree.map(jnp.copy, parameters)
        value, gradients = step(parameters, images, labels)
        parameters = jax.tree.map(lambda p, g: p - 0.1 * g, previous, gradients)
        losses.append(value)
    return {"losses": jnp.stack(losses), "kernel": parameters[0]}


@part()
def data_on_eight_devices() -> Results:
    mesh = jax.make_mesh((8,), ("data",))
    x = jax.random.normal(jax.random.key(0), (64, 4))
    x, y = jax.device_put((x, jnp.sin(x.sum(1))), NamedSharding(mesh, PartitionSpec("data")))
    weights = jax.device_put(jnp.ones(4), NamedSharding(mesh, PartitionSpec()))
    step = jax.jit(jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2)))
    losses = []
    for _ in range(5):
        value, gradient = step(weights)
        weights = weights - 0.5 * gradient
        losses.append(value)
    assert len(weights.devices()) == 8
    return {"losses": np.array([float(value) for value in losses]), "weights": weights}


@part()
def solvers() -> Results:
    a = jax.random.normal(jax.random.key(0), (6, 6))
    s = a @ a.T + 6 * jnp.eye(6)
    return {
        "solve": jnp.linalg.solve(s, a),
        "values": jnp.linalg.eigvalsh(s),
        "singular": jnp.linalg.svd(a, compute_uv=False),
        "gradient": jax.grad(lambda s: jnp.linalg.slogdet(s)[1])(s),
    }
