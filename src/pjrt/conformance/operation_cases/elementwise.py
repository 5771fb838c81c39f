"""Cases of elementwise operations: edge values, denormal numbers, conversions, and small, odd and large shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance import values
from pjrt.conformance.operation_table import (
    CHOSEN,
    CROSSING,
    DIVIDED,
    EXACT,
    FUNCTION,
    INVERTED,
    REFLECTED,
    ROUNDED,
    Accuracy,
    Array,
    OperationCase,
    cases,
    program_text,
    tensor,
    type_of,
)
from pjrt.conformance.values import BOOLEANS, COMPLEX, EVERY, FLOATS, INTEGERS, NUMBERS, SIGNED

Inputs = Sequence[Array]
Text = Callable[[Sequence[str], str], str]
"""Writes the operation for the types of its operands and its result."""

LARGE, HUGE = 1031, 200_003
"""Numbers of elements of large arrays, both prime, so that no vector register divides them. Only f32 gets the larger
one: more types would take minutes."""

_NORMAL_ONLY = frozenset(
    {"atan2", "cbrt", "digamma", "lgamma", "log", "next_after", "remainder"}
    | {"broadcast_atan2", "broadcast_next_after", "broadcast_remainder"}
)
"""Operations without a case of denormal numbers: XLA's own devices flush them at some steps of these and not at others,
so that the results are those of neither number."""

SHAPES = {"scalar": (), "empty": (0, 3), "of odd shape": (3, 1, 7)}


def elementwise(
    operation: str,
    element: ElementType,
    operands: Sequence[ElementType],
    result: ElementType,
    text: Text,
    accuracy: Accuracy,
    edge_inputs: Inputs,
    fit: Callable[[Inputs], Inputs] = tuple,
) -> Iterator[OperationCase]:
    """Return the cases of an elementwise operation.

    Args:
        operation: its name.
        element: the type that the cases are about.
        operands: the element types of the operands.
        result: the element type of the result.
        text: writes the operation.
        accuracy: how near results must be.
        edge_inputs: vectors of edge values, of one length.
        fit: brings arguments into the domain of the operation.
    """

    def case(name: str, inputs: Inputs, accuracy: Accuracy, alternatives: Inputs | None = None) -> OperationCase:
        fitted = tuple(fit(inputs))
        shape = fitted[0].shape
        types, outer = [tensor(shape, each) for each in operands], tensor(shape, result)
        return OperationCase(
            operation,
            element,
            name,
            program_text(text(types, outer), types, [outer]),
            fitted,
            accuracy,
            None if alternatives is None else tuple(fit(alternatives)),
            elementwise=True,
        )

    def numbers(shape: tuple[int, ...]) -> Inputs:
        return [values.ordinary(each, shape, seed) for seed, each in enumerate(operands)]

    yield case("edge values", edge_inputs, accuracy)
    if element.is_floating and set(operands) == {element} and operation.rpartition(".")[2] not in _NORMAL_ONLY:
        small = _pairs([np.concatenate([values.denormals(element), np.ones(1, element.dtype)])] * len(operands))
        if values.denormals(element).size:
            near = ROUNDED if accuracy.is_exact else accuracy  # a device may flush the result, too
            yield case("denormal numbers", small, near, [values.flushed(each) for each in small])
    for name, shape in SHAPES.items():
        yield case(name, numbers(shape), accuracy)
    yield case("large", numbers((HUGE if element is ElementType.F32 else LARGE,)), accuracy)


def _pairs(vectors: Inputs) -> Inputs:
    """Return all combinations of the elements of vectors, as vectors of one length."""
    grid = np.meshgrid(*[np.arange(each.size) for each in vectors], indexing="ij")
    return [each[places.reshape(-1)] for each, places in zip(vectors, grid, strict=True)]


def _same(types: Sequence[str], operation: str) -> str:
    operands = ", ".join(f"%{name}" for name in "xyz"[: len(types)])
    return f"{operation} {operands} : {types[0]}"


def _writer(operation: str, result_differs: bool) -> Text:
    if result_differs:
        names = ["%x", "%y", "%z"]
        return lambda types, outer: f"{operation} {', '.join(names[: len(types)])} : ({', '.join(types)}) -> {outer}"
    return lambda types, outer: _same(types, operation)


# Operations of one operand.

_UNARY: dict[str, tuple[tuple[ElementType, ...], Accuracy]] = {
    "abs": (SIGNED + FLOATS + COMPLEX, EXACT),
    "cbrt": (FLOATS, FUNCTION),
    "ceil": (FLOATS, EXACT),
    "cosine": (FLOATS + COMPLEX, CROSSING),
    "count_leading_zeros": (INTEGERS, EXACT),
    "exponential": (FLOATS + COMPLEX, FUNCTION),
    "exponential_minus_one": (FLOATS + COMPLEX, FUNCTION),
    "floor": (FLOATS, EXACT),
    "imag": (COMPLEX, EXACT),
    "is_finite": (FLOATS, EXACT),
    "log": (FLOATS + COMPLEX, CROSSING),
    "log_plus_one": (FLOATS + COMPLEX, FUNCTION),
    "logistic": (FLOATS + COMPLEX, FUNCTION),
    "negate": (NUMBERS, EXACT),
    "not": (BOOLEANS + INTEGERS, EXACT),
    "popcnt": (INTEGERS, EXACT),
    "real": (COMPLEX, EXACT),
    "round_nearest_afz": (FLOATS, EXACT),
    "round_nearest_even": (FLOATS, EXACT),
    "rsqrt": (FLOATS + COMPLEX, FUNCTION),
    "sign": (SIGNED + FLOATS + COMPLEX, EXACT),
    "sine": (FLOATS + COMPLEX, CROSSING),
    "sqrt": (FLOATS + COMPLEX, DIVIDED),
    "tan": (FLOATS + COMPLEX, CROSSING),
    "tanh": (FLOATS + COMPLEX, FUNCTION),
    "chlo.acos": (FLOATS, CROSSING),
    "chlo.acosh": (FLOATS, CROSSING),
    "chlo.asin": (FLOATS, FUNCTION),
    "chlo.asinh": (FLOATS, FUNCTION),
    "chlo.atan": (FLOATS, FUNCTION),
    "chlo.atanh": (FLOATS, FUNCTION),
    "chlo.conj": (COMPLEX, EXACT),
    "chlo.cosh": (FLOATS, FUNCTION),
    "chlo.digamma": (FLOATS, REFLECTED),
    "chlo.erf": (FLOATS, FUNCTION),
    "chlo.erf_inv": (FLOATS, INVERTED),
    "chlo.erfc": (FLOATS, FUNCTION),
    "chlo.is_inf": (FLOATS, EXACT),
    "chlo.is_neg_inf": (FLOATS, EXACT),
    "chlo.is_pos_inf": (FLOATS, EXACT),
    "chlo.lgamma": (FLOATS, REFLECTED),
    "chlo.sinh": (FLOATS, FUNCTION),
    "chlo.square": (FLOATS + COMPLEX, ROUNDED),
}
_PREDICATES = frozenset({"stablehlo.is_finite", "chlo.is_inf", "chlo.is_neg_inf", "chlo.is_pos_inf"})
_PARTS = frozenset({"stablehlo.abs", "stablehlo.real", "stablehlo.imag"})
_COMPLEX_ROUNDING = frozenset({"stablehlo.abs", "stablehlo.sign"})
"""Operations that are exact on real numbers, and a root of two squares on complex ones."""

_PERIODIC = frozenset({"stablehlo.sine", "stablehlo.cosine", "stablehlo.tan"})
_MOST_TURNS = 100.0
"""The largest argument of periodic functions: the error of larger ones is that of the argument's last place."""

