"""Two chips whose memory holds arrays in tiles of 8x128 elements, each with a queue, in Python, and JAX on them.

pip install "pjrt[xla]" jax
python device.py
"""

import collections
import concurrent.futures
import math
import threading

import numpy as np

import pjrt
from pjrt.host import Enqueued, Memory

TILE = (8, 128)
REDUCTIONS = {"add": np.add, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum}


def order_of(spec):
    """Return the dimensions of an array from the slowest to the fastest one in the memory."""
    rank = len(spec.shape)
    return tuple(range(rank)) if spec.layout is None else spec.layout.minor_to_major[::-1]


class Tiles:
    """An array in a chip's memory: whole tiles, one behind the other. Its last two dimensions are those of a tile."""

    def __init__(self, spec, queue):
        self.queue = queue
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
    def __init__(self):
        # The queue of each chip is a thread; the fences are its futures.
        self.queues = collections.defaultdict(lambda: concurrent.futures.ThreadPoolExecutor(1))

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
        return Tiles(spec, self.queues[space.devices[0].local_hardware_id if space else 0])

    def copy_in(self, handle, array):
        return handle.queue.submit(handle.write, array)

    def copy_out(self, handle, array):
        return handle.queue.submit(lambda: np.copyto(array, handle.read()))

    def copy_from_peer(self, source, target, spec):
        return together([source, target], lambda place: target.write(source.read()) if place else None)

    # Collectives, on the queues of the chips that take part.

    def all_reduce(self, sources, targets, spec, reduction):
        def work(place):  # the tiles of all lie alike
            targets[place].memory[...] = REDUCTIONS[reduction].reduce([source.memory for source in sources])

        return together(targets, work)

    def reduce_scatter(self, sources, targets, spec, reduction, dimension):
        def work(place):
            parts = [np.split(source.read(), len(sources), dimension)[place] for source in sources]
            targets[place].write(REDUCTIONS[reduction].reduce(parts))

        return together(targets, work)

    def all_gather(self, sources, targets, spec, dimension):
        def work(place):
            targets[place].write(np.concatenate([source.read() for source in sources], dimension))

        return together(targets, work)

    def all_to_all(self, sources, targets, spec, split_dimension, concat_dimension):
        def work(place):
            parts = [np.split(source.read(), len(sources), split_dimension)[place] for source in sources]
            targets[place].write(np.concatenate(parts, concat_dimension))

        return together(targets, work)

    def broadcast(self, sources, targets, spec):
        def work(place):
            targets[place].memory[...] = sources[0].memory

        return together(targets, work)

    def permute(self, sources, targets, spec, pairs):
        origin = {target: sources[source] for source, target in pairs}

        def work(place):
            targets[place].memory[...] = origin[place].memory if place in origin else 0

        return together(targets, work)


def together(targets, work):
    """Have each chip do its part of some work when all have come to it; return a fence for each of them."""
    meeting = threading.Barrier(len(targets))

    def part(place):
        meeting.wait()
        try:
            work(place)
        finally:
            meeting.wait()  # the others have read this chip's array

    return [target.queue.submit(part, place) for place, target in enumerate(targets)]


def elementwise(function):
    """Return a kernel that works on tiles as they lie, padding and all."""

    def kernel(op, *operands):
        result = Tiles(pjrt.ShapeSpec(op.results[0].type.shape, op.results[0].type.dtype), operands[0].queue)

        def work():
            with np.errstate(all="ignore"):  # of the padding
                result.memory[...] = function(*(operand.memory for operand in operands))

        return Enqueued(result, result.queue.submit(work))

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
    options = {"num_devices": 2, **options}
    return pjrt.StableHloClient("tiled", kernels=kernels, fallback="reference", memory=TiledMemory(), **options)


if __name__ == "__main__":
    import jax
    import jax.numpy as jnp

    devices = jax.devices(pjrt.frameworks.jax.register(pjrt.export(make_client, name="tiled")))
    x = jax.device_put(np.ones((2, 150), np.float32), devices[0])
    y = jax.jit(lambda x: jnp.tanh(x + x))(x)
    print(y.format.layout, y.on_device_size_in_bytes(), "bytes for", y.nbytes)
    halves = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, "x"), jax.sharding.PartitionSpec("x"))
    z = jax.device_put(np.ones((2, 150), np.float32), halves)
    print(jax.jit(lambda z: (z * 2).sum(0))(z)[:3], "on both chips")  # an all_reduce in their queues
