"""Refinement: static programs from dynamic ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

import pjrt
from pjrt.stablehlo import inspect, parse, peak_memory, refine, select_platform, signature
from pjrt.stablehlo.transforms import refinement

DOUBLED = """
func.func @main(%x: tensor<?x16xf32> loc("x"), %y: tensor<16xf32>) -> tensor<?x16xf32> {
  %0 = stablehlo.add %x, %x : tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
"""


def exported(
    function: Callable[..., Any], *shapes: str, constraints: tuple[str, ...] = (), platforms: tuple[str, ...] = ("cpu",)
) -> pjrt.Program:
    """Return a function as ``jax.export`` writes it, for arguments of f32 and these symbolic shapes."""
    scope = export.SymbolicScope(constraints)
    arguments = [jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), jnp.float32) for shape in shapes]
    return pjrt.Program(export.export(jax.jit(function), platforms=platforms)(*arguments).mlir_module_serialized)


def shapes_of(program: pjrt.Program) -> tuple[list[tuple[int | None, ...]], list[tuple[int | None, ...]]]:
    info = signature(program)
    return [argument.shape for argument in info.arguments], [result.shape for result in info.results]


@pytest.fixture(scope="module")
def pooled() -> pjrt.Program:
    """Return a program of a batch and a length, with conditions on both."""
    return exported(
        lambda x, y: (x.reshape((x.shape[0] * x.shape[1] // 4, 4)).sum(0), y + 1),
        "b, s",
        "2*b",
        constraints=("b >= 2", "mod(s, 4) == 0"),
    )


@pytest.mark.parametrize(
    "shapes", [[(8, 12), (16,)], {0: (8, 12)}, {"b": 8, "s": 12}, {"b": 8, 0: (8, 12)}, {1: [16], "s": np.int64(12)}]
)
def test_shapes_may_be_all_or_some_or_sizes_of_symbols(pooled: pjrt.Program, shapes: Any) -> None:
    refined = refine(pooled, shapes)
    assert shapes_of(refined) == ([(8, 12), (16,)], [(4,), (16,)])
    assert not inspect(refined).has_dynamic_shapes
    assert not inspect(refined).custom_calls


def test_the_constraint_of_the_program_is_the_message(pooled: pjrt.Program) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"x \[1, 4\], y \[2\].*constraint b >= 2.*found -1") as caught:
        refine(pooled, {"b": 1, "s": 4})
    assert "http" not in caught.value.message
    with pytest.raises(pjrt.InvalidArgumentError, match=r"4\*floordiv\(s, 4\) == s.*but found -2"):
        refine(pooled, {"b": 2, "s": 6})


def test_a_constraint_is_the_message_also_where_shapes_do_not_fit_together(pooled: pjrt.Program) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"constraint b >= 2"):
        refine(pooled, {"b": 1, "s": 1})  # there are no rows of 4 in 1 × 1 elements, either


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(8, 12)], r"a shape for each of the 2 arguments .*argument 1 \(y\) of shape \[2\*b\].*found 1 shapes"),
        ({"b": 8}, r"none for argument 0 \(x\) of shape \[b, s\]; give .* or a size for s"),
        (
            {0: (8, 12), 1: (8,)},
            r"contradict .* expected 2\*b = 16 in argument 1 .* found 8 in \[8\] \(b = 8 by the shape",
        ),
        ({0: (8, 12), "b": 4}, r"contradict .* expected b = 4 .* found 8 .*by the size that was given for b"),
        ({0: (8,)}, r"fits argument 0 \(x\) of shape \[b, s\], found \[8\]"),
        (
            {"c": 8},
            r"index of an argument, from 0 to 1, or its name \('x', 'y'\), or a symbol \(b, s\), found a shape for 'c'",
        ),
        ({7: (8,)}, "found a shape for 7"),
        ({"b": -1}, "dimensions of a shape are 0 or more"),
        ({0: "12"}, "a shape as a sequence of whole numbers, found '12'"),
        ({0: (8.5, 1)}, "dimensions of a shape as whole numbers, found 8.5"),
        ({"b": (1, 2)}, "one size for the symbol b"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(pooled: pjrt.Program, shapes: Any, message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        refine(pooled, shapes)


def test_a_program_without_symbols_takes_shapes() -> None:
    assert shapes_of(refine(DOUBLED, [(3, 16), None])) == ([(3, 16), (16,)], [(3, 16)])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"argument 0 \(x\) of shape \[\?, 16\], found \[3, 17\]"):
        refine(DOUBLED, {"x": (3, 17)})


def test_a_static_program_stays_as_it_is() -> None:
    program = pjrt.Program(DOUBLED.replace("?", "2").encode())
    assert refine(program, {}) == program
    with pytest.raises(pjrt.InvalidArgumentError, match="fits argument 0"):
        refine(program, {0: (3, 16)})


def test_sizes_that_depend_on_values_are_refused() -> None:
    with pytest.raises(
        pjrt.InvalidArgumentError, match="dynamic_broadcast_in_dim' op has dynamic shapes: its sizes depend on values"
    ):
        refine(
            """func.func @main(%x: tensor<?xf32>, %n: tensor<1xi32>) -> tensor<?xf32> {
              %0 = stablehlo.constant dense<0.0> : tensor<f32>
              %1 = stablehlo.dynamic_broadcast_in_dim %0, %n, dims = [] : (tensor<f32>, tensor<1xi32>) -> tensor<?xf32>
              return %1 : tensor<?xf32>
            }""",
            {0: (3,)},
        )


def test_bounded_sizes_are_refined_within_their_bounds() -> None:
    type_ = "tensor<?x2xf32, #stablehlo.bounds<8, ?>>"
    program = f"""func.func @main(%x: {type_}) -> {type_} {{
      %0 = stablehlo.add %x, %x : {type_}
      return %0 : {type_}
    }}"""
    assert shapes_of(refine(program, [(8, 2)])) == ([(8, 2)], [(8, 2)])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"within the bounds \[8, \?\] of argument 0, found \[9, 2\]"):
        refine(program, [(9, 2)])


def of_size(*lines: str) -> str:
    """Return a program that computes the size of its result from that of its argument."""
    return "\n".join(
        [
            "func.func @main(%x: tensor<?xi32>) -> tensor<?xi32> {",
            "%size = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xi32>) -> tensor<i32>",
            *lines,
            "%shape = stablehlo.reshape %result : (tensor<i32>) -> tensor<1xi32>",
            "%y = stablehlo.dynamic_iota %shape, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>",
            "return %y : tensor<?xi32> }",
        ]
    )


def test_a_division_in_the_shapes() -> None:
    program = of_size(
        "%c = stablehlo.constant dense<12> : tensor<i32>", "%result = stablehlo.divide %c, %size : tensor<i32>"
    )
    assert shapes_of(refine(program, [(5,)])) == ([(5,)], [(2,)])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"\(0 \[0\]\): .*shape \[-1\]"):  # what XLA has for 12 / 0
        refine(program, [(0,)])
    remainder = program.replace("divide", "remainder")
    assert shapes_of(refine(remainder, [(0,)])) == ([(0,)], [(12,)])


@pytest.mark.parametrize(
    ("type_", "dividend", "divisor", "quotient", "remainder"),
    [
        ("i32", 12, "%size", -1, 12),
        ("ui8", 12, "%size", 255, 12),
        ("i64", -(1 << 63), "%less", -(1 << 63), 0),
        ("i32", 12, "%less", -12, 0),
    ],
)
def test_a_division_without_a_result(type_: str, dividend: int, divisor: str, quotient: int, remainder: int) -> None:
    """Sizes of 0 divide by zero and, less 1, the smallest integer by -1; the results are those of XLA's programs."""
    program = f"""func.func @main(%x: tensor<?xi32>) -> (tensor<2x{type_}>, tensor<2x{type_}>) {{
      %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xi32>) -> tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %less_one = stablehlo.subtract %n, %one : tensor<i32>
      %size = stablehlo.convert %n : (tensor<i32>) -> tensor<{type_}>
      %less = stablehlo.convert %less_one : (tensor<i32>) -> tensor<{type_}>
      %a = stablehlo.constant dense<{dividend}> : tensor<2x{type_}>
      %b = stablehlo.broadcast_in_dim {divisor}, dims = [] : (tensor<{type_}>) -> tensor<2x{type_}>
      %quotient = stablehlo.divide %a, %b : tensor<2x{type_}>
      %remainder = stablehlo.remainder %a, %b : tensor<2x{type_}>
      return %quotient, %remainder : tensor<2x{type_}>, tensor<2x{type_}>
    }}"""
    refined = refine(program, [(0,)])
    for device in ("reference", "cpu"):
        with pjrt.client(device) as client:
            results = client.compile(refined)(np.zeros(0, np.int32))
            assert [np.asarray(each).tolist() for each in results] == [[quotient] * 2, [remainder] * 2]


def test_a_program_for_refinement_that_lies_about_its_operands_ends_a_subprocess() -> None:
    program = of_size(
        "%n = stablehlo.constant dense<1> : tensor<1xi64>",
        "%result = stablehlo.custom_call @own(%size, %n) {indices_of_shape_operands = dense<7> : tensor<1xi64>}",
        ": (tensor<i32>, tensor<1xi64>) -> tensor<i32>",
    )
    with pytest.raises(pjrt.InvalidArgumentError, match=r"XLA ends its process|shape"):
        refine(program, [(3,)])


def test_calls_that_grow_without_end_take_a_subprocess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refinement, "TIME_LIMIT", 0.01)
    call = "{0} = call @f{1}({2}) : (tensor<i32>) -> tensor<i32>"
    functions = [
        f"func.func private @f{n}(%a: tensor<i32>) -> tensor<i32> {{ {call.format('%b', n + 1, '%a')} "
        f"{call.format('%c', n + 1, '%b')} return %c : tensor<i32> }}"
        for n in range(40)
    ]
    last = "func.func private @f40(%a: tensor<i32>) -> tensor<i32> { return %a : tensor<i32> }"
    program = "\n".join([of_size(call.format("%result", 0, "%size")), *functions, last])
    with pytest.raises(pjrt.DeadlineExceededError, match="did not compute the program's shapes"):
        refine(program, [(3,)])