_PART = {ElementType.C64: ElementType.F32, ElementType.C128: ElementType.F64}


def _unary(operation: str, element: ElementType) -> Iterator[OperationCase]:
    accuracy = _UNARY[operation.removeprefix("stablehlo.")][1]
    result = element
    if operation in _PREDICATES:
        result = ElementType.PRED
    elif operation in _PARTS:
        result = _PART.get(element, element)
    if element.is_complex and operation in _COMPLEX_ROUNDING:
        accuracy = DIVIDED
    is_chlo = operation.startswith("chlo.")
    text: Text = _writer(operation, result is not element)
    if is_chlo:
        text = lambda types, outer: f"{operation} %x : {types[0]} -> {outer}"  # noqa: E731
    numbers = values.every_value(element)
    if operation in _PERIODIC and element.is_floating:
        wide = numbers.astype(np.float64)
        numbers = numbers[~(np.isfinite(wide) & (np.abs(wide) > _MOST_TURNS))]
    if operation == "chlo.digamma":
        # At this pole XLA gives NaN up to jaxlib 0.10, and an infinity of zero's sign after it.
        numbers = numbers[numbers.astype(np.float64) != 0]
    for case in elementwise(operation, element, [element], result, text, accuracy, [numbers]):
        if operation == "chlo.digamma" and case.name == "large":
            numbers = np.abs(case.inputs[0])  # XLA is less accurate near the other poles
            case = replace(case, inputs=(np.where(numbers == 0, np.ones((), numbers.dtype), numbers),))
        yield case


