"""A quantized type on the chip: weights are int8 with a scale for each column, and a custom call multiplies by them.

pip install "pjrt[xla]" jax
python quantized.py
"""

from dataclasses import dataclass

import device
import jax
import jax.numpy as jnp
import numpy as np

import pjrt
from pjrt.host import Enqueued

TARGET = "tiled.int8_product"


def int8_product(op, x, values, scale):
    """Multiply as the chip's unit of int8 does: rows are quantized on the way in, and sums are of 32 bits."""
    result = device.Tiles(pjrt.ShapeSpec(op.results[0].type.shape, op.results[0].type.dtype), x.queue)

    def work():
        rows, columns = x.read(), values.read()
        step = np.maximum(np.abs(rows).max(1, keepdims=True), np.float32(1e-30)) / np.float32(127)
        sums = np.rint(rows / step).astype(np.int32) @ columns.astype(np.int32)
        result.write(sums * step * scale.read())

    return Enqueued(result, x.queue.submit(work))


def make_client(**options):
    return device.make_client(kernels={TARGET: int8_product}, **options)


@jax.tree_util.register_dataclass
@dataclass
class Int8:
    """A matrix of weights, which ``jax.jit``, ``jax.device_put`` and checkpoints take as they take its two arrays."""

    values: jax.Array
    scale: jax.Array

    @classmethod
    def of(cls, weights):
        scale = jnp.maximum(jnp.abs(weights).max(0), 1e-30) / 127
        return cls(jnp.rint(weights / scale).astype(jnp.int8), scale)

    def dense(self):
        return self.values * self.scale


@jax.custom_vjp
def product(x, weights):
    """Multiply rows by weights: on the chip by its custom call, and elsewhere by what the weights stand for."""
    shape = jax.ShapeDtypeStruct((x.shape[0], weights.values.shape[1]), x.dtype)
    return jax.lax.platform_dependent(
        x,
        weights.values,
        weights.scale,
        tiled=jax.ffi.ffi_call(TARGET, shape, vmap_method="sequential"),
        default=lambda x, values, scale: x @ (values * scale),
    )


def _forward(x, weights):
    return product(x, weights), weights


def _backward(weights, cotangent):
    none = Int8(np.zeros(weights.values.shape, jax.dtypes.float0), jnp.zeros_like(weights.scale))
    return cotangent @ weights.dense().T, none  # the weights are not trained


product.defvjp(_forward, _backward)


if __name__ == "__main__":
    chip = jax.devices(pjrt.frameworks.jax.register(pjrt.export(make_client, name="tiled")))[0]
    generator = np.random.default_rng(0)
    x = generator.standard_normal((16, 256)).astype(np.float32)
    dense = generator.standard_normal((256, 128)).astype(np.float32)
    weights = jax.device_put(Int8.of(dense), chip)
    y = jax.jit(product)(jax.device_put(x, chip), weights)
    error = np.abs(np.asarray(y) - x @ dense).max() / np.abs(x @ dense).max()
    print(f"{weights.values.on_device_size_in_bytes()} bytes for {dense.nbytes}, off by {error:.1%}, on {y.device}")
