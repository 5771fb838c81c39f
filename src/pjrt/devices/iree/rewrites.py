"""Operations that IREE computes wrongly, written as others that it computes rightly. All is true of IREE 3.13."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.stablehlo.location import Location
from pjrt.stablehlo.operation import Block, Operation, ParsedProgram, Value
from pjrt.stablehlo.types import TensorType, ValueType


def rewrite(program: ParsedProgram) -> ParsedProgram:
    """Return a program that means the same, which IREE computes rightly.

    Args:
        program: the program; the operations of ``OF_STATIC_SHAPE`` have static shapes.
    """
    if not any(operation.name in _REWRITES for operation in program.walk()):
        return program
    functions = {
        name: replace(function, body=None if function.body is None else _block(function.body))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


def _block(block: Block) -> Block:
    operations: list[Operation] = []
    for operation in block.operations:
        if operation.regions:
            operation = replace(operation, regions=tuple(map(_block, operation.regions)))
        operations += _REWRITES[operation.name](operation) if operation.name in _REWRITES else [operation]
    return Block(block.arguments, tuple(operations))


# Scatters.


def _scatter(scatter: Operation) -> list[Operation]:
    """Return the operations in place of a scatter; the last ones have its results.

    An update that does not lie inside of the operand is skipped. IREE writes it, to memory that belongs to others. So
    the operand grows by one window in each dimension that indices select, indices out of bounds become indices of that
    part, and a slice of the result leaves it out.
    """
    count = len(scatter.results)
    operands, indices, updates = scatter.operands[:count], scatter.operands[count], scatter.operands[count + 1 :]
    numbers = scatter.attribute("scatter_dimension_numbers")
    selected = numbers.scattered_dims_to_operand_dims
    sizes, windows = _sizes(operands[0]), _windows(operands[0], updates[0], numbers)
    padding = tuple(windows[d] if d in selected else 0 for d in range(len(sizes)))

    new = _Operations(scatter.location)
    indices = _indices_in_bounds(new, indices, numbers, [(sizes[d], sizes[d] - windows[d]) for d in selected])
    padded = tuple(new.pad(each, padding) for each in operands)
    results = new.add(
        scatter.name,
        (*padded, indices, *updates),
        [each.type for each in padded],
        regions=scatter.regions,
        **scatter.attributes,
    )
    for result, wide in zip(scatter.results, results, strict=True):
        bounds = {"start_indices": (0,) * len(sizes), "limit_indices": sizes, "strides": (1,) * len(sizes)}
        new.operations.append(Operation("stablehlo.slice", (wide,), bounds, scatter.location, (result,)))
    return new.operations


def _indices_in_bounds(new: _Operations, indices: Value, numbers: Any, limits: Sequence[tuple[int, int]]) -> Value:
    """Return indices of which each that is out of bounds is the size of its dimension, where the padding begins.

    Args:
        new: the list to add operations to.
        indices: the indices.
        numbers: the dimension numbers of the scatter.
        limits: the size of the dimension, and the greatest index, of each component of an index.
    """
    shape = _sizes(indices)
    # Small types may not hold the size of the dimension; numbers that are too large become negative ones.
    element = ElementType.S64 if _tensor(indices).element.bits == 64 else ElementType.S32
    type_ = TensorType(shape, element)
    (indices,) = new.add("stablehlo.convert", (indices,), [type_])
    components = (numbers.index_vector_dim,) if numbers.index_vector_dim < len(shape) else ()

    def constant(values: Sequence[int]) -> Value:
        return new.constant(values, type_, components)

    def compare(direction: str, other: Value) -> Value:
        flags = [TensorType(shape, ElementType.PRED)]
        (value,) = new.add("stablehlo.compare", (indices, other), flags, comparison_direction=direction)
        return value

    least, most = compare("GE", constant([0] * len(limits))), compare("LE", constant([last for _, last in limits]))
    (inside,) = new.add("stablehlo.and", (least, most), [least.type])
    (value,) = new.add("stablehlo.select", (inside, indices, constant([size for size, _ in limits])), [type_])
    return value


# Other indices.


def _gather(gather: Operation) -> list[Operation]:
    """Limit the indices to the operand: IREE reads memory of others for some that are out of bounds."""
    operand, indices = gather.operands
    numbers, windows = gather.attribute("dimension_numbers"), gather.attribute("slice_sizes")
    type_, sizes = _tensor(indices), _sizes(operand)
    components = (numbers.index_vector_dim,) if numbers.index_vector_dim < len(type_.shape) else ()
    new = _Operations(gather.location)
    indices = new.limited(indices, [sizes[d] - windows[d] for d in numbers.start_index_map], components)
    return [*new.operations, replace(gather, operands=(operand, indices))]


def _dynamic_slice(operation: Operation) -> list[Operation]:
    """Limit indices of ui64, of which IREE takes those from 2**63 on for negative ones."""
    sizes, first = _sizes(operation.operands[0]), _FIRST_INDEX[operation.name]
    before, indices = operation.operands[:first], operation.operands[first:]
    if not indices or _tensor(indices[0]).element is not ElementType.U64:
        return [operation]
    windows = operation.attribute("slice_sizes", None) or _sizes(operation.operands[1])
    new = _Operations(operation.location)
    limits = [size - window for size, window in zip(sizes, windows, strict=True)]
    limited = [new.limited(index, [limit], ()) for index, limit in zip(indices, limits, strict=True)]
    return [*new.operations, replace(operation, operands=(*before, *limited))]


_FIRST_INDEX = {"stablehlo.dynamic_slice": 1, "stablehlo.dynamic_update_slice": 2}
"""The number of the first operand that is an index."""


# Convolutions.


def _convolution(convolution: Operation) -> list[Operation]:
    """Reverse the kernel in place of the window: IREE does not do that where each feature has a kernel of its own."""
    reversal = convolution.attribute("window_reversal", None)
    if reversal is None or not any(reversal):
        return [convolution]
    image, kernel = convolution.operands
    spatial = convolution.attribute("dimension_numbers").kernel_spatial_dimensions
    dimensions = tuple(place for place, is_reversed in zip(spatial, reversal, strict=True) if is_reversed)
    new = _Operations(convolution.location)
    (kernel,) = new.add("stablehlo.reverse", (kernel,), [kernel.type], dimensions=dimensions)
    attributes = {name: value for name, value in convolution.attributes.items() if name != "window_reversal"}
    return [*new.operations, replace(convolution, operands=(image, kernel), attributes=attributes)]


# Sorts.


def _sort(sort: Operation) -> list[Operation]:
    """Return a sort in which no two elements are equal, because their places decide: IREE's is never stable."""
    if not sort.attribute("is_stable", False):
        return [sort]
    (order,) = sort.regions
    type_, scalar = replace(_tensor(sort.operands[0]), element=ElementType.S32), TensorType((), ElementType.S32)
    flag = TensorType((), ElementType.PRED)
    before = _Operations(sort.location)
    (places,) = before.add("stablehlo.iota", (), [type_], iota_dimension=sort.attribute("dimension"))

    # An element comes first if the order says so, or if it does not say so of the other one and the place is lower.
    body, inside = Block(), _Operations(sort.location)
    arguments = [Value(each.type, "", body, number) for number, each in enumerate(order.arguments)]
    here, there = (Value(scalar, "", body, len(arguments) + number) for number in range(2))
    body.arguments = (*arguments, here, there)
    swapped = [arguments[number ^ 1] for number in range(len(arguments))]
    answers: list[Value] = []
    for values in (arguments, swapped):
        copy = order.renamed(dict(zip(map(id, order.arguments), values, strict=True)))
        inside.operations += copy.operations[:-1]
        answers += copy.outputs
    (is_lower,) = inside.add("stablehlo.compare", (here, there), [flag], comparison_direction="LT")
    (not_after,) = inside.add("stablehlo.not", (answers[1],), [flag])
    (decides,) = inside.add("stablehlo.and", (not_after, is_lower), [flag])
    (first,) = inside.add("stablehlo.or", (answers[0], decides), [flag])
    inside.add("stablehlo.return", (first,), [])
    body.operations = tuple(inside.operations)
    stable = replace(sort, operands=(*sort.operands, places), regions=(body,))
    stable.results = (*sort.results, Value(type_, "", stable, len(sort.results)))
    return [*before.operations, stable]


