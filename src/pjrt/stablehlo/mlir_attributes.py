"""MLIR's attributes as plain Python values, which ``attributes`` describes.

Use it to walk through a module of MLIR (see ``conversion.to_module``); ``parser.parse`` reads a whole program. An
attribute without a form there is no error: it becomes an ``Opaque`` with MLIR's spelling, which the caller may refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import PjrtError
from pjrt.stablehlo import jaxlib
from pjrt.stablehlo._dense import decode_dense, parse_dense
from pjrt.stablehlo.mlir_types import binding, decode_type

if TYPE_CHECKING:
    from pjrt.stablehlo.attributes import Opaque


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
        return _opaque(str(attribute))


def _opaque(text: str) -> Opaque:
    from pjrt.stablehlo.attributes import Opaque  # here: a signature alone needs none of these classes

    return Opaque(text)


def _decode_string(attribute: Any) -> str | bytes:
    content = bytes(attribute.value_bytes)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


# StableHLO's records by their spelling: the dialect and the class in the bindings that read their fields. The class in
# ``attributes`` has the same name.
_RECORDS = {
    "dot": ("stablehlo", "DotDimensionNumbers"),
    "ragged_dot": ("chlo", "RaggedDotDimensionNumbers"),
    "dot_algorithm": ("stablehlo", "DotAlgorithm"),
    "conv": ("stablehlo", "ConvDimensionNumbers"),
    "gather": ("stablehlo", "GatherDimensionNumbers"),
    "scatter": ("stablehlo", "ScatterDimensionNumbers"),
    "channel_handle": ("stablehlo", "ChannelHandle"),
    "output_operand_alias": ("stablehlo", "OutputOperandAlias"),
    "result_accuracy": ("stablehlo", "ResultAccuracyAttr"),
}

_DIALECT_ATTRIBUTE = re.compile(r"#(?:stablehlo|chlo)(?:<\w+ (?P<value>\w+)>|\.(?P<kind>\w+)<)")


def _decode_other(attribute: Any) -> Any:
    """Return an attribute of StableHLO's or chlo's: an enum, a record, or an ``Opaque``.

    Enums print as ``#stablehlo<kind VALUE>`` or ``#stablehlo.kind<VALUE>``, records as ``#stablehlo.kind<…>``.
    """
    text = str(attribute)
    match = _DIALECT_ATTRIBUTE.match(text)
    if match is None:
        return _opaque(text)
    if match["value"] is not None:
        return match["value"]
    record = _RECORDS.get(match["kind"])
    if record is not None:
        return _decode_record(attribute, *record)
    inside = text[match.end() : -1]
    return inside if inside.isidentifier() else _opaque(text)


def _decode_record(attribute: Any, dialect: str, class_name: str) -> Any:
    from pjrt.stablehlo import attributes

    typed = binding(dialect, class_name)(attribute)
    record = getattr(attributes, class_name.removesuffix("Attr"))
    return record(*(_plain(getattr(typed, field.name)) for field in fields(record)))


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
        return _opaque(text[:80])
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


_LONGEST_DICTIONARY = 1000
"""The characters of a dictionary that is read: MLIR's parser recurses into what nests."""


def dictionary_of(text: str) -> Mapping[str, Any] | None:
    """Return the values of a dictionary that MLIR spells, such as ``{a = 1 : i64, b = "c"}``; None for other text."""
    if len(text) > _LONGEST_DICTIONARY:
        return None
    ir = jaxlib.load("mlir.ir", "read attributes")
    with ir.Context() as context:
        try:
            attribute = ir.Attribute.parse(text, context)
        except (ir.MLIRError, ValueError):
            return None
        value = decode_attribute(attribute)
        return value if isinstance(value, Mapping) else None
