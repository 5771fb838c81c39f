"""MLIR's types as plain Python values, which ``types`` describes.

A type without a form there is no error: it becomes an ``OpaqueType`` with MLIR's spelling, which the caller may refuse.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo import jaxlib
from pjrt.stablehlo.types import (
    FunctionType,
    FutureType,
    OpaqueType,
    Quantization,
    TensorType,
    TokenType,
    TupleType,
    ValueType,
)


def decode_type(type_: Any) -> ValueType:
    """Return the type of a value; a scalar type, which appears in attributes only, is a tensor of rank 0."""
    name = type(type_).__name__
    if name == "RankedTensorType":
        return _decode_tensor(type_)
    if name == "TupleType":
        return TupleType(tuple(decode_type(type_.get_type(i)) for i in range(type_.num_types)))
    text = str(type_)
    if text == "!stablehlo.token":
        return TokenType()
    if text.startswith("!stablehlo.future"):
        return FutureType(tuple(map(decode_type, binding("stablehlo", "FutureType")(type_).types)))
    try:
        return TensorType((), *_decode_element(text))
    except InvalidArgumentError:
        return OpaqueType(text)


def decode_function_type(type_: Any) -> FunctionType:
    """Return the type of a function."""
    return FunctionType(tuple(map(decode_type, type_.inputs)), tuple(map(decode_type, type_.results)))


def element_named(spelling: str) -> ElementType:
    """Return the element type of MLIR's spelling; MLIR's ``index`` is ``S64``, and ``si8`` is ``S8``.

    Raises:
        InvalidArgumentError: the spelling names no element type.
    """
    if spelling == "index":
        return ElementType.S64
    if spelling.startswith("si") and spelling != ElementType.S1.mlir:  # without a sign, one bit is a truth value
        spelling = spelling[1:]
    return ElementType.from_mlir(spelling)


def _decode_tensor(type_: Any) -> ValueType:
    try:
        element, quantization = _decode_element(str(type_.element_type))
    except InvalidArgumentError:
        return OpaqueType(str(type_))
    if type_.has_static_shape:
        return TensorType(tuple(type_.shape), element, quantization)
    shape = tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))
    return TensorType(shape, element, quantization, _decode_bounds(type_.encoding))


_BOUNDS = r"#(?:stablehlo|mhlo)\.(?:bounds|type_extensions<bounds =)\s*<?\[?(?P<bounds>[\d?, ]+)\]?>"


def _decode_bounds(encoding: Any) -> tuple[int | None, ...] | None:
    match = None if encoding is None else re.search(_BOUNDS, str(encoding))
    if match is None:
        return None
    return tuple(None if word.strip() == "?" else int(word) for word in match["bounds"].split(","))


def _decode_element(text: str) -> tuple[ElementType, Quantization | None]:
    if text.startswith("!quant."):
        quantization = parse_quantization(text)
        return quantization.storage, quantization
    return element_named(text), None


_QUANTIZED = (
    r"!quant\.uniform<(?P<storage>(?:i|u|si|ui)\d+)(?:<(?P<low>-?\d+):(?P<high>-?\d+)>)?"
    r":(?P<expressed>\w+)(?::(?P<axis>\d+))?,\s*(?P<scales>[^<>]*)>"
)


def parse_quantization(text: str) -> Quantization:
    """Return the quantization that ``!quant.uniform<storage<min:max>:expressed:axis, {scale:zero_point, …}>`` spells.

    Raises:
        InvalidArgumentError: the text spells another kind of quantized type.
    """
    match = re.fullmatch(_QUANTIZED, text)
    if match is None or "{{" in text:
        raise InvalidArgumentError(f"expected a per-tensor or per-axis uniform quantized type, found {text}")
    storage = element_named(re.sub(r"^u(?=\d)", "ui", match["storage"]))
    signed = storage.name.startswith("S")
    low = -(1 << (storage.bits - 1)) if signed else 0
    high = (1 << (storage.bits - 1)) - 1 if signed else (1 << storage.bits) - 1
    pairs = [pair.strip().partition(":") for pair in match["scales"].strip("{} ").split(",")]
    return Quantization(
        storage=storage,
        expressed=ElementType.from_mlir(match["expressed"]),
        scales=tuple(float(scale) for scale, _, _ in pairs),
        zero_points=tuple(int(zero or 0) for _, _, zero in pairs),
        axis=None if match["axis"] is None else int(match["axis"]),
        storage_min=low if match["low"] is None else int(match["low"]),
        storage_max=high if match["high"] is None else int(match["high"]),
    )


@functools.cache
def binding(dialect: str, name: str) -> Any:
    """Return the class of the bindings that reads an attribute or type of a dialect."""
    return getattr(jaxlib.dialect(dialect), name)
