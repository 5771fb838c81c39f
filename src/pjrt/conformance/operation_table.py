"""The table of operations: for each, the function that makes its cases, and how near their results must be."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.host_memory.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The largest error that is allowed, in units in the last place of the result's type.

    The StableHLO specification leaves the accuracy of most operations to the implementation. These are a floor for
    devices, and tighter than the default tolerances of ``pjrt.compare``, which allow for the errors of a whole model.

    Attributes:
        wide: units in the last place of results of 32 bits and more.
        half: the same of f16 and bf16: most devices compute these in f32 and round once.
        narrow: the same of floating-point types of 8 bits and fewer.
        absolute: how many units in the last place of the number 1 a result may be off besides: for functions that are
            zero where their argument is not, such as a logarithm, and for sums in which numbers cancel.
        signs: whether zeros must have the right sign, where results must be equal.
    """

    wide: float
    half: float
    narrow: float
    absolute: float = 0.0
    signs: bool = True

    @property
    def is_exact(self) -> bool:
        """Whether results must be equal."""
        return not self.wide

    def tolerance(self, element_type: ElementType) -> Tolerance:
        """Return the tolerance for results of a type.

        Results below twice the smallest normal number may be zero: devices flush smaller ones, XLA's own CPU and GPU
        devices too, also on the way to a result.
        """
        if self.is_exact or not (element_type.is_floating or element_type.is_complex):
            return Tolerance(0.0, 0.0)
        info = ml_dtypes.finfo(_part(element_type))  # type: ignore[no-untyped-call]
        bits = element_type.bits // 2 if element_type.is_complex else element_type.bits
        ulps = self.wide if bits >= 32 else self.half if bits == 16 else self.narrow
        eps = float(info.eps)
        return Tolerance(ulps * eps, 2 * float(info.smallest_normal) + self.absolute * eps)


def _part(element_type: ElementType) -> AnyDType:
    if element_type.is_complex:
        return np.dtype(np.float32 if element_type is ElementType.C64 else np.float64)
    return element_type.dtype


EXACT = Accuracy(0, 0, 0)
"""Operations that compute no new number: they move, compare, choose or round to an integer; integers; signs."""

CHOSEN = Accuracy(0, 0, 0, signs=False)
"""``maximum``, ``minimum`` and ``clamp``: whether 0.0 is larger than -0.0 differs between versions of IEEE 754."""

ROUNDED = Accuracy(1, 1, 1)
"""One rounding of the exact result, in any direction: addition, subtraction, multiplication."""

DIVIDED = Accuracy(4, 1, 1)
"""Division and roots, which devices without an instruction for them approximate and correct once."""

FUNCTION = Accuracy(32, 4, 1)
"""Functions such as ``exponential``: f32 approximations are up to some ten units off, XLA's own among them."""

CROSSING = Accuracy(32, 4, 1, absolute=4)
"""Functions that are zero where their argument is not: near there the error counts beside the number 1."""

REFLECTED = Accuracy(32, 4, 1, absolute=64)
"""Functions whose values at negative numbers are differences of larger ones: XLA's ``chlo.lgamma`` is 37 units off."""

INVERTED = Accuracy(128, 4, 1)
"""``chlo.erf_inv``: near 1, its square and 1 cancel, and StableHLO's own code for it is 63 units off."""

SOLVED = Accuracy(256, 32, 4, absolute=256)
"""Transforms and solvers: many roundings, whose order is the device's own."""


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


Maker = Callable[[str, ElementType], Iterable[OperationCase]]
"""Makes the cases of an operation for an element type."""

_CHAPTERS = ("elementwise", "data_movement", "regions", "linear_algebra")

_table: dict[str, tuple[tuple[ElementType, ...], Maker]] = {}


def cases(names: str, types: Collection[ElementType]) -> Callable[[Maker], Maker]:
    """Add a function to the table: it makes the cases of these operations, for each of these types.

    Args:
        names: the names of operations, with spaces between them; ``stablehlo.`` may be left out.
        types: the element types that the operations are defined on.
    """

    def add(maker: Maker) -> Maker:
        for name in names.split():
            _table[name if "." in name else f"stablehlo.{name}"] = tuple(types), maker
        return maker

    return add


@functools.cache
def operations() -> Mapping[str, tuple[ElementType, ...]]:
    """Return the operations of the table, each with its element types."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"pjrt.conformance.operation_cases.{chapter}")
    return MappingProxyType({name: types for name, (types, _) in sorted(_table.items())})


def cases_of(operation: str, element_type: ElementType) -> Iterator[OperationCase]:
    """Return the cases of an operation for an element type; none if it is not defined on that type."""
    if element_type in operations().get(operation, ()):
        yield from _table[operation][1](operation, element_type)
