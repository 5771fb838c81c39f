"""Diffrax: stiff and stochastic equations, their gradients, and an equation whose right side is a network.

With steps of adaptive size, a difference of rounding may become one of the solver's tolerance.
"""

from __future__ import annotations

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from diffrax import ODETerm, SaveAt, diffeqsolve
from framework_jobs import Results, part

RATES = jnp.array([0.5, 0.1, 0.4, 0.05])


def predators(t: float, y: jax.Array, rates: jax.Array) -> jax.Array:
    """Return the change of the numbers of prey and predators."""
    return jnp.array([rates[0] * y[0] - rates[1] * y[0] * y[1], rates[3] * y[0] * y[1] - rates[2] * y[1]])


def solve(rates: jax.Array, solver: diffrax.AbstractSolver) -> jax.Array:
    """Return the numbers at ten times."""
    return diffeqsolve(
        ODETerm(predators),
        solver,
        0.0,
        10.0,
        0.1,
        jnp.array([10.0, 10.0]),
        args=rates,
        saveat=SaveAt(ts=jnp.linspace(0, 10, 11)),
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
    ).ys


@part(tolerance=1e-4)
def adaptive_steps() -> Results:
    return {
        "implicit": solve(RATES, diffrax.Kvaerno5()),
        "batch": jax.vmap(lambda scale: solve(scale * RATES, diffrax.Tsit5()))(jnp.array([0.9, 1.0, 1.1])),
        "gradient": jax.grad(lambda rates: solve(rates, diffrax.Tsit5())[-1].sum())(RATES),
    }


@part(tolerance=1e-10)
def adaptive_steps_in_double_precision() -> Results:
    with jax.enable_x64(True):
        return {"numbers": solve(jnp.array(RATES, jnp.float64), diffrax.Tsit5())}


@part()
def stochastic() -> Results:
    noise = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-3, shape=(), key=jax.random.key(0))
    terms = diffrax.MultiTerm(ODETerm(lambda t, y, args: -y), diffrax.ControlTerm(lambda t, y, args: 0.3, noise))
    times = jnp.linspace(0, 1, 11)
    return {"path": diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 0.05, jnp.array(1.0), saveat=SaveAt(ts=times)).ys}


@part()
def neural() -> Results:
    times = jnp.linspace(0, 1, 8)
    circle = jnp.stack([jnp.cos(3 * times), jnp.sin(3 * times)], 1)
    model = eqx.nn.MLP(2, 2, 16, 1, jnp.tanh, key=jax.random.key(0))
    optimizer = optax.adam(0.02)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model: eqx.Module, state: optax.OptState) -> tuple[eqx.Module, optax.OptState, jax.Array]:
        def loss(model: eqx.Module) -> jax.Array:
            term = ODETerm(lambda t, y, args: model(y))
            path = diffeqsolve(term, diffrax.Heun(), 0.0, 1.0, 1 / 16, circle[0], saveat=SaveAt(ts=times)).ys
            return jnp.mean((path - circle) ** 2)

        value, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state, value

    losses = []
    for _ in range(20):
        model, state, value = step(model, state)
        losses.append(value)
    return {"losses": jnp.stack(losses)}
