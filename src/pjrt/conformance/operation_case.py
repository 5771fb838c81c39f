"""Operation cases: the smallest program of one operation, its arguments, and how near its results must be."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance.accuracy import EXACT, Accuracy

Array = np.ndarray[Any, Any]

_OPERATION = re.compile(r"\b((?:stablehlo|chlo|func)\.\w+)")
_STRUCTURE = frozenset({"func.func", "func.return", "func.call", "stablehlo.return"})


@dataclass(frozen=True, slots=True)
class OperationCase:
    """A program of one operation, with arguments.

    Attributes:
        operation: the name of the operation.
        element_type: the element type that the case is about: that of the operation's first operand, or of its first
            result where it has no operand.
        name: the name of the case among those of the operation and the type, such as ``edge values``.
        program: the program, as text: three lines.
        inputs: the arguments.
        accuracy: how near the results must be to those of the reference interpreter.
        alternatives: other arguments whose results count as right, too, such as those with denormal numbers flushed
            to zero; None if there are none.
        elementwise: whether element i of the result follows from elements i of the arguments alone.
        verify: for results that an implementation may choose: returns the problem of the results of a device, and an
            empty text if there is none. None for results that must be those of the reference interpreter.
    """

    operation: str
    element_type: ElementType
    name: str
    program: str
    inputs: tuple[Array, ...] = ()
    accuracy: Accuracy = EXACT
    alternatives: tuple[Array, ...] | None = None
    elementwise: bool = False
    verify: Callable[[Sequence[Array]], str] | None = None

    @property
    def operations(self) -> frozenset[str]:
        """The names of all operations in the program, but for those that every device follows."""
        return frozenset(_OPERATION.findall(self.program)) - _STRUCTURE

    @property
    def label(self) -> str:
        """The name of the case in reports and filters, such as ``stablehlo.add f32 edge values``."""
        return f"{self.operation} {self.element_type.mlir} {self.name}"

    def of_one_element(self, index: tuple[int, ...]) -> OperationCase:
        """Return an elementwise case with one element of each argument, as a scalar."""

        def one(arrays: Sequence[Array]) -> tuple[Array, ...]:
            return tuple(np.array(each[index] if each.shape else each[()], each.dtype) for each in arrays)

        alternatives = None if self.alternatives is None else one(self.alternatives)
        largest: Array = max(self.inputs, key=np.ndim)
        shape = re.escape("x".join(map(str, largest.shape)) + "x")
        program = re.sub(f"tensor<{shape}", "tensor<", self.program)
        return replace(self, inputs=one(self.inputs), alternatives=alternatives, program=program)


def tensor(shape: Sequence[int], element: ElementType) -> str:
    """Return the type of a tensor as StableHLO spells it."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element.mlir}>"


def type_of(array: Array) -> str:
    """Return the type of an array as StableHLO spells it."""
    return tensor(array.shape, ElementType.of(array.dtype))


def program_text(operation: str, operands: Sequence[str], results: Sequence[str]) -> str:
    """Return a program of one operation in three lines.

    Args:
        operation: the operation as text; its operands are ``%x``, ``%y``, ``%z``, ``%u``, ``%v``, ``%w``.
        operands: the types of the arguments.
        results: the types of the results.
    """
    arguments = ", ".join(f"%{name}: {type_}" for name, type_ in zip("xyzuvw", operands, strict=False))
    types = ", ".join(results)
    if len(results) == 1:
        names, values, outer = "%r", "%r", types
    else:
        names, outer = f"%r:{len(results)}", f"({types})"
        values = ", ".join(f"%r#{number}" for number in range(len(results)))
    return f"func.func @main({arguments}) -> {outer} {{\n  {names} = {operation}\n  return {values} : {types} }}"
