"""Sort keys: the values that a sort's comparator compares, if it compares keys.

A comparator has two arguments for each operand: element ``i`` and element ``j``. Most compare one or more *keys*,
values computed from one element only, and combine the answers lexicographically. Then sorting the keys sorts the
operands. Three steps find the keys, and none of them guesses:

1. From the body's steps: which values depend on the left element only, which on the right only, and which comparisons
   bring both together. Everything after these must be logic on their answers.
2. That logic is evaluated for every possible answer (less, equal, greater for each pair of keys), and accepted if it is
   lexicographic. Negative zero shows the kind of comparison.
3. When the program runs, the left and the right keys are computed for all elements and must be the same, bit by bit.

If a step fails, the comparator is evaluated as it is (``merge_sort``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Block, Environment, Step, run_fast
from pjrt.devices.reference.core.region import Region
from pjrt.devices.reference.numerics.element_types import BOOLEAN, FLOAT, INTEGER
from pjrt.stablehlo.types import TensorType

Array = Any

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
