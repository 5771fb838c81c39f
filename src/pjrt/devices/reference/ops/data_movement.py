"""Ops that make tensors, move their elements, and sort them; gather and scatter are in ``gathering``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Environment, Kernel, one_or_all
from pjrt.devices.reference.core.op_view import OpView, Region
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.indexing import PadPlan, chunks


@op("stablehlo.constant", "chlo.constant", elementwise=True, quantized=True)
def constant(view: OpView) -> Kernel:
    """Return the value in the program."""
    value = view.constant()
    return lambda: value


@op("stablehlo.iota")
def iota(view: OpView) -> Kernel:
    """Count along one dimension."""
    result = view.result()
    along, sizes = view.attr("iota_dimension"), result.sizes
    return lambda: counted(sizes, along, result.element)


def counted(sizes: tuple[int, ...], along: int, element: Any) -> Any:
    """Return an array of some sizes whose elements are their own index along a dimension."""
    shape = [1] * len(sizes)
    shape[along] = sizes[along]
    wide = np.int64 if not element.is_floating or element.dtype == np.float64 else np.float32
    line = np.arange(sizes[along], dtype=wide).astype(element.dtype)
    return np.broadcast_to(line.reshape(shape), sizes)


Array = Any


@op("stablehlo.reshape", quantized=True)
def reshape(view: OpView) -> Kernel:
    """Put the same elements, in the same (row-major) order, in another shape."""
    sizes = view.result().sizes
    return lambda x: x.reshape(sizes)


@op("stablehlo.transpose", quantized=True)
def transpose(view: OpView) -> Kernel:
    """Change the order of dimensions: dimension ``i`` of the result is ``permutation[i]`` of the operand."""
    permutation = tuple(view.attr("permutation"))
    if permutation == tuple(range(len(permutation))):
        return lambda x: x
    return lambda x: x.transpose(permutation)


@op("stablehlo.broadcast_in_dim", quantized=True)
def broadcast_in_dim(view: OpView) -> Kernel:
    """Repeat the operand: its dimension ``i`` becomes ``broadcast_dimensions[i]`` of the result."""
    return _spreader(view, tuple(view.attr("broadcast_dimensions")))


@op("stablehlo.broadcast", quantized=True)
def broadcast(view: OpView) -> Kernel:
    """Repeat the operand along new major dimensions."""
    rank = view.result().rank
    return _spreader(view, tuple(range(rank - view.operand().rank, rank)))


def _spreader(view: OpView, dimensions: tuple[int, ...]) -> Kernel:
    operand, sizes = view.operand(), view.result().sizes
    if not operand.is_static:
        return lambda x: spread(x, sizes, dimensions)
    if operand.sizes == sizes and dimensions == tuple(range(len(sizes))):
        return lambda x: x
    if operand.size == view.result().size and list(dimensions) == sorted(dimensions):
        return lambda x: x.reshape(sizes)  # only dimensions of one element are new
    if operand.size == 0:
        return lambda x: spread(x, sizes, dimensions)
    strides = _strides(operand.sizes, _contiguous(operand.sizes, operand.dtype.itemsize), len(sizes), dimensions)
    array, dtype = np.ndarray, operand.dtype

    def run(x: Array) -> Array:
        if not x.flags.c_contiguous:
            return spread(x, sizes, dimensions)
        return array(sizes, dtype, x, 0, strides)  # a tenth of the time of broadcast_to

    return run if operand.rank else lambda x: array(sizes, dtype, np.asarray(x), 0, strides)


def _contiguous(sizes: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a contiguous array."""
    return tuple(itemsize * math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def _strides(
    sizes: tuple[int, ...], strides: tuple[int, ...], rank: int, dimensions: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the strides of an array, by its sizes and strides, in one of ``rank``: zero along repeated dimensions."""
    repeated = [0] * rank
    for dimension, size, stride in zip(dimensions, sizes, strides, strict=True):
        if size != 1:
            repeated[dimension] = stride
    return tuple(repeated)


def spread(x: Array, sizes: tuple[int, ...], dimensions: tuple[int, ...]) -> Array:
    """Return a view of ``x`` in a larger shape, its dimension ``i`` being ``dimensions[i]`` there."""
    x = np.asarray(x)
    if x.flags.c_contiguous and x.size:
        return np.ndarray(sizes, x.dtype, x, 0, _strides(x.shape, x.strides, len(sizes), dimensions))
    shape = [1] * len(sizes)
    for dimension, size in zip(dimensions, x.shape, strict=True):
        shape[dimension] = size
    order = sorted(range(len(dimensions)), key=dimensions.__getitem__)
    return np.broadcast_to(x.transpose(order).reshape(shape), sizes)


@op("stablehlo.slice", quantized=True)
def slice_(view: OpView) -> Kernel:
    """Take every ``strides``-th element from ``start_indices`` up to ``limit_indices``, in each dimension."""
    bounds = zip(view.attr("start_indices"), view.attr("limit_indices"), view.attr("strides"), strict=True)
    index = tuple(slice(start, limit, stride) for start, limit, stride in bounds)
    return lambda x: x[index]


@op("stablehlo.pad", quantized=True)
def pad(view: OpView) -> Kernel:
    """Pad at the edges, where negative padding cuts, and between elements."""
    low, high = tuple(view.attr("edge_padding_low")), tuple(view.attr("edge_padding_high"))
    interior = tuple(view.attr("interior_padding"))
    operand = view.operand()
    if operand.is_static:
        return PadPlan.of(operand.sizes, low, high, interior).run
    return lambda x, value: PadPlan.of(x.shape, low, high, interior).run(x, value)


@op("stablehlo.concatenate", quantized=True)
def concatenate(view: OpView) -> Kernel:
    """Put values one after the other along a dimension."""
    dimension = view.attr("dimension")
    if len(view.operands) == 1:
        return lambda x: x
    join = np.concatenate
    return lambda *values: join(values, dimension)


@op("stablehlo.reverse", quantized=True)
def reverse(view: OpView) -> Kernel:
    """Reverse some dimensions."""
    dimensions = view.attr("dimensions")
    index = tuple(slice(None, None, -1 if d in dimensions else 1) for d in range(view.operand().rank))
    return lambda x: x[index]


@op("stablehlo.dynamic_slice", quantized=True)
def dynamic_slice(view: OpView) -> Kernel:
    """Take a window of fixed size at a computed place, moved as far as needed to lie inside."""
    operand, sizes = view.operand(), tuple(view.attr("slice_sizes"))
    if not operand.is_static:
        return lambda x, *starts: x[Window(x.shape, sizes).at(starts)]
    window = Window(operand.sizes, sizes)
    if not window.moving:
        return lambda x, *starts: x
    if len(sizes) == 1:
        (limit,), (width,) = window.limits, sizes

        def run(x: Array, start: Array) -> Array:
            first = min(max(int(start), 0), limit)
            return x[first : first + width]

        return run
    return lambda x, *starts: x[window.at(starts)]


class Window:
    """A window of some sizes in values of one shape."""

    def __init__(self, shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.limits = tuple(extent - size for extent, size in zip(shape, sizes, strict=True))
        self.moving = tuple(dimension for dimension, limit in enumerate(self.limits) if limit)
        self._parts = tuple((d, self.limits[d], sizes[d]) for d in self.moving)
        self._still = [slice(0, size) for size in sizes]

    def at(self, starts: tuple[Array, ...]) -> tuple[slice, ...]:
        """Return the index of the window at a place, moved as far as needed to lie inside."""
        index = self._still.copy()
        for dimension, limit, size in self._parts:
            first = min(max(int(starts[dimension]), 0), limit)
            index[dimension] = slice(first, first + size)
        return tuple(index)


@op("stablehlo.dynamic_update_slice", quantized=True)
def dynamic_update_slice(view: OpView) -> Kernel:
    """Replace a window of a value, moved as far as needed to lie inside."""
    operand, update = view.operand(), view.operand(1)
    static = Window(operand.sizes, update.sizes) if operand.is_static and update.is_static else None
    if static is not None and not static.moving:
        return lambda x, update, *starts: update

    def run(x: Array, update: Array, *starts: Array) -> Array:
        window = static or Window(x.shape, update.shape)
        out = np.array(x, order="C")
        out[window.at(starts)] = update
        return out

    return run


Order = Callable[[Environment, Sequence[Array]], Array]
"""A function that returns, for operands of one shape (rows and columns), the order in which each row is sorted."""


@op("stablehlo.sort", quantized=True)
def sort(view: OpView) -> Kernel:
    """Sort the operands together along a dimension; stable, whether the program asks for it or not."""
    return sort_in(view, order_by(view.regions[0]))


def sort_in(view: OpView, order: Order) -> Kernel:
    """Return the kernel that puts the operands in an order."""
    axis = view.attr("dimension", -1) % view.operand().rank

    def run(environment: Environment, *operands: Array) -> Any:
        shape = operands[0].shape
        if shape[axis] < 2 or 0 in shape:
            return one_or_all(operands)
        tables = [as_table(x, axis) for x in operands]
        sorted_ = [np.empty(table.shape, table.dtype) for table in tables]
        # Keys and positions take several times the memory of what is sorted.
        for part in chunks(*tables[0].shape):
            rows = [table[part] for table in tables]
            positions = order(environment, rows)
            for target, row in zip(sorted_, rows, strict=True):
                target[part] = np.take_along_axis(row, positions, 1)
        return one_or_all([from_table(table, shape, axis) for table in sorted_])

    return run


def as_table(x: Array, axis: int) -> Array:
    """Return the lines of an array along a dimension as rows."""
    if axis == x.ndim - 1:
        return x.reshape(-1, x.shape[axis])
    return np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])


def from_table(table: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return the array of a shape whose lines along a dimension are the rows."""
    if table.shape == shape and axis == len(shape) - 1:
        return table  # not a view of it: a result that owns its memory need not be copied
    if axis == len(shape) - 1:
        return table.reshape(shape)
    return np.moveaxis(table.reshape(*shape[:axis], *shape[axis + 1 :], shape[axis]), -1, axis)


def order_by(comparator: Region) -> Order:
    """Return the order of a comparator, by Python's own stable sort.

    A comparator that contradicts itself gives some order, never a lost element.
    """

    def order(environment: Environment, tables: Sequence[Array]) -> Array:
        rows, columns = tables[0].shape
        positions = np.empty((rows, columns), np.int64)
        for row in range(rows):
            lines = [table[row] for table in tables]
            compare = functools.partial(_compare, comparator, environment, lines)
            positions[row] = sorted(range(columns), key=functools.cmp_to_key(compare))
        return positions

    return order


def _compare(comparator: Region, environment: Environment, lines: Sequence[Array], i: int, j: int) -> int:
    """Return -1 if element ``i`` comes before element ``j``: a sort asks for nothing else."""
    (before,) = comparator.run(environment, [item for line in lines for item in (line[i], line[j])])
    return -1 if before else 0
