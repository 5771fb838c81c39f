"""Sorts by keys, where the comparator compares keys, else by merging; and the largest elements of rows.

Sorting integers in the order of the keys takes one call of numpy. Any other comparator is evaluated on half of all
elements at a time (``merge_order``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Block, Environment, Kernel, Step, run_fast
from pjrt.devices.reference.core.op_view import OpView, Region
from pjrt.devices.reference.fast.kernels import faster
from pjrt.devices.reference.numerics.element_types import BOOLEAN, FLOAT, INTEGER, compute_dtype
from pjrt.devices.reference.numerics.indexing import chunks
from pjrt.devices.reference.ops.chlo import top_k_in
from pjrt.devices.reference.ops.data_movement import Order, as_table, from_table, sort_in
from pjrt.devices.reference.ops.elementwise import total_order
from pjrt.devices.reference.ops.extensibility import approx_top_k_in
from pjrt.stablehlo.ir.types import TensorType

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


# A comparator has two arguments for each operand: element ``i`` and element ``j``. Most compare one or more *keys*,
# values computed from one element only, and combine the answers lexicographically. Then sorting the keys sorts the
# operands. Three steps find the keys, and none of them guesses:
#
# 1. From the body's steps: which values depend on the left element only, which on the right only, and which comparisons
#    bring both together. Everything after these must be logic on their answers.
# 2. That logic is evaluated for every possible answer (less, equal, greater for each pair of keys), and accepted if it
#    is lexicographic. Negative zero shows the kind of comparison.
# 3. When the program runs, the left and the right keys are computed for all elements and must be the same, bit by bit.
#
# If a step fails, the comparator is evaluated as it is (``merge_order``).

_LEFT, _RIGHT = 1, 2
_MOST_KEYS = 6
"""More keys than programs have; the table of answers grows as three to this power."""


@dataclass(frozen=True)
class Key:
    """One key: the slots of its left and right values in the comparator, its type, and its order.

    With ``total`` floats are compared in total order: -NaN < -inf < … < -0 < +0 < … < NaN.
    """

    left: int
    right: int
    element: ElementType
    descending: bool
    total: bool


@dataclass(frozen=True)
class SortKeys:
    """Keys, most significant first, and the block that computes the left and right values of all of them."""

    keys: tuple[Key, ...]
    block: Block
    direct: tuple[int | None, ...]
    """For each key the number of the operand that is the key itself, or None."""

    def values(self, environment: Environment, operands: Sequence[Array]) -> list[Array] | None:
        """Return the keys of all elements, or None where left and right values differ."""
        if None not in self.direct:
            return [operands[number] for number in self.direct if number is not None]
        doubled = [operand for operand in operands for _ in range(2)]
        values = self.block.run(environment, doubled)
        shape = operands[0].shape
        lefts = [np.broadcast_to(value, shape) for value in values[0::2]]
        rights = [np.broadcast_to(value, shape) for value in values[1::2]]
        if all(_same_bits(a, b) for a, b in zip(lefts, rights, strict=True)):
            return lefts
        return None


def find_sort_keys(region: Region) -> SortKeys | None:
    """Return the keys that a comparator compares, or None if it compares otherwise."""
    block = region.block
    if not region.elementwise or block.captures:
        return None
    comparisons = _comparisons(block)
    if comparisons is None:
        return None
    pairs = list(dict.fromkeys((left, right) for left, right, _ in comparisons))
    elements = {(left, right): element for left, right, element in comparisons}
    if not 0 < len(pairs) <= _MOST_KEYS:
        return None
    logic = _Logic(block, pairs, [elements[pair] for pair in pairs])
    keys = logic.lexicographic()
    if keys is None:
        return None
    slots = tuple(slot for key in keys for slot in (key.left, key.right))
    direct = tuple(
        (key.left - 1) // 2 if key.left % 2 == 1 and key.right == key.left + 1 <= len(block.arguments) else None
        for key in keys
    )
    return SortKeys(tuple(keys), _keeping(block, range(len(block.steps)), slots), direct)


def _comparisons(block: Block) -> list[tuple[int, int, ElementType]] | None:
    """Return the comparisons of a left with a right value: (left slot, right slot, element type).

    None where a step combines left and right in another way.
    """
    sides: dict[int, int] = {slot: 2 - slot % 2 for slot in range(1, len(block.arguments) + 1)}
    decided: set[int] = set()  # slots that depend on left and right through comparisons only
    comparisons = []
    for step in block.steps:
        inputs = [sides.get(slot, 0) for slot in step.inputs]
        side = 0
        for other in inputs:
            side |= other
        if side == _LEFT | _RIGHT:
            if step.name == "stablehlo.compare" and sorted(inputs) == [_LEFT, _RIGHT]:
                comparisons.append(_comparison(step, inputs))
            elif not all(slot in decided or slot not in sides for slot in step.inputs):
                return None
            decided.update(step.outputs)
        if side:
            sides.update(dict.fromkeys(step.outputs, side))
    if block.outputs[0] not in decided or any(element not in _COMPARABLE for _, _, element in comparisons):
        return None
    return comparisons


_COMPARABLE = BOOLEAN | INTEGER | FLOAT


def _comparison(step: Step, inputs: list[int]) -> tuple[int, int, ElementType]:
    left, right = step.inputs if inputs[0] == _LEFT else reversed(step.inputs)
    type_ = step.input_types[0]
    assert isinstance(type_, TensorType)  # compare takes nothing else
    return left, right, type_.element


class _Logic:
    """The part of a comparator after its comparisons, as a function of the compared values."""

    def __init__(self, block: Block, pairs: list[tuple[int, int]], elements: list[ElementType]) -> None:
        self._pairs, self._elements = pairs, elements
        compared = {slot for pair in pairs for slot in pair}
        kept = [number for number, step in enumerate(block.steps) if not compared.intersection(step.outputs)]
        self._block = _keeping(block, kept, block.outputs)

    def __call__(self, values: Sequence[tuple[float, float]]) -> bool:
        """Return the comparator's answer where key number ``i`` has the left and right values ``values[i]``."""
        slots = list(self._block.template)
        for argument, type_ in enumerate(self._block.arguments, 1):
            assert isinstance(type_, TensorType)  # the comparator is elementwise
            slots[argument] = np.zeros((), type_.dtype)
        for pair, element, both in zip(self._pairs, self._elements, values, strict=True):
            for slot, value in zip(pair, both, strict=True):
                slots[slot] = np.array(value, np.float64).astype(element.dtype)
        with np.errstate(all="ignore"):
            run_fast(self._block, slots)
        return bool(slots[self._block.outputs[0]])

    def lexicographic(self) -> list[Key] | None:
        """Return the keys in order of significance, or None if the answer is not lexicographic."""
        count = len(self._pairs)
        examples = [_EXAMPLES_OF_FLOATS if element in FLOAT else _EXAMPLES for element in self._elements]
        table = {
            answer: self([example[a] for example, a in zip(examples, answer, strict=True)])
            for answer in product(range(3), repeat=count)
        }
        keys: list[Key] = []
        undecided = list(range(count))
        while undecided:
            key = self._most_significant(table, undecided, keys)
            if key is None:
                return None
            keys.append(key)
            undecided.remove(self._pairs.index((key.left, key.right)))
        return None if table[(1,) * count] else keys

    def _most_significant(
        self, table: dict[tuple[int, ...], bool], undecided: list[int], keys: list[Key]
    ) -> Key | None:
        """Return the key that decides whenever it can, where those in ``keys`` are equal."""
        for number in undecided:
            others = [range(3) if other in undecided and other != number else (1,) for other in range(len(self._pairs))]
            less = {table[tuple(0 if i == number else a for i, a in enumerate(rest))] for rest in product(*others)}
            more = {table[tuple(2 if i == number else a for i, a in enumerate(rest))] for rest in product(*others)}
            if len(less) == len(more) == 1 and less != more:
                return self._key(number, descending=more == {True})
        return None

    def _key(self, number: int, descending: bool) -> Key | None:
        left, right = self._pairs[number]
        element = self._elements[number]
        if element not in FLOAT:
            return Key(left, right, element, descending, total=False)

        values = [(1.0, 1.0)] * len(self._pairs)
        values[number] = (0.0, -0.0) if descending else (-0.0, 0.0)
        return Key(left, right, element, descending, total=self(values))


_EXAMPLES = ((0, 1), (0, 0), (1, 0))
"""Pairs that are less, equal and greater, in every integer type and as booleans."""
_EXAMPLES_OF_FLOATS = ((1, 2), (1, 1), (2, 1))
"""The same in every float type: not all have a zero."""


def _keeping(block: Block, numbers: Iterable[int], outputs: tuple[int, ...]) -> Block:
    """Return the block with some of its steps only and with other outputs, which no step empties."""
    kept = list(numbers)
    code = tuple((*block.code[number][:5], ()) for number in kept)
    return replace(block, code=code, steps=tuple(block.steps[number] for number in kept), outputs=outputs)


def _same_bits(a: Array, b: Array) -> bool:
    if a is b:
        return True
    whole = np.dtype(f"u{a.dtype.itemsize}")
    return bool(np.array_equal(np.ascontiguousarray(a).view(whole), np.ascontiguousarray(b).view(whole)))


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
        return key.total and element.bits >= 8 and not element.name.endswith(("FNU", "FNUZ"))
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
