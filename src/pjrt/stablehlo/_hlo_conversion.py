"""Conversions between HLO protos and MLIR, by XLA's own converters."""

from __future__ import annotations

import math
import re
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo import _hlo, _mlir, jaxlib
from pjrt.stablehlo._device_groups import with_listed_groups
from pjrt.stablehlo._diagnostics import shortened
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo._older_hlo import modernized
from pjrt.stablehlo.mlir_walk import inline, walk


def from_hlo_proto(code: bytes, *, legalized: bool) -> MlirModule:
    """Return the MLIR module for an HLO proto of any kind.

    Args:
        code: the proto.
        legalized: whether the module is to be StableHLO alone; otherwise it may hold deprecated operations and those of
            the mhlo dialect.

    Raises:
        InvalidArgumentError: XLA refuses the proto, or an operation has no counterpart in StableHLO.
    """
    place = _hlo.screen(code)
    xla = jaxlib.load("_jax", "convert HLO protos")
    try:
        converted = xla.mlir.hlo_to_stablehlo(with_listed_groups(modernized(code[place.begin : place.end])))
    except (RuntimeError, ValueError) as error:
        raise InvalidArgumentError(shortened(str(error))) from error
    module = _mlir.parse(converted)
    _take_optimizations_back(module)
    if legalized:
        _legalize(module)
    return module


def to_hlo_proto(module: MlirModule, *, tuple_result: bool) -> bytes:
    """Return the ``HloModuleProto`` for an MLIR module.

    Raises:
        InvalidArgumentError: XLA refuses the module; the message is XLA's own.
    """
    xla, code = jaxlib.load("_jax", "convert to HLO protos"), _mlir.write_bytecode(module)
    try:
        computation = xla.mlir.mlir_module_to_xla_computation(code, use_tuple_args=False, return_tuple=tuple_result)
        proto: bytes = computation.as_serialized_hlo_module_proto()
    except (RuntimeError, ValueError) as error:
        raise InvalidArgumentError(shortened(str(error))) from error
    return proto


def _take_optimizations_back(module: MlirModule) -> None:
    """Replace the operations that XLA's own optimizations make, which a compiler does not take, and drop their layouts.

    The layouts are those of buffers of the device that the program was optimized for.
    """
    ir = jaxlib.load("mlir.ir", "convert HLO protos")
    with module as mlir, ir.Location.unknown():
        operations = list(walk(mlir.operation))
        if not any(operation.name in _OPTIMIZED for operation in operations):
            return
        for operation in reversed(operations):  # the inner ones before those that hold them
            for name in _LAYOUTS:
                if name in operation.attributes and operation.name not in _OPTIMIZED:
                    del operation.attributes[name]
            if operation.name == "mhlo.copy":
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()
            elif operation.name == "mhlo.fusion":
                inline(operation)
            elif operation.name == "mhlo.bitcast":
                _replace_bitcast(operation)


_OPTIMIZED = frozenset({"mhlo.bitcast", "mhlo.copy", "mhlo.fusion"})
_LAYOUTS = ("result_layout", "xla_shape")


def _replace_bitcast(operation: Any) -> None:
    """Replace a bitcast, which takes the memory of an array for that of one of another shape and layout."""
    ir = jaxlib.load("mlir.ir", "convert HLO protos")
    place: dict[str, Any] = {"loc": operation.location, "ip": ir.InsertionPoint(operation)}
    (value,), (result,) = operation.operands, operation.results
    element = result.type.element_type
    if math.prod(value.type.shape) != math.prod(result.type.shape):
        return  # what such a one means depends on the device
    if value.type.element_type != element:
        type_ = ir.RankedTensorType.get(value.type.shape, element)
        value = ir.Operation.create("stablehlo.bitcast_convert", [type_], [value], **place).result
    orders = [
        list(reversed(list(operation.attributes[name]))) if name in operation.attributes else list(range(rank))
        for name, rank in (("source_layout", len(value.type.shape)), ("result_layout", len(result.type.shape)))
    ]

    def transposed(value: Any, permutation: list[int]) -> Any:
        if permutation == sorted(permutation):
            return value
        type_ = ir.RankedTensorType.get([value.type.shape[d] for d in permutation], element)
        attributes = {"permutation": ir.DenseI64ArrayAttr.get(permutation)}
        return ir.Operation.create("stablehlo.transpose", [type_], [value], attributes, **place).result

    source, target = orders
    in_memory = ir.RankedTensorType.get([result.type.shape[d] for d in target], element)
    value = ir.Operation.create("stablehlo.reshape", [in_memory], [transposed(value, source)], **place).result
    result.replace_all_uses_with(transposed(value, [target.index(d) for d in range(len(target))]))
    operation.erase()