@pytest.mark.full
@settings(max_examples=5, deadline=None)
@given(batch=st.integers(1, 9), extra=st.integers(0, 5))
def test_results_are_those_of_jax(two_sums_program: pjrt.Program, batch: int, extra: int) -> None:
    x = np.arange(batch * 3, dtype=np.float32).reshape(batch, 3)
    y = np.arange(2 * batch + extra + 1, dtype=np.float32)
    with pjrt.client("cpu") as client:
        results = client.compile(refine(two_sums_program, [x.shape, y.shape], trusted=True))(x, y)
        for result, expected in zip(results, two_sums(x, y), strict=True):
            np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)


def test_arguments_keep_their_names(two_sums_program: pjrt.Program) -> None:
    refined = refine(two_sums_program, {"b": 3, "s": 1})
    assert [each.name for each in signature(refined).arguments] == ["x", "y"]
    assert {"x", "y"} <= {each.name for each in peak_memory(refined).arrays}


@pytest.fixture(scope="module")
def two_sums_program() -> pjrt.Program:
    return exported(two_sums, "b, 3", "2*b + s")


def two_sums(x: Any, y: Any) -> Any:
    return x @ jnp.ones((3, 2)) + y.sum(), jnp.concatenate([y, x.reshape(-1)])


@pytest.mark.full
def test_a_platform_is_selected_before_or_after_refinement() -> None:
    program = exported(
        lambda x: jax.lax.platform_dependent(x, cpu=lambda x: x + 1, tpu=lambda x: x * 3),
        "b",
        platforms=("cpu", "tpu"),
    )
    x = np.array([1, 2, 3], np.float32)
    with pjrt.client("reference") as client:
        for index, expected in ((0, x + 1), (1, x * 3)):
            selected = select_platform(program, index)
            assert not {each.name for each in inspect(selected).operations} & {"stablehlo.case"}
            for refined in (refine(selected, {"b": 3}), select_platform(refine(program, {"b": 3}), index)):
                (result,) = client.compile(refined)(x)
                np.testing.assert_array_equal(np.asarray(result), expected)


