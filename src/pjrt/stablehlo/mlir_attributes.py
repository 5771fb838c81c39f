"""MLIR's types and attributes as plain Python values, which ``types`` and ``attributes`` describe.

Use it to walk through a module of MLIR (see ``conversion.to_module``); ``parser.parse`` reads a whole program. A type
or attribute without a form there is no error: it becomes an ``OpaqueType`` or an ``Opaque`` with MLIR's spelling, which
the caller may refuse.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.stablehlo import jaxlib
from pjrt.stablehlo._dense import decode_dense, element_named, parse_dense
from pjrt.stablehlo.attributes import (
    ChannelHandle,
    ConvDimensionNumbers,
    DotAlgorithm,
    DotDimensionNumbers,
    GatherDimensionNumbers,
    Opaque,
    OutputOperandAlias,
    RaggedDotDimensionNumbers,
    ResultAccuracy,
    ScatterDimensionNumbers,
)
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
        return FutureType(tuple(map(decode_type, _binding("stablehlo", "FutureType")(type_).types)))
    try:
        return TensorType((), *_decode_element(text))
    except InvalidArgumentError:
        return OpaqueType(text)


def decode_function_type(type_: Any) -> FunctionType:
    """Return the type of a function."""
    return FunctionType(tuple(map(decode_type, type_.inputs)), tuple(map(decode_type, type_.results)))


def decode_attribute_of(operation: Any, name: str) -> Any:
    """Return an attribute of an operation by its name, also of the kinds that the bindings have no object for.

    Raises:
        KeyError: the operation has no such attribute.
    """
    try:
        attribute = operation.attributes[name]
    except TypeError:  # the bindings have no object for a complex constant
        return _from_text(operation, name)
    return decode_attribute(attribute)


def decode_attribute(attribute: Any) -> Any:
    """Return an attribute as a plain Python value, by the table of ``attributes``."""
    decode = _DECODERS.get(type(attribute).__name__, _decode_other)
    try:
        return decode(attribute)
    except (PjrtError, TypeError):  # a constant inside another attribute that the bindings or numpy have no form for
        return Opaque(str(attribute))


def _decode_tensor(type_: Any) -> ValueType:
    try:
        element, quantization = _decode_element(str(type_.element_type))
    except InvalidArgumentError:
        return OpaqueType(str(type_))
    if type_.has_static_shape:
        return TensorType(tuple(type_.shape), element, quantization)
    shape = tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))
    return TensorType(shape, element, quantization, _decode_bounds(type_.encoding))


_BOUNDS = re.compile(r"#(?:stablehlo|mhlo)\.(?:bounds|type_extensions<bounds =)\s*<?\[?(?P<bounds>[\d?, ]+)\]?>")


def _decode_bounds(encoding: Any) -> tuple[int | None, ...] | None:
    match = None if encoding is None else _BOUNDS.search(str(encoding))
    if match is None:
        return None
    return tuple(None if word.strip() == "?" else int(word) for word in match["bounds"].split(","))


def _decode_element(text: str) -> tuple[ElementType, Quantization | None]:
    if text.startswith("!quant."):
        quantization = parse_quantization(text)
        return quantization.storage, quantization
    return element_named(text), None


_QUANTIZED = re.compile(
    r"!quant\.uniform<(?P<storage>(?:i|u|si|ui)\d+)(?:<(?P<low>-?\d+):(?P<high>-?\d+)>)?"
    r":(?P<expressed>\w+)(?::(?P<axis>\d+))?,\s*(?P<scales>[^<>]*)>"
)


def parse_quantization(text: str) -> Quantization:
    """Return the quantization that ``!quant.uniform<storage<min:max>:expressed:axis, {scale:zero_point, …}>`` spells.

    Raises:
        InvalidArgumentError: the text spells another kind of quantized type.
    """
    match = _QUANTIZED.fullmatch(text)
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


def _decode_string(attribute: Any) -> str | bytes:
    content = bytes(attribute.value_bytes)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


# StableHLO's records by their spelling: the dialect and the class in the bindings that read their fields, and the
# class here.
_RECORDS: dict[str, tuple[str, str, type]] = {
    "dot": ("stablehlo", "DotDimensionNumbers", DotDimensionNumbers),
    "ragged_dot": ("chlo", "RaggedDotDimensionNumbers", RaggedDotDimensionNumbers),
    "dot_algorithm": ("stablehlo", "DotAlgorithm", DotAlgorithm),
    "conv": ("stablehlo", "ConvDimensionNumbers", ConvDimensionNumbers),
    "gather": ("stablehlo", "GatherDimensionNumbers", GatherDimensionNumbers),
    "scatter": ("stablehlo", "ScatterDimensionNumbers", ScatterDimensionNumbers),
    "channel_handle": ("stablehlo", "ChannelHandle", ChannelHandle),
    "output_operand_alias": ("stablehlo", "OutputOperandAlias", OutputOperandAlias),
    "result_accuracy": ("stablehlo", "ResultAccuracyAttr", ResultAccuracy),
}

_DIALECT_ATTRIBUTE = re.compile(r"#(?:stablehlo|chlo)(?:<\w+ (?P<value>\w+)>|\.(?P<kind>\w+)<)")


def _decode_other(attribute: Any) -> Any:
    """Return an attribute of StableHLO's or chlo's: an enum, a record, or an ``Opaque``.

    Enums print as ``#stablehlo<kind VALUE>`` or ``#stablehlo.kind<VALUE>``, records as ``#stablehlo.kind<…>``.
    """
    text = str(attribute)
    match = _DIALECT_ATTRIBUTE.match(text)
    if match is None:
        return Opaque(text)
    if match["value"] is not None:
        return match["value"]
    record = _RECORDS.get(match["kind"])
    if record is not None:
        return _decode_record(attribute, *record)
    inside = text[match.end() : -1]
    return inside if inside.isidentifier() else Opaque(text)


def _decode_record(attribute: Any, dialect: str, binding: str, record: type) -> Any:
    typed = _binding(dialect, binding)(attribute)
    return record(*(_plain(getattr(typed, field.name)) for field in fields(record)))


@functools.cache
def _binding(dialect: str, name: str) -> Any:
    """Return the class of the bindings that reads an attribute or type of a dialect."""
    return getattr(jaxlib.load(f"mlir.dialects.{dialect}", "read programs"), name)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, (int, float, str)):
        return value
    return decode_attribute(value) if hasattr(value, "attr") or "Attr" in type(value).__name__ else decode_type(value)


def _from_text(operation: Any, name: str) -> Any:
    """Return an attribute cut out of the operation's generic form."""
    text: str = operation.get_asm(print_generic_op_form=True)
    match = re.search(rf"\b{re.escape(name)} = (dense<.*?> : tensor<[^<>]*(?:<[^<>]*>)?>)", text, re.DOTALL)
    if match is None:
        return Opaque(text[:80])
    return parse_dense(match[1])


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "BoolAttr": lambda a: bool(a.value),
    "IntegerAttr": lambda a: int(a.value),
    "FloatAttr": lambda a: float(a.value),
    "StringAttr": _decode_string,
    "FlatSymbolRefAttr": lambda a: str(a.value),
    "SymbolRefAttr": lambda a: str(a.value[-1]),
    "UnitAttr": lambda a: True,
    "TypeAttr": lambda a: decode_type(a.value),
    "ArrayAttr": lambda a: tuple(decode_attribute(inner) for inner in a),
    "DictAttr": lambda a: {item.name: decode_attribute(item.attr) for item in a},
    "DenseBoolArrayAttr": lambda a: tuple(bool(element) for element in a),
    "DenseElementsAttr": decode_dense,
    "DenseIntElementsAttr": decode_dense,
    "DenseFPElementsAttr": decode_dense,
    "DenseResourceElementsAttr": decode_dense,
    **{f"Dense{kind}ArrayAttr": tuple for kind in ("I8", "I16", "I32", "I64", "F32", "F64")},
}
