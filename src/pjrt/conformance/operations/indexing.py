"""Cases of gather and scatter: indices in range, at the edges, and past the ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance import values
from pjrt.conformance.operation_case import Array, OperationCase, program_text, tensor, type_of
from pjrt.conformance.operation_table import cases
from pjrt.conformance.operations.reductions import region
from pjrt.conformance.values import EVERY, NUMBERS

_INDICES = {
    "in range": [[0], [2], [1], [2]],
    "past the ends": [[-1], [3], [100], [1]],
    "empty": [],
}


@cases("gather", EVERY)
def _gather(operation: str, element: ElementType) -> Iterator[OperationCase]:
    array = values.mixed(element, (3, 4))
    for name, rows in _INDICES.items():
        indices = np.array(rows, np.int32).reshape(-1, 1)
        numbers = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
        yield _gathered(operation, element, f"of rows {name}", numbers, (1, 4), [array, indices], (len(rows), 4))
    numbers = "offset_dims = [0, 1], start_index_map = [0, 1]"
    window = np.array([1, 2], np.int64)
    yield _gathered(operation, element, "of a window", numbers, (2, 3), [array, window], (2, 3))
    batched = values.mixed(element, (2, 5))
    numbers = (
        "collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], "
        "start_index_map = [1], index_vector_dim = 2"
    )
    picks = np.array([[[0], [4], [2]], [[1], [1], [7]]], np.int32)
    yield _gathered(operation, element, "in batches", numbers, (1, 1), [batched, picks], (2, 3))


def _gathered(
    operation: str,
    element: ElementType,
    name: str,
    numbers: str,
    sizes: Sequence[int],
    inputs: Sequence[Array],
    shape: tuple[int, ...],
) -> OperationCase:
    types, outer = [type_of(each) for each in inputs], tensor(shape, element)
    text = (
        f'"{operation}"(%x, %y) <{{dimension_numbers = #stablehlo.gather<{numbers}>, '
        f"slice_sizes = array<i64: {', '.join(map(str, sizes))}>}}> : ({', '.join(types)}) -> {outer}"
    )
    return OperationCase(operation, element, name, program_text(text, types, [outer]), tuple(inputs))


@cases("scatter", NUMBERS)
def _scatter(operation: str, element: ElementType) -> Iterator[OperationCase]:
    numbers = (
        "inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], "
        "scatter_dims_to_operand_dims = [1], index_vector_dim = 2"
    )
    places = np.array([[[0], [4], [5]], [[-1], [1], [1]]], np.int32)
    batched = values.exact(element, (2, 5)), places, values.exact(element, (2, 3), seed=1)
    yield _added(operation, element, "in batches", numbers, batched)
    array = values.exact(element, (3, 4))
    numbers = (
        "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    )
    for name, rows in _INDICES.items():
        indices = np.array(rows, np.int32).reshape(-1, 1)
        updates = values.exact(element, (len(rows), 4), seed=1)
        yield _added(operation, element, f"rows {name}", numbers, (array, indices, updates))


def _added(
    operation: str, element: ElementType, name: str, numbers: str, inputs: tuple[Array, Array, Array]
) -> OperationCase:
    types = [type_of(each) for each in inputs]
    text = (
        f'"{operation}"(%x, %y, %z) <{{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>}}> '
        f"{region('add', element)} : ({', '.join(types)}) -> {types[0]}"
    )
    return OperationCase(operation, element, f"add, {name}", program_text(text, types, [types[0]]), inputs)


@cases("torch_index_select", EVERY)
def _torch_index_select(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3, 4)), np.array([2, 0], np.int32)
    types, outer = [type_of(each) for each in inputs], tensor((2, 4), element)
    text = f'"{operation}"(%x, %y) <{{dim = 0 : i64, batch_dims = 0 : i64}}> : ({", ".join(types)}) -> {outer}'
    yield OperationCase(operation, element, "of rows", program_text(text, types, [outer]), inputs)
