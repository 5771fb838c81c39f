"""Symbolic dimensions: sizes that are expressions of variables, such as ``2*k + 1`` (JAX's shape polymorphism).

A program with such sizes runs at any sizes that solve the expressions. The variables are whole numbers from 1 up.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pjrt.api.errors import DataLossError, InvalidArgumentError

_LONGEST = 4096
_LARGEST_POWER = 64
_LARGEST_SIZE = 1 << 63
_CHARACTERS = re.compile(r"[\w+\-*^(), ]+")
_NUMBER_IN_WORD = re.compile(r"\b\d+[^\W\d]|\b0\d")

Linear = tuple[Mapping[str, int], int]
"""A sum of variables with factors, and a number."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A size that is an expression of dimension variables.

    Attributes:
        text: the expression as JAX spells it, with ``+ - * ^``, ``floordiv``, ``mod``, ``max`` and ``min``.
    """

    text: str

    def __post_init__(self) -> None:
        if not self.variables:
            raise DataLossError(f"expected a variable in the size of a symbolic dimension, found {self.text!r}")

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables in the expression, sorted."""
        names = {node.id for node in ast.walk(_parsed(self.text)) if isinstance(node, ast.Name)}
        return tuple(sorted(names - set(_FUNCTIONS)))

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the size where the variables have these values.

        Raises:
            InvalidArgumentError: a variable has no value, or the expression divides by 0.
        """
        missing = [name for name in self.variables if name not in sizes]
        if missing:
            raise InvalidArgumentError(f"expected a value for {', '.join(missing)} to know the size {self.text}")
        linear = _linear(_parsed(self.text), sizes)
        if linear is None or linear[0]:
            raise InvalidArgumentError(f"the size {self.text} has no value where {_spelled(sizes)}")
        return linear[1]

    def __str__(self) -> str:
        return self.text


Size = int | Dimension
"""A size of a shape: a number, or an expression."""


def parse_size(text: str) -> Size:
    """Return a size that is spelled as a number or as an expression.

    Raises:
        DataLossError: the text is neither.
    """
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return Dimension(text)


def solve(
    shapes: Sequence[Sequence[Size]], actual: Sequence[Sequence[int]], names: Sequence[str] | None = None
) -> dict[str, int]:
    """Return the values of the dimension variables at which arguments have the shapes of actual arrays.

    Args:
        shapes: the shapes of the arguments, with expressions.
        actual: the shape of each array.
        names: the name of each argument, for messages.

    Raises:
        InvalidArgumentError: no values give these shapes; the message names the argument, the dimension and both sizes.
            Or the expressions do not determine the values.
    """
    labels = names or [f"argument {number}" for number in range(len(shapes))]
    open_: list[tuple[str, Size, int]] = []
    for label, shape, sizes in zip(labels, shapes, actual, strict=True):
        if len(shape) != len(sizes):
            raise InvalidArgumentError(
                f"{label}: expected {len(shape)} dimensions ({spelled_shape(shape)}), found {len(sizes)} "
                f"({spelled_shape(sizes)})"
            )
        open_ += [(f"{label}: dimension {i}", *pair) for i, pair in enumerate(zip(shape, sizes, strict=True))]
    values: dict[str, int] = {}
    while open_:
        unsolved = [equation for equation in open_ if not _settle(*equation, values)]
        if len(unsolved) == len(open_):
            place, size, _ = unsolved[0]
            raise InvalidArgumentError(f"{place}: the shapes of the arguments do not determine the variables of {size}")
        open_ = unsolved
    return values


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on dimension variables that a program was exported with, such as ``b >= 4``.

    Attributes:
        left: the expression on the left.
        relation: ``>=``, ``<=`` or ``==``.
        right: the expression on the right.
    """

    left: Size
    relation: str
    right: Size

    @staticmethod
    def parse(text: str) -> Constraint:
        """Return the condition that is spelled like ``b >= 4``.

        Raises:
            DataLossError: the text is no condition.
        """
        sides = re.fullmatch(r"([^<>=]+)(>=|<=|==)([^<>=]+)", text)
        if sides is None:
            raise DataLossError(f"expected a condition such as 'b >= 4', found {text[:80]!r}")
        return Constraint(parse_size(sides[1].strip()), sides[2], parse_size(sides[3].strip()))

    def check(self, sizes: Mapping[str, int]) -> None:
        """Check the condition where the variables have these values.

        Raises:
            InvalidArgumentError: it does not hold, or a variable has no value.
        """
        left, right = (side if isinstance(side, int) else side.evaluate(sizes) for side in (self.left, self.right))
        if not _RELATIONS[self.relation](left, right):
            raise InvalidArgumentError(
                f"the program was exported for {self}, found {left} {_OPPOSITES[self.relation]} {right} "
                f"where {_spelled(sizes)}"
            )

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


