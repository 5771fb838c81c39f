"""Optax: twelve optimizers on one function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from framework_jobs import Results, part

OPTIMIZERS = {
    "sgd": optax.sgd(1e-3, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.05),
    "adamw": optax.adamw(0.05),
    "adagrad": optax.adagrad(0.1),
    "adafactor": optax.adafactor(0.01),
    "lamb": optax.lamb(0.01),
    "lion": optax.lion(0.01),
    "rmsprop": optax.rmsprop(0.01),
    "lbfgs": optax.lbfgs(),
    "muon": optax.contrib.muon(0.01),
    "prodigy": optax.contrib.prodigy(1.0),
    "schedule": optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 50))
    ),
}


def valley(parameters: dict[str, jax.Array]) -> jax.Array:
    """Return Rosenbrock's function of two parameters, and the squares of the others."""
    a, b = parameters["a"], parameters["b"]
    return (1 - a) ** 2 + 10 * (b - a**2) ** 2 + jnp.sum(parameters["matrix"] ** 2)


@part()
def optimizers() -> Results:
    return {name: minimize(optimizer, uses_values=name == "lbfgs") for name, optimizer in OPTIMIZERS.items()}


def minimize(optimizer: optax.GradientTransformation, *, uses_values: bool) -> np.ndarray:
    """Return the values of twenty steps."""
    parameters = {"a": jnp.array(-1.0), "b": jnp.array(1.0), "matrix": jnp.eye(4) + 0.1}
    state = jax.jit(optimizer.init)(parameters)

    @jax.jit
    def step(parameters: dict[str, jax.Array], state: optax.OptState) -> tuple[dict, optax.OptState, jax.Array]:
        value, gradients = jax.value_and_grad(valley)(parameters)
        more = {"value": value, "grad": gradients, "value_fn": valley} if uses_values else {}
        updates, state = optimizer.update(gradients, state, parameters, **more)
        return optax.apply_updates(parameters, updates), state, value

    values = []
    for _ in range(20):
        parameters, state, value = step(parameters, state)
        values.append(float(value))
    return np.array(values)
