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
    lines = np.arange(rows)[:, None] * columns
    width = 1
    while width < columns:
        order = _merge_level(before, [x.reshape(-1).take(order + lines, mode="clip") for x in operands], order, width)
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
    sizes = np.minimum(first + 2 * width, columns) - middle
    overtaking = _count_overtaking(before, operands, lefts, middle, sizes, width)
    # With a comparator that contradicts itself the counts may fall. Made to rise, they always give a permutation.
    targets = np.maximum.accumulate(first + overtaking, axis=1) + (lefts - first)
    from_left = np.zeros((rows, columns), np.bool_)
    from_left.reshape(-1)[targets + np.arange(rows)[:, None] * columns] = True
    merged = np.empty((rows, columns), order.dtype)
    merged[from_left] = order[:, of_left].reshape(-1)
    merged[~from_left] = order[:, ~of_left].reshape(-1)
    return merged


def _count_overtaking(
    before: Before, operands: Sequence[Array], lefts: Array, start: Array, sizes: Array, width: int
) -> Array:
    """Return, for each element of the left runs, how many elements of its right run come before it.

    Right runs begin at ``start``, have ``sizes`` elements, at most ``width``, a power of two. A binary search for all
    left elements at once, whose steps are powers of two: it has no branch.
    """
    rows, columns = operands[0].shape
    flat = [np.ascontiguousarray(x).reshape(-1) for x in operands]
    own = [x[:, lefts] for x in operands]
    # Position p of the flat array is the element before which p of a run have been passed.
    origin = start + np.arange(rows)[:, None] * columns - 1
    count = np.zeros((rows, len(lefts)), np.int64)
    step = width
    while step:
        candidate = count + step
        possible = candidate <= sizes
        np.add(candidate, origin, out=candidate)
        others = [x.take(candidate, mode="clip") for x in flat]
        passed = np.logical_and(before(others, own), possible, out=possible)
        count += passed * np.int64(step)
        step //= 2
    return count
