"""Advice for failed compilations: the reason in the program's words, on devices of several kinds."""

from __future__ import annotations

import re

import pytest

import pjrt
from pjrt import capi
from pjrt.stablehlo.facts.compatibility import with_advice
from pjrt.stablehlo.ir import mlir_module

OTHER_MESH = """
module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["data"=2]>
  func.func @main(%x: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>} loc("x"))
      -> tensor<8x2xf32> {
    return %x : tensor<8x2xf32>
  }
}
"""
OTHER_TILES = """
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<8x2xf32> {mhlo.sharding = "{devices=[3,1]<=[3]}"}) -> tensor<8x2xf32> {
    return %x : tensor<8x2xf32>
  }
}
"""


@pytest.mark.parametrize("name", ["cpu", "reference", "exported"])
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (OTHER_MESH, r"one over 2 for argument x \(data, -\)"),
        (OTHER_TILES, r"one over 3 for argument 0 \(3 × 1 parts\)"),
    ],
)
def test_a_sharding_over_another_number_of_devices(name: str, program: str, reason: str) -> None:
    if name == "exported":
        plugin = pjrt.export(lambda **_: pjrt.client("cpu", num_devices=4), name="advised")
        client = capi.load_capsule(plugin.capsule).client()
    else:
        client = pjrt.client(name, num_devices=4)
    with (
        client,
        pytest.raises(pjrt.InvalidArgumentError, match=f"which states 4 partitions, found {reason}; state") as caught,
    ):
        client.compile(program)
    assert caught.value.message.count("expected shardings") == 1


@pytest.mark.full
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_the_options_say_how_many_partitions_there_are(name: str) -> None:
    """A program that fails for another reason gets no advice about them."""
    text = OTHER_MESH.replace("attributes {mhlo.num_partitions = 4 : i32}", "").replace(
        "return %x", "%y = stablehlo.custom_call @unknown(%x) : (tensor<8x2xf32>) -> tensor<8x2xf32>\n    return %y"
    )
    with pjrt.client(name, num_devices=4) as client:
        for count, reason in ((2, "unknown"), (4, "which states 4 partitions, found one over 2")):
            with pytest.raises(pjrt.PjrtError, match=reason) as caught:
                client.compile(text, pjrt.CompileOptions(num_partitions=count))
            assert ("expected shardings" in caught.value.message) is (count == 4)


def test_an_error_with_another_reason_stays_as_it_is() -> None:
    error = pjrt.InternalError("the compiler's own")
    for code in (b"not a program", OTHER_MESH.replace("= 4", "= 2").encode()):
        assert with_advice(error, pjrt.Program(code)) is error


@pytest.mark.parametrize("name", ["cpu", "reference", pytest.param("iree", marks=pytest.mark.full)])
@pytest.mark.parametrize("is_bytecode", [False, True])
def test_constants_whose_values_were_left_out(name: str, is_bytecode: bool) -> None:
    code: str | bytes = """func.func public @main() -> tensor<3xf32> {
  %0 = stablehlo.constant dense_resource<__elided__> : tensor<3xf32>
  return %0 : tensor<3xf32>
}"""
    if is_bytecode:
        code = mlir_module.write_bytecode(mlir_module.parse(str(code).encode()))
    with pjrt.client(name) as client, pytest.raises(pjrt.InvalidArgumentError, match="were left out when"):
        client.compile(code)
    assert pjrt.stablehlo.inspect(code).constants_left_out == 1


@pytest.mark.parametrize("operation", ["dot", "dot_general", "add"])
def test_quantized_types_on_a_compiler_that_has_none(operation: str) -> None:
    matrix, result = "tensor<2x2x!quant.uniform<i8:f32, 5.000000e-01>>", "tensor<2x2x!quant.uniform<i32:f32, 0.25>>"
    if operation == "add":
        result = matrix
    numbers = ", contracting_dims = [1] x [0]" if operation == "dot_general" else ""
    types = matrix if operation == "add" else f"({matrix}, {matrix}) -> {result}"
    program = f"""func.func @main(%x: {matrix}) -> {result} {{
      %0 = stablehlo.{operation} %x, %x{numbers} : {types} loc("model.py":7:3)
      return %0 : {result}
    }}"""
    of_xla = pjrt.InvalidArgumentError("Shape Error: Invalid element type. Shape(primitive_type_invalid)")
    advice = with_advice(of_xla, pjrt.Program(program.encode()))
    assert isinstance(advice, pjrt.UnimplementedError)
    assert re.search(r"no quantized types, .* tensor<2x2x!quant.* \(model.py:7:3\); run it", advice.message)
