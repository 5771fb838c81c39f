"""Chains of elementwise steps in chunks: the same bits as step by step."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.fast import module_compiler


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains begin at few elements, and chunks do not divide the sizes."""
    monkeypatch.setattr(module_compiler, "SMALLEST", 24)
    monkeypatch.setattr(module_compiler, "CHUNK", 7)


def names(evaluator: Evaluator) -> list[str]:
    return [step.name for step in evaluator.region.block.steps]


def both(text: str, *args: Any) -> tuple[list[str], list[Any]]:
    """The steps of the fused program, and its results, which are the plain one's."""
    fused, plain = Evaluator(mlir.parse(text)), Evaluator(mlir.parse(text), fold=False)
    results = fused.run(args)
    for found, expected in zip(results, plain.run(args), strict=True):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
    return names(fused), results


X = np.linspace(-3, 3, 30, dtype=np.float32).reshape(5, 6)

CHAIN = """func.func @main(%x: tensor<5x6xf32>, %s: tensor<f32>) -> (tensor<5x6xf32>, tensor<5x6xf32>) {
  %k = stablehlo.constant dense<0.25> : tensor<f32>
  %b = stablehlo.broadcast_in_dim %k, dims = [] : (tensor<f32>) -> tensor<5x6xf32>
  %c = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<5x6xf32>
  %0 = stablehlo.exponential %x : tensor<5x6xf32>
  %1 = stablehlo.multiply %0, %b : tensor<5x6xf32>
  %2 = stablehlo.add %1, %c : tensor<5x6xf32>
  %3 = stablehlo.clamp %k, %2, %s : (tensor<f32>, tensor<5x6xf32>, tensor<f32>) -> tensor<5x6xf32>
  return %3, %1 : tensor<5x6xf32>, tensor<5x6xf32>
}"""


def test_a_chain_becomes_one_step() -> None:
    steps, _ = both(CHAIN, X, np.float32(2))
    assert steps == ["5 fused elementwise ops"]


def test_operands_that_are_not_contiguous() -> None:
    """A transposed operand, one broadcast along rows and one along columns."""
    text = """func.func @main(%x: tensor<6x5xf32>, %r: tensor<5xf32>, %c: tensor<6xf32>) -> tensor<5x6xf32> {
      %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<6x5xf32>) -> tensor<5x6xf32>
      %a = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<5xf32>) -> tensor<5x6xf32>
      %b = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<6xf32>) -> tensor<5x6xf32>
      %0 = stablehlo.subtract %t, %a : tensor<5x6xf32>
      %1 = stablehlo.multiply %0, %b : tensor<5x6xf32>
      return %1 : tensor<5x6xf32> }"""
    steps, _ = both(text, X.reshape(6, 5), np.arange(5, dtype=np.float32), np.arange(6, dtype=np.float32))
    assert steps[-1] == "2 fused elementwise ops"


@pytest.mark.parametrize("shape", [(30,), (1, 30), (30, 1), (2, 3, 5)])
def test_shapes(shape: tuple[int, ...]) -> None:
    type_ = f"tensor<{'x'.join(map(str, shape))}xf32>"
    text = f"""func.func @main(%x: {type_}) -> {type_} {{
      %0 = stablehlo.tanh %x : {type_}
      %1 = stablehlo.negate %0 : {type_}
      return %1 : {type_} }}"""
    assert both(text, X.reshape(shape))[0] == ["2 fused elementwise ops"]


def test_other_types_within_a_chain() -> None:
    text = """func.func @main(%x: tensor<30xbf16>) -> tensor<30xi32> {
      %0 = stablehlo.add %x, %x : tensor<30xbf16>
      %1 = stablehlo.compare GT, %0, %x : (tensor<30xbf16>, tensor<30xbf16>) -> tensor<30xi1>
      %2 = stablehlo.select %1, %0, %x : tensor<30xi1>, tensor<30xbf16>
      %3 = stablehlo.convert %2 : (tensor<30xbf16>) -> tensor<30xi32>
      return %3 : tensor<30xi32> }"""
    assert both(text, X.reshape(30).astype(ml_dtypes.bfloat16))[0] == ["4 fused elementwise ops"]


