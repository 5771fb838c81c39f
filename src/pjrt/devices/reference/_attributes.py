"""Attributes of ops as plain Python values, so that an op's code never sees MLIR.

=====================================  ==============================================
MLIR                                   Python
=====================================  ==============================================
integers, floats, strings, booleans    ``int``, ``float``, ``str``, ``bool``
unit                                   ``True``
arrays, dense arrays                   ``tuple``
dictionaries                           ``dict``
dense elements                         ``numpy.ndarray``
symbol references                      ``str`` (the name without ``@``)
types                                  as ``decode_type``
StableHLO enums                        ``str`` (``"LT"``, ``"THREE_FRY"``)
dimension numbers, handles, algorithms a frozen dataclass with the binding's field names
everything else                        ``Opaque`` (its text)
=====================================  ==============================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any

from pjrt.devices.reference._dense import decode_dense
from pjrt.devices.reference._types import decode_type


@dataclass(frozen=True)
class Opaque:
    """An attribute without a Python form: ``text`` is MLIR's spelling."""

    text: str


_RECORD_FIELDS = {
    "ScatterDimensionNumbers": (
        "update_window_dims inserted_window_dims input_batching_dims scatter_indices_batching_dims "
        "scattered_dims_to_operand_dims index_vector_dim"
    ),
    "GatherDimensionNumbers": (
        "offset_dims collapsed_slice_dims operand_batching_dims start_indices_batching_dims start_index_map "
        "index_vector_dim"
    ),
    "DotAlgorithm": (
        "lhs_precision_type rhs_precision_type accumulation_type lhs_component_count rhs_component_count "
        "num_primitive_operations allow_imprecise_accumulation"
    ),
    "DotDimensionNumbers": (
        "lhs_batching_dimensions rhs_batching_dimensions lhs_contracting_dimensions rhs_contracting_dimensions"
    ),
    "RaggedDotDimensionNumbers": (
        "lhs_batching_dimensions rhs_batching_dimensions lhs_contracting_dimensions rhs_contracting_dimensions "
        "lhs_ragged_dimensions rhs_group_dimensions"
    ),
    "ConvDimensionNumbers": (
        "input_batch_dimension input_feature_dimension input_spatial_dimensions kernel_input_feature_dimension "
        "kernel_output_feature_dimension kernel_spatial_dimensions output_batch_dimension output_feature_dimension "
        "output_spatial_dimensions"
    ),
    "OutputOperandAlias": "output_tuple_indices operand_index operand_tuple_indices",
    "ChannelHandle": "handle channel_type",
    "ResultAccuracyAttr": "atol rtol ulps mode",
}

_RECORDS: dict[str, tuple[type, tuple[str, ...]]] = {
    name: (make_dataclass(name, fields.split(), frozen=True), tuple(fields.split()))
    for name, fields in _RECORD_FIELDS.items()
}

_ENUMS = (
    "ComparisonDirectionAttr",
    "ComparisonTypeAttr",
    "PrecisionAttr",
    "FftTypeAttr",
    "TransposeAttr",
    "RngDistributionAttr",
    "RngAlgorithmAttr",
    "ResultAccuracyModeAttr",
)


def decode_attribute(attribute: Any) -> Any:
    """An MLIR attribute as a Python value, by the table in the module's docstring."""
    name = type(attribute).__name__
    if name in ("Attribute", "OpaqueAttr"):
        return _decode_dialect(attribute)
    decode = _DECODERS.get(name)
    if decode is not None:
        return decode(attribute)
    if name in _RECORDS:
        return _decode_record(attribute, name)
    if name in _ENUMS:
        return str(attribute.value)
    return Opaque(str(attribute))


def decode_value_of(operation: Any, name: str) -> Any:
    """The attribute ``name`` of an operation; also the kinds that the bindings cannot make an object of.

    Raises:
        KeyError: the operation has no such attribute.
    """
    try:
        attribute = operation.attributes[name]
    except TypeError:  # complex constants: "Can't cast unknown element type"
        return decode_dense(_text_of(operation, name))
    return decode_attribute(attribute)


def _text_of(operation: Any, name: str) -> str:
    """The spelling of one dense attribute, cut out of the operation's generic form."""
    text: str = operation.get_asm(print_generic_op_form=True)
    start = text.index(f"{name} = dense") + len(name) + 3
    end = text.index("> : tensor<", start)
    depth, position = 0, end + len("> : tensor")
    while position < len(text):
        depth += {"<": 1, ">": -1}.get(text[position], 0)
        position += 1
        if depth == 0:
            break
    return text[start:position]


def _decode_record(attribute: Any, name: str) -> Any:
    made, fields = _RECORDS[name]

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(value)
        return value if isinstance(value, int | float | str | bool) else str(value)  # a type, as MLIR spells it

    return made(*(plain(getattr(attribute, field)) for field in fields))


def _decode_dialect(attribute: Any) -> Any:
    """Enums print as ``#stablehlo<kind VALUE>`` and records as ``#stablehlo.kind<…>``; the bindings give both as a bare
    Attribute.
    """
    text = str(attribute)
    if text.startswith(("#stablehlo<", "#chlo<")):
        body = text[text.index("<") + 1 : -1]
        _, _, value = body.partition(" ")
        if value and value.isidentifier():
            return value
        return Opaque(text)
    if text.startswith(("#stablehlo.", "#chlo.")):
        return _decode_as_record(attribute, text)
    return Opaque(text)


_BY_SPELLING = {
    "scatter": ("stablehlo", "ScatterDimensionNumbers"),
    "gather": ("stablehlo", "GatherDimensionNumbers"),
    "dot_algorithm": ("stablehlo", "DotAlgorithm"),
    "dot": ("stablehlo", "DotDimensionNumbers"),
    "conv": ("stablehlo", "ConvDimensionNumbers"),
    "output_operand_alias": ("stablehlo", "OutputOperandAlias"),
    "channel_handle": ("stablehlo", "ChannelHandle"),
    "result_accuracy": ("stablehlo", "ResultAccuracyAttr"),
    "ragged_dot": ("chlo", "RaggedDotDimensionNumbers"),
}


def _decode_as_record(attribute: Any, text: str) -> Any:
    from pjrt.devices.reference import _mlir

    kind = text[text.index(".") + 1 : text.index("<")] if "<" in text else ""
    if kind not in _BY_SPELLING:
        return Opaque(text)
    dialect, name = _BY_SPELLING[kind]
    return _decode_record(_mlir.cast(attribute, dialect, name), name)


def _each(attribute: Any) -> tuple[Any, ...]:
    return tuple(decode_attribute(item) for item in attribute)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "BoolAttr": lambda a: bool(a.value),
    "IntegerAttr": lambda a: int(a.value),
    "FloatAttr": lambda a: float(a.value),
    "StringAttr": lambda a: str(a.value),
    "FlatSymbolRefAttr": lambda a: str(a.value),
    "SymbolRefAttr": lambda a: str(a.value[-1]),
    "UnitAttr": lambda a: True,
    "TypeAttr": lambda a: decode_type(a.value),
    "ArrayAttr": _each,
    "DictAttr": lambda a: {item.name: decode_attribute(item.attr) for item in a},
    "DenseBoolArrayAttr": lambda a: tuple(bool(x) for x in a),
    "DenseElementsAttr": decode_dense,
    "DenseIntElementsAttr": decode_dense,
    "DenseFPElementsAttr": decode_dense,
    "DenseResourceElementsAttr": decode_dense,
    **{f"Dense{kind}ArrayAttr": tuple for kind in ("I8", "I16", "I32", "I64", "F32", "F64")},
}
