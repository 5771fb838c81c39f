"""Programs with quantized types, which XLA's compiler does not have, as programs on the integers that are stored.

StableHLO's own passes write them out: each operation on quantized values as one on the numbers that they stand for,
between ``uniform_dequantize`` and ``uniform_quantize``, and these two as arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.encodings.jaxlib import load
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.mlir_module import MlirModule, run_passes, walk
from pjrt.stablehlo.ir.types import TensorType, decode_type

_TO_NUMBERS = "builtin.module(func.func(stablehlo-legalize-quantized-op-to-qdq))"
_TO_ARITHMETIC = "builtin.module(func.func(stablehlo-legalize-quant-to-math,chlo-legalize-to-stablehlo))"


def write_out(module: MlirModule) -> bool:
    """Write out the quantized operations of a module, in place, and return whether there are any.

    Raises:
        UnimplementedError: an operation or a type cannot be written out; the message names it and its place.
    """
    with module as mlir:
        found = list(_quantized(mlir))
        for name, type_, place in found:
            if reason := _beyond_the_passes(type_):
                raise _refused(f"{name} of {type_}", place, reason)
        if not found:
            return False
        _convert_in_two_steps(mlir)
        try:
            run_passes(module, _TO_NUMBERS)
            _round_first(mlir)
            run_passes(module, _TO_ARITHMETIC)
        except InvalidArgumentError as error:
            match = re.search(r"operation '([\w.]+)'", error.message)
            names = [(name, place) for name, _, place in found if match and name == match[1]]
            raise _refused(*(names or [("an operation", found[0][2])])[0], _NOT_WRITTEN) from error
        for name, type_, place in _quantized(mlir):
            raise _refused(f"{name} of {type_}", place, _NOT_WRITTEN)
    return True


_NOT_WRITTEN = "StableHLO's passes do not write it out"


def _quantized(mlir: Any) -> Iterator[tuple[str, str, Location]]:
    """Yield the name, the type and the place of each quantized value that an operation takes or gives."""
    for operation in walk(mlir.operation):
        for value in (*operation.operands, *operation.results):
            if "!quant." in str(value.type):
                yield operation.name, str(value.type), Location(str(operation.location))


def _beyond_the_passes(type_: str) -> str:
    """Return why the passes do not write out a type; empty if they do."""
    if "!quant.uniform<u" in type_:
        return "StableHLO's passes take unsigned integers for signed ones"
    if not re.search(r"!quant\.uniform<i\d+(<-?\d+:-?\d+>)?:f32[,:]", type_):
        return "StableHLO's passes know numbers of f32 alone"
    return ""


def _convert_in_two_steps(mlir: Any) -> None:
    """Let conversions from one quantized type to another go by the numbers, as the specification defines them.

    The pass multiplies by the quotient of the scales, and rounds ties to the other side.
    """
    ir = load("mlir.ir", _PURPOSE)
    for operation in list(walk(mlir.operation)):
        if operation.name == "stablehlo.uniform_quantize" and "!quant." in str(operation.operands[0].type):
            (operand,) = operation.operands
            number = ir.RankedTensorType.get(operand.type.shape, ir.F32Type.get(), loc=operation.location)
            step = ir.Operation.create(
                "stablehlo.uniform_dequantize",
                results=[number],
                operands=[operand],
                loc=operation.location,
                ip=ir.InsertionPoint(operation),
            )
            operation.operands[0] = step.results[0]


def _round_first(mlir: Any) -> None:
    """Round numbers to multiples of the scale before they are quantized with an odd zero point.

    The specification adds the zero point to what was rounded. The pass rounds the sum, so that ties go the other way.
    """
    ir = load("mlir.ir", _PURPOSE)
    for operation in list(walk(mlir.operation)):
        if operation.name != "stablehlo.uniform_quantize":
            continue
        type_ = decode_type(operation.results[0].type)
        if not isinstance(type_, TensorType) or type_.quantization is None or not type_.is_static:
            raise _refused(operation.name, Location(str(operation.location)), "its shape is not known")
        quantization, (number,) = type_.quantization, operation.operands
        if not any(zero_point % 2 for zero_point in quantization.zero_points):
            continue
        sizes = [1] * len(type_.sizes)
        if quantization.axis is not None:
            sizes[quantization.axis] = -1
        scales = np.broadcast_to(np.asarray(quantization.scales, np.float32).reshape(sizes), type_.sizes)
        where = {"results": [number.type], "loc": operation.location, "ip": ir.InsertionPoint(operation)}
        value = ir.DenseElementsAttr.get(np.ascontiguousarray(scales), context=mlir.context)
        scale = ir.Operation.create("stablehlo.constant", attributes={"value": value}, **where).results[0]
        for name, others in (("divide", [scale]), ("round_nearest_even", []), ("multiply", [scale])):
            number = ir.Operation.create(f"stablehlo.{name}", operands=[number, *others], **where).results[0]
        operation.operands[0] = number


_PURPOSE = "change programs for XLA's CPU compiler"


def _refused(subject: str, place: Location, reason: str) -> UnimplementedError:
    return UnimplementedError(
        f"the device 'cpu' does not compile this program: {subject} ({place}): {reason}; run it on 'reference'"
    )
