"""Random programs that are valid by construction, with arguments, and bounds on how far right results may be apart.

A program is a chain of random operations over random element types and shapes. For each value the largest number in it
and the largest error of it are known: where rounding is left to the device, later operations are continuous ones, so
that a small error stays small. All other results are the same on every device, to the bit.

XLA's compiler takes nearly all of the time, and starts anew for each module: so programs are joined to modules of many.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.fuzz.random_operations import make
from benchmarks.fuzz.random_values import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    LARGEST,
    PARTS,
    PRED,
    Shape,
    UnsuitableError,
    Value,
    info_of,
    is_float,
    types_named,
)
from pjrt import ElementType
from pjrt.conformance import values
from pjrt.host_memory.difference import Difference

Array = np.ndarray[Any, Any]

_RARE = types_named("S2 U2 F8E4M3 F8E3M4 F8E4M3FNUZ F8E5M2FNUZ F8E4M3B11FNUZ F4E2M1FN")
"""Types of which the device `cpu` compiles each program twice, the first time in another process."""

_RARE_BLOCKS = 100
"""Of how many blocks one is of such types, so that the others need no other process."""

BLOCK = 25
"""Programs that are joined: twice as many take the compiler as long for each."""

_TAME = 4.0


class RandomProgram:
    """A program with arguments, determined by a seed and a number.

    Attributes:
        text: the program, with one function ``main``.
        arguments: its arguments.
        results: what is known of its results.
    """

    def __init__(self, seed: int, number: int) -> None:
        self.chance = random.Random(f"{seed}:{number}")
        self.arguments: list[Array] = []
        self._header: list[Value] = []
        self._lines: list[str] = []
        self._values: list[Value] = []
        self.used: set[str] = set()
        rare = number // BLOCK % _RARE_BLOCKS == _RARE_BLOCKS - 1
        count = self.chance.choice((1, 1, 2, 3, 4, 6, 9))
        self.elements = self.chance.choices(
            (INTEGERS, FLOATS, COMPLEX, (PRED,)) if not rare else (_RARE,), (8, 8, 2, 1) if not rare else (1,), k=2
        )
        self.source(self.shape(), self.element())
        while len(self.used) < 40 and count:
            try:
                make(self)
                count -= 1
            except UnsuitableError:
                self.source(self.shape(), self.element())
        self.results = [
            value
            for value in self._values
            if value.name not in self.used or (value.name[1:2] != "a" and self.chance.random() < 0.3)
        ]
        self.text = _function("main", self._header, self._lines, self.results)

    @staticmethod
    def joined(programs: Sequence[RandomProgram]) -> str:
        """Return one program that takes the arguments of several, and returns their results, one after the other."""
        header: list[Value] = []
        lines: list[str] = []
        results: list[Value] = []
        functions: list[str] = []
        for number, program in enumerate(programs):
            name = f"program{number}"
            given = [dataclasses.replace(value, name=f"%p{number}{value.name[1:]}") for value in program._header]
            names = ", ".join(value.name for value in given)
            types, outer = _types(given), _types(program.results)
            lines.append(f"%r{number}:{len(program.results)} = call @{name}({names}) : ({types}) -> ({outer})")
            results += [dataclasses.replace(v, name=f"%r{number}#{i}") for i, v in enumerate(program.results)]
            header += given
            functions.append(_function(name, program._header, program._lines, program.results, "private "))
        return _function("main", header, lines, results) + "".join(functions)

    def difference(self, found: Sequence[Array], expected: Sequence[Array]) -> str:
        """Return how the results of two devices differ; empty if they agree."""
        for number, (value, one, other) in enumerate(zip(self.results, found, expected, strict=True)):
            if one.shape != other.shape or one.dtype != other.dtype:
                return f"result {number}: {one.dtype}{one.shape} is not {other.dtype}{other.shape}"
            tolerance = value.tolerance()
            if not value.has_free_bits and not value.error:
                tolerance = dataclasses.replace(tolerance, tells_zeros_apart=True)
            difference = Difference.of(one, other, tolerance)
            if not difference.agrees:
                return f"result {number}, {value}: {difference}"
        return ""

    # For the makers of operations.

    def pick(self, suits: Callable[[Value], bool]) -> Value:
        """Return a value, more probably a late one.

        Raises:
            UnsuitableError: there is none.
        """
        suitable = [value for value in self._values if suits(value)]
        if not suitable:
            raise UnsuitableError
        return suitable[max(self.chance.randrange(len(suitable)), self.chance.randrange(len(suitable)))]

    def another(self, shape: Shape, element: ElementType, suits: Callable[[Value], bool] = lambda value: True) -> Value:
        """Return a value of a type; a new one if there is none that suits, or by chance."""
        there = [v for v in self._values if v.shape == shape and v.element is element and suits(v)]
        if there and self.chance.random() < 0.7:
            return self.chance.choice(there)
        return self.source(shape, element, is_tame=True)

    def source(
        self, shape: Shape, element: ElementType, *, is_tame: bool | None = None, numbers: Array | None = None
    ) -> Value:
        """Return a new argument or constant, with numbers of moderate size or special ones."""
        special = False
        if numbers is None:
            special = not is_tame and is_float(element) and self.chance.random() < 0.3
            numbers = self._special(shape, element) if special else self.numbers(shape, element)
        elif is_float(element):
            special = bool(np.isinf(numbers.astype(np.float64)).any())  # where a reduction of special numbers begins
        most = 0.0
        if not special and element is not PRED and not element.is_integer:
            most = float(np.abs(numbers.astype(np.complex128)).max(initial=0.0))
        free = special and bool(np.isnan(numbers.astype(np.float64)).any())
        if self.chance.random() < 0.6 or _counts_from_zero(numbers):
            value = Value(f"%a{len(self.arguments)}", shape, element, most, 0.0, special, free)
            self.arguments.append(numbers)
            self._header.append(value)
            self._values.append(value)
            return value
        literal = f"dense<{_literal(numbers, element) if numbers.size else ''}>"
        value = self._name(Value("", shape, element, most, 0.0, special, free))
        self._lines.append(f"{value.name} = stablehlo.constant {literal} : {value.type}")
        return value

    def add(
        self,
        operation: str,
        operands: Sequence[Value],
        result: Value,
        attributes: str = "",
        region: str = "",
    ) -> Value:
        """Write an operation with one result.

        Raises:
            UnsuitableError: the numbers become too large, or the error.
        """
        return self.add_many(operation, operands, [result], attributes, region)[0]

    def add_many(
        self,
        operation: str,
        operands: Sequence[Value],
        results: Sequence[Value],
        attributes: str = "",
        region: str = "",
    ) -> list[Value]:
        """Write an operation with several results."""
        for result in results:
            if not result.is_special and (is_float(result.element) or result.element.is_complex):
                _check_bounds(result)
        named = [self._name(result) for result in results]
        self.used.update(operand.name for operand in operands)
        name = operation if "." in operation else f"stablehlo.{operation}"
        given = ", ".join(operand.name for operand in operands)
        types = ", ".join(operand.type for operand in operands)
        outer = ", ".join(result.type for result in results)
        self._lines.append(
            f'{", ".join(result.name for result in named)} = "{name}"({given}) '
            f"{f'<{{{attributes}}}> ' if attributes else ''}{region}{' ' if region else ''}: ({types}) -> ({outer})"
        )
        return named

    def _name(self, value: Value) -> Value:
        value = dataclasses.replace(value, name=f"%v{len(self._lines)}x{len(self._values)}")
        self._values.append(value)
        return value

    def element(self) -> ElementType:
        """Return one of the element types of the program."""
        return self.chance.choice(self.chance.choice(self.elements))

    def shape(self) -> Shape:
        """Return a shape, of few elements as a rule."""
        chance = self.chance
        rank = chance.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
        if chance.random() < 0.02:
            return (
                (chance.choice((257, 1031, 4096)),) if rank < 2 else (chance.choice((33, 64)), chance.choice((17, 65)))
            )
        shape: list[int] = []
        for _ in range(rank):
            shape.append(chance.choice((1, 2, 2, 3, 3, 4, 5, 7, 8)) if chance.random() > 0.015 else 0)
            if math.prod(shape) > LARGEST:
                shape[-1] = 1
        return tuple(shape)

    def numbers(self, shape: Shape, element: ElementType) -> Array:
        """Return integers of every size, or floats of moderate size."""
        generator = np.random.default_rng(self.chance.randrange(1 << 62))
        if element is PRED:
            return np.asarray(generator.random(shape) < 0.5)
        if element.is_integer:
            if self.chance.random() < 0.5:
                return values.ordinary(element, shape, self.chance.randrange(1 << 30))
            edges = values.edges(element)
            return np.asarray(edges[generator.integers(0, edges.size, shape)])
        # Multiples of 1/8: no type has numbers so small only as subnormal ones.
        numbers = np.asarray(generator.integers(-32, 33, shape)) / 8.0
        if element.is_complex:
            numbers = (numbers + 1j * np.asarray(generator.integers(-32, 33, shape)) / 8.0) / 2
        elif element.bits >= 16 and self.chance.random() < 0.5:
            numbers = np.clip(np.asarray(generator.standard_normal(shape)), -_TAME, _TAME)
            numbers = np.where(np.abs(numbers) < 0.01, 0.0, numbers)
        return np.asarray(numbers.astype(element.dtype))

    def _special(self, shape: Shape, element: ElementType) -> Array:
        generator = np.random.default_rng(self.chance.randrange(1 << 62))
        edges = values.edges(element)
        wide = edges.astype(np.float64)
        edges = edges[(wide == 0) | (np.abs(wide) >= float(info_of(element).smallest_normal)) | np.isnan(wide)]
        if self.chance.random() < 0.5:
            edges = edges[~np.isnan(edges.astype(np.float64))]
        return np.asarray(edges[generator.integers(0, edges.size, shape)])

    def positive(self, shape: Shape, element: ElementType) -> Value:
        """Return a new source of numbers from 1/2 to 3."""
        generator = np.random.default_rng(self.chance.randrange(1 << 62))
        numbers = np.array([0.5, 1.0, 1.5, 2.0, 3.0])[generator.integers(0, 5, shape)]
        return self.source(shape, element, numbers=np.asarray(numbers.astype(element.dtype)))


def _function(
    name: str, header: Sequence[Value], lines: Sequence[str], results: Sequence[Value], visibility: str = ""
) -> str:
    names = ", ".join(value.name for value in results)
    body = "\n  ".join([*lines, f"return {names} : {_types(results)}"])
    inner = ", ".join(f"{value.name}: {value.type}" for value in header)
    return f"func.func {visibility}@{name}({inner}) -> ({_types(results)}) {{\n  {body}\n}}\n"


def _types(values_: Sequence[Value]) -> str:
    return ", ".join(value.type for value in values_)


def _check_bounds(value: Value) -> None:
    largest = float(info_of(value.element).max)
    if value.most > largest / 8 or value.error > max(value.most, 1.0) / 4 or value.most > 1e6:
        raise UnsuitableError


def _counts_from_zero(numbers: Array) -> bool:
    """Whether XLA takes a constant for an iota, which has no -0: that is not mended."""
    return numbers.ndim == 1 and numbers.size > 1 and np.array_equal(numbers, np.arange(numbers.size))


def _literal(array: Array, element: ElementType) -> str:
    if array.ndim:
        return f"[{', '.join(_literal(part, element) for part in array)}]"
    if element is PRED:
        return "true" if array else "false"
    if element.is_integer:
        return str(int(array))
    if element.is_complex:
        return f"({_literal(array.real, PARTS[element])}, {_literal(array.imag, PARTS[element])})"
    word = int(array.reshape(1).view(f"u{element.dtype.itemsize}")[0])
    return f"0x{word:0{-(-element.bits // 4)}X}"
