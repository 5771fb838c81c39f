"""The keys that a comparator of ``stablehlo.sort`` compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pjrt.stablehlo.lowering._types import expect_operation
from pjrt.stablehlo.operation import Block, Operation, Value


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of a sort.

    Attributes:
        operand: the number of the operand that is the key.
        descending: whether larger values come first.
        total: whether floats are compared in total order: -NaN < -inf < … < -0 < +0 < … < NaN.
    """

    operand: int
    descending: bool
    total: bool


def sort_keys(operation: Operation) -> tuple[SortKey, ...] | None:
    """Return the keys of ``stablehlo.sort``, the most significant first, or ``None`` if it compares otherwise.

    Operands are keys as they are, or as JAX makes them so that -0 equals 0 and all NaN are equal; such a sort orders
    as numpy's does. The other operands are moved along with the keys. The attribute ``is_stable`` says whether equal
    ones keep their order, and ``dimension`` along which dimension the operands are sorted.
    """
    expect_operation(operation, "stablehlo.sort")
    block = operation.regions[0]
    keys = _lexicographic(block.outputs[0], block)
    return None if keys is None else tuple(keys)


def _lexicographic(value: Value, block: Block) -> list[SortKey] | None:
    """Return the keys of ``a < b``, or of ``a < b or (a == b and rest)``, or of a choice that says the same."""
    operation = _owner(value)
    if operation is None:
        return None
    if operation.name == "stablehlo.compare":
        key = _key(operation, block)
        return None if key is None else [key]
    if operation.name == "stablehlo.or":
        return _first_and_rest(operation.operands, block)
    if operation.name == "stablehlo.select":
        equal, rest, first = (_owner(each) for each in operation.operands)
        if equal is None or first is None or rest is None:
            return None
        return _joined(first, equal, operation.operands[1], block)
    return None


def _first_and_rest(operands: tuple[Value, ...], block: Block) -> list[SortKey] | None:
    for first, second in (operands, operands[::-1]):
        less, both = _owner(first), _owner(second)
        if less is None or both is None or less.name != "stablehlo.compare" or both.name != "stablehlo.and":
            continue
        for equal, rest in (both.operands, both.operands[::-1]):
            same = _owner(equal)
            if same is not None and same.name == "stablehlo.compare":
                keys = _joined(less, same, rest, block)
                if keys is not None:
                    return keys
    return None


def _joined(less: Operation, equal: Operation, rest: Value, block: Block) -> list[SortKey] | None:
    """Return the keys of a comparison, an equality of the same values, and a comparator for equal ones."""
    if less.name != "stablehlo.compare" or equal.name != "stablehlo.compare":
        return None
    if equal.attribute("comparison_direction") != "EQ" or set(less.operands) != set(equal.operands):
        return None
    first, others = _key(less, block), _lexicographic(rest, block)
    return None if first is None or others is None else [first, *others]


def _key(comparison: Operation, block: Block) -> SortKey | None:
    """Return the key of a comparison of one operand's two elements."""
    direction = comparison.attribute("comparison_direction")
    if direction not in ("LT", "GT"):
        return None
    left, right = (_argument(each, block) for each in comparison.operands)
    if left is None or right is None or left.number // 2 != right.number // 2 or left.number == right.number:
        return None
    if left.is_canonical != right.is_canonical:
        return None
    swapped = left.number > right.number
    total = comparison.attribute("compare_type", "NOTYPE") == "TOTALORDER" and not left.is_canonical
    return SortKey(left.number // 2, (direction == "GT") != swapped, total)


class _Argument(NamedTuple):
    """An argument of a comparator, perhaps with its zeros and NaN made alike."""

    number: int
    is_canonical: bool


def _argument(value: Value, block: Block) -> _Argument | None:
    """Return the comparator's argument that a value is."""
    changed = value
    zeros = nans = False
    while changed not in block.arguments:
        choice = _owner(changed)
        if choice is None or choice.name != "stablehlo.select":
            return None
        test, constant = _owner(choice.operands[0]), _constant(choice.operands[1])
        if test is None or test.name != "stablehlo.compare" or constant is None:
            return None
        changed = choice.operands[2]
        direction = test.attribute("comparison_direction")
        if direction == "EQ" and constant == 0 and test.operands[0] is changed and _constant(test.operands[1]) == 0:
            zeros = True
        elif direction == "NE" and constant != constant and test.operands[0] is test.operands[1]:
            nans = True
        else:
            return None
    if zeros != nans:
        return None
    return _Argument(block.arguments.index(changed), zeros)


def _constant(value: Value) -> Any:
    """Return the one value of a constant, or ``None``."""
    owner = _owner(value)
    if owner is None or owner.name != "stablehlo.constant":
        return None
    array = owner.attribute("value")
    return np.asarray(array).reshape(-1)[0] if np.size(array) else None


def _owner(value: Value) -> Operation | None:
    return value.owner if isinstance(value.owner, Operation) else None
