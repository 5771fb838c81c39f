"""Cases of control flow: branches, loops, and functions that pass values on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance import values
from pjrt.conformance.operation_case import OperationCase, program_text, type_of
from pjrt.conformance.operation_table import cases
from pjrt.conformance.values import EVERY


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
