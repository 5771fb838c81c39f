"""Unparsing: from a ``ParsedProgram`` back to StableHLO text, for compilers that read text.

It writes MLIR's generic form. Parsed attributes have plain Python values; their types in MLIR follow from their names,
by the tables below.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError
from pjrt.stablehlo.ir.attributes import (
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
from pjrt.stablehlo.ir.operation import Block, Function, Operation, ParsedProgram, Value
from pjrt.stablehlo.ir.types import (
    FunctionType,
    FutureType,
    OpaqueType,
    Quantization,
    TensorType,
    TokenType,
    TupleType,
    ValueType,
)

_ENUMS = {
    "comparison_direction": "comparison_direction",
    "compare_type": "comparison_type",
    "fft_type": "fft_type",
    "precision_config": "precision",
    "rng_algorithm": "rng_algorithm",
    "rng_distribution": "rng_distribution",
    "transpose_a": "transpose",
}
"""The kind of enum by the name of the attribute."""

_INT32 = frozenset({"api_version", "exponent_bits", "index", "mantissa_bits", "version"})
_LISTS = frozenset(
    {
        "called_computations",
        "operand_layouts",
        "operand_tilings",
        "output_operand_aliases",
        "precision_config",
        "result_layouts",
        "result_tilings",
    }
)
"""Attributes that are lists of attributes; all other sequences are arrays of numbers."""

_SYMBOLS = frozenset({"callee", "called_computations", "decomposition"})
_KEPT = frozenset({"mhlo.attributes", "mhlo.backend_config"})
"""The attributes of another dialect that a custom call is nothing without."""
_UNITS = frozenset({"use_global_device_ids"})
ANNOTATIONS = frozenset({"sdy.propagation_barrier", "sdy.reshard", "sdy.sharding_constraint"})
"""Operations whose result is their operand: they say where it is, of devices that the text does not know."""
_INDICES = frozenset({"operand_layouts", "result_layouts"})
_SUB_BYTE = 8


def unparse(program: ParsedProgram) -> str:
    """Return a parsed program as StableHLO text, in MLIR's generic form, with source locations.

    Attributes of dialects other than StableHLO's, such as shardings, are left out, and so are operations that only
    state shardings, and the program's other declarations, such as meshes.

    Args:
        program: the program; all of its constants must have been read.

    Raises:
        UnimplementedError: an attribute of an operation has no form in text here.
    """
    functions = "\n".join(_function(function) for function in program.functions.values())
    return f"module {{\n{functions}\n}}\n"


def _function(function: Function) -> str:
    visibility = "" if function.is_public else "private "
    signature = f"@{_symbol(function.name)}"
    if function.body is None:
        return f"func.func {visibility}{signature}{_signature(function.type)}"
    writer = _Writer()
    arguments = ", ".join(f"{writer.add(value)}: {unparse_type(value.type)}" for value in function.body.arguments)
    results = ", ".join(map(unparse_type, function.type.results))
    lines = "\n".join(writer.block(function.body, "  "))
    location = f" {_location(function.location.text)}"
    return f"func.func {visibility}{signature}({arguments}) -> ({results}) {{\n{lines}\n}}{location}"


class _Writer:
    """The writer of one function; values get new names, because those of parsed regions may occur twice."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._numbers = count()

    def add(self, value: Value) -> str:
        name = self._names[id(value)] = f"%v{next(self._numbers)}"
        return name

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for operation in block.operations:
            yield from self.operation(operation, indent)

    def operation(self, operation: Operation, indent: str) -> Iterator[str]:
        if operation.name in ANNOTATIONS:
            self._names[id(operation.results[0])] = self._names[id(operation.operands[0])]
            return
        operands = ", ".join(self._names[id(value)] for value in operation.operands)
        regions = ""
        if operation.regions:
            parts = []
            for region in operation.regions:
                arguments = ", ".join(f"{self.add(value)}: {unparse_type(value.type)}" for value in region.arguments)
                lines = "\n".join(self.block(region, indent + "  "))
                parts.append(f"{{\n{indent}^bb0({arguments}):\n{lines}\n{indent}}}")
            regions = f" ({', '.join(parts)})"
        results = ", ".join([self.add(value) for value in operation.results])
        signature = _signature(
            FunctionType(tuple(v.type for v in operation.operands), tuple(v.type for v in operation.results))
        )
        attributes = _attributes(operation)
        yield (
            f'{indent}{results}{" = " if results else ""}"{operation.name}"({operands}){regions}{attributes} : '
            f"{signature} {_location(operation.location.text)}"
        )


def _signature(type_: FunctionType) -> str:
    arguments = ", ".join(map(unparse_type, type_.arguments))
    return f"({arguments}) -> ({', '.join(map(unparse_type, type_.results))})"


def _location(text: str) -> str:
    return text if text.startswith("loc(") else f"loc({text})"


