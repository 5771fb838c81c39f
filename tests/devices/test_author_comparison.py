"""An author's code is compared with the interpreter, operation by operation, while a program runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anydevice.simulated_memory import SimulatedMemory

import pjrt

PROGRAM = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<3xf32>
  %0 = stablehlo.add %x, %one : tensor<3xf32> loc("model.py":4:1)
  %1 = stablehlo.tanh %0 : tensor<3xf32> loc("model.py":5:1)
  %2 = stablehlo.add %1, %1 : tensor<3xf32> loc("model.py":6:1)
  return %2 : tensor<3xf32>
}
"""
X = np.array([-1, 0, 2], np.float32)


def add(_: Any, x: Any, y: Any) -> Any:
    return x + y


def wrong_tanh(_: Any, x: Any) -> Any:
    return np.tanh(x) + np.float32(0.01)


def run(**options: Any) -> Any:
    with pjrt.StableHloClient("mychip", compare_with_reference=True, fallback="reference", **options) as client:
        return np.asarray(client.compile(PROGRAM)(X)[0])


def test_the_first_operation_that_differs_is_named_with_its_line_and_values() -> None:
    with pytest.raises(pjrt.InternalError) as caught:
        run(kernels={"stablehlo.tanh": wrong_tanh, "stablehlo.add": add})
    message = caught.value.message
    assert "made by mychip in stablehlo.tanh" in message
    assert "model.py:5" in message
    assert "3 of 3 elements differ; max error 0.01 absolute" in message
    assert "its inputs were float32[3] [0. 1. 3.]" in message


def test_right_kernels_run_to_the_end() -> None:
    result = run(kernels={"stablehlo.tanh": lambda _, x: np.tanh(x), "stablehlo.add": add})
    np.testing.assert_allclose(result, 2 * np.tanh(X + 1), rtol=1e-6)


def test_a_kernel_that_declines_is_not_compared() -> None:
    run(kernels={"stablehlo.tanh": lambda _, x: NotImplemented})


def test_the_tolerance_can_be_chosen() -> None:
    kernels = {"stablehlo.tanh": wrong_tanh}
    tolerance = pjrt.models.Tolerance(0.0, 0.1)
    with pjrt.StableHloClient("mychip", kernels=kernels, fallback="reference", compare_with_reference=tolerance) as c:
        np.testing.assert_allclose(np.asarray(c.compile(PROGRAM)(X)[0]), 2 * np.tanh(X + 1), atol=0.05)


def test_compiled_operations_are_compared_with_constants_inside() -> None:
    def compile(program: pjrt.stablehlo.ParsedProgram, _: Any) -> Any:
        (*constants, operation, _end) = program.entry.body.operations
        kernel = np.tanh if operation.name == "stablehlo.tanh" else lambda x, y: x + y + np.float32(1)

        def run_one(*arrays: Any) -> Any:
            values = dict(zip(program.entry.arguments, arrays, strict=True))
            values |= {each.results[0]: each.attribute("value") for each in constants}
            return kernel(*(values[each] for each in operation.operands))

        return run_one

    with pytest.raises(pjrt.InternalError, match=r"mychip in stablehlo\.add .*model.py:4"):
        run(compile=compile)


def test_kernels_on_memory_of_their_own_are_compared() -> None:
    memory = SimulatedMemory()

    def tanh(operation: Any, x: int) -> int:
        result = wrong_tanh(operation, memory.read(x))
        handle = memory.allocate(pjrt.ShapeSpec.of(result), None)  # type: ignore[arg-type]
        memory.copy_in(handle, result)
        return handle

    with pytest.raises(pjrt.InternalError, match=r"mychip in stablehlo\.tanh .*model.py:5"):
        run(kernels={"stablehlo.tanh": tanh}, memory=memory)


def test_operations_in_loops_and_reductions_are_compared() -> None:
    program = """
func.func @main(%x: tensor<2x3xf32>, %zero: tensor<f32>) -> tensor<2xf32> {
  %n = stablehlo.constant dense<2> : tensor<i32>
  %i0 = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %i0, %v = %x) : tensor<i32>, tensor<2x3xf32>
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %w = stablehlo.add %v, %v : tensor<2x3xf32>
      stablehlo.return %j, %w : tensor<i32>, tensor<2x3xf32>
    }
  %s = stablehlo.reduce(%r#1 init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  return %s : tensor<2xf32>
}
"""
    kernels = {
        "stablehlo.add": add,
        "stablehlo.reduce": lambda operation, x, _: x.max(tuple(operation.attribute("dimensions"))),
    }
    with (
        pjrt.StableHloClient("mychip", kernels=kernels, fallback="reference", compare_with_reference=True) as client,
        pytest.raises(pjrt.InternalError, match=r"mychip in stablehlo\.reduce"),
    ):
        np.asarray(client.compile(program)(np.ones((2, 3), np.float32), np.zeros((), np.float32))[0])