class _Operations:
    """A list of operations that grows."""

    def __init__(self, location: Location) -> None:
        self.operations: list[Operation] = []
        self._location = location

    def add(
        self,
        name: str,
        operands: tuple[Value, ...],
        types: Sequence[ValueType],
        regions: tuple[Block, ...] = (),
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """Add an operation, and return its results."""
        operation = Operation(name, operands, attributes, self._location, regions=regions)
        operation.results = tuple(Value(each, "", operation, number) for number, each in enumerate(types))
        self.operations.append(operation)
        return operation.results

    def constant(self, values: Sequence[int], type_: TensorType, components: tuple[int, ...]) -> Value:
        """Add a constant of a type: a number for each index of the dimension that has components, or one for all."""
        array = np.array(values if components else values[0], type_.element.dtype)
        (value,) = self.add("stablehlo.constant", (), [replace(type_, shape=array.shape)], value=array)
        (value,) = self.add("stablehlo.broadcast_in_dim", (value,), [type_], broadcast_dimensions=components)
        return value

    def limited(self, indices: Value, limits: Sequence[int], components: tuple[int, ...]) -> Value:
        """Add operations that bring each component of an index between zero and its limit, and return the result."""
        type_ = _tensor(indices)
        greatest = int(np.iinfo(type_.element.dtype).max)  # a small type may not hold the limit: none is beyond it
        most = self.constant([min(limit, greatest) for limit in limits], type_, components)
        least = self.constant([0] * len(limits), type_, components)
        (value,) = self.add("stablehlo.maximum", (indices, least), [type_])
        (value,) = self.add("stablehlo.minimum", (value, most), [type_])
        return value

    def pad(self, value: Value, amounts: tuple[int, ...]) -> Value:
        """Add zeros behind the end of each dimension, and return the result."""
        type_, none = _tensor(value), (0,) * len(amounts)
        zero = np.zeros((), type_.element.dtype)
        (filling,) = self.add("stablehlo.constant", (), [replace(type_, shape=())], value=zero)
        wide = replace(type_, shape=tuple(size + more for size, more in zip(type_.sizes, amounts, strict=True)))
        places: dict[str, Any] = {"edge_padding_low": none, "edge_padding_high": amounts, "interior_padding": none}
        (result,) = self.add("stablehlo.pad", (value, filling), [wide], **places)
        return result


def _windows(operand: Value, update: Value, numbers: Any) -> list[int]:
    """Return the size of an update in each dimension of the operand."""
    shape = _sizes(update)
    window = iter(shape[d] for d in numbers.update_window_dims)
    outside = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    return [1 if d in outside else next(window) for d in range(len(_sizes(operand)))]


def _sizes(value: Value) -> tuple[int, ...]:
    return _tensor(value).sizes


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)  # as the specification has it
    return value.type


_REWRITES: Mapping[str, Callable[[Operation], list[Operation]]] = {
    "stablehlo.convolution": _convolution,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.sort": _sort,
    **dict.fromkeys(_FIRST_INDEX, _dynamic_slice),
}

OF_STATIC_SHAPE = frozenset(_REWRITES) - {"stablehlo.convolution"}
"""The names of operations whose replacements have their sizes as constants."""
