"""A device in thirty lines, and JAX on it.

pip install "pjrt[xla]" jax
python device.py
"""

import numpy as np

import pjrt
from pjrt.stablehlo import lowering


def dot_general(op, x, y):
    form = lowering.matrix_product(op)
    left = x.transpose(form.lhs_permutation).reshape(form.lhs_shape)
    right = y.transpose(form.rhs_permutation).reshape(form.rhs_shape)
    return np.matmul(left, right).reshape(form.result_shape).astype(op.results[0].type.dtype)


KERNELS = {
    "stablehlo.add": lambda op, x, y: np.add(x, y),
    "stablehlo.multiply": lambda op, x, y: np.multiply(x, y),
    "stablehlo.tanh": lambda op, x: np.tanh(x),
    "stablehlo.transpose": lambda op, x: x.transpose(op.attribute("permutation")),
    "stablehlo.dot_general": dot_general,
}


def show(step, inputs, outputs):
    print(step.runner.device if step.runner else "the interpreter", "runs", step.name, "->", step.output_types[0])


def make_client(**options):
    return pjrt.StableHloClient("mychip", kernels=KERNELS, fallback="reference", trace=show, **options)


if __name__ == "__main__":
    import jax
    import jax.numpy as jnp

    platform = pjrt.frameworks.jax.register(pjrt.export(make_client, name="mychip"))
    x = jax.device_put(np.ones((2, 3), np.float32), jax.devices(platform)[0])
    y = jax.jit(lambda x: jnp.tanh(x @ x.T))(x)
    print(y, "on", y.device)
