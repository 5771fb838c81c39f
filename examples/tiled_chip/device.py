"""A chip whose memory holds arrays in tiles of 8x128 elements, in Python, and JAX on it.

pip install "pjrt[xla]" jax
python device.py
"""

import math

import numpy as np

import pjrt
from pjrt.host import Memory

TILE = (8, 128)


def order_of(spec):
    """Return the dimensions of an array from the slowest to the fastest one in the memory."""
    rank = len(spec.shape)
    return tuple(range(rank)) if spec.layout is None else spec.layout.minor_to_major[::-1]


class Tiles:
    """An array in the chip's memory: whole tiles, one behind the other. Its last two dimensions are those of a tile."""

    def __init__(self, spec):
        self.shape, self.order = spec.shape, order_of(spec)
        lying = [spec.shape[dimension] for dimension in self.order]
        if len(lying) > 1:
            grid = [-(-size // tile) for size, tile in zip(lying[-2:], TILE, strict=True)]
            lying = [*lying[:-2], *grid, *TILE]
        self.memory = np.zeros(lying, spec.element_type.dtype)

    def write(self, array):
        turned = array.transpose(self.order)
        if array.ndim > 1:
            padding = [(0, -size % tile) for size, tile in zip(turned.shape[-2:], TILE, strict=True)]
            padded = np.pad(turned, [(0, 0)] * (array.ndim - 2) + padding)
            rows, columns = self.memory.shape[-4:-2]
            turned = padded.reshape(*padded.shape[:-2], rows, TILE[0], columns, TILE[1]).swapaxes(-3, -2)
        self.memory[...] = turned

    def read(self):
        turned = self.memory
        if len(self.shape) > 1:
            rows, columns = (self.shape[dimension] for dimension in self.order[-2:])
            *outer, high, wide, _, _ = turned.shape
            turned = turned.swapaxes(-3, -2).reshape(*outer, high * TILE[0], wide * TILE[1])[..., :rows, :columns]
        return turned.transpose(np.argsort(self.order))


class TiledMemory(Memory):
    def layout(self, spec, space):
        order = order_of(spec)[::-1]
        return pjrt.TiledLayout(order, (TILE,)) if len(order) > 1 else None

    def size_of(self, spec, space):
        if len(spec.shape) < 2:
            return spec.size_in_bytes
        *outer, rows, columns = (spec.shape[dimension] for dimension in order_of(spec))
        tiles = math.prod(outer) * -(-rows // TILE[0]) * -(-columns // TILE[1])
        return tiles * math.prod(TILE) * spec.element_type.dtype.itemsize

    def allocate(self, spec, space):
        return Tiles(spec)

    def copy_in(self, handle, array):
        handle.write(array)

    def copy_out(self, handle, array):
        array[...] = handle.read()


def elementwise(function):
    """Return a kernel that works on tiles as they lie, padding and all."""

    def kernel(op, *operands):
        result = Tiles(pjrt.ShapeSpec(op.results[0].type.shape, op.results[0].type.dtype))
        with np.errstate(all="ignore"):  # of the padding
            result.memory[...] = function(*(operand.memory for operand in operands))
        return result

    return kernel


KERNELS = {
    "stablehlo.add": elementwise(np.add),
    "stablehlo.subtract": elementwise(np.subtract),
    "stablehlo.multiply": elementwise(np.multiply),
    "stablehlo.maximum": elementwise(np.maximum),
    "stablehlo.tanh": elementwise(np.tanh),
}


def make_client(kernels=None, **options):
    kernels = {**KERNELS, **(kernels or {})}
    return pjrt.StableHloClient("tiled", kernels=kernels, fallback="reference", memory=TiledMemory(), **options)


if __name__ == "__main__":
    import jax
    import jax.numpy as jnp

    device = jax.devices(pjrt.frameworks.jax.register(pjrt.export(make_client, name="tiled")))[0]
    x = jax.device_put(np.ones((2, 150), np.float32), device)
    y = jax.jit(lambda x: jnp.tanh(x + x))(x)
    print(y.format.layout, y.on_device_size_in_bytes(), "bytes for", y.nbytes)