def unparse_type(type_: ValueType) -> str:
    """Return a type as MLIR spells it."""
    match type_:
        case TensorType():
            dims = "".join("?x" if size is None else f"{size}x" for size in type_.shape)
            element = type_.element.mlir if type_.quantization is None else _quantization(type_.quantization)
            bounds = ""
            if type_.bounds is not None:
                sizes = ", ".join("?" if bound is None else str(bound) for bound in type_.bounds)
                bounds = f", #stablehlo.bounds<{sizes}>"
            return f"tensor<{dims}{element}{bounds}>"
        case TupleType():
            return f"tuple<{', '.join(map(unparse_type, type_.elements))}>"
        case FutureType():
            return f"!stablehlo.future<{', '.join(map(unparse_type, type_.elements))}>"
        case TokenType() | OpaqueType():
            return str(type_)


def _quantization(quantization: Quantization) -> str:
    pairs = [f"{scale!r}:{zero}" for scale, zero in zip(quantization.scales, quantization.zero_points, strict=True)]
    storage = quantization.storage.mlir.replace("ui", "u")
    limits = f"<{quantization.storage_min}:{quantization.storage_max}>"
    if quantization.axis is None:
        return f"!quant.uniform<{storage}{limits}:{quantization.expressed.mlir}, {pairs[0]}>"
    return (
        f"!quant.uniform<{storage}{limits}:{quantization.expressed.mlir}:{quantization.axis}, {{{', '.join(pairs)}}}>"
    )


def _attributes(operation: Operation) -> str:
    dialect = operation.name.partition(".")[0]
    parts = [
        f"{name} = {_attribute(name if name in _KEPT else dialect, name, value, operation)}"
        for name, value in operation.attributes.items()
        if "." not in name or name in _KEPT
    ]
    return f" {{{', '.join(parts)}}}" if parts else ""


def _attribute(dialect: str, name: str, value: Any, operation: Operation) -> str:
    """Return the attribute of an operation as MLIR spells it."""
    if name in _LISTS:
        return f"[{', '.join(_element(dialect, name, each, operation) for each in value)}]"
    if isinstance(value, tuple) and all(isinstance(each, bool) for each in value) and value:
        return f"array<i1: {', '.join(map(_bool, value))}>"
    if isinstance(value, tuple) and all(isinstance(each, int) for each in value):
        return f"array<i64: {', '.join(map(str, value))}>" if value else "array<i64>"
    return _element(dialect, name, value, operation)


def _element(dialect: str, name: str, value: Any, operation: Operation) -> str:
    match value:
        case bool():
            return "unit" if name in _UNITS else _bool(value)
        case int():
            return f"{value} : {'i32' if name in _INT32 else 'i64'}"
        case float() if dialect in _KEPT:
            return f"0x{np.float64(value).view(np.uint64):016X} : f64"
        case float():
            return f"{_float(value)} : f32"
        case str() if name in _ENUMS:
            return f"#{dialect}<{_ENUMS[name]} {value}>"
        case str() if name in _SYMBOLS:
            return f"@{_symbol(value)}"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case bytes():
            return '"' + "".join(f"\\{byte:02X}" for byte in value) + '"'
        case np.ndarray():
            return _dense(value, name, operation)
        case dict():
            inside = ", ".join(
                f"{json.dumps(key)} = {_attribute(dialect, key, each, operation)}" for key, each in value.items()
            )
            return f"{{{inside}}}"
        case tuple():
            return f"[{', '.join(_element(dialect, name, each, operation) for each in value)}]"
        case Opaque():
            return value.text
        case TensorType() | TupleType() | TokenType() | FutureType() | OpaqueType():
            return unparse_type(value)
    record = _RECORDS.get(type(value))
    if record is None:
        raise UnimplementedError(
            f"{operation} has an attribute {name} that has no form in text: {value!r} [{operation.location}]"
        )
    return record(value, dialect)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _float(value: float) -> str:
    """Return a number of type f32; MLIR reads bits where decimal digits cannot say it."""
    return f"0x{np.float32(value).view(np.uint32):08X}"


def _symbol(name: str) -> str:
    return (
        name
        if name.replace("_", "a").replace(".", "a").replace("$", "a").isalnum() and not name[0].isdigit()
        else json.dumps(name)
    )


def _dense(array: np.ndarray[Any, Any], name: str, operation: Operation) -> str:
    type_: Any = operation.results[0].type if name == "value" and operation.results else None
    if isinstance(type_, TensorType):
        shape = "".join(f"{size}x" for size in array.shape)
        element = type_.element
        spelled = f"tensor<{shape}{element.mlir}>"
    else:
        element = ElementType.of(array.dtype)
        shape = "".join(f"{size}x" for size in array.shape)
        spelled = f"tensor<{shape}{'index' if name in _INDICES else element.mlir}>"
    if array.size == 0:
        return f"dense<> : {spelled}"
    if element is ElementType.PRED:
        return f"dense<{json.dumps(array.tolist())}> : {spelled}"
    if element.bits < _SUB_BYTE and element.is_integer:
        return f"dense<{array.astype(np.int64).tolist()}> : {spelled}"
    return f'dense<"0x{np.ascontiguousarray(array).tobytes().hex().upper()}"> : {spelled}'


def _fields(**fields: Sequence[int] | int) -> str:
    """Return the fields of a record that are not empty."""
    return ", ".join(
        f"{name} = {list(value) if isinstance(value, tuple) else value}"
        for name, value in fields.items()
        if value != ()
    )


