"""Straight lines compute what the program computes, with slices of weights as arguments of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt.stablehlo import StraightLine, parse, straighten

LOOP = """
module attributes {mhlo.num_partitions = 1 : i32} {
  func.func @main(%x: tensor<2xf32> loc("x"), %w: tensor<4x3x2xf32> loc("w"), %n: tensor<i32> loc("n"))
      -> (tensor<2xf32>, tensor<4xf32>, tensor<i32>) {
    %START
    %LIMIT
    %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
    %r:4 = stablehlo.while(%i = %start, %s = %x, %sums = %zeros, %v = %w)
        : tensor<i32>, tensor<2xf32>, tensor<4xf32>, tensor<4x3x2xf32>
      cond { %less = stablehlo.compare COMPARISON, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %less : tensor<i1> }
      do { %t = func.call @layer(%s, %v, %i) : (tensor<2xf32>, tensor<4x3x2xf32>, tensor<i32>) -> tensor<2xf32>
           %zero = stablehlo.constant dense<0.0> : tensor<f32>
           %sum = stablehlo.reduce(%t init: %zero) applies stablehlo.add across dimensions = [0]
               : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
           %row = stablehlo.reshape %sum : (tensor<f32>) -> tensor<1xf32>
           %all = stablehlo.dynamic_update_slice %sums, %row, %i : (tensor<4xf32>, tensor<1xf32>, tensor<i32>)
               -> tensor<4xf32>
           %step = stablehlo.constant dense<STEP> : tensor<i32>
           %next = stablehlo.add %i, %step : tensor<i32>
           stablehlo.return %next, %t, %all, %v : tensor<i32>, tensor<2xf32>, tensor<4xf32>, tensor<4x3x2xf32> }
    return %r#1, %r#2, %r#0 : tensor<2xf32>, tensor<4xf32>, tensor<i32>
  }
  func.func private @layer(%s: tensor<2xf32>, %v: tensor<4x3x2xf32>, %i: tensor<i32>) -> tensor<2xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %four = stablehlo.constant dense<4> : tensor<i32>
    %negative = stablehlo.compare LT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %wrapped = stablehlo.add %i, %four : tensor<i32>
    %index = stablehlo.select %negative, %wrapped, %i : tensor<i1>, tensor<i32>
    %slice = stablehlo.dynamic_slice %v, %index, %zero, %zero, sizes = [1, 3, 2]
        : (tensor<4x3x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x2xf32>
    %m = stablehlo.reshape %slice : (tensor<1x3x2xf32>) -> tensor<3x2xf32>
    %y = stablehlo.dot_general %s, %m, contracting_dims = [0] x [1] : (tensor<2xf32>, tensor<3x2xf32>) -> tensor<3xf32>
    %z = stablehlo.dot_general %y, %m, contracting_dims = [0] x [0] : (tensor<3xf32>, tensor<3x2xf32>) -> tensor<2xf32>
    return %z : tensor<2xf32>
  }
}
"""
RNG = np.random.default_rng(1)
X = RNG.standard_normal(2).astype(np.float32)
W = RNG.standard_normal((4, 3, 2)).astype(np.float32)


def loop(start: int = 0, limit: int | None = 4, comparison: str = "LT", step: int = 1) -> str:
    bound = (
        "stablehlo.convert %n : tensor<i32>" if limit is None else f"stablehlo.constant dense<{limit}> : tensor<i32>"
    )
    text = LOOP.replace("%START", f"%start = stablehlo.constant dense<{start}> : tensor<i32>")
    return text.replace("%LIMIT", f"%limit = {bound}").replace("COMPARISON", comparison).replace("STEP", str(step))


@pytest.fixture(scope="module")
def reference() -> Any:
    with pjrt.client("reference") as client:
        yield client


def run(client: pjrt.Client, line: StraightLine, arguments: dict[int, np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(result) for result in client.compile(line.program)(*(s.of(arguments) for s in line.sources))]


def assert_same(client: pjrt.Client, program: str, weights: set[int], *arguments: np.ndarray) -> StraightLine:
    line = straighten(program, weights)
    expected = client.compile(program)(*arguments)
    for found, value in zip(run(client, line, dict(enumerate(arguments))), expected, strict=True):
        np.testing.assert_array_equal(found, np.asarray(value))
    return line


def operations(line: StraightLine) -> list[str]:
    body = parse(line.program).entry.body
    assert body is not None
    return [operation.name for operation in body.walk()]


def test_a_loop_over_weights_is_unrolled(reference: pjrt.Client) -> None:
    line = assert_same(reference, loop(), {1}, X, W, np.int32(0))
    assert [source.name for source in line.sources if source.argument == 1] == ["w[0]", "w[1]", "w[2]", "w[3]"]
    assert {"stablehlo.while", "func.call", "stablehlo.dynamic_slice"}.isdisjoint(operations(line))
    assert operations(line).count("stablehlo.dot_general") == 8
    # Each iteration takes its counter as an argument, so that all are equal.
    assert [int(source.of({})) for source in line.sources if source.argument is None] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"limit": None}, {1}),  # how often it runs is known only to the caller
        ({}, set()),  # it takes no weights
    ],
)
def test_other_loops_stay(options: dict[str, Any], weights: set[int], reference: pjrt.Client) -> None:
    line = assert_same(reference, loop(**options), weights, X, W, np.int32(3))
    assert "stablehlo.while" in operations(line)


@given(
    st.integers(-4, 4), st.integers(-5, 6), st.sampled_from(["LT", "LE", "GT", "GE", "NE"]), st.sampled_from([1, -1, 2])
)
@settings(max_examples=25, deadline=None)
def test_loops_of_any_count(start: int, limit: int, comparison: str, step: int) -> None:
    program = loop(start, limit, comparison, step)
    count, value = 0, start
    compare = {"LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__, "NE": int.__ne__}[comparison]
    while compare(value, limit) and count < 30:
        count, value = count + 1, value + step
    if count == 30:
        return  # it runs for as long as the integer takes to wrap
    with pjrt.client("reference") as client:
        assert_same(client, program, {1}, X, W, np.int32(0))


def test_an_endless_loop_stays() -> None:
    assert "stablehlo.while" in operations(straighten(loop(0, 4, "GE", 0).replace("GE", "LT"), {1}))


def test_a_loop_with_too_many_iterations_stays() -> None:
    assert "stablehlo.while" in operations(straighten(loop(0, 1_000_000), {1}))


def test_slices_outside_of_loops(reference: pjrt.Client) -> None:
    program = """
    func.func @main(%w: tensor<4x6xf32> loc("w")) -> (tensor<6xf32>, tensor<2x6xf32>, tensor<4x2xf32>, tensor<2x3xf32>,
        tensor<2x2x6xf32>, tensor<4x6xf32>) {
      %row = stablehlo.slice %w [1:2, 0:6] : (tensor<4x6xf32>) -> tensor<1x6xf32>
      %flat = stablehlo.reshape %row : (tensor<1x6xf32>) -> tensor<6xf32>
      %rows = stablehlo.slice %w [2:4, 0:6] : (tensor<4x6xf32>) -> tensor<2x6xf32>
      %columns = stablehlo.slice %w [0:4, 1:3] : (tensor<4x6xf32>) -> tensor<4x2xf32>
      %part = stablehlo.slice %row [0:1, 0:6] : (tensor<1x6xf32>) -> tensor<1x6xf32>
      %pairs = stablehlo.reshape %part : (tensor<1x6xf32>) -> tensor<2x3xf32>
      %halves = stablehlo.reshape %w : (tensor<4x6xf32>) -> tensor<2x2x6xf32>
      return %flat, %rows, %columns, %pairs, %halves, %w : tensor<6xf32>, tensor<2x6xf32>, tensor<4x2xf32>,
        tensor<2x3xf32>, tensor<2x2x6xf32>, tensor<4x6xf32>
    }"""
    line = assert_same(reference, program, {0}, np.arange(24, dtype=np.float32).reshape(4, 6))
    assert sorted(source.name for source in line.sources) == ["w", "w[1]", "w[1]", "w[2:4]"]
    # Columns do not follow one another in memory: they are sliced on the device.
    assert operations(line).count("stablehlo.slice") == 1


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).flatmap(
        lambda shape: st.tuples(
            st.just(tuple(shape)),
            st.tuples(
                *(
                    st.integers(0, size - 1).flatmap(
                        lambda low, size=size: st.tuples(st.just(low), st.integers(low + 1, size))
                    )
                    for size in shape
                )
            ),
        )
    )
)
@settings(max_examples=40, deadline=None)
def test_slices_of_any_shape(case: tuple[tuple[int, ...], tuple[tuple[int, int], ...]]) -> None:
    shape, bounds = case
    sizes = [high - low for low, high in bounds]
    types = [f"tensor<{'x'.join(map(str, each))}xf32>" for each in (shape, sizes)]
    text = ", ".join(f"{low}:{high}" for low, high in bounds)
    program = f"""
    func.func @main(%w: {types[0]}) -> {types[1]} {{
      %0 = stablehlo.slice %w [{text}] : ({types[0]}) -> {types[1]}
      return %0 : {types[1]}
    }}"""
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with pjrt.client("reference") as client:
        assert_same(client, program, {0}, whole)


def test_large_constants_become_arguments(reference: pjrt.Client) -> None:
    values = np.arange(1 << 14, dtype=np.int32)
    text = values.tobytes().hex().upper()
    program = f"""
    func.func @main(%x: tensor<16384xi32>) -> (tensor<16384xi32>, tensor<16384xi32>) {{
      %c = stablehlo.constant dense<"0x{text}"> : tensor<16384xi32>
      %splat = stablehlo.constant dense<7> : tensor<16384xi32>
      %0 = stablehlo.add %x, %c : tensor<16384xi32>
      %1 = stablehlo.add %0, %splat : tensor<16384xi32>
      return %1, %c : tensor<16384xi32>, tensor<16384xi32>
    }}"""
    line = assert_same(reference, program, set(), values)
    assert [source.argument for source in line.sources] == [0, None]
    assert line.sources[1].name.startswith("constant at ")


def test_regions_take_values_from_around_them(reference: pjrt.Client) -> None:
    program = """
    func.func @main(%x: tensor<f32>, %w: tensor<2xf32>, %p: tensor<i1>) -> tensor<f32> {
      %row = stablehlo.slice %w [1:2] : (tensor<2xf32>) -> tensor<1xf32>
      %s = stablehlo.reshape %row : (tensor<1xf32>) -> tensor<f32>
      %y = "stablehlo.if"(%p) ({
        %0 = func.call @twice(%s) : (tensor<f32>) -> tensor<f32>
        stablehlo.return %0 : tensor<f32>
      }, {
        %1 = stablehlo.add %x, %s : tensor<f32>
        stablehlo.return %1 : tensor<f32>
      }) : (tensor<i1>) -> tensor<f32>
      return %y : tensor<f32>
    }
    func.func private @twice(%x: tensor<f32>) -> tensor<f32> {
      %0 = stablehlo.add %x, %x : tensor<f32>
      return %0 : tensor<f32>
    }"""
    for flag in (True, False):
        assert_same(reference, program, {1}, np.float32(3), np.float32([1, 5]), np.array(flag))


def test_arguments_without_use_are_left_out() -> None:
    program = "func.func @main(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> { return %y : tensor<f32> }"
    assert [source.argument for source in straighten(program, set()).sources] == [1]


def test_dynamic_shapes_are_an_error() -> None:
    program = "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }"
    with pytest.raises(pjrt.UnimplementedError, match="expected static shapes, found tensor<\\?xf32>; refine"):
        straighten(program, set())


def test_a_program_without_an_entry_is_an_error() -> None:
    program = "func.func @f() { return } func.func @g() { return }"
    with pytest.raises(pjrt.NotFoundError, match="a function main or one public function"):
        straighten(program, set())
