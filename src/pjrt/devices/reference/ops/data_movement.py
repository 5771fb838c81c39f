"""Data movement: values that change their shape, order or extent, and no element's value.

Gather is in ``gathering``, sort in ``sorting``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.devices.reference._padding import PadPlan
from pjrt.devices.reference._registry import Kernel, op
from pjrt.devices.reference._view import OpView

Array = Any


@op("stablehlo.reshape", quantized=True)
def reshape(view: OpView) -> Kernel:
    """The same elements in the same (row-major) order in another shape."""
    sizes = view.result().sizes
    return lambda x: x.reshape(sizes)


@op("stablehlo.transpose", quantized=True)
def transpose(view: OpView) -> Kernel:
    """The dimensions in another order: dimension ``i`` of the result is ``permutation[i]`` of the operand."""
    permutation = tuple(view.attr("permutation"))
    if permutation == tuple(range(len(permutation))):
        return lambda x: x
    return lambda x: x.transpose(permutation)


@op("stablehlo.broadcast_in_dim", quantized=True)
def broadcast_in_dim(view: OpView) -> Kernel:
    """The operand repeated: its dimension ``i`` becomes ``broadcast_dimensions[i]`` of the result."""
    operand, sizes = view.operand(), view.result().sizes
    dimensions = tuple(view.attr("broadcast_dimensions"))
    if operand.shape == sizes and dimensions == tuple(range(len(sizes))):
        return lambda x: x
    if not operand.is_static:
        return lambda x: spread(x, sizes, dimensions)
    repeated = _repetition(operand.sizes, sizes, dimensions)
    if repeated == ():
        inserted = tuple(sizes)
        order = tuple(np.argsort(np.array(dimensions, np.int64), kind="stable"))
        if order == tuple(range(len(dimensions))):
            return lambda x: x.reshape(inserted)
    return lambda x: spread(x, sizes, dimensions)


@op("stablehlo.broadcast", quantized=True)
def broadcast(view: OpView) -> Kernel:
    """The operand repeated along new major dimensions."""
    sizes = view.result().sizes
    dimensions = tuple(range(len(sizes) - view.operand().rank, len(sizes)))
    return lambda x: spread(x, sizes, dimensions)


def _repetition(operand: tuple[int, ...], result: tuple[int, ...], dimensions: tuple[int, ...]) -> tuple[int, ...]:
    """The result's dimensions along which something is repeated."""
    given = {dimension: operand[i] for i, dimension in enumerate(dimensions)}
    return tuple(d for d, size in enumerate(result) if given.get(d, 1) != size)


def spread(x: Array, sizes: tuple[int, ...], dimensions: tuple[int, ...]) -> Array:
    """A read-only view of ``x`` in a larger shape, its dimension ``i`` being ``dimensions[i]`` there."""
    x = np.asarray(x)
    strides = [0] * len(sizes)
    for dimension, size, stride in zip(dimensions, x.shape, x.strides, strict=True):
        if size != 1:
            strides[dimension] = stride
    if x.flags.c_contiguous and x.size:
        found = np.ndarray(sizes, x.dtype, x, 0, tuple(strides))  # a tenth of the time of broadcast_to
        found.flags.writeable = False
        return found
    shape = [1] * len(sizes)
    order = sorted(range(len(dimensions)), key=dimensions.__getitem__)
    for dimension, size in zip(dimensions, x.shape, strict=True):
        shape[dimension] = size
    return np.broadcast_to(x.transpose(order).reshape(shape), sizes)


@op("stablehlo.slice", quantized=True)
def slice_(view: OpView) -> Kernel:
    """Every ``strides``-th element from ``start_indices`` up to ``limit_indices``, in each dimension."""
    bounds = zip(view.attr("start_indices"), view.attr("limit_indices"), view.attr("strides"), strict=True)
    index = tuple(slice(start, limit, stride) for start, limit, stride in bounds)
    return lambda x: x[index]


@op("stablehlo.pad", quantized=True)
def pad(view: OpView) -> Kernel:
    """Padding at the edges, which may be negative and then cuts, and between elements."""
    low, high = tuple(view.attr("edge_padding_low")), tuple(view.attr("edge_padding_high"))
    interior = tuple(view.attr("interior_padding"))
    operand = view.operand()
    if operand.is_static:
        return PadPlan.of(operand.sizes, low, high, interior).run
    return lambda x, value: PadPlan.of(x.shape, low, high, interior).run(x, value)


@op("stablehlo.concatenate", quantized=True)
def concatenate(view: OpView) -> Kernel:
    """Values one after the other along a dimension."""
    dimension = view.attr("dimension")
    if len(view.operands) == 1:
        return lambda x: x
    join = np.concatenate
    return lambda *values: join(values, dimension)


@op("stablehlo.reverse", quantized=True)
def reverse(view: OpView) -> Kernel:
    """Turns the order of some dimensions around."""
    turned = [slice(None)] * view.operand().rank
    for dimension in view.attr("dimensions"):
        turned[dimension] = slice(None, None, -1)
    index = tuple(turned)
    return lambda x: x[index]


@op("stablehlo.dynamic_slice", quantized=True)
def dynamic_slice(view: OpView) -> Kernel:
    """A window of fixed size at a place known when the program runs, moved as far as needed to lie inside."""
    sizes = tuple(view.attr("slice_sizes"))
    if not sizes:
        return lambda x: x
    if len(sizes) == 1:
        width = sizes[0]

        def run_one(x: Array, start: Array) -> Array:
            first = min(max(int(start), 0), x.shape[0] - width)
            return x[first : first + width]

        return run_one
    return lambda x, *starts: x[window_at(x.shape, starts, sizes)]


@op("stablehlo.dynamic_update_slice", quantized=True)
def dynamic_update_slice(view: OpView) -> Kernel:
    """A value with a window of it replaced, the window moved as far as needed to lie inside."""
    sizes = view.operand(1).shape

    def run(x: Array, update: Array, *starts: Array) -> Array:
        if update.shape == x.shape:
            return update  # the only place where it fits
        out = np.array(x, order="C")
        out[window_at(x.shape, starts, update.shape)] = update
        return out

    if not sizes:
        return lambda x, update: update
    return run


def window_at(shape: tuple[int, ...], starts: tuple[Array, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """The index of a window of these sizes at ``starts``, clamped so that it lies inside ``shape``."""
    index = []
    for extent, start, size in zip(shape, starts, sizes, strict=True):
        first = min(max(int(start), 0), extent - size)
        index.append(slice(first, first + size))
    return tuple(index)
