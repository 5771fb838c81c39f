"""Cases of operations that make and move data, also by indices and with shapes that are operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance import values
from pjrt.conformance.operation_cases.regions import region
from pjrt.conformance.operation_table import Array, OperationCase, cases, program_text, tensor, type_of
from pjrt.conformance.values import EVERY, NUMBERS

Shape = tuple[int, ...]


def _moved(
    operation: str,
    element: ElementType,
    name: str,
    text: str,
    inputs: Sequence[Array],
    result: Shape,
) -> OperationCase:
    """Return a case of an operation with one result; ``text`` is the operation without its types."""
    types, outer = [type_of(each) for each in inputs], tensor(result, element)
    return OperationCase(
        operation,
        element,
        name,
        program_text(f"{text} : ({', '.join(types)}) -> {outer}", types, [outer]),
        tuple(inputs),
    )


@cases("reshape", EVERY)
def _reshape(operation: str, element: ElementType) -> Iterator[OperationCase]:
    shapes: dict[str, tuple[Shape, Shape]] = {
        "to another rank": ((2, 3, 5), (6, 5)),
        "to a scalar": ((1, 1), ()),
        "from a scalar": ((), (1,)),
        "empty": ((0, 3), (5, 0, 2)),
        "large": ((1031, 3), (3093,)),
    }
    for name, (shape, result) in shapes.items():
        yield _moved(operation, element, name, f"{operation} %x", [values.mixed(element, shape)], result)


@cases("transpose", EVERY)
def _transpose(operation: str, element: ElementType) -> Iterator[OperationCase]:
    permutations: dict[str, tuple[Shape, Shape]] = {
        "of a matrix": ((3, 5), (1, 0)),
        "of rank 3": ((2, 3, 5), (2, 0, 1)),
        "of a scalar": ((), ()),
        "empty": ((0, 3), (1, 0)),
        "large": ((257, 61), (1, 0)),
    }
    for name, (shape, permutation) in permutations.items():
        result = tuple(shape[each] for each in permutation)
        text = f"{operation} %x, dims = [{_list(permutation)}]"
        yield _moved(operation, element, name, text, [values.mixed(element, shape)], result)


@cases("broadcast_in_dim", EVERY)
def _broadcast_in_dim(operation: str, element: ElementType) -> Iterator[OperationCase]:
    forms: dict[str, tuple[Shape, Shape, Shape]] = {
        "of a scalar": ((), (), (2, 3)),
        "of a vector": ((3,), (1,), (2, 3)),
        "of a column": ((3, 1), (0, 1), (3, 4)),
        "with dimensions in another order": ((2, 3), (1, 0), (3, 2)),
        "empty": ((0,), (1,), (2, 0)),
    }
    for name, (shape, dimensions, result) in forms.items():
        text = f"{operation} %x, dims = [{_list(dimensions)}]"
        yield _moved(operation, element, name, text, [values.mixed(element, shape)], result)


@cases("broadcast", EVERY)
def _broadcast(operation: str, element: ElementType) -> Iterator[OperationCase]:
    for name, shape, sizes in (("of a scalar", (), (2, 3)), ("of a vector", (3,), (2,)), ("empty", (3,), (0,))):
        text = f"{operation} %x, sizes = [{_list(sizes)}]"
        yield _moved(operation, element, name, text, [values.mixed(element, shape)], (*sizes, *shape))


@cases("concatenate", EVERY)
def _concatenate(operation: str, element: ElementType) -> Iterator[OperationCase]:
    forms: dict[str, tuple[Sequence[Shape], int, Shape]] = {
        "of rows": ([(2, 3), (1, 3)], 0, (3, 3)),
        "of columns": ([(2, 3), (2, 1), (2, 2)], 1, (2, 6)),
        "of one": ([(3,)], 0, (3,)),
        "with an empty one": ([(0, 3), (2, 3)], 0, (2, 3)),
    }
    for name, (shapes, dimension, result) in forms.items():
        inputs = [values.mixed(element, shape) for shape in shapes]
        operands = ", ".join(f"%{each}" for each in "xyz"[: len(shapes)])
        yield _moved(operation, element, name, f"{operation} {operands}, dim = {dimension}", inputs, result)


@cases("slice", EVERY)
def _slice(operation: str, element: ElementType) -> Iterator[OperationCase]:
    forms: dict[str, tuple[Shape, str, Shape]] = {
        "of a part": ((5, 7), "1:4, 2:7", (3, 5)),
        "with strides": ((5, 7), "0:5:2, 1:7:3", (3, 2)),
        "empty": ((5, 7), "2:2, 0:7", (0, 7)),
    }
    for name, (shape, bounds, result) in forms.items():
        types = [tensor(shape, element)], tensor(result, element)
        text = f"{operation} %x [{bounds}] : ({types[0][0]}) -> {types[1]}"
        inputs = (values.mixed(element, shape),)
        yield OperationCase(operation, element, name, program_text(text, types[0], [types[1]]), inputs)


@cases("reverse", EVERY)
def _reverse(operation: str, element: ElementType) -> Iterator[OperationCase]:
    forms: dict[str, tuple[Shape, Shape]] = {
        "of one dimension": ((3, 5), (1,)),
        "of all dimensions": ((3, 5), (0, 1)),
        "of none": ((3,), ()),
        "empty": ((0, 3), (1,)),
    }
    for name, (shape, dimensions) in forms.items():
        type_ = tensor(shape, element)
        text = f"{operation} %x, dims = [{_list(dimensions)}] : {type_}"
        inputs = (values.mixed(element, shape),)
        yield OperationCase(operation, element, name, program_text(text, [type_], [type_]), inputs)


@cases("pad", EVERY)
def _pad(operation: str, element: ElementType) -> Iterator[OperationCase]:
    forms: dict[str, tuple[Shape, Shape, Shape, Shape, Shape]] = {
        "at the edges": ((2, 3), (1, 0), (0, 2), (0, 0), (3, 5)),
        "between elements": ((2, 3), (0, 1), (0, 0), (2, 1), (4, 6)),
        "by less than nothing": ((4, 5), (-1, 2), (1, -3), (0, 0), (4, 4)),
        "of nothing": ((0,), (2,), (1,), (0,), (3,)),
    }
    for name, (shape, low, high, interior, result) in forms.items():
        inputs = [values.mixed(element, shape), values.ordinary(element, (), seed=3)]
        types = [type_of(each) for each in inputs]
        text = f"{operation} %x, %y, low = [{_list(low)}], high = [{_list(high)}], interior = [{_list(interior)}]"
        outer = tensor(result, element)
        text += f" : ({', '.join(types)}) -> {outer}"
        yield OperationCase(operation, element, name, program_text(text, types, [outer]), tuple(inputs))


@cases("dynamic_slice", EVERY)
def _dynamic_slice(operation: str, element: ElementType) -> Iterator[OperationCase]:
    for name, starts in (("in the middle", (1, 2)), ("past the end", (9, 9)), ("before the beginning", (-5, 1))):
        indices = [np.array(start, np.int32) for start in starts]
        text = f"{operation} %x, %y, %z, sizes = [2, 3]"
        yield _moved(operation, element, name, text, [values.mixed(element, (4, 5)), *indices], (2, 3))
    for name, *extremes in _extreme_indices(element):
        indices = [values.mixed(element, (4, 5)), *map(np.array, extremes[:2])]
        yield _moved(operation, element, name, f"{operation} %x, %y, %z, sizes = [2, 3]", indices, (2, 3))
    empty = [values.mixed(element, (4, 5)), np.array(1, np.int64), np.array(1, np.int64)]
    yield _moved(operation, element, "empty", f"{operation} %x, %y, %z, sizes = [0, 3]", empty, (0, 3))


@cases("dynamic_update_slice", EVERY)
def _dynamic_update_slice(operation: str, element: ElementType) -> Iterator[OperationCase]:
    for name, starts in (("in the middle", (1, 2)), ("past the end", (9, 9)), ("before the beginning", (-5, 1))):
        update = values.ordinary(element, (2, 3), seed=5)
        inputs = [values.mixed(element, (4, 5)), update, *(np.array(start, np.int32) for start in starts)]
        yield _moved(operation, element, name, f"{operation} %x, %y, %z, %u", inputs, (4, 5))
    for name, *extremes in _extreme_indices(element):
        inputs = [values.mixed(element, (4, 5)), values.ordinary(element, (2, 3), seed=5), *map(np.array, extremes[:2])]
        yield _moved(operation, element, name, f"{operation} %x, %y, %z, %u", inputs, (4, 5))


@cases("constant", EVERY)
def _constant(operation: str, element: ElementType) -> Iterator[OperationCase]:
    """Make constants of edge values, written as their bits, and one that repeats an element."""
    numbers = values.edges(element)
    for name, literal, shape in (
        ("edge values", _literal(numbers, element), numbers.shape),
        ("repeated", _literal(numbers[-1:], element).strip("[]"), (2, 3)),
        ("scalar", _literal(numbers[:1], element).strip("[]"), ()),
        ("empty", "", (0, 3)),
    ):
        outer = tensor(shape, element)
        text = f"{operation} dense<{literal}> : {outer}"
        yield OperationCase(operation, element, name, program_text(text, [], [outer]))


def _literal(numbers: Array, element: ElementType) -> str:
    if element is ElementType.PRED:
        return f"[{', '.join('true' if each else 'false' for each in numbers)}]"
    if element.is_integer:
        return f"[{', '.join(str(int(each)) for each in numbers)}]"
    if element.is_complex:
        return f"[{', '.join(f'({each.real:e}, {each.imag:e})' for each in numbers)}]"
    digits = -(-element.bits // 4)
    words = numbers.view(f"u{element.dtype.itemsize}")
    return f"[{', '.join(f'0x{int(word):0{digits}X}' for word in words)}]"


@cases("iota", NUMBERS)
def _iota(operation: str, element: ElementType) -> Iterator[OperationCase]:
    for name, shape, dimension in (("of a vector", (3,), 0), ("of columns", (2, 3), 1), ("empty", (0,), 0)):
        outer = tensor(shape, element)
        text = f"{operation} dim = {dimension} : {outer}"
        yield OperationCase(operation, element, name, program_text(text, [], [outer]))


@cases("get_dimension_size", EVERY)
def _get_dimension_size(operation: str, element: ElementType) -> Iterator[OperationCase]:
    for dimension in (0, 1):
        array = values.ordinary(element, (3, 0))
        text = f"{operation} %x, dim = {dimension} : ({type_of(array)}) -> tensor<i32>"
        program = program_text(text, [type_of(array)], ["tensor<i32>"])
        yield OperationCase(operation, element, f"of dimension {dimension}", program, (array,))


@cases("optimization_barrier", EVERY)
def _optimization_barrier(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3,)), values.mixed(element, (2, 2))
    types = [type_of(each) for each in inputs]
    program = program_text(f"{operation} %x, %y : {', '.join(types)}", types, types)
    yield OperationCase(operation, element, "of two values", program, inputs)


@cases("tuple get_tuple_element", EVERY)
def _tuple(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3,)), values.mixed(element, (2, 2))
    types = [type_of(each) for each in inputs]
    whole = f"tuple<{', '.join(types)}>"
    text = (
        f"stablehlo.tuple %x, %y : {whole}\n"
        f"  %s = stablehlo.get_tuple_element %r[1] : ({whole}) -> {types[1]}\n  return %s : {types[1]} }}"
    )
    head, _, _ = program_text("?", types, [types[1]]).partition("?")
    yield OperationCase(operation, element, "of two values", head + text, inputs)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# Operations whose shapes are operands; their results have static types here, as all results of programs.


def _dynamic_case(
    operation: str, element: ElementType, name: str, text: str, inputs: Sequence[Array], shape: Shape
) -> OperationCase:
    types, outer = [type_of(each) for each in inputs], tensor(shape, element)
    program = program_text(f"{text} : ({', '.join(types)}) -> {outer}", types, [outer])
    return OperationCase(operation, element, name, program, tuple(inputs))


def _sizes(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@cases("dynamic_broadcast_in_dim", EVERY)
def _dynamic_broadcast(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3,)), _sizes(2, 3)
    yield _dynamic_case(operation, element, "of a vector", f"{operation} %x, %y, dims = [1]", inputs, (2, 3))


@cases("dynamic_iota", NUMBERS)
def _dynamic_iota(operation: str, element: ElementType) -> Iterator[OperationCase]:
    yield _dynamic_case(operation, element, "of columns", f"{operation} %x, dim = 1", [_sizes(2, 3)], (2, 3))


@cases("dynamic_pad", EVERY)
def _dynamic_pad(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3,)), values.ordinary(element, (), seed=3), _sizes(1), _sizes(-1), _sizes(1)
    yield _dynamic_case(operation, element, "of a vector", f"{operation} %x, %y, %z, %u, %v", inputs, (5,))


@cases("dynamic_reshape", EVERY)
def _dynamic_reshape(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (2, 3)), _sizes(3, 2)
    yield _dynamic_case(operation, element, "of a matrix", f"{operation} %x, %y", inputs, (3, 2))


@cases("real_dynamic_slice", EVERY)
def _real_dynamic_slice(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (7,)), _sizes(1), _sizes(6), _sizes(2)
    yield _dynamic_case(operation, element, "with strides", f"{operation} %x, %y, %z, %u", inputs, (3,))


@cases("dynamic_gather", EVERY)
def _dynamic_gather(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3, 4)), np.array([[2], [0]], np.int32), _sizes(1, 4)
    numbers = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
    text = f'"{operation}"(%x, %y, %z) <{{dimension_numbers = #stablehlo.gather<{numbers}>}}>'
    yield _dynamic_case(operation, element, "of rows", text, inputs, (2, 4))


# Gather and scatter: indices in range, at the edges, and past the ends.

_INDEX_TYPES = (np.int8, np.int64, np.uint8, np.uint32, np.uint64)


def _extreme_indices(element: ElementType) -> Iterator[tuple[Any, ...]]:
    """Return three indices of each type that indices may have, after a name: the greatest, the first one that is
    negative with a sign, and 1. One element type is enough.
    """
    for index in _INDEX_TYPES if element is ElementType.F32 else ():
        limits = np.iinfo(index)
        middle = index(limits.max // 2 + 1)
        yield f"with extreme indices of {ElementType.of(np.dtype(index)).mlir}", index(limits.max), middle, index(1)


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
    for name, *rows in _extreme_indices(element):
        indices = np.array(rows).reshape(-1, 1)
        yield _gathered(operation, element, name, numbers, (1, 4), [array, indices], (len(rows), 4))
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
    for name, *rows in _extreme_indices(element):
        updates = values.exact(element, (len(rows), 4), seed=1)
        yield _added(operation, element, name, numbers, (array, np.array(rows).reshape(-1, 1), updates))


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
