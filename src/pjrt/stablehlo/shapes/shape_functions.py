"""Shape functions: the sizes of results of operations that XLA's shape propagation does not know.

Before the propagation, custom calls that state the sizes of their results take the place of such operations, and after
it the operations come back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pjrt.stablehlo import _mlir, jaxlib
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.mlir_walk import walk

Size = int | tuple[Any, int]
"""A size: a number, or a dimension of a value."""

Shape = Sequence[Size] | Any
"""A shape: its sizes, or a value of MLIR that has them."""

_PURPOSE = "refine the shapes of a program"
_TARGET = "pjrt.operation."


def hide(module: MlirModule) -> list[tuple[str, int, dict[str, str]]]:
    """Replace the operations of a module that XLA's propagation does not know; return what ``restore`` needs.

    A composite whose shapes are dynamic becomes a call: the propagation does not look into it.
    """
    with module as mlir:
        operations = [each for each in walk(mlir.operation) if any(map(_is_dynamic, each.results))]
        has_composites = any(each.name == "stablehlo.composite" for each in operations)
    if has_composites:
        _mlir.run_passes(module, "builtin.module(func.func(stablehlo-legalize-composite-to-call))")
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    hidden: list[tuple[str, int, dict[str, str]]] = []
    with module as mlir, ir.Location.unknown():
        for operation in list(walk(mlir.operation)):
            function = _FUNCTIONS.get(operation.name)
            if function is None or not any(map(_is_dynamic, operation.results)):
                continue
            shapes = function(operation)
            if shapes is None:
                continue
            operands = list(operation.operands)
            places = range(len(operands), len(operands) + len(shapes))
            call = ir.Operation.create(
                "stablehlo.custom_call",
                [result.type for result in operation.results],
                [*operands, *(_tensor_of(ir, sizes, operation) for sizes in shapes)],
                {
                    "call_target_name": ir.StringAttr.get(f"{_TARGET}{len(hidden)}"),
                    "indices_of_shape_operands": ir.Attribute.parse(f"dense<{[*places]}> : tensor<{len(shapes)}xi64>"),
                },
                loc=operation.location,
                ip=ir.InsertionPoint(operation),
            )
            attributes = {name: str(operation.attributes[name]) for name in operation.attributes}
            hidden.append((operation.name, len(operands), attributes))
            _replace(operation, call)
    return hidden


def restore(code: bytes, hidden: Sequence[tuple[str, int, Mapping[str, str]]]) -> bytes:
    """Return a program, as bytecode, with the operations that ``hide`` replaced."""
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    module = _mlir.parse(code)
    with module as mlir, ir.Location.unknown():
        for call in list(walk(mlir.operation)):
            target = str(call.attributes["call_target_name"].value) if call.name == "stablehlo.custom_call" else ""
            if not target.startswith(_TARGET):
                continue
            name, count, attributes = hidden[int(target.removeprefix(_TARGET))]
            operation = ir.Operation.create(
                name,
                [result.type for result in call.results],
                list(call.operands)[:count],
                {key: ir.Attribute.parse(text) for key, text in attributes.items()},
                loc=call.location,
                ip=ir.InsertionPoint(call),
            )
            _replace(call, operation)
    return _mlir.write_bytecode(module)


def _replace(operation: Any, other: Any) -> None:
    for result, value in zip(operation.results, other.results, strict=True):
        result.replace_all_uses_with(value)
    operation.erase()


def _is_dynamic(value: Any) -> bool:
    return "?" in str(value.type)


def _tensor_of(ir: Any, sizes: Shape, operation: Any) -> Any:
    """Add operations that compute a shape before another operation; return it as a tensor of one dimension."""
    if not isinstance(sizes, Sequence):
        return sizes
    place: dict[str, Any] = {"loc": operation.location, "ip": ir.InsertionPoint(operation)}
    i32 = ir.IntegerType.get_signless(32)

    def constant(numbers: Sequence[int]) -> Any:
        value = ir.Attribute.parse(f"dense<{[*numbers]}> : tensor<{len(numbers)}xi32>")
        return ir.Operation.create("stablehlo.constant", [value.type], [], {"value": value}, **place).result

    def one(size: Size) -> Any:
        if isinstance(size, int):
            return constant([size])
        value, dimension = size
        attributes = {"dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dimension)}
        scalar = ir.RankedTensorType.get([], i32)
        number = ir.Operation.create("stablehlo.get_dimension_size", [scalar], [value], attributes, **place).result
        return ir.Operation.create("stablehlo.reshape", [ir.RankedTensorType.get([1], i32)], [number], **place).result

    if not sizes:
        return constant([])
    dimension = {"dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)}
    type_ = ir.RankedTensorType.get([len(sizes)], i32)
    return ir.Operation.create("stablehlo.concatenate", [type_], list(map(one, sizes)), dimension, **place).result


def _sizes(value: Any) -> list[Size]:
    return [(value, dimension) for dimension in range(len(value.type.shape))]


def _bits(value: Any) -> int:
    match = re.search(r"(\d+)", str(value.type.element_type))
    is_complex = str(value.type.element_type).startswith("complex")
    return (2 if is_complex else 1) * int(match[1]) if match else 0


def _bitcast_convert(operation: Any) -> Sequence[Shape] | None:
    (operand,), (result,) = operation.operands, operation.results
    have, want, sizes = _bits(operand), _bits(result), _sizes(operand)
    if have == want:
        return None  # this one the propagation knows
    return [[*sizes, have // want]] if have > want else [sizes[:-1]]


def _torch_index_select(operation: Any) -> Sequence[Shape]:
    values, indices = operation.operands
    dimension, batches = (operation.attributes[name].value for name in ("dim", "batch_dims"))
    return [[*_sizes(values)[:dimension], *_sizes(indices)[batches:], *_sizes(values)[dimension + 1 :]]]


def _einsum(operation: Any) -> Sequence[Shape] | None:
    given, arrow, wanted = str(operation.attributes["einsum_config"].value).replace(" ", "").partition("->")
    if not arrow or "." in given:
        return None
    known: dict[str, Size] = {}
    for letters, operand in zip(given.split(","), operation.operands, strict=True):
        known.update(zip(letters, _sizes(operand), strict=True))
    return [[known[letter] for letter in wanted]]


def _like_operand(operation: Any) -> Sequence[Shape] | None:
    """Return the shapes of results where the first one has that of the first operand, and the others are static."""
    first, *others = operation.results
    if not operation.operands or any(map(_is_dynamic, others)):
        return None
    if first.type.element_type != operation.operands[0].type.element_type:
        return None
    return [_sizes(operation.operands[0]), *(list(each.type.shape) for each in others)]


def _rng(operation: Any) -> Sequence[Shape]:
    return [operation.operands[2]]


def _custom_call(operation: Any) -> Sequence[Shape] | None:
    is_hint = str(operation.attributes["call_target_name"].value) in ("Sharding", "annotate_device_placement")
    return _like_operand(operation) if is_hint and "indices_of_shape_operands" not in operation.attributes else None


_FUNCTIONS: Mapping[str, Callable[[Any], Sequence[Shape] | None]] = {
    "stablehlo.bitcast_convert": _bitcast_convert,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.einsum": _einsum,
    "stablehlo.rng": _rng,
    "stablehlo.rng_bit_generator": _like_operand,
    "stablehlo.torch_index_select": _torch_index_select,
    "stablehlo.unary_einsum": _einsum,
}
