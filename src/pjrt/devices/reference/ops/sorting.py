"""Sort: operands put in the order that a comparator says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Environment, Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.region import Region
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.fast.merge_sort import merge_order
from pjrt.devices.reference.fast.sort_keys import Key, SortKeys, find_sort_keys
from pjrt.devices.reference.numerics.element_types import FLOAT, compute_dtype
from pjrt.devices.reference.ops.elementwise import total_order

Array = Any


@op("stablehlo.sort", quantized=True)
def sort(view: OpView) -> Kernel:
    """Sorts the operands together along a dimension; stable, whether it must be or not.

    Comparators that compare keys are sorted by them; any other is merged by.
    """
    region, rank = view.regions[0], view.operand().rank
    axis = view.attr("dimension", -1) % rank
    single = len(view.operands) == 1
    ordering = find_sort_keys(region)
    injective = ordering is not None and single and _is_injective(ordering, view.operand().element)

    def run(environment: Environment, *operands: Array) -> Any:
        shape = operands[0].shape
        if shape[axis] < 2 or 0 in shape:
            return operands[0] if single else operands
        tables = [_as_table(x, axis) for x in operands]
        if injective and ordering is not None:
            found = [_sort_values(tables[0], ordering.keys[0])]
        else:
            order = sorting_order(environment, region, ordering, tables)
            found = [np.take_along_axis(table, order, 1) for table in tables]
        results = [_from_table(table, shape, axis) for table in found]
        return results[0] if single else results

    return run


def _as_table(x: Array, axis: int) -> Array:
    """What is to be sorted in rows."""
    if axis == x.ndim - 1:
        return x.reshape(-1, x.shape[axis])
    return np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])


def _from_table(table: Array, shape: tuple[int, ...], axis: int) -> Array:
    if axis == len(shape) - 1:
        return table.reshape(shape)
    return np.moveaxis(table.reshape(*shape[:axis], *shape[axis + 1 :], shape[axis]), -1, axis)


def sorting_order(
    environment: Environment, region: Region, ordering: SortKeys | None, tables: Sequence[Array]
) -> Array:
    """The order that sorts each row of the tables by the comparator, stable."""
    if ordering is not None:
        values = ordering.values(environment, tables)
        if values is not None:
            ranks = [_rank(value, key) for value, key in zip(values, ordering.keys, strict=True)]
            known = [rank for rank in ranks if rank is not None]
            if len(known) == len(ranks):
                return stable_order(known)

    def before(left: Sequence[Array], right: Sequence[Array]) -> Array:
        pairs = [item for both in zip(left, right, strict=True) for item in both]
        return region.vectorized(environment, *pairs)[0]

    return merge_order(before, tables)


def _is_injective(ordering: SortKeys, element: ElementType) -> bool:
    """Whether elements of one rank are the same element, so that sorting values is sorting elements."""
    (key, *others) = ordering.keys
    if others or ordering.direct != (0,):
        return False
    if element in FLOAT:
        return key.total and element.bits >= 8 and element is not ElementType.F8E8M0FNU
    return True


def _sort_values(table: Array, key: Key) -> Array:
    """The rows of the operand sorted, where it is the key itself."""
    if key.element in FLOAT:
        ranks = total_order(key.element)(table)
        ordered = np.sort(np.invert(ranks) if key.descending else ranks, 1)
        if key.descending:
            ordered = np.invert(ordered)
        highest = np.iinfo(ordered.dtype).max
        return np.where(ordered < 0, np.bitwise_xor(ordered, highest), ordered).view(key.element.dtype)
    if key.descending:
        return np.invert(np.sort(np.invert(table), 1))
    return np.sort(table, 1)


def _rank(value: Array, key: Key) -> Array | None:
    """Integers in the order of a key, ascending; None where floats that are not in total order hold a NaN."""
    if key.element in FLOAT:
        if not key.total:
            wide = value.astype(compute_dtype(key.element), copy=False)
            if np.isnan(wide).any():
                return None
            value = np.add(wide, wide.dtype.type(0))  # -0 becomes +0, its equal
            rank = total_order(ElementType.of(wide.dtype))(value)
        else:
            rank = total_order(key.element)(value)
    elif key.element is ElementType.PRED:
        rank = value.view(np.uint8)
    else:
        rank = value.astype(compute_dtype(key.element), copy=False)
    return np.invert(rank) if key.descending else rank


def stable_order(ranks: Sequence[Array], first: int | None = None) -> Array:
    """The order that sorts each row by integers, the first array the most significant one; stable.

    ``first`` asks for so many positions of each row only, at least one.
    """
    if len(ranks) > 1:
        return np.lexsort(tuple(reversed(ranks)), axis=1)[:, :first]
    rank = ranks[0]
    columns = rank.shape[1]
    if columns >= 1 << 32:
        return np.argsort(rank, axis=1, kind="stable")[:, :first]
    if rank.dtype.itemsize == 8:
        rank = _dense(rank)
    # Sorting numbers that hold rank and position is several times faster than a stable argsort, and as stable.
    wide = np.uint64 if rank.dtype.kind == "u" else np.int64
    packed = np.left_shift(rank.astype(wide), wide(32))
    np.bitwise_or(packed, np.arange(columns, dtype=wide), out=packed)
    if first is not None and first < columns // 4:
        packed.partition(first - 1, axis=1)
        packed = packed[:, :first]
    packed.sort(axis=1)
    return np.bitwise_and(packed[:, :first], wide(0xFFFFFFFF)).astype(np.int64)


def _dense(rank: Array) -> Array:
    """Integers below the number of columns in the same order."""
    order = np.argsort(rank, axis=1)
    ordered = np.take_along_axis(rank, order, 1)
    steps = np.zeros(rank.shape, np.uint32)
    np.cumsum(ordered[:, 1:] != ordered[:, :-1], axis=1, out=steps[:, 1:])
    dense = np.empty(rank.shape, np.uint32)
    np.put_along_axis(dense, order, steps, 1)
    return dense