def test_selecting_a_platform_drops_the_custom_calls_of_the_others() -> None:
    program = exported(jnp.linalg.qr, "b, 4", constraints=("b >= 4",), platforms=("cpu", "cuda"))
    cpu, cuda = (set(inspect(select_platform(program, index)).custom_calls) for index in (0, 1))
    assert cpu >= {"lapack_sgeqrf_ffi"}
    assert cuda >= {"cusolver_geqrf_ffi"}
    assert cpu & cuda == {"shape_assertion"}


def test_senseless_statements_are_refused() -> None:
    program = DOUBLED.replace(' loc("x")', ' {jax.global_constant = "_platform_index"}')
    with pytest.raises(pjrt.InvalidArgumentError, match="index of the platform, found tensor<"):
        select_platform(program, 0)
    with pytest.raises(pjrt.InvalidArgumentError, match="something senseless"):
        select_platform(program.replace('{jax.global_constant = "', '{jax.global_constant = unit, jax.x = "'), 0)
    assertion = "stablehlo.custom_call @shape_assertion() {error_message = unit} : () -> ()\n  %0 ="
    with pytest.raises(pjrt.InvalidArgumentError, match="something senseless"):
        signature(pjrt.Program(DOUBLED.replace("%0 =", assertion).encode()))


def test_a_program_for_one_platform_stays_as_it_is() -> None:
    program = pjrt.Program(DOUBLED.encode())
    assert select_platform(program, 0) == program
    with pytest.raises(pjrt.InvalidArgumentError, match="from 0 up, found -1"):
        select_platform(program, -1)


