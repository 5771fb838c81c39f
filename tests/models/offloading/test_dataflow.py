"""Data flow: which operations are equal, which cost nothing, and in which order they stand."""

from __future__ import annotations

from pjrt.models.offloading.stages import Dataflow
from pjrt.stablehlo import Function, parse, read


def main(text: str) -> Function:
    return parse(read(f"module {{ {text} }}"), trusted=True).entry


def names(flow: Dataflow) -> list[str]:
    return [node.operation.name.removeprefix("stablehlo.") for node in flow.nodes]


def test_operations_on_weights_stand_before_their_first_use() -> None:
    function = main("""
    func.func @main(%x: tensor<2xf32>, %v: tensor<2xbf16>, %w: tensor<2xbf16>) -> tensor<2xf32> {
      %a = stablehlo.convert %v : (tensor<2xbf16>) -> tensor<2xf32>
      %b = stablehlo.convert %w : (tensor<2xbf16>) -> tensor<2xf32>
      %c = stablehlo.negate %b : tensor<2xf32>
      %d = stablehlo.add %x, %a : tensor<2xf32>
      %e = stablehlo.tanh %d : tensor<2xf32>
      %f = stablehlo.multiply %e, %c : tensor<2xf32>
      return %f : tensor<2xf32>
    }""")
    flow = Dataflow(function, frozenset({1, 2}))
    assert names(flow) == ["convert", "add", "tanh", "convert", "negate", "multiply"]
    assert flow.last_use[function.arguments[2]] == 3
    assert flow.last_use[flow.results[0]] == 6


def test_values_of_constants_alone_are_free_and_unused_ones_are_left_out() -> None:
    function = main("""
    func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
      %c = stablehlo.constant dense<1.0> : tensor<f32>
      %b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %unused = stablehlo.tanh %x : tensor<2xf32>
      %y = stablehlo.add %x, %b : tensor<2xf32>
      return %y, %b, %x : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
    }""")
    flow = Dataflow(function, frozenset())
    assert names(flow) == ["add"]
    assert flow.nodes[0].inputs == function.arguments
    assert flow.unmade_results == (flow.results[1], function.arguments[0])
    assert [flow.is_free(value) for value in flow.unmade_results] == [True, False]


def test_forms_tell_operations_apart_by_all_but_their_values() -> None:
    function = main("""
    func.func @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
      %one = stablehlo.constant dense<1.0> : tensor<2x2xf32>
      %two = stablehlo.constant dense<2.0> : tensor<2x2xf32>
      %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %2 = stablehlo.transpose %1, dims = [0, 1] : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %3 = stablehlo.add %2, %one : tensor<2x2xf32>
      %4 = stablehlo.add %3, %one : tensor<2x2xf32>
      %5 = stablehlo.add %4, %two : tensor<2x2xf32>
      %6 = stablehlo.add %5, %5 : tensor<2x2xf32>
      %7 = stablehlo.add %6, %5 : tensor<2x2xf32>
      return %7 : tensor<2x2xf32>
    }""")
    forms = [node.form for node in Dataflow(function, frozenset()).nodes]
    first = [forms.index(form) for form in forms]
    assert first == [0, 0, 2, 3, 3, 5, 6, 7]
