"""Sorts by keys, where the comparator compares keys, else by merging; and the largest elements of rows.

Sorting integers in the order of the keys takes one call of numpy. Any other comparator is evaluated on half of all
elements at a time (``merge_sort``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Environment, Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.region import Region
from pjrt.devices.reference.fast.kernels import faster
from pjrt.devices.reference.fast.merge_sort import merge_order
from pjrt.devices.reference.fast.sort_keys import Key, SortKeys, find_sort_keys
from pjrt.devices.reference.numerics.chunks import chunks
from pjrt.devices.reference.numerics.element_types import FLOAT, compute_dtype
from pjrt.devices.reference.ops.chlo import top_k_in
from pjrt.devices.reference.ops.elementwise import total_order
from pjrt.devices.reference.ops.extensibility import approx_top_k_in
from pjrt.devices.reference.ops.sorting import Order, as_table, from_table, sort_in

Array = Any


@faster("stablehlo.sort")
def sort(view: OpView) -> Kernel | None:
    """Sort by keys or by merging; one operand that is its own key is sorted as it is."""
    region = view.regions[0]
    keys = find_sort_keys(region)
    if keys is not None and len(view.operands) == 1 and _is_injective(keys, view.operand().element):
        return _sort_values_along(view.attr("dimension", -1) % view.operand().rank, keys.keys[0])
    return sort_in(view, _order_by(region, keys))


@faster("chlo.top_k")
def top_k(view: OpView) -> Kernel | None:
    """Find the largest elements without sorting the others."""
    return top_k_in(view, lambda keys, k: stable_order([keys], k))


@faster("stablehlo.custom_call")
def approx_top_k(view: OpView) -> Kernel | None:
    """Find the first elements by keys or by merging."""
    if view.attr("call_target_name") != "ApproxTopK":
        return None
    return approx_top_k_in(view, lambda comparator: _order_by(comparator, find_sort_keys(comparator)))


def _sort_values_along(axis: int, key: Key) -> Kernel:
    def run(environment: Environment, operand: Array) -> Array:
        if operand.shape[axis] < 2 or operand.size == 0:
            return operand
        table = as_table(operand, axis)
        result = np.empty(table.shape, table.dtype)
        for part in chunks(*table.shape):
            result[part] = _sort_values(table[part], key)
        return from_table(result, operand.shape, axis)

    return run


def _order_by(region: Region, keys: SortKeys | None) -> Order:
    """Return the stable order of a comparator, by its keys if it has any."""

    def before(environment: Environment, left: Sequence[Array], right: Sequence[Array]) -> Array:
        pairs = [item for both in zip(left, right, strict=True) for item in both]
        return region.vectorized(environment, *pairs)[0]

    def order(environment: Environment, tables: Sequence[Array]) -> Array:
        values = None if keys is None else keys.values(environment, tables)
        if keys is not None and values is not None:
            ranks = [_rank(value, key) for value, key in zip(values, keys.keys, strict=True)]
            comparable = [rank for rank in ranks if rank is not None]
            if len(comparable) == len(ranks):
                return stable_order(comparable)
        return merge_order(lambda left, right: before(environment, left, right), tables)

    return order


def _is_injective(keys: SortKeys, element: ElementType) -> bool:
    """Whether elements of one rank are the same element, so that sorting values is sorting elements."""
    (key, *others) = keys.keys
    if others or keys.direct != (0,):
        return False
    if element in FLOAT:
        return key.total and element.bits >= 8 and element is not ElementType.F8E8M0FNU
    return True


def _sort_values(table: Array, key: Key) -> Array:
    """Return the rows of an operand sorted, where it is the key itself."""
    if key.element in FLOAT:
        ranks = total_order(key.element)(table)
        ordered = np.sort(np.invert(ranks) if key.descending else ranks, 1)
        if key.descending:
            ordered = np.invert(ordered)
        highest = np.iinfo(ordered.dtype).max
        flipped = np.right_shift(ordered, ordered.dtype.type(8 * ordered.dtype.itemsize - 1))
        np.bitwise_and(flipped, highest, out=flipped)
        return np.bitwise_xor(ordered, flipped, out=flipped).view(key.element.dtype)
    if key.descending:
        return np.invert(np.sort(np.invert(table), 1))
    return np.sort(table, 1)


def _rank(value: Array, key: Key) -> Array | None:
    """Return integers in the order of a key, ascending; None where floats that are not in total order hold a NaN."""
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
    """Return the order that sorts each row by integers, the first array being the most significant; stable.

    With ``first`` it is only that many positions of each row, at least one.
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
    """Return integers below the number of columns in the same order."""
    order = np.argsort(rank, axis=1)
    ordered = np.take_along_axis(rank, order, 1)
    steps = np.zeros(rank.shape, np.uint32)
    np.cumsum(ordered[:, 1:] != ordered[:, :-1], axis=1, out=steps[:, 1:])
    dense = np.empty(rank.shape, np.uint32)
    np.put_along_axis(dense, order, steps, 1)
    return dense
