"""Elementwise ops, conversions and quantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView, dequantizer, quantizer
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics import complex64, complex_numbers, integers, reals
from pjrt.devices.reference.numerics.element_types import (
    BOOLEAN,
    COMPLEX,
    EVERY,
    FLOAT,
    INTEGER,
    SIGNED,
    bit_width,
    bitcaster,
    converter,
    lift,
    precision_reducer,
)

Function = Callable[..., Any]
Group = frozenset[ElementType]


def _define(name: str, *cases: tuple[Group, Function]) -> None:
    """Register an op of one or two operands of one type, by a function for each group of element types."""
    _define_by_type(name, *((group, lambda element, function=function: function) for group, function in cases))


def _define_by_type(name: str, *cases: tuple[Group, Callable[[ElementType], Function]]) -> None:
    """Do as ``_define``, where the function depends on the element type: ``cases`` hold functions that make it."""

    def compile_op(view: OpView) -> Kernel:
        operand, result = view.operand().element, view.result().element
        for group, make in cases:
            if operand in group:
                return lift(make(operand), operand, result)
        raise view.unimplemented(f"the specification does not define it on {operand.mlir}")

    compile_op.__doc__ = f"``{name}``, element by element."
    op(name, elementwise=True, types=frozenset().union(*(group for group, _ in cases)))(compile_op)


_REAL = INTEGER | FLOAT
_C64, _C128 = frozenset({ElementType.C64}), frozenset({ElementType.C128})

# One operand.
_define("stablehlo.abs", (SIGNED | FLOAT | COMPLEX, np.absolute))
_define("stablehlo.cbrt", (FLOAT, np.cbrt), (COMPLEX, complex_numbers.cbrt))
_define("stablehlo.ceil", (FLOAT, np.ceil))
_define("stablehlo.cosine", (FLOAT | _C128, np.cos), (_C64, complex64.cosine))
_define("stablehlo.exponential", (FLOAT | _C128, np.exp), (_C64, complex64.exponential))
_define("stablehlo.exponential_minus_one", (FLOAT, np.expm1), (_C64, complex64.expm1), (_C128, complex_numbers.expm1))
_define("stablehlo.floor", (FLOAT, np.floor))
_define("stablehlo.imag", (COMPLEX, np.imag), (FLOAT, np.zeros_like))
_define("stablehlo.is_finite", (FLOAT, np.isfinite))
_define("stablehlo.log", (FLOAT | _C128, np.log), (_C64, complex64.log))
_define("stablehlo.log_plus_one", (FLOAT, np.log1p), (_C64, complex64.log1p), (_C128, complex_numbers.log1p))
_define("stablehlo.logistic", (FLOAT, reals.logistic), (_C64, complex64.logistic), (_C128, complex_numbers.logistic))
_define("stablehlo.negate", (INTEGER | FLOAT | COMPLEX, np.negative))
_define("stablehlo.not", (BOOLEAN, np.logical_not), (INTEGER, np.invert))
_define("stablehlo.real", (COMPLEX, np.real), (FLOAT, np.positive))
_define("stablehlo.round_nearest_afz", (FLOAT, reals.round_away_from_zero))
_define("stablehlo.round_nearest_even", (FLOAT, np.rint))
_define("stablehlo.rsqrt", (FLOAT, reals.rsqrt), (_C64, complex64.rsqrt), (_C128, complex_numbers.rsqrt))
_define("stablehlo.sign", (SIGNED, np.sign), (FLOAT, reals.sign), (_C64, complex64.sign), (_C128, complex_numbers.sign))
_define("stablehlo.sine", (FLOAT | _C128, np.sin), (_C64, complex64.sine))
_define("stablehlo.sqrt", (FLOAT | _C128, np.sqrt), (_C64, complex64.sqrt))
_define("stablehlo.tan", (FLOAT, np.tan), (_C64, complex64.tan), (_C128, complex_numbers.tan))
_define("stablehlo.tanh", (FLOAT | _C128, np.tanh), (_C64, complex64.tanh))
_define_by_type("stablehlo.popcnt", (INTEGER, lambda t: integers.population_count(t.bits)))
_define_by_type("stablehlo.count_leading_zeros", (INTEGER, lambda t: integers.count_leading_zeros(t.bits)))

# Two operands.
_define("stablehlo.add", (BOOLEAN, np.logical_or), (EVERY, np.add))
_define("stablehlo.subtract", (_REAL | COMPLEX, np.subtract))
_define("stablehlo.multiply", (BOOLEAN, np.logical_and), (COMPLEX, complex_numbers.multiply), (EVERY, np.multiply))
_define(
    "stablehlo.divide",
    (INTEGER, integers.divide),
    (FLOAT, np.divide),
    (_C64, complex64.divide),
    (_C128, complex_numbers.divide),
)
_define(
    "stablehlo.remainder",
    (INTEGER, integers.remainder),
    (FLOAT, reals.remainder),
    (COMPLEX, complex_numbers.remainder),
)
_define(
    "stablehlo.power",
    (INTEGER, integers.power),
    (FLOAT, np.power),
    (_C64, complex64.power),
    (_C128, complex_numbers.power),
)
_define("stablehlo.atan2", (FLOAT, np.arctan2), (_C64, complex64.atan2), (_C128, complex_numbers.atan2))
_MAXIMUM: tuple[tuple[Group, Function], ...] = (
    (BOOLEAN, np.logical_or),
    (INTEGER, np.maximum),
    (FLOAT, reals.maximum),
    (COMPLEX, reals.maximum_of_complex),
)
_MINIMUM: tuple[tuple[Group, Function], ...] = (
    (BOOLEAN, np.logical_and),
    (INTEGER, np.minimum),
    (FLOAT, reals.minimum),
    (COMPLEX, reals.minimum_of_complex),
)
_define("stablehlo.maximum", *_MAXIMUM)
_define("stablehlo.minimum", *_MINIMUM)
_define("stablehlo.and", (BOOLEAN, np.logical_and), (INTEGER, np.bitwise_and))
_define("stablehlo.or", (BOOLEAN, np.logical_or), (INTEGER, np.bitwise_or))
_define("stablehlo.xor", (BOOLEAN, np.logical_xor), (INTEGER, np.bitwise_xor))
_define_by_type("stablehlo.shift_left", (INTEGER, lambda t: integers.shifts(t.bits, "left")))
_define_by_type("stablehlo.shift_right_logical", (INTEGER, lambda t: integers.shifts(t.bits, "logical")))
_define_by_type("stablehlo.shift_right_arithmetic", (INTEGER, lambda t: integers.shifts(t.bits, "arithmetic")))


@op("stablehlo.complex", elementwise=True)
def complex_(view: OpView) -> Kernel:
    """Make complex numbers from their two parts."""
    dtype = view.result().dtype

    def run(real: Any, imaginary: Any) -> Any:
        out = np.empty(np.broadcast_shapes(real.shape, imaginary.shape), dtype)
        out.real, out.imag = real, imaginary
        return out

    return run


_COMPARE: dict[str, Function] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


@op("stablehlo.compare", elementwise=True)
def compare(view: OpView) -> Kernel:
    """Compare; with ``TOTALORDER`` floats are ordered by sign and bits: -NaN < -inf < … < -0 < +0 < … < +inf < NaN."""
    element = view.operand().element
    function = _COMPARE[view.attr("comparison_direction")]
    if view.attr("compare_type", None) == "TOTALORDER" and element in FLOAT:
        total = total_order(element)
        return lambda x, y: function(total(x), total(y))
    return lift(function, element, ElementType.PRED)


def total_order(element: ElementType) -> Function:
    """Return the function from floats to signed integers in total order, which differ where the bits differ.

    The only NaN of the FNUZ types has a sign, so it is the least.
    """
    dtype = element.dtype
    if element is ElementType.F8E8M0FNU:  # has no sign: its bits are in order
        return lambda x: np.asarray(x).view(np.uint8).astype(np.int16)
    whole = np.dtype(f"i{dtype.itemsize}")
    spare = 8 * dtype.itemsize - element.bits  # the types below a byte are stored in its low bits
    below_sign, sign = whole.type(np.iinfo(whole).max), whole.type(8 * dtype.itemsize - 1)

    def run(x: Any) -> Any:
        bits = np.left_shift(np.asarray(x).view(whole), spare) if spare else np.asarray(x).view(whole)
        return np.bitwise_xor(bits, np.bitwise_and(np.right_shift(bits, sign), below_sign))

    if element.name.endswith("FNUZ"):  # its NaN has the bits that -0 has in other types
        nan, least = np.invert(below_sign), np.int16(-129)
        return lambda x: np.where(np.asarray(x).view(whole) == nan, least, run(x))
    return run


@op("stablehlo.select", elementwise=True, quantized=True)
def select(view: OpView) -> Kernel:
    """Choose one of two values by a predicate for each element, or one for all."""
    return np.where


@op("stablehlo.clamp", elementwise=True)
def clamp(view: OpView) -> Kernel:
    """Move values into the range from ``min`` to ``max``."""
    element = view.operand(1).element
    larger, smaller = (next(f for group, f in cases if element in group) for cases in (_MAXIMUM, _MINIMUM))
    return lift(lambda low, x, high: smaller(larger(low, x), high), element, element)


@op("stablehlo.convert", elementwise=True)
def convert(view: OpView) -> Kernel:
    """Convert to another type: rounded to the nearest float, truncated to an integer, true for all but zero."""
    return converter(view.operand().element, view.result().element)


@op("stablehlo.bitcast_convert", quantized=True)
def bitcast_convert(view: OpView) -> Kernel:
    """Read the bits as another type; a dimension is added or removed where the widths differ."""
    source, target = view.operand().element, view.result().element
    kernel = bitcaster(source, target)
    if bit_width(source) == bit_width(target):
        kernel.elementwise = True  # type: ignore[attr-defined]
    return kernel


@op("stablehlo.reduce_precision", elementwise=True, types=FLOAT)
def reduce_precision(view: OpView) -> Kernel:
    """Round to fewer exponent and mantissa bits, without a change of type."""
    element = view.operand().element
    if element not in FLOAT:
        raise view.unimplemented(f"the specification does not define it on {element.mlir}")
    return precision_reducer(element, view.attr("exponent_bits"), view.attr("mantissa_bits"))


@op("stablehlo.uniform_quantize", quantized=True)
def uniform_quantize(view: OpView) -> Kernel:
    """Quantize real numbers, or integers that stand for some, to integers of another quantization."""
    operand, result = view.operand(), view.result()
    if result.quantization is None:
        raise view.invalid(f"expected a quantized result, found {result}")
    close = quantizer(result, result.quantization)
    if operand.quantization is None:
        return close
    open_ = dequantizer(operand, operand.quantization)
    return lambda x: close(open_(x))


@op("stablehlo.uniform_dequantize", quantized=True)
def uniform_dequantize(view: OpView) -> Kernel:
    """Return the real numbers that integers stand for."""
    operand = view.operand()
    if operand.quantization is None:
        raise view.invalid(f"expected a quantized operand, found {operand}")
    return dequantizer(operand, operand.quantization)
