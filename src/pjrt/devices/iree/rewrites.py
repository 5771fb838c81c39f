"""Scatters whose indices may be out of bounds.

XLA skips an update that does not lie inside of the operand. IREE 3.13 writes it, to memory that belongs to others. So a
scatter gets an operand that is larger by one window in each dimension that indices select, indices out of bounds become
indices of that part, and a slice of the result leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.stablehlo.location import Location
from pjrt.stablehlo.operation import Block, Operation, ParsedProgram, Value
from pjrt.stablehlo.types import TensorType, ValueType

_NAME = "stablehlo.scatter"


def keep_in_bounds(program: ParsedProgram) -> ParsedProgram:
    """Return a program whose scatters write to their operands only.

    Args:
        program: the program; its scatters have static shapes.
    """
    if not any(operation.name == _NAME for operation in program.walk()):
        return program
    functions = {
        name: replace(function, body=None if function.body is None else _block(function.body))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


def _block(block: Block) -> Block:
    operations: list[Operation] = []
    for operation in block.operations:
        if operation.name == _NAME:
            operations += _scatter(operation)
        elif operation.regions:
            operations.append(replace(operation, regions=tuple(map(_block, operation.regions))))
        else:
            operations.append(operation)
    return Block(block.arguments, tuple(operations))


def _scatter(scatter: Operation) -> list[Operation]:
    """Return the operations in place of a scatter; the last ones have its results."""
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
        _NAME,
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
        array = np.array(values if components else values[0], element.dtype)
        (value,) = new.add("stablehlo.constant", (), [TensorType(array.shape, element)], value=array)
        (value,) = new.add("stablehlo.broadcast_in_dim", (value,), [type_], broadcast_dimensions=components)
        return value

    def compare(direction: str, other: Value) -> Value:
        flags = [TensorType(shape, ElementType.PRED)]
        (value,) = new.add("stablehlo.compare", (indices, other), flags, comparison_direction=direction)
        return value

    least, most = compare("GE", constant([0] * len(limits))), compare("LE", constant([last for _, last in limits]))
    (inside,) = new.add("stablehlo.and", (least, most), [least.type])
    (value,) = new.add("stablehlo.select", (inside, indices, constant([size for size, _ in limits])), [type_])
    return value


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
