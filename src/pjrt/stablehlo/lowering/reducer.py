"""The function that the body of a reduction computes, by its name."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.stablehlo.operation import Block, Operation, Value

_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
_REDUCING = "reduce reduce_window reduce_scatter all_reduce scatter select_and_scatter"
_BODY = {f"stablehlo.{name}": 0 for name in _REDUCING.split()} | {"stablehlo.select_and_scatter": 1}
"""The region of each operation that combines two values."""

_EXTREMES = {("GT", "LT"): "argmax", ("GE", "LT"): "argmax", ("LT", "LT"): "argmin", ("LE", "LT"): "argmin"}


def reducer(operation: Operation) -> str | None:
    """Return the common function that combines two values in a reduction, or ``None`` if it is another one.

    Args:
        operation: ``reduce``, ``reduce_window``, ``reduce_scatter``, ``all_reduce``, ``scatter`` or
            ``select_and_scatter`` (its scatter function).

    Returns:
        ``"add"``, ``"multiply"``, ``"maximum"``, ``"minimum"``, ``"and"``, ``"or"``, ``"xor"``; ``"first"`` or
        ``"second"`` for a body that returns one of its arguments (``"second"`` in a scatter is an overwriting one);
        ``"argmax"`` or ``"argmin"`` for a ``reduce`` of values and their indices, as JAX writes it: the first one of
        equals, and the first NaN before all.
    """
    position = _BODY.get(operation.name)
    if position is None or position >= len(operation.regions):
        return None
    block = operation.regions[position]
    if len(block.arguments) == 2 and len(block.outputs) == 1:
        return _of_one(block)
    if len(block.arguments) == 4 and len(block.outputs) == 2:
        return _of_pair(block)
    return None


def selector(operation: Operation) -> str | None:
    """Return the value that ``stablehlo.select_and_scatter`` selects in a window: ``"maximum"`` or ``"minimum"``, the
    first of equals, or ``None`` if it selects otherwise.
    """
    block = operation.regions[0]
    comparison = _comparison(block.outputs[0])
    if comparison is None or comparison[1:] != block.arguments:
        return None
    return {"GE": "maximum", "LE": "minimum"}.get(comparison[0])


def identity_of(name: str, element: ElementType) -> Any:
    """Return the value that changes nothing when it is combined with another, as a numpy scalar of the type.

    Args:
        name: ``"add"``, ``"multiply"``, ``"maximum"``, ``"minimum"``, ``"and"``, ``"or"`` or ``"xor"``.
        element: the element type.

    Raises:
        KeyError: the function has no such value in this type.
    """
    dtype = element.dtype
    lowest, highest = _limits(element)
    ones = True if element is ElementType.PRED else -1 if not element.name.startswith("U") else highest
    value = {
        "add": 0,
        "or": 0,
        "xor": 0,
        "multiply": 1,
        "and": ones,
        "maximum": lowest,
        "minimum": highest,
    }[name]
    identity = np.asarray(value).astype(dtype)[()]
    if identity != identity:
        raise KeyError(f"{element} has no value that {name} leaves unchanged")
    return identity


def _limits(element: ElementType) -> tuple[Any, Any]:
    if element is ElementType.PRED:
        return False, True
    if element.is_integer:
        signed = not element.name.startswith("U")
        return (-(2 ** (element.bits - 1)), 2 ** (element.bits - 1) - 1) if signed else (0, 2**element.bits - 1)
    if np.isinf(np.asarray(np.inf).astype(element.dtype)):
        return -np.inf, np.inf
    # Many types of 8 bits and less have no infinities: they would become NaN.
    limits = ml_dtypes.finfo(element.dtype)  # type: ignore[no-untyped-call]
    return limits.min, limits.max


def _of_one(block: Block) -> str | None:
    first, second = block.arguments
    (output,) = block.outputs
    if len(block.operations) == 1:
        return "first" if output is first else "second" if output is second else None
    if len(block.operations) != 2 or output.owner is not block.operations[0]:
        return None
    name = block.operations[0].name.removeprefix("stablehlo.")
    uses_both = set(block.operations[0].operands) == {first, second}
    return name if uses_both and name in _COMMUTATIVE else None


def _of_pair(block: Block) -> str | None:
    """Return ``argmax`` or ``argmin`` for the body that chooses a value and its index."""
    value, index, other, other_index = block.arguments
    chosen, chosen_index = block.outputs
    first, second = _owner(chosen, "select"), _owner(chosen_index, "select")
    if first is None or second is None:
        return None
    if tuple(first.operands[1:]) != (value, other) or tuple(second.operands[1:]) != (index, other_index):
        return None
    better = _direction_or_nan(first.operands[0], value, other)
    tie = _owner(second.operands[0], "or")
    if better is None or tie is None:
        return None
    wins, equal = tie.operands
    if wins is not first.operands[0]:
        wins, equal = equal, wins
    both = _owner(equal, "and")
    if wins is not first.operands[0] or both is None:
        return None
    compared = {_comparison(operand) for operand in both.operands}
    if compared != {("EQ", value, other), ("LT", index, other_index)}:
        return None
    return _EXTREMES.get((better, "LT"))


def _direction_or_nan(condition: Value, value: Value, other: Value) -> str | None:
    """Return the direction of ``value ? other``, perhaps or-ed with "value is NaN"."""
    either = _owner(condition, "or")
    if either is None:
        comparison = _comparison(condition)
        return comparison[0] if comparison is not None and comparison[1:] == (value, other) else None
    comparisons = {_comparison(operand) for operand in either.operands}
    if ("NE", value, value) not in comparisons:
        return None
    rest = [each for each in comparisons if each is not None and each[1:] == (value, other)]
    return rest[0][0] if len(rest) == 1 else None


def _comparison(value: Value) -> tuple[str, Value, Value] | None:
    operation = _owner(value, "compare")
    if operation is None:
        return None
    return operation.attribute("comparison_direction"), operation.operands[0], operation.operands[1]


def _owner(value: Value, name: str) -> Operation | None:
    owner = value.owner
    return owner if isinstance(owner, Operation) and owner.name == f"stablehlo.{name}" else None
