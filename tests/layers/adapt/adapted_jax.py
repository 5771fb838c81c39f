"""JAX on the plugin that is named to it as ``older``; prints what each step gives. Run by the tests of ``adapt``."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np

report: dict[str, object] = {"devices": len(jax.devices())}
report["jit"] = jax.jit(lambda x: x * 2 + 1)(jnp.arange(4.0)).tolist()
report["grad"] = jax.grad(lambda x: (x**2).sum())(jnp.arange(4.0)).tolist()
report["donated"] = jax.jit(lambda x: x + 1, donate_argnums=0)(jnp.arange(4.0)).tolist()
report["put"] = np.asarray(jax.device_put(np.arange(3), jax.devices()[-1])).tolist()
first = jax.device_put(np.arange(3), jax.devices()[0])
report["moved"] = np.asarray(jax.device_put(first, jax.devices()[-1])).tolist()
report["kinds"] = sorted({memory.kind for memory in jax.devices()[0].addressable_memories()})
compiled = jax.jit(lambda x: x @ x).lower(jnp.ones((2, 2))).compile()
try:
    report["text"] = type(compiled.as_text()).__name__
except Exception as error:
    report["text"] = str(error)
print(json.dumps(report))