def _dot(value: DotDimensionNumbers, dialect: str) -> str:
    return (
        "#stablehlo.dot<"
        + _fields(
            lhs_batching_dimensions=value.lhs_batching_dimensions,
            rhs_batching_dimensions=value.rhs_batching_dimensions,
            lhs_contracting_dimensions=value.lhs_contracting_dimensions,
            rhs_contracting_dimensions=value.rhs_contracting_dimensions,
        )
        + ">"
    )


def _ragged_dot(value: RaggedDotDimensionNumbers, dialect: str) -> str:
    return (
        f"#{dialect}.ragged_dot<"
        + _fields(
            lhs_batching_dimensions=value.lhs_batching_dimensions,
            rhs_batching_dimensions=value.rhs_batching_dimensions,
            lhs_contracting_dimensions=value.lhs_contracting_dimensions,
            rhs_contracting_dimensions=value.rhs_contracting_dimensions,
            lhs_ragged_dimensions=value.lhs_ragged_dimensions,
            rhs_group_dimensions=value.rhs_group_dimensions,
        )
        + ">"
    )


def _dot_algorithm(value: DotAlgorithm, dialect: str) -> str:
    types = [
        each.element.mlir if isinstance(each, TensorType) else str(each)
        for each in (value.lhs_precision_type, value.rhs_precision_type, value.accumulation_type)
    ]
    return (
        f"#stablehlo.dot_algorithm<lhs_precision_type = {types[0]}, rhs_precision_type = {types[1]}, "
        f"accumulation_type = {types[2]}, lhs_component_count = {value.lhs_component_count}, "
        f"rhs_component_count = {value.rhs_component_count}, "
        f"num_primitive_operations = {value.num_primitive_operations}, "
        f"allow_imprecise_accumulation = {_bool(value.allow_imprecise_accumulation)}>"
    )


def _conv(value: ConvDimensionNumbers, dialect: str) -> str:
    def dims(first: int, second: int, spatial: tuple[int, ...], letters: str) -> str:
        places = {first: letters[0], second: letters[1], **{place: str(n) for n, place in enumerate(spatial)}}
        return f"[{', '.join(places[place] for place in sorted(places))}]"

    lhs = dims(value.input_batch_dimension, value.input_feature_dimension, value.input_spatial_dimensions, "bf")
    rhs = dims(
        value.kernel_input_feature_dimension,
        value.kernel_output_feature_dimension,
        value.kernel_spatial_dimensions,
        "io",
    )
    out = dims(value.output_batch_dimension, value.output_feature_dimension, value.output_spatial_dimensions, "bf")
    return f"#stablehlo.conv<{lhs}x{rhs}->{out}>"


def _gather(value: GatherDimensionNumbers, dialect: str) -> str:
    return (
        "#stablehlo.gather<"
        + _fields(
            offset_dims=value.offset_dims,
            collapsed_slice_dims=value.collapsed_slice_dims,
            operand_batching_dims=value.operand_batching_dims,
            start_indices_batching_dims=value.start_indices_batching_dims,
            start_index_map=value.start_index_map,
            index_vector_dim=value.index_vector_dim,
        )
        + ">"
    )


def _scatter(value: ScatterDimensionNumbers, dialect: str) -> str:
    return (
        "#stablehlo.scatter<"
        + _fields(
            update_window_dims=value.update_window_dims,
            inserted_window_dims=value.inserted_window_dims,
            input_batching_dims=value.input_batching_dims,
            scatter_indices_batching_dims=value.scatter_indices_batching_dims,
            scatter_dims_to_operand_dims=value.scattered_dims_to_operand_dims,
            index_vector_dim=value.index_vector_dim,
        )
        + ">"
    )


def _channel(value: ChannelHandle, dialect: str) -> str:
    return f"#stablehlo.channel_handle<handle = {value.handle}, type = {value.channel_type}>"


def _alias(value: OutputOperandAlias, dialect: str) -> str:
    return (
        f"#stablehlo.output_operand_alias<output_tuple_indices = {list(value.output_tuple_indices)}, "
        f"operand_index = {value.operand_index}, operand_tuple_indices = {list(value.operand_tuple_indices)}>"
    )


def _accuracy(value: ResultAccuracy, dialect: str) -> str:
    numbers = ""
    if value.mode == "TOLERANCE":
        numbers = f"atol = {value.atol:e}, rtol = {value.rtol:e}, ulps = {value.ulps}, "
    return f"#stablehlo.result_accuracy<{numbers}mode = #stablehlo.result_accuracy_mode<{value.mode}>>"


_RECORDS: Mapping[type, Callable[[Any, str], str]] = {
    DotDimensionNumbers: _dot,
    RaggedDotDimensionNumbers: _ragged_dot,
    DotAlgorithm: _dot_algorithm,
    ConvDimensionNumbers: _conv,
    GatherDimensionNumbers: _gather,
    ScatterDimensionNumbers: _scatter,
    ChannelHandle: _channel,
    OutputOperandAlias: _alias,
    ResultAccuracy: _accuracy,
}
