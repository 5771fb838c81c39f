"""Single operations of a program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjrt
from pjrt import stablehlo
from pjrt.devices.reference import OperationEvaluator
from pjrt.host import Compiled, RunContext
from pjrt.stablehlo import ParsedProgram

X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def interpreted(program: ParsedProgram) -> Any:
    """Return a function that runs a program operation by operation."""
    evaluator = OperationEvaluator(program)

    def call(name: str, context: RunContext | None, arrays: Any) -> list[Any]:
        body = program.functions[name].body
        assert body is not None
        values = dict(zip(body.arguments, arrays, strict=True))
        for operation in body.operations[:-1]:
            operands = [values[value] for value in operation.operands]
            if operation.name == "func.call":
                results = call(operation.attribute("callee"), context, operands)
            else:
                results = evaluator.evaluate(operation, *operands, context=context)
            values.update(zip(operation.results, results, strict=True))
        return [values[value] for value in body.outputs]

    return lambda context, *arrays: call(program.entry.name, context, arrays)


def test_operations_one_by_one() -> None:
    def function(x: Any) -> Any:
        inner = jax.jit(lambda v: jnp.sort(v, axis=0) @ v)
        return jnp.tanh(inner(x)).sum(axis=1), jax.lax.fori_loop(0, 3, lambda _, v: v * 2, x)

    program = stablehlo.parse(jax.jit(function).lower(X).as_text())
    for ours, theirs in zip(interpreted(program)(None, X), jax.jit(function)(X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_collectives_in_the_loop_of_an_author() -> None:
    """Sharded programs on a device whose compiler is the author's own: collectives are ready-made."""

    def compile(program: ParsedProgram, options: pjrt.CompileOptions) -> Compiled:
        return Compiled(run=interpreted(program), takes_context=True)

    with pjrt.StableHloClient("loops", compile=compile, num_devices=4) as client:
        mesh = pjrt.ifrt.Mesh(client.devices, {"z": 4})
        global_client = pjrt.ifrt.Client(client)
        executable = global_client.compile("""
        module attributes {mhlo.num_partitions = 4 : i32} {
          sdy.mesh @mesh = <["z"=4]>
          func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"z"}]>},
                          %y: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {}]>})
              -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
            %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
                : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
            return %0 : tensor<8x8xf32>
          }
        }""")
        x, y = (np.arange(32, dtype=np.float32).reshape(shape) for shape in ((8, 4), (4, 8)))
        arguments = [
            global_client.make_array(x, mesh.sharding(None, "z")),
            global_client.make_array(y, mesh.sharding("z", None)),
        ]
        (result,) = executable(*arguments)
        np.testing.assert_allclose(np.asarray(result), x @ y)


def test_what_cannot_be_evaluated_is_an_error() -> None:
    program = stablehlo.parse("""
    func.func @main(%x: tensor<i32>, %n: tensor<i32>) -> tensor<i32> {
      %0 = stablehlo.while(%i = %x) : tensor<i32> cond {
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %2 = stablehlo.add %i, %i : tensor<i32>
        stablehlo.return %2 : tensor<i32>
      }
      return %0 : tensor<i32>
    }""")
    (loop, _) = program.entry.body.operations  # type: ignore[union-attr]
    with pytest.raises(pjrt.InvalidArgumentError, match="its regions take %arg1 from around it"):
        OperationEvaluator(program).evaluate(loop, np.int32(1))
    other = stablehlo.parse("func.func @main(%x: tensor<i32>) -> tensor<i32> { return %x : tensor<i32> }")
    with pytest.raises(pjrt.InvalidArgumentError, match="expected an operation of the program"):
        OperationEvaluator(other).evaluate(loop, np.int32(1))


def test_a_handle_of_a_devices_own_memory_is_no_operand() -> None:
    program = stablehlo.parse("""
    func.func @main(%x: tensor<i32>) -> tensor<i32> {
      %0 = stablehlo.negate %x : tensor<i32>
      return %0 : tensor<i32>
    }""")
    (negate, _) = program.entry.body.operations  # type: ignore[union-attr]
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected an array for %\w+, found int; copy what"):
        OperationEvaluator(program).evaluate(negate, 0x1000)
