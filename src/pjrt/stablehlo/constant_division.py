"""Divisions of integers that a compiler may compute itself, and that trap: by zero, or of the smallest integer by -1.

A compiler computes an operation whose operands are constants, also where they become constants only when it simplifies
the program. The processor traps at a division that has no result, and that ends the compiler's process.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import PjrtError
from pjrt.stablehlo.mlir_types import element_named
from pjrt.stablehlo.mlir_walk import symbols

Array = np.ndarray[Any, Any]
_Reached = tuple[Any, tuple[Any, ...]]
"""A value, with the calls whose functions lead to it, the outermost first."""

NAMES = frozenset({"stablehlo.divide", "stablehlo.remainder", "chlo.broadcast_divide", "chlo.broadcast_remainder"})
"""The operations that divide."""

_REPEATING = frozenset(
    f"stablehlo.{name}" for name in ("broadcast", "broadcast_in_dim", "reshape", "transpose", "reverse", "slice")
)
_KEEPING = _REPEATING | frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "bitcast_convert", "ceil", "convert", "dynamic_slice", "exponential", "floor", "log", "negate", "not"),
        *("reduce_precision", "round_nearest_afz", "round_nearest_even", "sqrt", "tanh"),
    )
)
"""Operations of whose first operand nothing is lost that would let a compiler know the result."""


_GATHERING = frozenset({"stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.sort"})
"""Operations that depend on each element of their first operand, if it has some."""


class ConstantDivisions:
    """The divisions of a module that may trap in a compiler.

    A value is looked at together with the calls through which it was reached, so that the arguments of a function that
    is called in several places are those of the one call.

    Args:
        entry: the name of the function whose arguments are those of the program.
        functions: the functions.
        call_sites: the operands of all calls of each function; ``None`` for a function that others than calls name.
    """

    def __init__(
        self, entry: str, functions: Mapping[str, Any], call_sites: Mapping[str, Sequence[Sequence[Any]] | None]
    ) -> None:
        self._entry = entry
        self._functions = functions
        self._call_sites = call_sites
        self._variable: dict[_Reached, bool] = {}
        self._known: dict[_Reached, Sequence[Array] | None] = {}

    def may_trap(self, operation: Any) -> bool:
        """Whether a compiler may compute a division of integers, and trap: it is not known to be impossible."""
        if not _is_integer(operation.results[0].type.element_type):
            return False
        dividend, divisor = ((operand, ()) for operand in operation.operands)
        return not (self._is_sound(divisor) or self._is_variable(divisor) or self._is_variable(dividend))

    def _is_sound(self, divisor: _Reached) -> bool:
        """Whether a divisor is known to be neither zero nor -1 in all its elements."""
        literals = self._literals(divisor)
        if literals is None:
            return False
        unsound = [0] if divisor[0].type.element_type.is_unsigned else [0, -1]
        return not any(np.isin(each.astype(np.int64), unsound).any() for each in literals)

    # What is known of values.

    def _literals(self, reached: _Reached) -> Sequence[Array] | None:
        """Return vectors with all elements that a value may have, in any order; ``None`` if they are not known."""
        if reached not in self._known:
            self._known[reached] = None  # for functions that call themselves
            self._known[reached] = self._find_literals(*reached)
        return self._known[reached]

    def _find_literals(self, value: Any, calls: tuple[Any, ...]) -> Sequence[Array] | None:
        if not _is_integer(value.type.element_type):
            return None
        if _is_argument(value):
            return self._all_literals(self._origins(value, calls)) if _is_steady(value) else None
        operation = value.owner.operation
        name, operands = operation.name, [(operand, calls) for operand in operation.operands]
        if name == "stablehlo.constant":
            return _elements(operation.attributes["value"])
        if name == "stablehlo.convert":
            literals, type_ = self._literals(operands[0]), element_named(str(value.type.element_type))
            return None if literals is None else [each.astype(type_.dtype) for each in literals]
        if name in _REPEATING:
            return self._literals(operands[0])
        if name == "stablehlo.select":
            return self._all_literals(operands[1:])
        if name in _COMPUTED:
            return _computed(_COMPUTED[name], [self._literals(each) for each in operands])
        return self._all_literals(self._results(value, calls)) if name == "func.call" else None

    def _all_literals(self, origins: Sequence[_Reached] | None) -> Sequence[Array] | None:
        known = [self._literals(each) for each in origins or ()]
        return None if not known or None in known else [each for literals in known for each in literals or ()]

    def _is_variable(self, reached: _Reached) -> bool:
        """Whether a value is known to depend on the arguments of the program, so that no compiler knows it."""
        if reached not in self._variable:
            self._variable[reached] = False
            self._variable[reached] = self._find_variable(*reached)
        return self._variable[reached]

    def _find_variable(self, value: Any, calls: tuple[Any, ...]) -> bool:
        origins: Sequence[_Reached] | None
        while not _is_argument(value):
            operation = value.owner.operation
            name, operands = operation.name, operation.operands
            if name in _KEEPING or (name in _GATHERING and 0 not in operands[0].type.shape):
                value = operands[0]
            elif name == "stablehlo.optimization_barrier":
                value = operands[value.result_number]
            elif name in ("stablehlo.add", "stablehlo.subtract"):
                known = [self._literals((each, calls)) is not None for each in operands]
                if known[0] == known[1]:
                    return False
                value = operands[known.index(False)]
            else:
                origins = self._results(value, calls) if name == "func.call" else None
                break
        else:
            origins = self._origins(value, calls)
        return origins is not None and all(map(self._is_variable, origins))

    # Functions and loops.

    def _origins(self, argument: Any, calls: tuple[Any, ...]) -> Sequence[_Reached] | None:
        """Return the values that an argument of a function or loop may begin with; none for one of the program.

        ``None`` stands for an argument that may be anything.
        """
        block, number = argument.owner, argument.arg_number
        owner = block.owner.operation
        if owner.name == "stablehlo.while":
            return ((owner.operands[number], calls),)
        if owner.name != "func.func":
            return None
        if calls:
            return ((calls[-1].operands[number], calls[:-1]),)
        name = owner.attributes["sym_name"].value
        if name == self._entry:
            return ()
        sites = self._call_sites.get(name, ())
        return None if sites is None else [(operands[number], ()) for operands in sites]

    def _results(self, value: Any, calls: tuple[Any, ...]) -> Sequence[_Reached] | None:
        """Return the value that a function returns as the result of a call; ``None`` if that is not known."""
        call = value.owner.operation
        (name,) = symbols(call.attributes["callee"])
        function = self._functions.get(name)
        if function is None or not len(function.regions[0].blocks) or len(calls) >= _DEEPEST_CALLS:
            return None
        *_, last = function.regions[0].blocks[0].operations
        return ((last.operation.operands[value.result_number], (*calls, call)),)


_DEEPEST_CALLS = 8


def _is_integer(element: Any) -> bool:
    return type(element).__name__ == "IntegerType"


def _is_steady(argument: Any) -> bool:
    """Whether an argument is none of a loop, or the loop hands it on as it is."""
    owner = argument.owner.owner.operation
    if owner.name != "stablehlo.while":
        return True
    body = owner.regions[1].blocks[0]
    *_, last = body.operations
    return bool(last.operation.operands[argument.arg_number] == body.arguments[argument.arg_number])


def _is_argument(value: Any) -> bool:
    return hasattr(value, "arg_number")


def _computed(compute: Any, operands: Sequence[Sequence[Array] | None]) -> Sequence[Array] | None:
    """Return what an operation makes of all choices of its operands, of which only one may have several elements."""
    choices = list(itertools.islice(itertools.product(*(each or () for each in operands)), _MOST_CHOICES + 1))
    if not 0 < len(choices) <= _MOST_CHOICES or any(sum(each.size > 1 for each in choice) > 1 for choice in choices):
        return None
    return [compute(*choice) for choice in choices]


_MOST_CHOICES = 16

_COMPUTED = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.clamp": lambda low, value, high: np.minimum(np.maximum(low, value), high),
}


def _elements(attribute: Any) -> Sequence[Array] | None:
    from pjrt.stablehlo._dense import decode_dense  # here: few programs divide by constants

    try:
        return [np.unique(decode_dense(attribute))]
    except (PjrtError, TypeError, ValueError):  # they are elsewhere
        return None