for _name, (_types, _) in _UNARY.items():
    cases(_name, _types)(_unary)


# Operations of two operands.

_BINARY: dict[str, tuple[tuple[ElementType, ...], Accuracy]] = {
    "add": (BOOLEANS + NUMBERS, ROUNDED),
    "and": (BOOLEANS + INTEGERS, EXACT),
    "atan2": (FLOATS, FUNCTION),
    "complex": ((ElementType.F32, ElementType.F64), EXACT),
    "divide": (NUMBERS, DIVIDED),
    "maximum": (BOOLEANS + INTEGERS + FLOATS, CHOSEN),
    "minimum": (BOOLEANS + INTEGERS + FLOATS, CHOSEN),
    "multiply": (BOOLEANS + NUMBERS, ROUNDED),
    "or": (BOOLEANS + INTEGERS, EXACT),
    "power": (INTEGERS + FLOATS, FUNCTION),
    "remainder": (INTEGERS + FLOATS, EXACT),
    "shift_left": (INTEGERS, EXACT),
    "shift_right_arithmetic": (INTEGERS, EXACT),
    "shift_right_logical": (INTEGERS, EXACT),
    "subtract": (NUMBERS, ROUNDED),
    "xor": (BOOLEANS + INTEGERS, EXACT),
    "chlo.next_after": (tuple(each for each in FLOATS if each.bits >= 16), EXACT),
    "chlo.mulhi": (INTEGERS, EXACT),
}
_BROADCASTING = (
    *("add", "and", "atan2", "divide", "maximum", "minimum", "multiply", "or", "power", "remainder", "subtract", "xor"),
    *("shift_left", "shift_right_arithmetic", "shift_right_logical", "next_after", "complex"),
)
for _name in _BROADCASTING:
    _BINARY[f"chlo.broadcast_{_name}"] = _BINARY.get(_name) or _BINARY[f"chlo.{_name}"]


def _fitted(operation: str, element: ElementType) -> Callable[[Inputs], Inputs]:
    """Return the function that keeps arguments where the specification says what the result is."""
    name = operation.rpartition(".")[2].removeprefix("broadcast_")
    dtype = element.dtype
    if element is ElementType.F4E2M1FN and name == "remainder":  # by zero: it is NaN, which the type does not have
        return lambda pair: (pair[0], np.where(pair[1] == 0, np.ones((), dtype), pair[1]).astype(dtype))
    if not element.is_integer:
        return tuple
    if name in ("divide", "remainder"):
        # Not defined: division by zero, and the smallest number by -1, whose quotient the type does not have.
        return lambda pair: (
            pair[0],
            np.where(np.isin(pair[1].astype(np.int64), (0, -1)), 1, pair[1]).astype(dtype),
        )
    if name.startswith("shift"):
        # Not defined: shifts by as many bits as the type has, or more.
        return lambda pair: (pair[0], (pair[1].astype(np.int64) % element.bits).astype(dtype))
    if name == "power":
        highest = 1 if element.bits == 2 else 3
        return lambda pair: (pair[0], (np.abs(pair[1].astype(np.int64)) % (highest + 1)).astype(dtype))
    return tuple


