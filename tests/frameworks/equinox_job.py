"""Equinox: a recurrent network, layers with state, serialized leaves, and errors of running programs."""

from __future__ import annotations

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from framework_jobs import Results, part


class Recurrent(eqx.Module):
    """A classifier of sequences."""

    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(2, 8, key=first)
        self.head = eqx.nn.Linear(8, 1, key=second)

    def __call__(self, sequence: jax.Array) -> jax.Array:
        state, _ = jax.lax.scan(lambda state, x: (self.cell(x, state), None), jnp.zeros(8), sequence)
        return self.head(state)


@part()
def recurrent_network() -> Results:
    x = np.random.default_rng(0).standard_normal((32, 12, 2)).astype(np.float32)
    y = (x.sum((1, 2)) > 0).astype(np.float32)[:, None]
    model = Recurrent(jax.random.key(0))
    optimizer = optax.adam(0.01)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model: Recurrent, state: optax.OptState) -> tuple[Recurrent, optax.OptState, jax.Array]:
        def loss(model: Recurrent) -> jax.Array:
            return optax.sigmoid_binary_cross_entropy(jax.vmap(model)(x), y).mean()

        value, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state, value

    losses = []
    for _ in range(10):
        model, state, value = step(model, state)
        losses.append(value)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, model)
    file.seek(0)
    again = eqx.tree_deserialise_leaves(file, Recurrent(jax.random.key(1)))
    return {"losses": jnp.stack(losses), "outputs": eqx.filter_vmap(again)(x)}


@part()
def layers_with_state() -> Results:
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")
    x = jax.random.normal(jax.random.key(0), (8, 3))
    run = jax.vmap(model, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    outputs, state = jax.jit(run)(x, state)
    return {"outputs": outputs, "inference": jax.vmap(eqx.nn.inference_mode(model), (0, None))(x, state)[0]}


@part()
def errors_while_a_program_runs() -> Results:
    @eqx.filter_jit
    def root(x: jax.Array) -> jax.Array:
        return jnp.sqrt(eqx.error_if(x, x < 0, "a root of a negative number"))

    message = ""
    try:
        root(jnp.array(-1.0)).block_until_ready()
    except RuntimeError as error:
        message = str(error)
    assert "a root of a negative number" in message, message
    return {"root": root(jnp.array(4.0))}
