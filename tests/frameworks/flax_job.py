"""Flax NNX: a network with a convolution, batch normalization, attention and dropout; training on eight devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from framework_jobs import Results, part
from jax.sharding import NamedSharding, PartitionSpec


class Network(nnx.Module):
    """A small classifier of images of 8 by 8."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        # Without a bias, whose gradient before the normalization is only rounding, which AdamW makes a whole step.
        self.convolution = nnx.Conv(1, 8, (3, 3), use_bias=False, rngs=rngs)
        self.normalization = nnx.BatchNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, 8, decode=False, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.normalization(self.convolution(images)))
        x = nnx.max_pool(nnx.avg_pool(x, (2, 2), (2, 2)), (2, 2), (1, 1))
        x = x.reshape(len(x), -1, 8)
        return self.head(self.dropout(x + self.attention(x)).mean(1))


@part()
def all_layers() -> Results:
    random = np.random.default_rng(0)
    images, labels = random.standard_normal((32, 8, 8, 1)).astype(np.float32), random.integers(0, 10, 32)
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(0.01), wrt=nnx.Param)

    @nnx.jit
    def step(model: Network, optimizer: nnx.Optimizer) -> jax.Array:
        def loss(model: Network) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    losses = [step(model, optimizer) for _ in range(10)]
    model.eval()
    return {"losses": jnp.stack(losses), "logits": nnx.jit(lambda model, x: model(x))(model, images)}


@part()
def eight_devices() -> Results:
    mesh = jax.make_mesh((8,), ("data",))
    model = nnx.Sequential(nnx.Linear(4, 16, rngs=(rngs := nnx.Rngs(0))), nnx.gelu, nnx.Linear(16, 1, rngs=rngs))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    state = nnx.state((model, optimizer))
    nnx.update((model, optimizer), jax.device_put(state, NamedSharding(mesh, PartitionSpec())))
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    x, y = jax.device_put((x, np.sin(x.sum(1, keepdims=True))), NamedSharding(mesh, PartitionSpec("data")))

    @nnx.jit
    def step(model: nnx.Module, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
        value, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        return value

    losses = [step(model, optimizer, x, y) for _ in range(10)]
    assert len(losses[-1].devices()) == len(model.layers[0].kernel[...].devices()) == 8
    return {"losses": np.array([float(value) for value in losses])}
