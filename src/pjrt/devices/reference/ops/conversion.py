"""Conversion between element types: by value, by bits, and to fewer bits of the same type."""

from __future__ import annotations

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.element_types import FLOAT
from pjrt.devices.reference.numerics.rounding import bit_width, bitcaster, converter, precision_reducer


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
