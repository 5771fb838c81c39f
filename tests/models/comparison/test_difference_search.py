"""The search for the first operation that differs: in loops, branches and calls, in random programs, within limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from wrong_device import CHAIN, WrongClient, X, at, find

import pjrt
from pjrt.models import Cause, SearchLimits

NESTED = """
module {
  func.func @main(%x: tensor<3xf32>, %n: tensor<i32>, %p: tensor<i1>) -> tensor<3xf32> {
    %half = stablehlo.constant dense<0.5> : tensor<3xf32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %y = stablehlo.tanh %x : tensor<3xf32> loc("before")
    %r:2 = stablehlo.while(%i = %zero, %s = %y) : tensor<i32>, tensor<3xf32>
      cond { %less = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %less : tensor<i1> }
      do { %a = stablehlo.add %s, %half : tensor<3xf32> loc("in loop")
           %b = func.call @double(%a) : (tensor<3xf32>) -> tensor<3xf32>
           %next = stablehlo.add %i, %one : tensor<i32>
           stablehlo.return %next, %b : tensor<i32>, tensor<3xf32> }
    %z = "stablehlo.if"(%p) ({
      %t = stablehlo.negate %r#1 : tensor<3xf32> loc("in branch")
      stablehlo.return %t : tensor<3xf32>
    }, {
      %t = stablehlo.abs %x : tensor<3xf32> loc("in other branch")
      stablehlo.return %t : tensor<3xf32>
    }) : (tensor<i1>) -> tensor<3xf32>
    %k = stablehlo.composite "my.twice" %z {decomposition = @twice} : (tensor<3xf32>) -> tensor<3xf32>
    return %k : tensor<3xf32>
  }
  func.func private @double(%a: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.add %a, %a : tensor<3xf32> loc("in call")
    return %0 : tensor<3xf32>
  }
  func.func private @twice(%a: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.add %a, %a : tensor<3xf32> loc("in composite")
    return %0 : tensor<3xf32>
  }
}
"""
NESTED_INPUTS = X, np.int32(5), np.bool_(True)


@pytest.mark.parametrize(
    ("place", "function", "path"),
    [
        ("before", "main", []),
        ("in loop", "main", ["iteration 1 of 5 of stablehlo.while"]),
        ("in call", "double", ["iteration 1 of 5 of stablehlo.while", "func.call of double"]),
        ("in branch", "main", ["branch 0 of stablehlo.if"]),
        ("in composite", "twice", ["stablehlo.composite of twice"]),
    ],
)
def test_operations_inside_of_others_are_found(place: str, function: str, path: list[str]) -> None:
    first = find(NESTED, at(place, lambda values: values + 1), *NESTED_INPUTS)
    assert (first.cause, first.location, first.function) == (Cause.OPERATION, place, function)
    assert [step.partition(" at ")[0] for step in first.path] == path


ZEROS = {
    "maximum": '%m = stablehlo.maximum %y, %z : tensor<4x{0}> loc("zero")',
    "minimum": '%m = stablehlo.minimum %y, %z : tensor<4x{0}> loc("zero")',
    "clamp": '%m = stablehlo.clamp %z, %y, %z : tensor<4x{0}> loc("zero")',
    "reduce": """
      %w = stablehlo.broadcast_in_dim %y, dims = [1] : (tensor<4x{0}>) -> tensor<2x4x{0}>
      %c = stablehlo.constant dense<0.0> : tensor<{0}>
      %m = stablehlo.reduce(%w init: %c) applies stablehlo.maximum across dimensions = [0]
        : (tensor<2x4x{0}>, tensor<{0}>) -> tensor<4x{0}> loc("zero")""",
    "select_and_scatter": """
      %c = stablehlo.constant dense<0.0> : tensor<{0}>
      %w = stablehlo.slice %y [0:2] : (tensor<4x{0}>) -> tensor<2x{0}>
      %m = "stablehlo.select_and_scatter"(%y, %w, %c) ({{
        ^bb0(%a: tensor<{0}>, %b: tensor<{0}>):
          %p = stablehlo.compare GE, %a, %b : (tensor<{0}>, tensor<{0}>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
      }}, {{
        ^bb0(%a: tensor<{0}>, %b: tensor<{0}>):
          %s = stablehlo.add %a, %b : tensor<{0}>
          stablehlo.return %s : tensor<{0}>
      }}) {{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}}
        : (tensor<4x{0}>, tensor<2x{0}>, tensor<{0}>) -> tensor<4x{0}> loc("zero")""",
}


def _with_other_zeros(values: Any) -> Any:
    return np.where(values == 0, -values, values)


def _divided_by_zeros(lines: str, kind: str) -> str:
    """Compute zeros, among other things, and divide by them."""
    return f"""
    func.func @main(%x: tensor<4x{kind}>) -> tensor<4x{kind}> {{
      %z = stablehlo.constant dense<0.0> : tensor<4x{kind}>
      %one = stablehlo.constant dense<1.0> : tensor<4x{kind}>
      %x1 = stablehlo.multiply %x, %one : tensor<4x{kind}>
      %y = stablehlo.multiply %x1, %z : tensor<4x{kind}>
      {lines.format(kind)}
      %n = stablehlo.multiply %m, %one : tensor<4x{kind}>
      %i = stablehlo.divide %one, %n : tensor<4x{kind}>
      return %i : tensor<4x{kind}>
    }}"""


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("operation", ZEROS)
def test_an_operation_that_gives_the_other_zero_is_found(operation: str, kind: str) -> None:
    """The zeros agree, and what is divided by them does not."""
    x = np.ones(4, pjrt.ElementType.from_mlir(kind).dtype)
    first = find(_divided_by_zeros(ZEROS[operation], kind), at("zero", _with_other_zeros), x)
    assert (first.cause, first.location, first.name) == (Cause.OPERATION, "zero", f"stablehlo.{operation}")
    assert first.results[0].difference.mismatches


def test_the_other_zero_is_found_inside_of_a_loop() -> None:
    loop = """
      %k = stablehlo.constant dense<0> : tensor<i32>
      %e = stablehlo.constant dense<2> : tensor<i32>
      %h = stablehlo.constant dense<1> : tensor<i32>
      %r:2 = stablehlo.while(%q = %k, %m0 = %y) : tensor<i32>, tensor<4x{0}>
        cond {{ %p = stablehlo.compare LT, %q, %e : (tensor<i32>, tensor<i32>) -> tensor<i1>
               stablehlo.return %p : tensor<i1> }}
        do {{ %t = stablehlo.maximum %m0, %z : tensor<4x{0}> loc("zero")
             %u = stablehlo.add %q, %h : tensor<i32>
             stablehlo.return %u, %t : tensor<i32>, tensor<4x{0}> }}
      %m = stablehlo.multiply %r#1, %one : tensor<4x{0}>"""
    first = find(_divided_by_zeros(loop, "f32"), at("zero", _with_other_zeros), np.ones(4, np.float32))
    assert (first.cause, first.location) == (Cause.OPERATION, "zero")
    assert first.path[0].startswith("iteration")


def test_zeros_of_another_sign_that_come_from_rounding() -> None:
    """No operation gives the other zero on the same inputs, so the search ends where it does without signs."""
    program = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %one = stablehlo.constant dense<1.0> : tensor<4xf32>
      %a = stablehlo.multiply %x, %one : tensor<4xf32> loc("small")
      %b = stablehlo.multiply %a, %x : tensor<4xf32>
      %i = stablehlo.divide %one, %b : tensor<4xf32>
      return %i : tensor<4xf32>
    }"""
    first = find(program, at("small", lambda values: -values), np.full(4, 1e-30, np.float32))
    assert (first.cause, first.name) == (Cause.ROUNDING, "stablehlo.divide")


def test_the_first_wrong_iteration_of_a_loop() -> None:
    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if "in loop" in step.location and inputs[0].max() > 10:
            outputs[0] += 1

    first = find(NESTED, spoil, X, np.int32(40), np.bool_(True))
    assert (first.cause, first.location) == (Cause.OPERATION, "in loop")
    # The largest element is 2 s + 1 of tanh(3): 0.995, 2.99, 6.98, 14.96: the fourth addition is the first above 10.
    assert first.path[0].startswith("iteration 4 of 40 of stablehlo.while")


def test_a_wrong_end_of_a_loop() -> None:
    program = """
    func.func @main(%x: tensor<2xi32>) -> tensor<2xi32> {
      %r = stablehlo.while(%s = %x) : tensor<2xi32>
        cond { %limit = stablehlo.constant dense<9> : tensor<2xi32>
               %less = stablehlo.compare LT, %s, %limit : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
               %first = stablehlo.slice %less [0:1] : (tensor<2xi1>) -> tensor<1xi1>
               %go = stablehlo.reshape %first : (tensor<1xi1>) -> tensor<i1>
               stablehlo.return %go : tensor<i1> }
        do { %n = stablehlo.add %s, %s : tensor<2xi32>
             stablehlo.return %n : tensor<2xi32> }
      return %r : tensor<2xi32>
    }"""
    first = find(program, at("compare", lambda values: values & False), np.array([1, 1], np.int32))
    assert (first.cause, first.name) == (Cause.OPERATION, "stablehlo.compare")
    assert first.path[0].startswith("the condition behind iteration 0 of stablehlo.while")


def test_an_operation_in_a_loop_that_the_device_does_not_compile() -> None:
    class Small(WrongClient):
        def compile(self, program: Any, *rest: Any, **options: Any) -> Any:
            if "in call" in pjrt.stablehlo.to_text(pjrt.stablehlo.read(program), locations=True, trusted=True):
                raise pjrt.UnimplementedError("no doubling here")
            return super().compile(program, *rest, **options)

    with Small(lambda *_: None) as client:
        first = pjrt.compare(NESTED, [client, "reference"], NESTED_INPUTS).first_difference
    assert first is not None
    assert (first.cause, first.location) == (Cause.FAILURE, "in call")
    assert len(first.path) == 2


def test_rounding_that_a_loop_amplifies() -> None:
    """The logistic map: each iteration doubles an error, on average."""
    program = """
    func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %one = stablehlo.constant dense<1.0> : tensor<3xf32>
      %four = stablehlo.constant dense<3.99> : tensor<3xf32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %step = stablehlo.constant dense<1> : tensor<i32>
      %many = stablehlo.constant dense<60> : tensor<i32>
      %r:2 = stablehlo.while(%i = %zero, %s = %x) : tensor<i32>, tensor<3xf32>
        cond { %less = stablehlo.compare LT, %i, %many : (tensor<i32>, tensor<i32>) -> tensor<i1>
               stablehlo.return %less : tensor<i1> }
        do { %a = stablehlo.subtract %one, %s : tensor<3xf32>
             %b = stablehlo.multiply %a, %s : tensor<3xf32> loc("rounds")
             %c = stablehlo.multiply %b, %four : tensor<3xf32>
             %next = stablehlo.add %i, %step : tensor<i32>
             stablehlo.return %next, %c : tensor<i32>, tensor<3xf32> }
      return %r#1 : tensor<3xf32>
    }"""
    start = np.array([0.1, 0.2, 0.3], np.float32)
    first = find(program, at("rounds", lambda values: values * np.float32(1 + 1e-6)), start)
    assert (first.cause, first.name) == (Cause.ROUNDING, "stablehlo.while")
    (step,) = first.path
    assert "of 60 of stablehlo.while" in step
    assert all(value.difference.agrees for value in first.inputs)
    assert not all(value.difference.agrees for value in first.results)
    assert first.suspects[0].location == "rounds"


@pytest.mark.parametrize(("index", "branch"), [(0, 0), (1, 1), (7, 1), (-1, 1)])
def test_the_branch_of_a_case_that_was_taken(index: int, branch: int) -> None:
    program = """
    func.func @main(%x: tensor<3xf32>, %i: tensor<i32>) -> tensor<3xf32> {
      %0 = "stablehlo.case"(%i) ({
        %t = stablehlo.negate %x : tensor<3xf32> loc("branch 0")
        stablehlo.return %t : tensor<3xf32>
      }, {
        %t = stablehlo.abs %x : tensor<3xf32> loc("branch 1")
        stablehlo.return %t : tensor<3xf32>
      }) : (tensor<i32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>
    }"""
    first = find(program, at("branch", lambda values: values + 1), X, np.int32(index))
    assert (first.cause, first.location) == (Cause.OPERATION, f"branch {branch}")
    assert first.path[0].startswith(f"branch {branch} of stablehlo.case")


def test_a_search_without_end_is_stopped() -> None:
    first = find(CHAIN, at("tanh", lambda values: values + 1), limits=SearchLimits(compilations=2))
    assert first.cause is Cause.UNKNOWN
    assert "the search ended at its limit" in first.notes[-1]
    assert "stablehlo.tanh" in first.operation
    assert first.compilations <= 3
    with pytest.raises(pjrt.InvalidArgumentError, match="no case to save"):
        first.save_case("nowhere")


def test_a_cut_that_fails_is_left_out_with_a_note() -> None:
    class Picky(WrongClient):
        def compile(self, program: Any, *rest: Any, **options: Any) -> Any:
            code = pjrt.Program.of(program).code
            if b"tanh" in code and b"cosine" not in code:
                raise pjrt.UnimplementedError("no tanh without a cosine")
            return super().compile(program, *rest, **options)

    with Picky(at("multiply", lambda values: values + 1)) as client:
        first = pjrt.compare(CHAIN, [client, "reference"], [X, X]).first_difference
    assert first is not None
    assert (first.cause, first.name) == (Cause.OPERATION, "stablehlo.multiply")


_UNARY = ["tanh", "negate", "abs", "cosine"]
_BINARY = ["add", "subtract", "multiply", "maximum"]


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, int]:
    """A program of elementwise operations and calls, and the number of its operations."""
    count = draw(st.integers(1, 10))
    lines, values = [], ["%x", "%y"]
    for number in range(count):
        name = draw(st.sampled_from([*_UNARY, *_BINARY, "call"]))
        operands = [draw(st.sampled_from(values)) for _ in range(2 if name in _BINARY else 1)]
        if name == "call":
            lines.append(f'%{number} = func.call @f(%y) : (tensor<4xf32>) -> tensor<4xf32> loc("op {number}.")')
        else:
            lines.append(f'%{number} = stablehlo.{name} {", ".join(operands)} : tensor<4xf32> loc("op {number}.")')
        values.append(f"%{number}")
    chosen = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3))
    types = ", ".join(["tensor<4xf32>"] * len(chosen))
    body = "\n".join(lines)
    text = f"""
    module {{
      func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> ({types}) {{
        {body}
        return {", ".join(chosen)} : {types}
      }}
      func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {{
        %0 = stablehlo.sine %a : tensor<4xf32> loc("op {count}.")
        return %0 : tensor<4xf32>
      }}
    }}"""
    return text, count


@pytest.mark.full
@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.filter_too_much])
@given(programs(), st.data())
def test_of_random_programs_the_one_wrong_operation_is_named(program: tuple[str, int], data: st.DataObject) -> None:
    text, count = program
    place = f"op {data.draw(st.integers(0, count))}."
    with WrongClient(at(place, lambda values: values + np.float32(0.25))) as client, pjrt.client("reference") as right:
        comparison = pjrt.compare(text, [client, right])
    assume(not comparison.agrees)  # the operation may not be used, or its fault may vanish
    first = comparison.first_difference
    assert first is not None
    assert (first.cause, first.location) == (Cause.OPERATION, place)


def test_results_that_nothing_uses_do_not_count() -> None:
    program = """
    func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0:2 = func.call @both(%x) : (tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
      %1 = stablehlo.sine %0#1 : tensor<3xf32> loc("wrong")
      return %1 : tensor<3xf32>
    }
    func.func private @both(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
      %0 = stablehlo.cosine %x : tensor<3xf32> loc("work space")
      %1 = stablehlo.tanh %x : tensor<3xf32>
      return %0, %1 : tensor<3xf32>, tensor<3xf32>
    }"""

    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if step.location in ("work space", "wrong"):
            outputs[0] += 1

    assert find(program, spoil, X).location == "wrong"
    first = find(program.replace('loc("wrong")', ""), at("tanh", lambda values: values + 1), X)
    assert first.name == "stablehlo.tanh"