def test_a_program_of_fixed_shapes_says_so() -> None:
    program = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
    with pytest.raises(pjrt.InvalidArgumentError, match="found a shape for 'b'; the shapes of this program are fixed"):
        refine(program, {"b": 8})


# Operations whose shapes XLA does not propagate: arguments, the operation, and its dynamic and its static result.
OTHERS = {
    "bitcast_convert to parts": (
        "%x: tensor<?x6xf32>",
        "stablehlo.bitcast_convert %x : (tensor<?x6xf32>) -> tensor<?x6x4xi8>",
        "4x6x4xi8",
    ),
    "bitcast_convert of parts": (
        "%x: tensor<?x2xui32>",
        "stablehlo.bitcast_convert %x : (tensor<?x2xui32>) -> tensor<?xf64>",
        "4xf64",
    ),
    "composite": ("%x: tensor<?x6xf32>", 'stablehlo.composite "a.b" %x {decomposition = @d} : RESULTS', "4x6xf32"),
    "custom_call": ("%x: tensor<?x6xf32>", "stablehlo.custom_call @Sharding(%x) : RESULTS", "4x6xf32"),
    "einsum": (
        "%x: tensor<?x6xf32>",
        'stablehlo.einsum %x, %x, config = "ab,cb->ac" : (tensor<?x6xf32>, tensor<?x6xf32>) -> tensor<?x?xf32>',
        "4x4xf32",
    ),
    "unary_einsum": (
        "%x: tensor<?x6xf32>",
        'stablehlo.unary_einsum %x, config = "ab->ba" : (tensor<?x6xf32>) -> tensor<6x?xf32>',
        "6x4xf32",
    ),
    "unary_einsum to a number": (
        "%x: tensor<?x6xf32>",
        'stablehlo.unary_einsum %x, config = "ab->b" : (tensor<?x6xf32>) -> tensor<?xf32>',
        "6xf32",
    ),
    "rng": (
        "%x: tensor<?x6xf32>",
        "stablehlo.rng %zero, %zero, %shape, distribution = NORMAL : (tensor<f32>, tensor<f32>, tensor<2xi32>) "
        "-> tensor<?x6xf32>",
        "4x6xf32",
    ),
    "rng_bit_generator": (
        "%x: tensor<?xui64>",
        '"stablehlo.rng_bit_generator"(%x) <{rng_algorithm = #stablehlo<rng_algorithm DEFAULT>}> : (tensor<?xui64>) '
        "-> (tensor<?xui64>, tensor<3xui64>)",
        "4xui64",
    ),
    "torch_index_select": (
        "%x: tensor<?x6xf32>",
        '"stablehlo.torch_index_select"(%x, %index) <{dim = 1 : i64, batch_dims = 0 : i64}> : '
        "(tensor<?x6xf32>, tensor<2x3xi32>) -> tensor<?x2x3xf32>",
        "4x2x3xf32",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_operations_whose_shapes_xla_does_not_propagate(name: str) -> None:
    argument, operation, static = OTHERS[name]
    type_ = argument.partition(": ")[2]
    operation = operation.replace("RESULTS", f"({type_}) -> {type_}")
    result = operation.rpartition("-> ")[2].removeprefix("(").partition(",")[0]
    value, count = ("%r#0", "%r:2") if "bit_generator" in name else ("%r", "%r")
    sizes = "stablehlo.get_dimension_size %x, dim = 0 : (" + type_ + ") -> tensor<i32>"
    text = f"""
func.func public @main({argument}) -> {result} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %index = stablehlo.constant dense<1> : tensor<2x3xi32>
  %six = stablehlo.constant dense<6> : tensor<1xi32>
  %size = {sizes}
  %first = stablehlo.reshape %size : (tensor<i32>) -> tensor<1xi32>
  %shape = stablehlo.concatenate %first, %six, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  {count} = {operation}
  return {value} : {result}
}}
func.func private @d(%x: {type_}) -> {type_} {{ return %x : {type_} }}"""
    shape = tuple(4 if size == "?" else int(size) for size in type_[len("tensor<") : -1].split("x")[:-1])
    refined = refine(text, [shape])
    (declared,) = parse(refined).entry.type.results
    assert str(declared) == f"tensor<{static}>"
    operations = {each.name for each in parse(refined).walk()}
    assert "stablehlo." + name.partition(" ")[0] in operations or name == "composite"
