"""Stable merge sort by any comparator, all merges of a level at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any
Before = Callable[[Sequence[Array], Sequence[Array]], Array]
"""A function that takes a list of arrays for each side, one for each operand, and returns the booleans that tell where
the left elements come before the right ones.
"""


def merge_order(before: Before, operands: Sequence[Array]) -> Array:
    """Return the order in which each row of the operands (all of one shape, rows and columns) is sorted.

    It takes ``log2(n)²/2`` calls of ``before`` on half of all elements. A comparator that contradicts itself gives some
    order, never a lost element.
    """
    rows, columns = operands[0].shape
    order = np.broadcast_to(np.arange(columns), (rows, columns))
    width = 1
    while width < columns:
        order = _merge_level(before, [np.take_along_axis(x, order, 1) for x in operands], order, width)
        width *= 2
    return order


def _merge_level(before: Before, operands: Sequence[Array], order: Array, width: int) -> Array:
    """Merge runs of ``width`` sorted elements in pairs. ``operands`` are in the order so far."""
    rows, columns = order.shape
    positions = np.arange(columns)
    of_left = positions // width % 2 == 0
    lefts = positions[of_left]
    first = lefts - lefts % (2 * width)
    middle = np.minimum(first + width, columns)
    end = np.minimum(first + 2 * width, columns)
    overtaking = _search(before, operands, lefts, middle, end) - middle
    # With a comparator that contradicts itself the counts may fall. Made to rise, they always give a permutation.
    targets = np.maximum.accumulate(first + overtaking, axis=1) + (lefts - first)
    from_left = np.zeros((rows, columns), np.bool_)
    np.put_along_axis(from_left, targets, True, 1)
    merged = np.empty((rows, columns), order.dtype)
    merged[from_left] = order[:, of_left].reshape(-1)
    merged[~from_left] = order[:, ~of_left].reshape(-1)
    return merged


def _search(before: Before, operands: Sequence[Array], lefts: Array, start: Array, end: Array) -> Array:
    """Return, for each element of the left runs, the first position of its right run that does not come before it."""
    shape = (operands[0].shape[0], len(lefts))
    low, high = np.broadcast_to(start, shape), np.broadcast_to(end, shape)
    own = [x[:, lefts] for x in operands]
    last = operands[0].shape[1] - 1
    open_ = low < high
    while open_.any():
        middle = (low + high) // 2
        others = [np.take_along_axis(x, np.minimum(middle, last), 1) for x in operands]
        overtakes = before(others, own) & open_
        low, high = np.where(overtakes, middle + 1, low), np.where(open_ & ~overtakes, middle, high)
        open_ = low < high
    return low
