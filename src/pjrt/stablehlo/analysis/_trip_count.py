"""Trip counts: the number of iterations of a loop, where the program shows it.

A loop that counts has an argument that starts at a constant, is compared with a constant, and grows by a constant; so
do the loops of ``jax.lax.fori_loop`` and ``scan``. The constants may be arguments of the function, where its caller
passes constants, and arguments of the loop that it never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pjrt.stablehlo.operation import Block, Function, Operation, Value

Constants = Mapping[int, int]
"""The integers that are known to be the values of arguments, by the identity of the ``Value``."""

_DEEPEST = 50


class TripCounts:
    """The trip counts of the loops of a program.

    Args:
        functions: its functions by name.
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions

    def trip_count(self, loop: Operation, constants: Constants) -> int | None:
        """Return how often the body of a ``stablehlo.while`` runs, or None if that is unknown.

        Args:
            loop: the loop.
            constants: the values that are known where it is.
        """
        condition, body = loop.regions
        integers = {**constants, **self.invariants(loop, constants)}
        outputs = condition.outputs
        compare = outputs[0].owner if outputs else None
        if not isinstance(compare, Operation) or not compare.name.endswith(".compare"):
            return None
        direction = str(compare.attribute("comparison_direction"))
        left, right = compare.operands
        for counter, bound, way in ((left, right, direction), (right, left, _MIRRORED.get(direction, ""))):
            limit = self.constant(bound, integers)
            for index, argument in enumerate(condition.arguments):
                ahead = self._distance(counter, argument, integers, 0)
                if limit is None or ahead is None:
                    continue
                start = self.constant(loop.operands[index], constants)
                step = self._distance(body.outputs[index], body.arguments[index], integers, 0)
                return None if start is None or step is None else _count(start + ahead, step, limit, way)
        return None

    def invariants(self, loop: Operation, constants: Constants) -> dict[int, int]:
        """Return the arguments of a loop's blocks that have one known value in all iterations."""
        condition, body = loop.regions
        integers: dict[int, int] = {}
        for index, operand in enumerate(loop.operands):
            value = self.constant(operand, constants)
            if value is not None and body.outputs[index] is body.arguments[index]:
                integers[id(body.arguments[index])] = integers[id(condition.arguments[index])] = value
        return integers

    def arguments(self, block: Block, operands: tuple[Value, ...], constants: Constants) -> dict[int, int]:
        """Return the arguments of a block whose values are known, when it is given these operands."""
        values = (self.constant(operand, constants) for operand in operands)
        return {id(a): value for a, value in zip(block.arguments, values, strict=False) if value is not None}

    def constant(self, value: Value, constants: Constants, depth: int = 0) -> int | None:
        """Return the integer that a scalar is in every run; None if that is unknown."""
        owner = value.owner
        if id(value) in constants:
            return constants[id(value)]
        if not isinstance(owner, Operation) or depth > _DEEPEST:
            return None
        kind = owner.name.rpartition(".")[2]
        if kind == "constant":
            array = owner.attributes.get("value")
            if isinstance(array, np.ndarray) and array.size == 1 and array.dtype.kind in "iu":
                return int(array.item())
            return None
        if kind in ("convert", "reshape") and len(owner.operands) == 1:
            return self.constant(owner.operands[0], constants, depth + 1)
        if kind in _ARITHMETIC:
            left, right = (self.constant(operand, constants, depth + 1) for operand in owner.operands)
            return None if left is None or right is None else _ARITHMETIC[kind](left, right)
        return None

    def _distance(self, value: Value, origin: Value, constants: Constants, depth: int) -> int | None:
        """Return the constant by which a value is larger than another; None if there is none."""
        if value is origin:
            return 0
        owner = value.owner
        if not isinstance(owner, Operation) or depth > _DEEPEST:
            return None
        if owner.name == "func.call":
            return self._distance_through_call(owner, value.index, origin, constants, depth)
        for of, other, sign in _terms(owner):
            difference = self.constant(other, constants)
            distance = None if difference is None else self._distance(of, origin, constants, depth + 1)
            if difference is not None and distance is not None:
                return distance + sign * difference
        return None

    def _distance_through_call(
        self, call: Operation, index: int, origin: Value, constants: Constants, depth: int
    ) -> int | None:
        callee = self._functions.get(str(call.attribute("callee")))
        if callee is None or callee.body is None:
            return None
        inside = self.arguments(callee.body, call.operands, constants)
        for argument, operand in zip(callee.arguments, call.operands, strict=False):
            inner = self._distance(callee.body.outputs[index], argument, inside, depth + 1)
            outer = None if inner is None else self._distance(operand, origin, constants, depth + 1)
            if inner is not None and outer is not None:
                return inner + outer
        return None


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
}
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def _terms(operation: Operation) -> Iterator[tuple[Value, Value, int]]:
    """Yield each operand of a sum that may be the counter, the other operand, and the other's sign."""
    if operation.name.endswith(".add"):
        left, right = operation.operands
        yield left, right, 1
        yield right, left, 1
    elif operation.name.endswith(".subtract"):
        left, right = operation.operands
        yield left, right, -1


def _count(start: int, step: int, limit: int, direction: str) -> int | None:
    """Return how often a counter passes a comparison with a limit; None if for ever."""
    if direction in ("GT", "GE"):
        start, step, limit = -start, -step, -limit
    if direction in ("LE", "GE"):
        limit += 1
    if direction == "NE":
        distance = limit - start
        return distance // step if step and distance % step == 0 and distance // step >= 0 else None
    if direction == "EQ":
        return None
    if start >= limit:
        return 0
    return -(-(limit - start) // step) if step > 0 else None