_RELATIONS: dict[str, Callable[[int, int], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}
_OPPOSITES = {">=": "<", "<=": ">", "==": "!="}


def spelled_shape(shape: Sequence[Size]) -> str:
    """Return a shape such as ``8x16`` or ``bx2*k``; ``scalar`` for none."""
    return "x".join(map(str, shape)) or "scalar"


def _settle(place: str, size: Size, actual: int, values: dict[str, int]) -> bool:
    """Check one size, or find the one variable in it that has no value yet; return False if there are more."""
    linear = ({}, size) if isinstance(size, int) else _linear(_parsed(size.text), values)
    if linear is None:  # may become linear when others are known
        return False
    factors, number = linear
    if not factors:
        if number != actual:
            known = f" (= {number})" if isinstance(size, Dimension) else ""
            raise InvalidArgumentError(f"{place}: expected the size {size}{known}, found {actual}")
        return True
    if len(factors) > 1:
        return False
    ((name, factor),) = factors.items()
    value, rest = divmod(actual - number, factor)
    if rest or value < 1:
        raise InvalidArgumentError(
            f"{place}: expected the size {size} with a whole number {name} from 1 up, found {actual}"
        )
    values[name] = value
    return True


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    if len(text) <= _LONGEST and _CHARACTERS.fullmatch(text) and not _NUMBER_IN_WORD.search(text):
        try:
            expression = ast.parse(text.strip().replace("^", "**"), mode="eval").body
            if all(isinstance(node, _NODES) for node in ast.walk(expression)):
                _linear(expression, {})
                return expression
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            pass
    raise DataLossError(f"expected a number or an expression such as '2*b' as a size, found {text[:80]!r}")


_NODES = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.operator, ast.unaryop, ast.expr_context)


def _linear(node: ast.expr, values: Mapping[str, int]) -> Linear | None:
    """Return an expression as a sum of the variables without a value; None if it is no such sum.

    Raises:
        ValueError: it is no expression of a dimension at all.
    """
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool) and abs(number) < _LARGEST_SIZE:
            return {}, number
        case ast.Name(id=name):
            return ({}, values[name]) if name in values else ({name: 1}, 0)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _scaled(_linear(operand, values), -1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _linear(operand, values)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 0 <= power <= _LARGEST_POWER:
            base = _linear(left, values)
            return None if base is None or base[0] else ({}, base[1] ** power)
        case ast.BinOp(left=left, op=(ast.Add() | ast.Sub() | ast.Mult()) as operation, right=right):
            return _combined(operation, _linear(left, values), _linear(right, values))
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
            return _called(name, _linear(left, values), _linear(right, values))
    raise ValueError(f"no expression of a dimension: {ast.dump(node)}")


def _combined(operation: ast.operator, left: Linear | None, right: Linear | None) -> Linear | None:
    if left is None or right is None:
        return None
    if isinstance(operation, ast.Mult):
        if left[0] and right[0]:
            return None
        return _scaled(left, right[1]) if left[0] else _scaled(right, left[1])
    sign = -1 if isinstance(operation, ast.Sub) else 1
    names = {**left[0], **right[0]}
    factors = {name: left[0].get(name, 0) + sign * right[0].get(name, 0) for name in names}
    return {name: factor for name, factor in factors.items() if factor}, left[1] + sign * right[1]


def _scaled(linear: Linear | None, by: int) -> Linear | None:
    if linear is None:
        return None
    return {name: factor * by for name, factor in linear[0].items() if by}, linear[1] * by


def _called(name: str, left: Linear | None, right: Linear | None) -> Linear | None:
    if left is None or right is None or left[0] or right[0]:
        return None
    if name in ("floordiv", "mod") and right[1] == 0:
        return None
    return {}, _FUNCTIONS[name](left[1], right[1])


_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}


def _spelled(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sorted(sizes.items()))
