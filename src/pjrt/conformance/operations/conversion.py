"""Cases of conversions between element types."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance import values
from pjrt.conformance.accuracy import EXACT, ROUNDED
from pjrt.conformance.operation_case import Array, OperationCase, program_text, tensor, type_of
from pjrt.conformance.operation_table import cases
from pjrt.conformance.values import EVERY, FLOATS

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
    for exponent, mantissa in ((5, 10), (8, 7), (4, 3)):
        array = np.concatenate([values.edges(element), values.ordinary(element, (8,))])
        type_ = type_of(array)
        program = program_text(f"{operation} %x, format = e{exponent}m{mantissa} : {type_}", [type_], [type_])
        yield OperationCase(operation, element, f"e{exponent}m{mantissa}", program, (array,), elementwise=True)
