"""Everyday calls of JAX on a plugin that is named by its path; run by the vendor tests of ``validate``."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental import serialize_executable
from jax.sharding import NamedSharding, PartitionSpec

import pjrt.frameworks.jax

wrap = sys.argv[2] == "wrap"  # through this package, which brings callbacks to plugins that have none for JAX
pjrt.frameworks.jax.register(sys.argv[1], platform="real", make_default=True, wrap=wrap, cpu_device_count=4)
mesh = jax.make_mesh((4,), ("x",))
split, whole = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())
x = jnp.arange(8.0)

# Programs, gradients, donation, copies and loops.
assert jax.jit(lambda x: x * 2)(x).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
assert jax.grad(lambda x: (x**2).sum())(x).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
assert jax.jit(lambda x: x + 1, donate_argnums=0)(jnp.zeros(2)).tolist() == [1, 1]
assert jax.lax.scan(lambda c, x: (c + x, c), 0.0, jnp.arange(3.0))[1].tolist() == [0, 0, 1]
assert np.from_dlpack(jnp.arange(3)).tolist() == [0, 1, 2]
x.copy_to_host_async()
assert float(jax.random.normal(jax.random.key(0), (2,)).sum()) != 0

# Four devices.
placed = jax.device_put(x, split)
assert float(jax.jit(lambda x: x.sum())(placed)) == 28
assert jax.device_put(placed, whole).tolist() == x.tolist()
assert jax.jit(lambda x: x + 1, out_shardings=whole, donate_argnums=0)(placed).tolist() == (x + 1).tolist()
compiled = jax.jit(lambda x: x + 1, in_shardings=split, out_shardings=split).lower(x).compile()
loaded = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
assert loaded(jax.device_put(x, split)).tolist() == (x + 1).tolist()
assert len(compiled.as_text() or "") > 0

if wrap:
    sine = jax.jit(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x))
    assert abs(float(sine(jnp.float32(1))) - np.sin(1)) < 1e-6
    jax.jit(lambda x: jax.debug.print("seen {}", x))(jnp.float32(1))
    jax.effects_barrier()

# Mistakes that JAX sees.
gone = jnp.zeros(2)
gone.delete()
with contextlib.suppress(RuntimeError):
    gone + 1


def trained() -> Any:
    """Train a layer with Flax, and return its parameters."""
    model, optimizer = nn.Dense(3), optax.adam(1e-2)
    parameters = model.init(jax.random.key(0), jnp.ones((4, 5)))
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any) -> tuple[Any, Any]:
        gradients = jax.grad(lambda p: (model.apply(p, x) ** 2).mean())(parameters)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state

    for _ in range(5):
        parameters, state = step(parameters, state, jnp.ones((4, 5)))
    return parameters


parameters = trained()
with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpoints:
    checkpoints.save(f"{folder}/saved", parameters)
    checkpoints.wait_until_finished()
    restored = checkpoints.restore(f"{folder}/saved", parameters)
assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), parameters, restored)))
print("done")