def _binary(operation: str, element: ElementType) -> Iterator[OperationCase]:
    name = operation.removeprefix("stablehlo.")
    accuracy = _BINARY[name][1]
    if element.is_complex and name in ("multiply", "divide", "chlo.broadcast_multiply", "chlo.broadcast_divide"):
        accuracy = FUNCTION
    result = element
    if name.endswith("complex"):
        result = ElementType.C64 if element is ElementType.F32 else ElementType.C128
    text = _writer(operation, name == "complex")
    if operation.startswith("chlo."):
        is_broadcast = "broadcast" in operation
        pair = (lambda types: f"({', '.join(types)})") if is_broadcast else ", ".join
        text = lambda types, outer: f"{operation} %x, %y : {pair(types)} -> {outer}"  # noqa: E731
    numbers = values.edges(element)
    yield from elementwise(
        operation, element, [element] * 2, result, text, accuracy, _pairs([numbers] * 2), _fitted(operation, element)
    )


for _name, (_types, _) in _BINARY.items():
    cases(_name, _types)(_binary)


# Comparisons and choices.

_ORDERS = ("EQ", "NE", "LT", "LE", "GT", "GE")


@cases("compare chlo.broadcast_compare", EVERY)
def _compare(operation: str, element: ElementType) -> Iterator[OperationCase]:
    """Make cases of every direction; all shapes for the first one only."""
    directions = _ORDERS[:2] if element.is_complex else _ORDERS
    for number, direction in enumerate(directions):
        text: Text = lambda types, outer, d=direction: f"{operation} {d}, %x, %y : ({', '.join(types)}) -> {outer}"  # type: ignore[misc]  # noqa: E731
        if operation.startswith("chlo."):
            text = lambda types, outer, d=direction: (  # type: ignore[misc]  # noqa: E731
                f"{operation} %x, %y {{comparison_direction = #chlo<comparison_direction {d}>}} : "
                f"({', '.join(types)}) -> {outer}"
            )
        pairs = _pairs([values.edges(element)] * 2)
        made = elementwise(operation, element, [element] * 2, ElementType.PRED, text, EXACT, pairs)
        for case in made if number == 0 else itertools.islice(made, 1):
            yield replace(case, name=f"{direction} {case.name}")


@cases("select chlo.broadcast_select", EVERY)
def _select(operation: str, element: ElementType) -> Iterator[OperationCase]:
    numbers = _pairs([np.array([False, True]), values.edges(element), values.edges(element)])
    types = [ElementType.PRED, element, element]

    def write(names: Sequence[str], outer: str) -> str:
        if operation.startswith("chlo."):
            return f"{operation} %x, %y, %z : ({', '.join(names)}) -> {outer}"
        return f"{operation} %x, %y, %z : {names[0]}, {outer}"

    yield from elementwise(operation, element, types, element, write, EXACT, numbers)
    one = np.array(True), values.mixed(element, (5,)), values.mixed(element, (5,))[::-1].copy()
    spelled = [tensor((), ElementType.PRED), tensor((5,), element), tensor((5,), element)]
    if operation.startswith("stablehlo."):
        program = program_text(write(spelled, spelled[1]), spelled, [spelled[1]])
        yield OperationCase(operation, element, "scalar condition", program, one)


@cases("clamp", BOOLEANS + INTEGERS + FLOATS)
def _clamp(operation: str, element: ElementType) -> Iterator[OperationCase]:
    numbers: Any = _pairs([values.edges(element)] * 3)
    text = _writer(operation, result_differs=False)
    yield from elementwise(operation, element, [element] * 3, element, text, CHOSEN, numbers, _ordered)
    shape = (5,)
    low, high = np.sort(values.exact(element, (2,)))
    inputs = np.array(low), values.mixed(element, shape), np.array(high)
    types = [tensor((), element), tensor(shape, element), tensor((), element)]
    program = program_text(f"{operation} %x, %y, %z : ({', '.join(types)}) -> {types[1]}", types, [types[1]])
    yield OperationCase(operation, element, "scalar bounds", program, inputs, CHOSEN)


