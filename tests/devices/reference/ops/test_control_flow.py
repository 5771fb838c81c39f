"""Control flow: loops, branches, calls, captured values, tuples and tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pjrt.api.errors import InternalError, UnimplementedError
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.core.block import TOKEN

COLLATZ = """
func.func @main(%n: tensor<i64>) -> (tensor<i64>, tensor<i64>) {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %two = stablehlo.constant dense<2> : tensor<i64>
  %three = stablehlo.constant dense<3> : tensor<i64>
  %r:2 = stablehlo.while(%x = %n, %steps = %zero) : tensor<i64>, tensor<i64>
    cond {
      %p = stablehlo.compare NE, %x, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %odd = stablehlo.remainder %x, %two : tensor<i64>
      %is_odd = stablehlo.compare EQ, %odd, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %next = "stablehlo.if"(%is_odd) ({
        %t = stablehlo.multiply %x, %three : tensor<i64>
        %u = stablehlo.add %t, %one : tensor<i64>
        stablehlo.return %u : tensor<i64>
      }, {
        %h = stablehlo.divide %x, %two : tensor<i64>
        stablehlo.return %h : tensor<i64>
      }) : (tensor<i1>) -> tensor<i64>
      %more = func.call @increment(%steps) : (tensor<i64>) -> tensor<i64>
      stablehlo.return %next, %more : tensor<i64>, tensor<i64>
    }
  return %r#0, %r#1 : tensor<i64>, tensor<i64>
}
func.func private @increment(%x: tensor<i64>) -> tensor<i64> {
  %one = stablehlo.constant dense<1> : tensor<i64>
  %0 = stablehlo.add %x, %one : tensor<i64>
  return %0 : tensor<i64>
}
"""


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = 3 * n + 1 if n % 2 else n // 2, steps + 1
    return steps


@pytest.mark.parametrize("n", [1, 2, 7, 27])
def test_loops_branches_and_calls(run: Any, n: int) -> None:
    last, steps = run(COLLATZ, np.int64(n))
    assert (last, steps) == (1, collatz(n))
    assert isinstance(last, np.ndarray)
    assert last.shape == ()


def test_agrees_with_the_other_interpreter(run: Any, interpret: Any) -> None:
    assert run(COLLATZ, np.int64(97)) == interpret(COLLATZ, np.int64(97))


def test_a_loop_that_never_runs_gives_its_operands(run: Any) -> None:
    text = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %r = stablehlo.while(%v = %x) : tensor<3xf32>
        cond { %no = stablehlo.constant dense<false> : tensor<i1> stablehlo.return %no : tensor<i1> }
        do { stablehlo.return %v : tensor<3xf32> }
      return %r : tensor<3xf32> }"""
    x = np.arange(3, dtype=np.float32)
    (found,) = run(text, x)
    assert found.tolist() == [0, 1, 2]
    assert not np.shares_memory(found, x)


CASE = """func.func @main(%i: tensor<i32>, %x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %r:2 = "stablehlo.case"(%i) ({
    %a = stablehlo.add %x, %x : tensor<f32>
    stablehlo.return %a, %x : tensor<f32>, tensor<f32>
  }, {
    %b = stablehlo.multiply %x, %x : tensor<f32>
    stablehlo.return %b, %x : tensor<f32>, tensor<f32>
  }, {
    %c = stablehlo.negate %x : tensor<f32>
    stablehlo.return %c, %x : tensor<f32>, tensor<f32>
  }) : (tensor<i32>) -> (tensor<f32>, tensor<f32>)
  return %r#0, %r#1 : tensor<f32>, tensor<f32> }"""


@pytest.mark.parametrize(("index", "expected"), [(0, 6.0), (1, 9.0), (2, -3.0), (3, -3.0), (-1, -3.0)])
def test_case_takes_the_last_branch_when_out_of_range(run: Any, index: int, expected: float) -> None:
    assert run(CASE, np.int32(index), np.float32(3)) == [expected, 3.0]


def test_values_are_captured_through_two_regions(run: Any) -> None:
    text = """func.func @main(%p: tensor<i1>, %q: tensor<i1>, %x: tensor<2xf32>) -> tensor<2xf32> {
      %r = "stablehlo.if"(%p) ({
        %s = "stablehlo.if"(%q) ({
          %y = stablehlo.exponential %x : tensor<2xf32>
          stablehlo.return %y : tensor<2xf32>
        }, { stablehlo.return %x : tensor<2xf32> }) : (tensor<i1>) -> tensor<2xf32>
        stablehlo.return %s : tensor<2xf32>
      }, {
        %z = stablehlo.negate %x : tensor<2xf32>
        stablehlo.return %z : tensor<2xf32>
      }) : (tensor<i1>) -> tensor<2xf32>
      return %r : tensor<2xf32> }"""
    x = np.array([0, 1], np.float32)
    assert np.allclose(run(text, np.True_, np.True_, x)[0], np.exp(x))
    assert run(text, np.True_, np.False_, x)[0].tolist() == [0, 1]
    assert run(text, np.False_, np.True_, x)[0].tolist() == [0, -1]


def test_tuples_tokens_and_barriers(run: Any) -> None:
    text = """func.func @main(%x: tensor<2xf32>, %n: tensor<i32>, %t: !stablehlo.token)
        -> (tensor<2xf32>, tensor<i32>, !stablehlo.token) {
      %b:2 = stablehlo.optimization_barrier %x, %n : tensor<2xf32>, tensor<i32>
      %tuple = stablehlo.tuple %b#0, %b#1 : tuple<tensor<2xf32>, tensor<i32>>
      %x1 = stablehlo.get_tuple_element %tuple[0] : (tuple<tensor<2xf32>, tensor<i32>>) -> tensor<2xf32>
      %n1 = stablehlo.get_tuple_element %tuple[1] : (tuple<tensor<2xf32>, tensor<i32>>) -> tensor<i32>
      %t1 = stablehlo.create_token : !stablehlo.token
      %t2 = stablehlo.after_all %t, %t1 : !stablehlo.token
      return %x1, %n1, %t2 : tensor<2xf32>, tensor<i32>, !stablehlo.token }"""
    x, n, token = run(text, np.array([1, 2], np.float32), np.int32(5), None)
    assert (x.tolist(), int(n), token) == ([1, 2], 5, TOKEN)


def test_dimension_sizes_are_known_before_the_program_runs(run: Any) -> None:
    text = """func.func @main(%x: tensor<2x7xf32>) -> tensor<i32> {
      %0 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<2x7xf32>) -> tensor<i32>
      return %0 : tensor<i32> }"""
    (found,) = run(text, np.zeros((2, 7), np.float32))
    assert (found.dtype, int(found)) == (np.int32, 7)


def test_a_function_that_calls_itself_is_refused() -> None:
    text = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
      %0 = func.call @main(%x) : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32> }"""
    with pytest.raises(UnimplementedError, match=r"main calls itself.*\[-:2"):
        Evaluator(mlir.parse(text))


def test_an_error_in_a_kernel_names_its_step() -> None:
    """The innermost step is named, with the source location."""
    evaluator = Evaluator(mlir.parse(COLLATZ))
    block = evaluator.region.block

    def fail(*args: Any) -> Any:
        raise RuntimeError("the disk is on fire")

    code = list(block.code)
    code[-1] = (fail, *code[-1][1:])
    object.__setattr__(block, "code", tuple(code))
    with pytest.raises(InternalError, match=r"the disk is on fire.*in stablehlo.while.*\[-:7:"):
        evaluator.run([np.int64(3)])