def test_steps_in_between_move_in_front_where_they_may() -> None:
    text = """func.func @main(%x: tensor<5x6xf32>, %y: tensor<6x5xf32>) -> (tensor<5x6xf32>, tensor<6x5xf32>) {
      %0 = stablehlo.exponential %x : tensor<5x6xf32>
      %t = stablehlo.transpose %y, dims = [1, 0] : (tensor<6x5xf32>) -> tensor<5x6xf32>
      %1 = stablehlo.add %0, %t : tensor<5x6xf32>
      %u = stablehlo.transpose %1, dims = [1, 0] : (tensor<5x6xf32>) -> tensor<6x5xf32>
      %2 = stablehlo.negate %1 : tensor<5x6xf32>
      %3 = stablehlo.abs %2 : tensor<5x6xf32>
      return %3, %u : tensor<5x6xf32>, tensor<6x5xf32> }"""
    steps, _ = both(text, X, X.reshape(6, 5))
    assert steps == [
        "stablehlo.transpose",
        "2 fused elementwise ops",
        "stablehlo.transpose",
        "2 fused elementwise ops",
    ]


def test_short_and_small_ones_are_left_alone() -> None:
    text = """func.func @main(%x: tensor<5x6xf32>, %y: tensor<3xf32>) -> (tensor<5x6xf32>, tensor<3xf32>) {
      %0 = stablehlo.exponential %x : tensor<5x6xf32>
      %1 = stablehlo.exponential %y : tensor<3xf32>
      %2 = stablehlo.negate %1 : tensor<3xf32>
      return %0, %2 : tensor<5x6xf32>, tensor<3xf32> }"""
    steps, _ = both(text, X, np.ones(3, np.float32))
    assert sorted(steps) == ["stablehlo.exponential", "stablehlo.exponential", "stablehlo.negate"]


def test_a_chain_in_a_loop_and_a_constant_operand() -> None:
    text = """func.func @main(%x: tensor<30xf32>) -> tensor<30xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %three = stablehlo.constant dense<3> : tensor<i32>
      %half = stablehlo.constant dense<0.5> : tensor<30xf32>
      %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<30xf32>
        cond {
          %p = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        } do {
          %j = stablehlo.add %i, %one : tensor<i32>
          %a = stablehlo.multiply %v, %half : tensor<30xf32>
          %b = stablehlo.sine %a : tensor<30xf32>
          stablehlo.return %j, %b : tensor<i32>, tensor<30xf32>
        }
      return %r#1 : tensor<30xf32> }"""
    steps, (found,) = both(text, X.reshape(30))
    assert steps == ["stablehlo.while"]
    expected = X.reshape(30)
    for _ in range(3):
        expected = np.sin(expected * np.float32(0.5))
    assert np.array_equal(found, expected)


def test_an_error_within_a_chain_names_its_step() -> None:
    evaluator = Evaluator(mlir.parse(CHAIN))
    inner = evaluator.region.block.steps[0].blocks[0]

    def fail(*args: Any) -> Any:
        raise RuntimeError("boom")

    object.__setattr__(inner, "code", ((fail, *inner.code[0][1:]), *inner.code[1:]))
    with pytest.raises(RuntimeError, match=r"boom \(test_fusion\.py:\d+ in fail\) \(in stablehlo\.\w+ "):
        evaluator.run([X, np.float32(2)])


def test_the_arguments_are_left_alone() -> None:
    x = X.copy()
    evaluator = Evaluator(mlir.parse(CHAIN))
    first = evaluator.run([x, np.float32(2)])
    assert np.array_equal(x, X)
    first[0][:] = 0
    assert np.array_equal(evaluator.run([x, np.float32(2)])[1], first[1])