def _ordered(three: Inputs) -> Inputs:
    """Return bounds with the lower one first; which of two NaN or zeros is the lower one does not matter."""
    low, operand, high = three
    with np.errstate(invalid="ignore"):
        swap = low > high
    return np.where(swap, high, low).astype(low.dtype), operand, np.where(swap, low, high).astype(low.dtype)


# Conversions between element types.

_TARGETS = tuple(
    ElementType[name] for name in ("PRED", "S8", "S32", "S64", "U8", "U32", "F16", "BF16", "F32", "F64", "C64")
)
"""The types to convert to. From each type to each would be a thousand programs."""


@cases("convert", EVERY)
def _convert(operation: str, element: ElementType) -> Iterator[OperationCase]:
    for target in dict.fromkeys((*_TARGETS, element)):
        if element.is_complex and not target.is_complex:
            continue  # the specification leaves the imaginary part to the implementation
        numbers = _convertible(values.every_value(element), element, target)
        accuracy = ROUNDED if target.is_floating or target.is_complex else EXACT
        for name, array in (("edge values", numbers), ("scalar", numbers[:1].reshape(())), ("empty", numbers[:0])):
            result = tensor(array.shape, target)
            text = f"{operation} %x : ({type_of(array)}) -> {result}"
            program = program_text(text, [type_of(array)], [result])
            label = f"to {target.mlir} {name}"
            yield OperationCase(operation, element, label, program, (array,), accuracy, elementwise=True)


def _convertible(numbers: Array, element: ElementType, target: ElementType) -> Array:
    """Return the numbers whose conversion the specification defines: to integers, those that fit."""
    if not target.is_integer or element is ElementType.PRED:
        return numbers
    info = ml_dtypes.iinfo(target.dtype)  # type: ignore[no-untyped-call]
    if element.is_integer:
        return numbers  # wraps around
    wide = numbers.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return numbers[np.isfinite(wide) & (wide >= float(info.min)) & (wide < float(info.max))]


_SAME_SIZE = {
    1: (),
    2: (ElementType.S2, ElementType.U2),
    4: (ElementType.S4, ElementType.U4),
    8: (ElementType.S8, ElementType.U8, ElementType.F8E5M2),
    16: (ElementType.S16, ElementType.F16, ElementType.BF16),
    32: (ElementType.U32, ElementType.F32),
    64: (ElementType.S64, ElementType.F64),
    128: (),
}


@cases("bitcast_convert", [each for each in EVERY if each is not ElementType.PRED and each.bits in _SAME_SIZE])
def _bitcast_convert(operation: str, element: ElementType) -> Iterator[OperationCase]:
    array = values.mixed(element, (9,))
    for target in dict.fromkeys((*(() if element.is_complex else _SAME_SIZE[element.bits]), element)):
        result = tensor(array.shape, target)
        program = program_text(f"{operation} %x : ({type_of(array)}) -> {result}", [type_of(array)], [result])
        yield OperationCase(operation, element, f"to {target.mlir}", program, (array,))
    if element.is_integer and element.bits in (32, 64):
        half = ElementType[f"{element.name[0]}{element.bits // 2}"]
        wide = tensor((9, 2), half)
        program = program_text(f"{operation} %x : ({type_of(array)}) -> {wide}", [type_of(array)], [wide])
        yield OperationCase(operation, element, "to two halves", program, (array,))


@cases("reduce_precision", [each for each in FLOATS if each.bits >= 16])
def _reduce_precision(operation: str, element: ElementType) -> Iterator[OperationCase]:
    for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (3, 1)):
        array = np.concatenate([values.edges(element), values.ordinary(element, (8,))])
        type_ = type_of(array)
        program = program_text(f"{operation} %x, format = e{exponent}m{mantissa} : {type_}", [type_], [type_])
        yield OperationCase(operation, element, f"e{exponent}m{mantissa}", program, (array,), elementwise=True)
