"""Programs for the tests of ``pjrt.stablehlo``, in every encoding."""

from __future__ import annotations

import pytest

from pjrt import Program
from pjrt.stablehlo import serialize, to_hlo
from pjrt.stablehlo.ir import mlir_module

TEXT = """
#shape = loc("model.py":7:3)
#called = loc(callsite("layer"("model.py":9:5) at "main.py":2:1))
module @example attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 4 : i32} {
  func.func public @main(
      %x: tensor<4x5xf32> {tf.aliasing_output = 1 : i32} loc("weights"("model.py":1:1)),
      %y: tensor<5x4xf32> {jax.buffer_donor = true, mhlo.sharding = "{replicated}", mhlo.layout_mode = "{1,0}"}
    ) -> (tensor<4x4xf32> {jax.result_info = "loss"}, tensor<4x5xf32>) {
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0], precision = [DEFAULT, HIGH]
      : (tensor<4x5xf32>, tensor<5x4xf32>) -> tensor<4x4xf32> loc("jit(f)/dot"(#called))
    %1 = stablehlo.tanh %0 : tensor<4x4xf32> loc(#shape)
    %2 = stablehlo.tanh %1 : tensor<4x4xf32> loc("other.py":1:2)
    %3 = func.call @sort(%2) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.constant dense<[[1.0, 2.0, 3.0, 4.0]]> : tensor<1x4xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %6 = stablehlo.add %3, %5 : tensor<4x4xf32>
    return %6, %x : tensor<4x4xf32>, tensor<4x5xf32>
  }
  func.func private @sort(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = "stablehlo.sort"(%x) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
}
"""


@pytest.fixture(scope="session")
def text() -> Program:
    """A program with two functions, a region, constants, locations and attributes."""
    return Program(TEXT.encode())


@pytest.fixture(scope="session")
def bytecode(text: Program) -> Program:
    """The same as MLIR bytecode."""
    return Program(mlir_module.write_bytecode(mlir_module.parse(text.code)))


@pytest.fixture(scope="session")
def artifact(text: Program) -> Program:
    """The same as a portable artifact of the first version of the series 1."""
    return serialize(text, "1.0.0")


@pytest.fixture(scope="session")
def hlo(text: Program) -> Program:
    """The same as an HLO proto."""
    return to_hlo(text)


@pytest.fixture(scope="session")
def hlo_with_config(text: Program) -> Program:
    """The same as an HLO proto with its configuration."""
    return to_hlo(text, with_config=True)


@pytest.fixture(params=["text", "bytecode", "artifact", "hlo", "hlo_with_config"])
def any_program(request: pytest.FixtureRequest) -> Program:
    """The same in each encoding."""
    program = request.getfixturevalue(request.param)
    assert isinstance(program, Program)
    return program
