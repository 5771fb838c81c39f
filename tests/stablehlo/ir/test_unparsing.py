"""Unparsing: text that parses to the same program."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt.api.element_type import ElementType
from pjrt.conformance.operation_table import cases_of, operations
from pjrt.stablehlo import ParsedProgram, parse, to_text, unparse
from pjrt.stablehlo.ir.operation import Block

TYPES = (
    ElementType.PRED,
    ElementType.S4,
    ElementType.S32,
    ElementType.U8,
    ElementType.BF16,
    ElementType.F32,
    ElementType.C64,
)


def shape_of(program: ParsedProgram) -> Any:
    """Return a program as values that are equal for equal programs; the names of values do not count."""
    numbers: dict[int, int] = {}

    def number(value: Any) -> tuple[int, Any]:
        return numbers.setdefault(id(value), len(numbers)), value.type

    def attribute(value: Any) -> Any:
        return (value.tobytes(), value.shape, str(value.dtype)) if isinstance(value, np.ndarray) else value

    def block(each: Block) -> Iterator[Any]:
        yield list(map(number, each.arguments))
        for operation in each.operations:
            yield operation.name, list(map(number, operation.operands)), list(map(number, operation.results))
            yield {name: attribute(value) for name, value in operation.attributes.items()}
            yield str(operation.location), [list(block(region)) for region in operation.regions]

    return [
        (function.name, function.type, function.is_public, [] if function.body is None else list(block(function.body)))
        for function in program.functions.values()
    ]


@pytest.mark.parametrize("operation", operations())
def test_every_operation_comes_back(operation: str) -> None:
    for element in (ElementType.F32, ElementType.S32, ElementType.PRED, ElementType.C64):
        for case in islice(cases_of(operation, element), 1):
            program = parse(case.program, trusted=True)
            text = unparse(program)
            assert repr(shape_of(parse(text, trusted=True))) == repr(shape_of(program)), text


PROGRAMS = {
    "calls": """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @"half of it"(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("outer"("a.py":3:1))
  return %0 : tensor<4xf32>
}
func.func private @"half of it"(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @"say \\"hi\\""(%x) {api_version = 4 : i32, backend_config = {by = 2 : i64},
    operand_layouts = [dense<0> : tensor<1xindex>], result_layouts = [dense<0> : tensor<1xindex>]}
    : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}""",
    "collectives": """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}""",
    "quantized": """
func.func @main(%x: tensor<2x!quant.uniform<i8:f32:0, {0.5:3, 0.25}>>) -> tensor<2x!quant.uniform<i8:f32, 0.5:3>> {
  %0 = stablehlo.uniform_quantize %x
    : (tensor<2x!quant.uniform<i8:f32:0, {0.5:3, 0.25}>>) -> tensor<2x!quant.uniform<i8:f32, 0.5:3>>
  return %0 : tensor<2x!quant.uniform<i8:f32, 0.5:3>>
}""",
    "shapes": """
func.func @main(%x: tensor<?x3xf32, #stablehlo.bounds<4, ?>>) -> tensor<?x3xf32, #stablehlo.bounds<4, ?>> {
  %0 = stablehlo.exponential %x : tensor<?x3xf32, #stablehlo.bounds<4, ?>>
  return %0 : tensor<?x3xf32, #stablehlo.bounds<4, ?>>
}""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_other_parts_of_programs_come_back(name: str) -> None:
    program = parse(PROGRAMS[name], trusted=True)
    text = unparse(program)
    assert repr(shape_of(parse(text, trusted=True))) == repr(shape_of(program)), text


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(list(TYPES)), st.lists(st.integers(0, 3), max_size=3), st.data())
def test_constants_come_back_bit_by_bit(element: ElementType, shape: list[int], data: st.DataObject) -> None:
    size = int(np.prod(shape))
    values = data.draw(st.binary(min_size=size * 8, max_size=size * 8))
    array = np.frombuffer(values, np.uint8)[: size * element.dtype.itemsize]
    array = array % 2 if element is ElementType.PRED else array % 8 if element is ElementType.S4 else array
    constant = array.astype(np.uint8).view(element.dtype).reshape(shape)
    dims = "".join(f"{size}x" for size in shape)
    text = f"func.func @main() -> tensor<{dims}{element.mlir}> {{ %0 = stablehlo.iota dim = 0 : tensor<1xf32>\n"
    empty = parse(
        text + f'%1 = "stablehlo.constant"() <{{value = dense<{zero(element)}> : tensor<{dims}{element.mlir}>}}>'
        f" : () -> tensor<{dims}{element.mlir}> return %1 : tensor<{dims}{element.mlir}> }}",
        trusted=True,
    )
    operation = next(each for each in empty.walk() if each.name == "stablehlo.constant")
    operation.attributes = {"value": constant}
    again = next(each for each in parse(unparse(empty), trusted=True).walk() if each.name == "stablehlo.constant")
    assert again.attribute("value").tobytes() == constant.tobytes()


def zero(element: ElementType) -> str:
    """Return zero as MLIR spells it."""
    return (
        "false"
        if element is ElementType.PRED
        else "(0.0, 0.0)"
        if element.is_complex
        else "0"
        if element.is_integer
        else "0.0"
    )


def test_shardings_and_meshes_are_left_out() -> None:
    text = """
    sdy.mesh @mesh = <["x"=1]>
    func.func @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xf32> {
      return %x : tensor<4xf32>
    }"""
    assert "sdy" not in unparse(parse(text, trusted=True))
    assert "sdy" in to_text(text)


def test_empty_lists_and_annotations() -> None:
    """JAX states both in the calls of a program that was partitioned."""
    program = """
    module {
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
        %0 = sdy.sharding_constraint %x <@mesh, [{}]> : tensor<4xf32>
        %1 = stablehlo.custom_call @f(%0) {api_version = 4 : i32, result_tilings = [], operand_tilings = []}
          : (tensor<4xf32>) -> tensor<4xf32>
        return %1 : tensor<4xf32>
      }
    }"""
    text = unparse(parse(program, trusted=True))
    assert "sdy." not in text
    call = parse(text, trusted=True).entry.body.operations[0]
    assert call.name == "stablehlo.custom_call"
