"""A device in thirty lines, and JAX on it.

pip install "pjrt[xla]" jax
python device.py
"""

import numpy as np

import pjrt

OPERATIONS = {
    "stablehlo.add": lambda op, x, y: x + y,
    "stablehlo.multiply": lambda op, x, y: x * y,
    "stablehlo.tanh": lambda op, x: np.tanh(x),
    "stablehlo.transpose": lambda op, x: x.transpose(op.attribute("permutation")),
    "stablehlo.dot_general": lambda op, x, y: x @ y,
}


def compile(program, options):
    """Return a function on numpy arrays that runs a program's operations one after the other."""

    def run(*arrays):
        values = dict(zip(program.entry.arguments, arrays, strict=True))
        for op in program.entry.body.operations[:-1]:
            print("mychip runs", op.name, "->", op.results[0].type)
            values[op.results[0]] = OPERATIONS[op.name](op, *(values[v] for v in op.operands))
        return [values[v] for v in program.entry.body.outputs]

    return run


def make_client(**options):
    return pjrt.StableHloClient("mychip", compile=compile, operations=OPERATIONS, **options)


if __name__ == "__main__":
    import jax
    import jax.numpy as jnp

    platform = pjrt.frameworks.jax.register(pjrt.export(make_client, name="mychip"))
    x = jax.device_put(np.ones((2, 3), np.float32), jax.devices(platform)[0])
    y = jax.jit(lambda x: jnp.tanh(x @ x.T))(x)
    print(y, "on", y.device)
