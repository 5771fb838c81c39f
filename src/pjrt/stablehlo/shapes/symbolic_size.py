"""Symbolic sizes: the expressions in symbols, such as ``2*b + 1``, that stand for sizes of dynamic arguments.

``jax.export`` writes them. Their grammar is Python's, with ``^`` for powers and the functions ``floordiv``, ``mod``,
``max`` and ``min``.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping

from pjrt.api.errors import InvalidArgumentError

_LONGEST = 1000
_GREATEST_POWER = 64
_GREATEST_BASE = 1 << 63
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


@functools.lru_cache(1024)
def symbols_in(size: str) -> frozenset[str]:
    """Return the symbols in a symbolic size.

    Raises:
        InvalidArgumentError: the text is no symbolic size.
    """
    names = (node.id for node in ast.walk(_parsed(size)) if isinstance(node, ast.Name))
    return frozenset(names) - _FUNCTIONS.keys()


def evaluate(size: str, sizes: Mapping[str, int]) -> int:
    """Return the value of a symbolic size for these sizes of its symbols.

    Raises:
        InvalidArgumentError: the text is no symbolic size, or divides by zero.
        KeyError: a symbol has no size.
    """
    try:
        return _value(_parsed(size), sizes)
    except (OverflowError, RecursionError, ValueError, ZeroDivisionError) as error:
        raise InvalidArgumentError(f"the size {size!r} has no value for {dict(sizes)}: {error}") from error


def solve(size: str, value: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """Return the one symbol without a size and the size for which a symbolic size has a value.

    Returns:
        The symbol and its size; ``None`` if several symbols have no size, if all have, or if the symbolic size is not
        linear in the symbol.
    """
    unknown = symbols_in(size) - sizes.keys()
    if len(unknown) != 1:
        return None
    (symbol,) = unknown

    def at(number: int) -> int:
        return evaluate(size, {**sizes, symbol: number})

    try:
        begin = at(0)
        slope = at(1) - begin
    except InvalidArgumentError:
        return None
    if not slope or (value - begin) % slope:
        return None
    solution = (value - begin) // slope
    return (symbol, solution) if at(solution) == value else None


@functools.lru_cache(1024)
def _parsed(size: str) -> ast.expr:
    if len(size) <= _LONGEST and re.fullmatch(r"[\w\s+*^(),-]+", size):
        try:
            return ast.parse(size.strip().replace("^", "**"), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    raise InvalidArgumentError(f"expected a symbolic size such as 'b' or '2*b + 1', found {size[:100]!r}")


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 0 <= power <= _GREATEST_POWER:
            base = _value(left, sizes)
            if abs(base) > _GREATEST_BASE:  # powers of powers would take for ever
                raise OverflowError(f"{base} to the power of {power}")
            return int(base**power)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(left, sizes), _value(right, sizes))
    raise InvalidArgumentError(f"expected a symbolic size such as 'b' or '2*b + 1', found {ast.unparse(node)[:100]!r}")
