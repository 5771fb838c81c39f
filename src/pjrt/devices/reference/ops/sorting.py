"""Sort: operands put in the order of a comparator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Environment, Kernel, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.region import Region
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.chunks import chunks

Array = Any
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
