"""The types of a program's values, in Python: tensors, tuples, tokens, futures and quantized elements.

Read once from MLIR when a program is compiled, so that nothing of MLIR is alive (or needs a lock) while it runs.
"""

from __future__ import annotations

import re
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.types import FutureType, Quantization, TensorType, TokenType, TupleType, ValueType

__all__ = [
    "TOKEN",
    "FutureType",
    "Quantization",
    "TensorType",
    "TokenType",
    "TupleType",
    "ValueType",
    "decode_element",
    "decode_type",
    "parse_quantization",
]


class _Token:
    def __repr__(self) -> str:
        return "TOKEN"


TOKEN = _Token()
"""The one value of type ``TokenType``."""


def decode_type(type_: Any) -> ValueType:
    """The type of an MLIR value.

    Raises:
        UnimplementedError: the type is none that a StableHLO value can have here.
    """
    name = type(type_).__name__
    if name == "RankedTensorType":
        return _decode_tensor(type_)
    if name == "TupleType":
        return TupleType(tuple(decode_type(type_.get_type(i)) for i in range(type_.num_types)))
    text = str(type_)
    if text == "!stablehlo.token":
        return TokenType()
    if text.startswith("!stablehlo.future"):
        from pjrt.devices.reference import _mlir

        return FutureType(tuple(decode_type(t) for t in _mlir.cast(type_, "stablehlo", "FutureType").types))
    if text.startswith("tensor<*"):
        raise UnimplementedError(f"expected a ranked tensor, found {text}")
    # A scalar type on its own appears in attributes only; a tensor without dimensions means the same.
    return TensorType((), decode_element(type_)[0])


def decode_element(type_: Any) -> tuple[ElementType, Quantization | None]:
    """The element type of an MLIR tensor, with its quantization where it has one."""
    text = str(type_)
    if text.startswith("!quant."):
        quantization = parse_quantization(text)
        return quantization.storage, quantization
    if text.startswith("si") and text[2:].isdigit():
        text = text[1:]
    try:
        return ElementType.from_mlir(text), None
    except InvalidArgumentError:
        raise UnimplementedError(f"the element type {text} is not one that this device computes with") from None


def _decode_tensor(type_: Any) -> TensorType:
    element, quantization = decode_element(type_.element_type)
    if type_.has_static_shape:
        return TensorType(tuple(type_.shape), element, quantization)
    shape = tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))
    bounds = None
    if type_.encoding is not None and hasattr(type_.encoding, "bounds"):
        bounds = tuple(None if bound < 0 else bound for bound in type_.encoding.bounds)
    return TensorType(shape, element, quantization, bounds)


_QUANTIZED = re.compile(
    r"!quant\.uniform<(?P<storage>[iu]+\d+)(?:<(?P<low>-?\d+):(?P<high>-?\d+)>)?:(?P<expressed>\w+)(?::(?P<axis>\d+))?,\s*(?P<scales>.*)>$"
)


def parse_quantization(text: str) -> Quantization:
    """The quantization that ``!quant.uniform<storage<min:max>:expressed:axis, {scale:zero_point, …}>`` spells.

    Raises:
        UnimplementedError: it is another kind of quantized type.
    """
    match = _QUANTIZED.match(text)
    if match is None or "{{" in text:
        raise UnimplementedError(f"expected a per-tensor or per-axis uniform quantized type, found {text}")
    spelled = match["storage"]
    storage = ElementType.from_mlir("ui" + spelled[1:] if spelled.startswith("u") and spelled[1] != "i" else spelled)
    bits, signed = storage.bits, storage.name.startswith("S")
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    pairs = [pair.strip() for pair in match["scales"].strip("{} ").split(",")]
    return Quantization(
        storage=storage,
        expressed=ElementType.from_mlir(match["expressed"]),
        scales=tuple(float(pair.partition(":")[0]) for pair in pairs),
        zero_points=tuple(int(pair.partition(":")[2] or 0) for pair in pairs),
        axis=None if match["axis"] is None else int(match["axis"]),
        storage_min=low if match["low"] is None else int(match["low"]),
        storage_max=high if match["high"] is None else int(match["high"]),
    )
