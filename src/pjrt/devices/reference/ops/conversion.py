"""From one element type to another: by value, by bits, and to fewer bits of the same type."""

from __future__ import annotations

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.element_types import FLOAT
from pjrt.devices.reference.numerics.rounding import bit_width, bitcaster, converter, precision_reducer


@op("stablehlo.convert", elementwise=True)
def convert(view: OpView) -> Kernel:
    """The same value in another type: rounded to the nearest float, truncated to an integer, non-zero as true."""
    return converter(view.operand().element, view.result().element)


@op("stablehlo.bitcast_convert")
def bitcast_convert(view: OpView) -> Kernel:
    """The same bits as another type; a dimension is added or taken where the widths differ."""
    source, target = view.operand().element, view.result().element
    kernel = bitcaster(source, target)
    if bit_width(source) == bit_width(target):
        kernel.elementwise = True  # type: ignore[attr-defined]
    return kernel


@op("stablehlo.reduce_precision", elementwise=True, types=FLOAT)
def reduce_precision(view: OpView) -> Kernel:
    """Rounds to fewer exponent and mantissa bits, without a change of type."""
    element = view.operand().element
    if element not in FLOAT:
        raise view.unimplemented(f"the specification does not define it on {element.mlir}")
    return precision_reducer(element, view.attr("exponent_bits"), view.attr("mantissa_bits"))
