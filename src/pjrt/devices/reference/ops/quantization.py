"""Uniform-quantized types: the ops that convert to and from real numbers."""

from __future__ import annotations

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.quantization import dequantizer, quantizer
from pjrt.devices.reference.core.registry import op


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