def _legalize(module: MlirModule) -> None:
    """Replace deprecated operations and those of the mhlo dialect that have a counterpart.

    Raises:
        InvalidArgumentError: an operation has no counterpart, as some of optimized HLO have none.
    """
    with module as mlir:
        for operation in reversed(list(walk(mlir.operation))):  # the inner ones before those that hold them
            if operation.name == "stablehlo.custom_call":
                take_tuple_apart(operation)
            else:
                _replace_mhlo(operation)
    try:
        _mlir.run_passes(module, _LEGALIZATION)
    except InvalidArgumentError as error:
        match = _WITHOUT_COUNTERPART.search(error.message)
        if match is None:
            raise
        raise InvalidArgumentError(
            f"expected HLO that has a counterpart in StableHLO, found the operation {match[1]}, as XLA's optimizations "
            "make it; give the program before them, such as the dump whose name ends in before_optimizations.txt"
        ) from error


_WITHOUT_COUNTERPART = re.compile(r"failed to legalize operation 'mhlo\.(\w+)'")
_LEGALIZATION = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo,stablehlo-legalize-deprecated-ops{fail-on-unused=false}),"
    "hlo-legalize-to-stablehlo)"
)


def _replace_mhlo(operation: Any) -> None:
    """Replace an operation of XLA's that StableHLO's passes would leave as a custom call."""
    name = operation.name
    if name == "mhlo.erf":
        _replace(operation, "chlo.erf", {})
    elif name == "mhlo.topk" and operation.attributes["largest"].value:
        _replace(operation, "chlo.top_k", {"k": operation.attributes["k"]})


def _replace(operation: Any, name: str, attributes: dict[str, Any]) -> None:
    replacement = _create(operation, name, [result.type for result in operation.results], attributes)
    for old, new in zip(operation.results, replacement.results, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()


def take_tuple_apart(operation: Any) -> Any:
    """Give a custom call several results in place of one tuple, which is all that HLO has; return the call."""
    ir = jaxlib.load("mlir.ir", "convert HLO protos")
    if len(operation.results) != 1 or not isinstance(operation.results[0].type, ir.TupleType):
        return operation
    readers = [use.owner.operation for use in operation.results[0].uses]
    if any(reader.name != "stablehlo.get_tuple_element" for reader in readers):
        return operation
    tuple_, attributes = operation.results[0].type, operation.attributes
    types = [tuple_.get_type(number) for number in range(tuple_.num_types)]
    named = {attributes[number].name: attributes[number].attr for number in range(len(attributes))}
    replacement = _create(operation, operation.name, types, named)
    for reader in readers:
        reader.results[0].replace_all_uses_with(replacement.results[reader.attributes["index"].value])
        reader.erase()
    operation.erase()
    return replacement


def _create(like: Any, name: str, types: list[Any], attributes: dict[str, Any]) -> Any:
    """Return a new operation in front of another, with its operands and its location."""
    ir = jaxlib.load("mlir.ir", "convert HLO protos")
    return ir.Operation.create(
        name,
        results=types,
        operands=list(like.operands),
        attributes=attributes,
        loc=like.location,
        ip=ir.InsertionPoint(like),
    )
