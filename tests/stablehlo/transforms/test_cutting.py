"""Cuts: programs of some operations of a program compute what the whole program computes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt import Program, stablehlo
from pjrt.stablehlo import Cut, Cutter, parse, to_module, to_text
from pjrt.stablehlo.transforms import cutting

LOOP = """
module @loop {
  func.func @main(%x: tensor<3xf32>, %n: tensor<i32>) -> (tensor<3xf32>, tensor<3xf32>) {
    %c = stablehlo.constant dense<0.5> : tensor<3xf32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %y = stablehlo.add %x, %c : tensor<3xf32>
    %r:2 = stablehlo.while(%i = %zero, %s = %y) : tensor<i32>, tensor<3xf32>
      cond { %less = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %less : tensor<i1> }
      do { %t = stablehlo.multiply %s, %c : tensor<3xf32>
           %u = func.call @shift(%t, %x) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
           %next = stablehlo.add %i, %one : tensor<i32>
           stablehlo.return %next, %u : tensor<i32>, tensor<3xf32> }
    %z = stablehlo.subtract %r#1, %y : tensor<3xf32>
    return %z, %y : tensor<3xf32>, tensor<3xf32>
  }
  func.func private @shift(%a: tensor<3xf32>, %b: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.tanh %a : tensor<3xf32>
    %1 = stablehlo.add %0, %b : tensor<3xf32>
    return %1 : tensor<3xf32>
  }
  func.func private @unused() -> tensor<f32> {
    %0 = stablehlo.constant dense<1.0> : tensor<f32>
    return %0 : tensor<f32>
  }
}
"""
X = np.array([1.0, -2.0, 3.0], np.float32)


def run(cut: Cut | str, *arguments: Any, device: str = "reference") -> list[Any]:
    program = cut if isinstance(cut, str) else cut.program
    with pjrt.client(device) as client:
        return [np.asarray(result) for result in client.compile(program)(*arguments)]


def text_of(cut: Cut) -> str:
    return to_text(cut.program, trusted=True)


def named(cutter: Cutter, operation: str, function: str = "main") -> Any:
    """The first operation of a name."""
    body = cutter.parsed.functions[function].body
    assert body is not None
    return next(each for each in body.walk() if each.name == operation)


def test_the_names_of_values_are_those_of_parse(any_program: Program) -> None:
    parsed = parse(any_program)
    module = to_module(any_program, trusted=True)
    with module as mlir:
        for inner in mlir.body:
            values = cutting.values_by_name(inner.operation)
            function = parsed.functions[inner.operation.attributes["sym_name"].value]
            assert function.body is not None
            expected = [*function.arguments]
            for operation in function.body.walk():
                expected += operation.results
                expected += [argument for block in operation.regions for argument in block.arguments]
            assert {value.name: str(value.type) for value in expected} == {
                name: str(value.type) for name, value in values.items()
            }


def test_every_encoding_is_cut(any_program: Program) -> None:
    cutter = Cutter(any_program)
    tanh = named(cutter, "stablehlo.tanh")
    cut = cutter.cut(tanh.results)
    assert cut.arguments == ("%arg0", "%arg1")
    text = text_of(cut)
    assert text.count("stablehlo.tanh") == 1
    assert "@sort" not in text
    assert "tf.aliasing_output" not in text
    assert "jax.buffer_donor" not in text
    if any_program.format != "hlo":  # where only the compile options state it
        assert "mhlo.num_partitions = 2" in text


def test_a_part_keeps_locations_names_and_attributes(text: Program) -> None:
    cut = stablehlo.cut(text, ["%1"])
    spelled = to_text(cut.program, locations=True, trusted=True)
    for kept in ('"model.py":7:3', '"weights"', "precision = [DEFAULT, HIGH]", "{replicated}", '"{1,0}"', "@example"):
        assert kept in spelled


def test_intermediate_values_as_results() -> None:
    first, second = run(stablehlo.cut(LOOP, ["%3", "%4#1"]), X, np.int32(2))
    difference, start = run(LOOP, X, np.int32(2))
    np.testing.assert_array_equal(first, start)
    np.testing.assert_array_equal(second - first, difference)


def test_one_operation_with_its_inputs_as_arguments() -> None:
    cutter = Cutter(LOOP)
    cut = cutter.cut_operations([named(cutter, "stablehlo.while")])
    assert cut.arguments == ("%3", "%arg1", "%arg0")  # the start, and what the regions take from around them
    assert cut.results == ("%4#0", "%4#1")
    whole = run(stablehlo.cut(LOOP, ["%3", "%4#1"]), X, np.int32(3))
    np.testing.assert_array_equal(run(cut, whole[0], np.int32(3), X)[1], whole[1])
    assert "@shift" in text_of(cut)
    assert "@unused" not in text_of(cut)


def test_operations_that_take_each_others_results_are_cut_apart() -> None:
    cutter = Cutter(LOOP)
    body = cutter.parsed.functions["shift"].body
    assert body is not None
    tanh, add = body.operations[:2]
    cut = cutter.cut_operations([tanh, add], function="shift")
    assert (cut.arguments, cut.results) == (("%arg0", "%0", "%arg1"), ("%0", "%1"))
    first, second = run(cut, X, X, X)
    np.testing.assert_allclose(first, np.tanh(X), rtol=1e-6)
    np.testing.assert_array_equal(second, X + X)


def test_a_body_of_a_loop_on_its_own() -> None:
    cutter = Cutter(LOOP)
    loop = named(cutter, "stablehlo.while")
    body = loop.regions[1]
    cut = cutter.cut([value.name for value in body.outputs], arguments=body.arguments)
    assert cut.arguments == (*(value.name for value in body.arguments), "%arg0")
    count, state = run(cut, np.int32(4), X, X)
    assert count == 5
    np.testing.assert_allclose(state, np.tanh(X * 0.5) + X, rtol=1e-6)


def test_values_of_the_blocks_around_may_be_results_too() -> None:
    cutter = Cutter(LOOP)
    condition = named(cutter, "stablehlo.while").regions[0]
    cut = cutter.cut([condition.outputs[0], "%arg1", "%0"])
    assert cut.arguments == ("%arg1", condition.arguments[0].name)
    less, count, constant = run(cut, np.int32(4), np.int32(3))
    assert (bool(less), int(count), constant.tolist()) == (True, 4, [0.5] * 3)


def test_a_function_on_its_own() -> None:
    cut = stablehlo.cut(LOOP, ["%1"], function="shift")
    assert cut.arguments == ("%arg0", "%arg1")
    np.testing.assert_allclose(run(cut, X, X)[0], np.tanh(X) + X, rtol=1e-6)


def test_arguments_of_a_function_stay_in_their_order_even_unused() -> None:
    cut = stablehlo.cut(LOOP, ["%3"])
    assert cut.arguments == ("%arg0", "%arg1")
    np.testing.assert_array_equal(run(cut, X, np.int32(0))[0], X + 0.5)


SHARDED = """
module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["a"=2, "b"=2]>
  func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>},
                  %y: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {}]>, tf.aliasing_output = 0 : i32})
      -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) {
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>}
      : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.tanh %0 : tensor<8x6xf32>
    return %1 : tensor<8x6xf32>
  }
}
"""


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_meshes_and_shardings_of_shardy_stay(device: str) -> None:
    x, y = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)
    first, second = stablehlo.cut(SHARDED, ["%0"]), stablehlo.cut(SHARDED, ["%1"], arguments=["%0"])
    assert 'sdy.mesh @mesh = <["a"=2, "b"=2]>' in text_of(second)
    assert '%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}' in text_of(second)
    with pjrt.client(device, num_devices=4) as client:
        over = pjrt.ifrt.Client(client)
        (product,) = over.compile(first.program)(x, y)
        np.testing.assert_array_equal(np.asarray(product), x @ y)
        (result,) = over.compile(second.program)(np.asarray(product))
        np.testing.assert_allclose(np.asarray(result), np.tanh(x @ y), rtol=1e-6)


def test_shardings_of_gspmd_stay() -> None:
    text = """
    func.func @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<8xf32> {
      %0 = stablehlo.tanh %x {mhlo.sharding = "{devices=[2]<=[2]}"} : tensor<8xf32>
      %1 = stablehlo.tanh %0 : tensor<8xf32>
      return %1 : tensor<8xf32>
    }"""
    assert 'tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}' in text_of(stablehlo.cut(text, ["%0"]))
    assert 'tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}' in text_of(
        stablehlo.cut(text, ["%1"], arguments=["%0"])
    )


MANUAL = """
module {
  sdy.mesh @mesh = <["a"=2]>
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}]>] out_shardings=[<@mesh, [{"a"}]>] manual_axes={"a"}
      (%part: tensor<4xf32>) {
        %1 = stablehlo.tanh %part : tensor<4xf32>
        sdy.return %1 : tensor<4xf32>
      } : (tensor<8xf32>) -> tensor<8xf32>
    %2 = stablehlo.negate %0 : tensor<8xf32>
    return %2 : tensor<8xf32>
  }
}
"""


def test_the_parts_of_one_device_cannot_be_cut_out() -> None:
    cutter = Cutter(MANUAL)
    assert "sdy.manual_computation" in text_of(cutter.cut(["%0"]))
    inner = named(cutter, "stablehlo.tanh").results
    with pytest.raises(pjrt.UnimplementedError, match="parts of one device"):
        cutter.cut(inner)


def test_quantized_and_dynamic_types_stay() -> None:
    text = """
    func.func @main(%x: tensor<?x4xf32>, %q: tensor<4x!quant.uniform<i8:f32, 2.0>>)
        -> (tensor<?x4xf32>, tensor<4xf32>) {
      %0 = stablehlo.tanh %x : tensor<?x4xf32>
      %1 = stablehlo.negate %0 : tensor<?x4xf32>
      %2 = stablehlo.add %q, %q : tensor<4x!quant.uniform<i8:f32, 2.0>>
      %3 = stablehlo.uniform_dequantize %2 : (tensor<4x!quant.uniform<i8:f32, 2.0>>) -> tensor<4xf32>
      return %1, %3 : tensor<?x4xf32>, tensor<4xf32>
    }"""
    cut = stablehlo.cut(text, ["%1", "%2"], arguments=["%0"])
    assert cut.arguments == ("%0", "%arg1")
    signature = stablehlo.signature(cut.program)
    assert [str(each.type) for each in signature.arguments] == ["tensor<?x4xf32>", "tensor<4x!quant.uniform<i8:f32>>"]
    assert "!quant.uniform<i8:f32, 2.0" in text_of(cut)


def test_tokens_become_new_ones() -> None:
    text = """
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.create_token : !stablehlo.token
      %1 = stablehlo.after_all %0 : !stablehlo.token
      %2:2 = "stablehlo.infeed"(%1) {infeed_config = ""} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
      return %2#0 : tensor<2xf32>
    }"""
    cut = stablehlo.cut(text, ["%2#0"], arguments=["%1"])
    assert cut.arguments == ()
    assert "stablehlo.after_all" in text_of(cut)


def test_composites_keep_their_functions() -> None:
    text = """
    module {
      func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
        %0 = stablehlo.composite "my.op" %x {decomposition = @by_hand} : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32>
      }
      func.func private @by_hand(%x: tensor<2xf32>) -> tensor<2xf32> {
        %0 = stablehlo.tanh %x : tensor<2xf32>
        return %0 : tensor<2xf32>
      }
    }"""
    assert "@by_hand" in text_of(stablehlo.cut(text, ["%0"]))


def test_what_hlo_states_about_other_results_is_dropped() -> None:
    hlo = stablehlo.to_hlo(Program(LOOP.encode()), with_config=True)
    cutter = Cutter(hlo)
    add = named(cutter, "stablehlo.add")
    assert "xla_entry_computation" not in text_of(cutter.cut(add.results))
    np.testing.assert_array_equal(run(cutter.cut(add.results), X, np.int32(0), device="cpu")[0], X + 0.5)


def test_complex_constants_do_not_hide_functions() -> None:
    text = """
    func.func @main() -> tensor<complex<f32>> {
      %0 = stablehlo.constant dense<(1.0, 2.0)> : tensor<complex<f32>>
      return %0 : tensor<complex<f32>>
    }"""
    assert run(stablehlo.cut(text, ["%0"]))[0] == 1 + 2j


@pytest.mark.parametrize(
    ("results", "options", "message"),
    [
        (["%99"], {}, "name of a value in the function main, found '%99'"),
        (["%0"], {"function": "none"}, "name of a function of the program, found 'none'"),
        ([], {}, "found none"),
        (["%5", "%6"], {}, "values of one block"),
    ],
)
def test_bad_requests(results: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(pjrt.PjrtError, match=message):
        stablehlo.cut(LOOP, results, **options)


def test_a_program_is_not_changed_by_cuts() -> None:
    cutter = Cutter(LOOP)
    before = to_text(Program(LOOP.encode()))
    cutter.cut(["%3"])
    cutter.cut(["%1"], function="shift")
    with cutter.module as mlir:
        assert str(mlir).strip() == before.strip()


_UNARY = ["tanh", "negate", "abs", "cosine"]
_BINARY = ["add", "subtract", "multiply", "maximum"]


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, int]:
    """A program of elementwise operations, and their number; each may take any value before it."""
    count = draw(st.integers(2, 12))
    lines, values = [], ["%x", "%y"]
    for number in range(count):
        name = draw(st.sampled_from(_UNARY + _BINARY))
        operands = [draw(st.sampled_from(values)) for _ in range(1 if name in _UNARY else 2)]
        lines.append(f"  %{number} = stablehlo.{name} {', '.join(operands)} : tensor<4xf32>")
        values.append(f"%{number}")
    body = "\n".join(lines)
    return (
        f"func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {{\n{body}\n"
        f"  return %{count - 1} : tensor<4xf32>\n}}",
        count,
    )


@settings(deadline=None, max_examples=30)
@given(programs(), st.data())
def test_two_parts_compute_what_the_whole_does(program: tuple[str, int], data: st.DataObject) -> None:
    text, count = program
    at = data.draw(st.integers(0, count - 2))
    rng = np.random.default_rng(count)
    x, y = rng.standard_normal((2, 4)).astype(np.float32)
    cutter = Cutter(text)
    border = [f"%{number}" for number in range(at + 1)]
    second = cutter.cut([f"%{count - 1}"], arguments=border)
    values = dict(zip(border, run(cutter.cut(border), x, y), strict=True)) | {"%arg0": x, "%arg1": y}
    (result,) = run(second, *(values[name] for name in second.arguments))
    np.testing.assert_array_equal(result, run(text, x, y)[0])


def test_the_text_of_an_operation() -> None:
    cutter = Cutter("""
    func.func @main(%x: tensor<4xf32>) -> tensor<f32> {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.tanh %x : tensor<4xf32>
      %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0]
          : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
      return %1 : tensor<f32>
    }""")
    body = cutter.parsed.entry.body
    assert body is not None
    _, tanh, reduce, last = body.operations
    assert "stablehlo.tanh %arg0 : tensor<4xf32>" in cutter.text_of(tanh)
    assert "applies stablehlo.add across dimensions = [0]" in cutter.text_of(reduce)
    with pytest.raises(pjrt.NotFoundError, match="expected an operation with results"):
        cutter.text_of(last)
