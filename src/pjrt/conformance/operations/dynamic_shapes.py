"""Cases of operations whose shapes are operands; their results have static types here, as all results of programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance import values
from pjrt.conformance.operation_case import Array, OperationCase, program_text, tensor, type_of
from pjrt.conformance.operation_table import cases
from pjrt.conformance.values import EVERY, NUMBERS

Shape = tuple[int, ...]


def _case(
    operation: str, element: ElementType, name: str, text: str, inputs: Sequence[Array], shape: Shape
) -> OperationCase:
    types, outer = [type_of(each) for each in inputs], tensor(shape, element)
    program = program_text(f"{text} : ({', '.join(types)}) -> {outer}", types, [outer])
    return OperationCase(operation, element, name, program, tuple(inputs))


def _sizes(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@cases("dynamic_broadcast_in_dim", EVERY)
def _broadcast(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3,)), _sizes(2, 3)
    yield _case(operation, element, "of a vector", f"{operation} %x, %y, dims = [1]", inputs, (2, 3))


@cases("dynamic_iota", NUMBERS)
def _iota(operation: str, element: ElementType) -> Iterator[OperationCase]:
    yield _case(operation, element, "of columns", f"{operation} %x, dim = 1", [_sizes(2, 3)], (2, 3))


@cases("dynamic_pad", EVERY)
def _pad(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3,)), values.ordinary(element, (), seed=3), _sizes(1), _sizes(-1), _sizes(1)
    yield _case(operation, element, "of a vector", f"{operation} %x, %y, %z, %u, %v", inputs, (5,))


@cases("dynamic_reshape", EVERY)
def _reshape(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (2, 3)), _sizes(3, 2)
    yield _case(operation, element, "of a matrix", f"{operation} %x, %y", inputs, (3, 2))


@cases("real_dynamic_slice", EVERY)
def _slice(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (7,)), _sizes(1), _sizes(6), _sizes(2)
    yield _case(operation, element, "with strides", f"{operation} %x, %y, %z, %u", inputs, (3,))


@cases("dynamic_gather", EVERY)
def _gather(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3, 4)), np.array([[2], [0]], np.int32), _sizes(1, 4)
    numbers = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
    text = f'"{operation}"(%x, %y, %z) <{{dimension_numbers = #stablehlo.gather<{numbers}>}}>'
    yield _case(operation, element, "of rows", text, inputs, (2, 4))
