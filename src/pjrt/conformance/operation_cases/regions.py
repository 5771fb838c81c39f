"""Cases of operations with regions: reductions, windows, sorts, branches, loops and calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance import values
from pjrt.conformance.operation_table import (
    EXACT,
    FUNCTION,
    ROUNDED,
    Accuracy,
    Array,
    OperationCase,
    cases,
    program_text,
    tensor,
    type_of,
)
from pjrt.conformance.values import BOOLEANS, EVERY, FLOATS, INTEGERS, NUMBERS

_ORDERED = BOOLEANS + INTEGERS + FLOATS
_REDUCERS: dict[str, tuple[ElementType, ...]] = {
    "add": NUMBERS,
    "multiply": NUMBERS,
    "maximum": _ORDERED,
    "minimum": _ORDERED,
    "and": BOOLEANS + INTEGERS,
    "or": BOOLEANS + INTEGERS,
}


def _neutral(reducer: str, element: ElementType) -> Array:
    """Return the element that a reducer starts from."""
    if reducer in ("add", "or"):
        return np.zeros((), element.dtype)
    if reducer == "multiply":
        return np.ones((), element.dtype)
    if reducer == "and":
        return np.array(True) if element is ElementType.PRED else (~np.zeros((1,), np.int64)).astype(element.dtype)[0]
    numbers = values.edges(element)
    if element.is_floating:
        wide = numbers.astype(np.float64)
        numbers = numbers[~np.isnan(wide)]
    order = np.argsort(numbers.astype(np.float64) if element.is_floating else numbers)
    return np.array(numbers[order[0 if reducer == "maximum" else -1]])


def _reducers(element: ElementType) -> Iterator[str]:
    return (name for name, types in _REDUCERS.items() if element in types)


def region(reducer: str, element: ElementType) -> str:
    """Return a region that combines two elements, on one line."""
    type_ = tensor((), element)
    return (
        f"({{ ^bb0(%a: {type_}, %b: {type_}): %s = stablehlo.{reducer} %a, %b : {type_} "
        f'"stablehlo.return"(%s) : ({type_}) -> () }})'
    )


@cases("reduce", BOOLEANS + NUMBERS)
def _reduce(operation: str, element: ElementType) -> Iterator[OperationCase]:
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "of rows": ((3, 5), (1,)),
        "of columns": ((3, 5), (0,)),
        "of everything": ((3, 5), (0, 1)),
        "of two dimensions of three": ((2, 3, 4), (0, 2)),
        "of nothing": ((3, 0), (1,)),
        "with an empty result": ((3, 0), (0,)),
    }
    for reducer in _reducers(element):
        for name, (shape, dimensions) in shapes.items():
            inputs = values.exact(element, shape), np.asarray(_neutral(reducer, element))
            yield _reduction(operation, element, f"{reducer} {name}", reducer, inputs, dimensions)
        inputs = _edge_pairs(element), np.asarray(_neutral(reducer, element))
        case = _reduction(operation, element, f"{reducer} of edge values", reducer, inputs, (0,))
        yield replace(case, accuracy=_accuracy(reducer, element))


def _edge_pairs(element: ElementType) -> Array:
    """Return columns of two edge values: equal ones, and others that are far apart."""
    edges = values.edges(element)
    return np.stack([np.concatenate([edges, edges]), np.concatenate([edges, edges[::-1]])])


def _accuracy(reducer: str, element: ElementType) -> Accuracy:
    """Return how near the combinations of two edge values must be."""
    if reducer not in ("add", "multiply"):
        return EXACT
    return FUNCTION if element.is_complex else ROUNDED


def _reduction(
    operation: str,
    element: ElementType,
    name: str,
    reducer: str,
    inputs: Sequence[Array],
    dimensions: Sequence[int],
) -> OperationCase:
    types = [type_of(each) for each in inputs]
    kept = tuple(size for number, size in enumerate(inputs[0].shape) if number not in dimensions)
    outer = tensor(kept, element)
    text = (
        f"{operation}(%x init: %y) applies stablehlo.{reducer} across dimensions = [{', '.join(map(str, dimensions))}]"
        f" : ({', '.join(types)}) -> {outer}"
    )
    return OperationCase(operation, element, name, program_text(text, types, [outer]), tuple(inputs))


@cases("map", BOOLEANS + NUMBERS)
def _map(operation: str, element: ElementType) -> Iterator[OperationCase]:
    reducer = next(_reducers(element))
    for name, shape in (("of a matrix", (3, 5)), ("empty", (0, 2))):
        inputs = values.exact(element, shape), values.exact(element, shape, seed=1)
        types = [type_of(each) for each in inputs]
        text = (
            f'"{operation}"(%x, %y) <{{dimensions = array<i64: 0, 1>}}> {region(reducer, element)} '
            f": ({', '.join(types)}) -> {types[0]}"
        )
        yield OperationCase(operation, element, name, program_text(text, types, [types[0]]), inputs)


@cases("reduce_window", BOOLEANS + NUMBERS)
def _reduce_window(operation: str, element: ElementType) -> Iterator[OperationCase]:
    windows: dict[str, tuple[str, tuple[int, ...]]] = {
        "of neighbours": ("window_dimensions = array<i64: 2, 3>", (3, 3)),
        "with strides": ("window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 1>", (2, 4)),
        "with padding": (
            "window_dimensions = array<i64: 2, 2>, padding = dense<[[1, 0], [0, 2]]> : tensor<2x2xi64>",
            (4, 6),
        ),
        "with dilation": ("window_dimensions = array<i64: 2, 2>, window_dilations = array<i64: 2, 3>", (2, 2)),
    }
    for reducer in _reducers(element):
        for name, (attributes, shape) in windows.items():
            inputs = values.exact(element, (4, 5)), np.asarray(_neutral(reducer, element))
            types, outer = [type_of(each) for each in inputs], tensor(shape, element)
            text = f'"{operation}"(%x, %y) <{{{attributes}}}> {region(reducer, element)}'
            text += f" : ({', '.join(types)}) -> {outer}"
            program = program_text(text, types, [outer])
            yield OperationCase(operation, element, f"{reducer} {name}", program, inputs)
        inputs = _edge_pairs(element), np.asarray(_neutral(reducer, element))
        types, outer = [type_of(each) for each in inputs], tensor((1, inputs[0].shape[1]), element)
        text = f'"{operation}"(%x, %y) <{{window_dimensions = array<i64: 2, 1>}}> {region(reducer, element)}'
        program = program_text(f"{text} : ({', '.join(types)}) -> {outer}", types, [outer])
        accuracy = _accuracy(reducer, element)
        yield OperationCase(operation, element, f"{reducer} of edge values", program, inputs, accuracy)


@cases("select_and_scatter", INTEGERS + FLOATS)
def _select_and_scatter(operation: str, element: ElementType) -> Iterator[OperationCase]:
    type_ = tensor((), element)
    greater = (
        f"({{ ^bb0(%a: {type_}, %b: {type_}): %s = stablehlo.compare GE, %a, %b : ({type_}, {type_}) -> tensor<i1> "
        f'"stablehlo.return"(%s) : (tensor<i1>) -> () }}, {region("add", element)[1:]}'
    )
    inputs = values.exact(element, (4, 6)), values.exact(element, (2, 3), seed=1), np.zeros((), element.dtype)
    types = [type_of(each) for each in inputs]
    text = (
        f'"{operation}"(%x, %y, %z) <{{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>}}> '
        f"{greater} : ({', '.join(types)}) -> {types[0]}"
    )
    yield OperationCase(operation, element, "of maxima", program_text(text, types, [types[0]]), inputs)


@cases("sort", BOOLEANS + INTEGERS + FLOATS)
def _sort(operation: str, element: ElementType) -> Iterator[OperationCase]:
    type_ = tensor((), element)
    order = ", TOTALORDER" if element.is_floating else ""
    compare = (
        f"%s = stablehlo.compare LT, %a, %b{order} : ({type_}, {type_}) -> tensor<i1> "
        '"stablehlo.return"(%s) : (tensor<i1>) -> ()'
    )
    numbers = values.edges(element)
    shuffled = numbers[np.random.default_rng(0).permutation(numbers.size)]
    for name, array, dimension in (
        ("edge values", shuffled, 0),
        ("of columns", values.ordinary(element, (5, 3)), 0),
        ("of rows", values.ordinary(element, (3, 5)), 1),
        ("empty", shuffled[:0], 0),
    ):
        outer = type_of(array)
        text = f'"{operation}"(%x) <{{dimension = {dimension} : i64, is_stable = true}}> ({{ '
        text += f"^bb0(%a: {type_}, %b: {type_}): {compare} }}) : ({outer}) -> {outer}"
        yield OperationCase(operation, element, name, program_text(text, [outer], [outer]), (array,))
    keys, numbers = values.exact(element, (9,)), np.arange(9, dtype=np.int32)
    types = [type_of(keys), type_of(numbers)]
    text = f'"{operation}"(%x, %y) <{{dimension = 0 : i64, is_stable = true}}> ({{ ^bb0(%a: {type_}, %b: {type_}, '
    text += f"%c: tensor<i32>, %d: tensor<i32>): {compare} }}) : ({', '.join(types)}) -> ({', '.join(types)})"
    yield OperationCase(operation, element, "of pairs, stable", program_text(text, types, types), (keys, numbers))


@cases("chlo.top_k", INTEGERS + FLOATS)
def _top_k(operation: str, element: ElementType) -> Iterator[OperationCase]:
    edges = values.edges(element)
    numbers = np.concatenate([edges, edges])[np.random.default_rng(0).permutation(2 * edges.size)]
    for name, array, k in (
        ("of rows", values.ordinary(element, (3, 7)), 2),
        ("of edge values", numbers, numbers.size),
        ("of equal elements", values.exact(element, (2, 9)), 4),
        ("of none", values.ordinary(element, (3,)), 0),
    ):
        shape = (*array.shape[:-1], k)
        results = [tensor(shape, element), tensor(shape, ElementType.S32)]
        text = f"{operation}(%x, k = {k}) : {type_of(array)} -> ({', '.join(results)})"
        yield OperationCase(operation, element, name, program_text(text, [type_of(array)], results), (array,))


# Control flow: branches, loops, and functions that pass values on.


@cases("if", [ElementType.PRED])
def _if(operation: str, element: ElementType) -> Iterator[OperationCase]:
    numbers = values.ordinary(ElementType.F32, (3,)), values.ordinary(ElementType.F32, (3,), seed=1)
    for condition in (True, False):
        inputs = np.array(condition), *numbers
        types = [type_of(each) for each in inputs]
        text = (
            f'"{operation}"(%x) ({{ "stablehlo.return"(%y) : ({types[1]}) -> () }}, '
            f'{{ "stablehlo.return"(%z) : ({types[1]}) -> () }}) : ({types[0]}) -> {types[1]}'
        )
        program = program_text(text, types, [types[1]])
        yield OperationCase(operation, element, f"where {str(condition).lower()}", program, inputs)


@cases("case", [ElementType.S32])
def _case(operation: str, element: ElementType) -> Iterator[OperationCase]:
    numbers = values.ordinary(ElementType.F32, (3,)), values.ordinary(ElementType.F32, (3,), seed=1)
    for index in (0, 1, 2, -1):  # indices past the ends take the last branch
        inputs = np.array(index, np.int32), *numbers
        types = [type_of(each) for each in inputs]
        text = (
            f'"{operation}"(%x) ({{ "stablehlo.return"(%y) : ({types[1]}) -> () }}, '
            f'{{ "stablehlo.return"(%z) : ({types[1]}) -> () }}) : ({types[0]}) -> {types[1]}'
        )
        program = program_text(text, types, [types[1]])
        yield OperationCase(operation, element, f"of index {index}", program, inputs)


@cases("while", EVERY)
def _while(operation: str, element: ElementType) -> Iterator[OperationCase]:
    """Make loops that swap two values: twice for an odd number of runs tells a loop that runs once too often."""
    for name, runs in (("three times", 3), ("not once", 0)):
        inputs = np.array(0, np.int32), np.array(runs, np.int32), np.array(1, np.int32)
        carried = values.mixed(element, (3,)), values.ordinary(element, (3,), seed=2)
        types = ["tensor<i32>", "tensor<i32>", "tensor<i32>", *map(type_of, carried)]
        formal = ", ".join(f"%{each}: {type_}" for each, type_ in zip("abcde", types, strict=True))
        joined = ", ".join(types)
        text = (
            f'"{operation}"(%x, %y, %z, %u, %v) ({{ ^bb0({formal}): %s = stablehlo.compare LT, %a, %b : '
            '(tensor<i32>, tensor<i32>) -> tensor<i1> "stablehlo.return"(%s) : (tensor<i1>) -> () }, '
            f"{{ ^bb0({formal}): %s = stablehlo.add %a, %c : tensor<i32> "
            f'"stablehlo.return"(%s, %b, %c, %e, %d) : ({joined}) -> () }}) : ({joined}) -> ({joined})'
        )
        program = program_text(text, types, types)
        yield OperationCase(operation, element, name, program, (*inputs, *carried))


@cases("func.call", EVERY)
def _call(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = values.mixed(element, (3,)), values.mixed(element, (2, 2))
    types = [type_of(each) for each in inputs]
    joined = ", ".join(types)
    program = program_text(f"func.call @swap(%x, %y) : ({joined}) -> ({', '.join(types[::-1])})", types, types[::-1])
    callee = (
        f"func.func private @swap(%x: {types[0]}, %y: {types[1]}) -> ({', '.join(types[::-1])}) {{\n"
        f"  return %y, %x : {', '.join(types[::-1])} }}"
    )
    yield OperationCase(operation, element, "that swaps", f"{program}\n{callee}", inputs)
