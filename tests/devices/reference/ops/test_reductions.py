"""Reductions and map: every body on every element type, against Python's integers, exact sums and definitions.

Tolerances. Whole numbers, orders and logic are exact. A sum of ``n`` floats of 32 bits or more may be off by the number
of additions on the longest path, each with half an ULP of the sum of magnitudes. Sums and products of floats below 32
bits are rounded each time that the body is applied: they must be one of the results that the specification allows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import FLOATS, INTEGERS, TYPES, array, binary_body, program, same, sample, tensor

from pjrt.api.element_type import ElementType

T = ElementType
WITH_ZERO = [t for t in FLOATS if t is not T.F8E8M0FNU]


def reduce_text(
    shape: tuple[int, ...],
    axes: Any,
    operands: list[ElementType],
    region: str,
    results: list[ElementType] | None = None,
) -> str:
    kept = [size for d, size in enumerate(shape) if d not in axes]
    types = [tensor(shape, t) for t in operands] + [tensor((), t) for t in operands]
    given = [tensor(kept, t) for t in results or operands]
    return program("reduce", types, given, f"dimensions = {array(axes)}", region)


INTEGER_BODIES: dict[str, tuple[Callable[[int, int], int], int]] = {
    "add": (lambda x, y: x + y, 0),
    "multiply": (lambda x, y: x * y, 1),
    "maximum": (max, -2),
    "minimum": (min, 1),
    "and": (lambda x, y: x & y, -1),
    "or": (lambda x, y: x | y, 0),
    "xor": (lambda x, y: x ^ y, 0),
}


def wrap(value: int, t: ElementType) -> int:
    value %= 1 << t.bits
    return value - (1 << t.bits) if t.name[0] == "S" and value >= 1 << (t.bits - 1) else value


@pytest.mark.parametrize("name", INTEGER_BODIES)
@pytest.mark.parametrize("t", INTEGERS, ids=lambda t: t.mlir)
def test_integers(run: Any, t: ElementType, name: str) -> None:
    function, start = INTEGER_BODIES[name]
    start = wrap(start, t)
    x = sample(t, (3, 5, 2))
    (found,) = run(reduce_text((3, 5, 2), [1], [t], binary_body(name, t)), x, np.array(start).astype(t.dtype))
    expected = [
        [wrap(functools.reduce(function, [int(v) for v in x[i, :, k]], start), t) for k in range(2)] for i in range(3)
    ]
    same(found, np.array(expected, np.int64 if t is not T.U64 else np.uint64).astype(t.dtype))


@pytest.mark.parametrize(
    ("name", "start", "expected"),
    [
        ("add", False, [1, 0, 1]),
        ("or", False, [1, 0, 1]),
        ("maximum", False, [1, 0, 1]),
        ("multiply", True, [0, 0, 1]),
        ("and", True, [0, 0, 1]),
        ("minimum", True, [0, 0, 1]),
        ("xor", False, [1, 0, 0]),
        ("xor", True, [0, 1, 1]),
    ],
)
def test_booleans(run: Any, name: str, start: bool, expected: list[int]) -> None:
    x = np.array([[0, 1], [0, 0], [1, 1]], np.bool_)
    (found,) = run(reduce_text((3, 2), [1], [T.PRED], binary_body(name, T.PRED)), x, np.bool_(start))
    same(found, np.array(expected, np.bool_))


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2], []])
@pytest.mark.parametrize("t", [*WITH_ZERO, T.C64, T.C128], ids=lambda t: t.mlir)
def test_sums_of_small_whole_numbers_are_exact(run: Any, t: ElementType, axes: list[int]) -> None:
    x = np.zeros((2, 3, 4))
    x[:, 1, 2], x[1, 2, 0] = 1, -1  # any sum is representable, even in four bits
    if t in (T.F8E4M3FNUZ, T.F8E5M2FNUZ):
        x = np.abs(x)
    (found,) = run(reduce_text((2, 3, 4), axes, [t], binary_body("add", t)), x.astype(t.dtype), np.zeros((), t.dtype))
    same(found, x.sum(tuple(axes)).astype(t.dtype) if axes else x.astype(t.dtype))


ULP = {T.F32: 2.0**-23, T.F64: 2.0**-52}


@pytest.mark.parametrize("shape", [(1000,), (7, 400), (400, 7), (10007, 3)])
@pytest.mark.parametrize("t", [T.F32, T.F64], ids=lambda t: t.mlir)
def test_sums(run: Any, t: ElementType, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(t.dtype)
    axis = int(np.argmax(shape))
    (found,) = run(reduce_text(shape, [axis], [t], binary_body("add", t)), x, t.dtype.type(0))
    lines = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
    for value, line in zip(np.ravel(found), lines, strict=True):
        exact = math.fsum(line.tolist())
        assert abs(float(value) - exact) <= 0.5 * ULP[t] * math.fsum(np.abs(line).tolist()) * shape[axis] ** 0.5 + 1e-30


@pytest.mark.parametrize(("shape", "axes"), [((100, 211, 3), [0, 1]), ((21101, 2), [0]), ((21101, 2), [0, 1])])
def test_sums_of_many_rows_stay_exact(run: Any, shape: tuple[int, ...], axes: list[int]) -> None:
    """About 150 additions on the longest path, where numpy alone has 21,000."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)
    (found,) = run(reduce_text(shape, axes, [T.F32], binary_body("add", T.F32)), x, np.float32(1000))
    exact = x.astype(np.float64).sum(tuple(axes)) + 1000
    assert (np.abs(found - exact) <= 16 * ULP[T.F32] * exact).all()


@pytest.mark.parametrize("t", [T.BF16, T.F16], ids=lambda t: t.mlir)
def test_sums_of_narrow_floats_are_rounded_once(run: Any, nearest: Any, t: ElementType) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1, 300).astype(t.dtype)
    (found,) = run(reduce_text((300,), [0], [t], binary_body("add", t)), x, np.zeros((), t.dtype))
    exact = math.fsum(x.astype(np.float64).tolist())
    ulp = float(np.spacing(found)) if t is T.F16 else 2.0 ** (math.floor(math.log2(exact)) - 7)
    assert abs(float(found) - float(nearest(exact, t.dtype))) <= ulp


@pytest.mark.parametrize("t", WITH_ZERO, ids=lambda t: t.mlir)
def test_the_largest_and_the_smallest(run: Any, t: ElementType) -> None:
    x = np.array([[0.5, 2, -1, 1], [-1, -0.5, -2, -1.5], [0, 0, 1, 2]]).astype(t.dtype)
    low, high = np.array(-3 if t.bits > 4 else -2).astype(t.dtype), np.array(3 if t.bits > 4 else 2).astype(t.dtype)
    same(
        run(reduce_text((3, 4), [1], [t], binary_body("maximum", t)), x, low)[0], np.array([2, -0.5, 2]).astype(t.dtype)
    )
    same(
        run(reduce_text((3, 4), [1], [t], binary_body("minimum", t)), x, high)[0], np.array([-1, -2, 0]).astype(t.dtype)
    )


def test_nan_is_the_largest_and_the_smallest(run: Any) -> None:
    x = np.array([1, np.nan, 2], np.float32)
    for name in ("maximum", "minimum"):
        (found,) = run(reduce_text((3,), [0], [T.F32], binary_body(name, T.F32)), x, np.float32(0))
        assert np.isnan(found)


@pytest.mark.parametrize(("shape", "axes"), [((0,), [0]), ((3, 0), [1]), ((3, 0), [0]), ((0, 2), [0, 1])])
@pytest.mark.parametrize("name", ["add", "maximum", "subtract"])
def test_nothing_to_reduce_gives_the_initial_value(run: Any, shape: Any, axes: list[int], name: str) -> None:
    kept = [size for d, size in enumerate(shape) if d not in axes]
    x = np.zeros(shape, np.int32)
    (found,) = run(reduce_text(shape, axes, [T.S32], binary_body(name, T.S32)), x, np.int32(7))
    same(found, np.full(kept, 7, np.int32))


# 2×2 matrices of integers modulo 2³², multiplied: associative, and nothing like commutative.
MATRICES = (
    """^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>,
      %p: tensor<i32>, %q: tensor<i32>, %r: tensor<i32>, %s: tensor<i32>):
"""
    + "\n".join(
        f"%{o}0 = stablehlo.multiply %{u}, %{v} : tensor<i32> %{o}1 = stablehlo.multiply %{w}, %{x} : tensor<i32> "
        f"%{o} = stablehlo.add %{o}0, %{o}1 : tensor<i32>"
        for o, u, v, w, x in (("e", *"apbr"), ("f", *"aqbs"), ("g", *"cpdr"), ("h", *"cqds"))
    )
    + " stablehlo.return %e, %f, %g, %h : tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>"
)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3), st.integers(0, 9), st.integers(1, 3), st.sets(st.integers(0, 2), min_size=1), st.integers(0, 99)
)
def test_order_is_kept(run: Any, a: int, b: int, c: int, axes: set[int], seed: int) -> None:
    shape = (a, b, c)
    parts = [sample(T.S32, shape, seed + k) for k in range(4)]
    start = [np.int32(k) for k in (1, 2, 0, 1)]
    found = run(reduce_text(shape, sorted(axes), [T.S32] * 4, MATRICES), *parts, *start)
    matrices = np.stack(parts, -1).astype(np.int64)
    kept = [d for d in range(3) if d not in axes]
    lines = matrices.transpose(*kept, *sorted(axes), 3).reshape(
        *(shape[d] for d in kept), math.prod(shape[d] for d in axes), 4
    )
    for place in np.ndindex(*lines.shape[:-2]):
        product = np.array([1, 2, 0, 1]).reshape(2, 2)
        for matrix in lines[place]:
            product = (product @ matrix.reshape(2, 2) + 2**31) % 2**32 - 2**31
        assert [int(part[place]) for part in found] == product.reshape(-1).tolist()


ARGMAX = """^bb0(%v: tensor<f32>, %i: tensor<i32>, %w: tensor<f32>, %j: tensor<i32>):
  %g = stablehlo.compare GT, %v, %w : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %n = stablehlo.compare NE, %v, %v : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %k = stablehlo.or %g, %n : tensor<i1>
  %e = stablehlo.compare EQ, %v, %w : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %l = stablehlo.compare LT, %i, %j : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %m = stablehlo.and %e, %l : tensor<i1>
  %o = stablehlo.or %k, %m : tensor<i1>
  %r = stablehlo.select %k, %v, %w : tensor<i1>, tensor<f32>
  %s = stablehlo.select %o, %i, %j : tensor<i1>, tensor<i32>
  stablehlo.return %r, %s : tensor<f32>, tensor<i32>"""


@pytest.mark.parametrize("axis", [0, 1])
def test_the_place_of_the_largest(run: Any, on_xla: Any, axis: int) -> None:
    random = np.random.default_rng(0)
    x = random.integers(-4, 4, (37, 29)).astype(np.float32)
    x[random.integers(0, 37, 5), random.integers(0, 29, 5)] = np.nan
    places = np.broadcast_to(
        np.arange(x.shape[axis], dtype=np.int32).reshape((-1, 1) if axis == 0 else (1, -1)), x.shape
    )
    text = reduce_text(x.shape, [axis], [T.F32, T.S32], ARGMAX)
    args = (x, places, np.float32(-np.inf), np.int32(0))
    largest, place = run(text, *args)
    same(place, np.argmax(x, axis).astype(np.int32))
    assert np.array_equal(largest, np.max(x, axis), equal_nan=True)
    assert np.array_equal(place, on_xla(text, *args)[1])


def test_a_body_that_is_wider_than_its_operands(run: Any) -> None:
    x = np.full(1000, 1.0 / 256, np.float32).astype(T.BF16.dtype)
    text = reduce_text((1000,), [0], [T.BF16], binary_body("add", T.F32), [T.F32])
    same(run(text, x, np.zeros((), T.BF16.dtype))[0], np.float32(1000 / 256))


LOOPING = """^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %z = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%x = %a, %y = %b) : tensor<i32>, tensor<i32> cond {
    %p = stablehlo.compare NE, %y, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %m = stablehlo.remainder %x, %y : tensor<i32>
    stablehlo.return %y, %m : tensor<i32>, tensor<i32>
  }
  stablehlo.return %r#0 : tensor<i32>"""


def test_a_body_with_a_loop_in_it(run: Any) -> None:
    x = np.array([[12, 18, 30], [35, 14, 21]], np.int32)
    (found,) = run(reduce_text((2, 3), [1], [T.S32], LOOPING), x, np.int32(0))
    same(found, np.array([6, 7], np.int32))


@settings(max_examples=10, deadline=None, derandomize=True)  # a crash of XLA would end the run: always the same
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4)
    .map(tuple)
    .flatmap(lambda s: st.tuples(st.just(s), st.sets(st.integers(0, len(s) - 1)))),
    st.sampled_from(["add", "maximum", "minimum", "multiply"]),
)
def test_reduce_is_xla_s(run: Any, on_xla: Any, case: Any, name: str) -> None:
    """Whole numbers, so zero ULP in any order. The initial value changes nothing: how often it is taken is open."""
    shape, axes = case
    start = np.float32({"add": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}[name])
    x = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
    text = reduce_text(shape, sorted(axes), [T.F32], binary_body(name, T.F32))
    assert np.array_equal(run(text, x, start)[0], on_xla(text, x, start)[0])


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)
def test_map(run: Any, t: ElementType) -> None:
    s = tensor((), t)
    x, y = sample(t, (2, 3)), sample(t, (2, 3), 1)
    single = f'^bb0(%x: {s}, %y: {s}): "stablehlo.return"(%y) : ({s}) -> ()'
    operands = [tensor((2, 3), t)] * 2
    same(run(program("map", operands, operands[0], "dimensions = array<i64: 0, 1>", single), x, y)[0], y)


def test_map_of_ops_loops_and_constants(run: Any) -> None:
    x, y = np.array([[12, 18], [35, 7]], np.int32), np.array([[18, 12], [14, 0]], np.int32)
    operands = [tensor((2, 2))] * 2
    attributes = "dimensions = array<i64: 0, 1>"
    same(run(program("map", operands, operands[0], attributes, LOOPING), x, y)[0], np.gcd(x, y))
    same(run(program("map", operands, operands[0], attributes, binary_body("subtract", T.S32)), x, y)[0], x - y)
    constant = (
        "^bb0(%a: tensor<i32>, %b: tensor<i32>): %c = stablehlo.constant dense<5> : tensor<i32> "
        "stablehlo.return %c : tensor<i32>"
    )
    same(run(program("map", operands, operands[0], attributes, constant), x, y)[0], np.full((2, 2), 5, np.int32))


QUANTIZED = "!quant.uniform<i8:f32, 0.25:3>"


@pytest.mark.parametrize("name", ["add", "maximum", "subtract"])
def test_quantized_values_are_reduced_as_the_real_numbers_they_mean(run: Any, name: str) -> None:
    s, line = f"tensor<{QUANTIZED}>", f"tensor<4x{QUANTIZED}>"
    body = f"^bb0(%x: {s}, %y: {s}): %b = stablehlo.{name} %x, %y : {s} stablehlo.return %b : {s}"
    text = program("reduce", [line, s], s, "dimensions = array<i64: 0>", body)
    # The last sum is beyond the range; the differences are not, on the way either: there the body has its own say.
    x = np.array([100, 7, 20, 60] if name == "add" else [20, 7, -20, 10], np.int8)
    real = [0.25 * (int(v) - 3) for v in x]
    # neighbours first, after the initial value, which is zero
    total = {"add": sum(real), "maximum": max(real), "subtract": -((real[0] - real[1]) - (real[2] - real[3]))}[name]
    same(run(text, x, np.int8(3))[0], np.array(min(max(round(total / 0.25) + 3, -128), 127), np.int8))


def test_quantized_values_are_mapped_and_sorted(run: Any) -> None:
    s, line = f"tensor<{QUANTIZED}>", f"tensor<4x{QUANTIZED}>"
    x = np.array([100, 7, -20, 60], np.int8)
    negated = f"^bb0(%x: {s}): %b = stablehlo.negate %x : {s} stablehlo.return %b : {s}"
    same(
        run(program("map", [line], line, "dimensions = array<i64: 0>", negated), x)[0],
        (6 - x.astype(int)).astype(np.int8),
    )
    less = f"%p = stablehlo.compare LT, %x, %y : ({s}, {s}) -> tensor<i1>"
    body = f"^bb0(%x: {s}, %y: {s}): {less} stablehlo.return %p : tensor<i1>"
    same(run(program("sort", [line], line, "dimension = 0 : i64", body), x)[0], np.sort(x))


def attainable(values: tuple[Any, ...], body: Callable[[Any, Any], Any]) -> set[Any]:
    """Return the results of the body on values in their order, one for each tree of applications."""

    @functools.cache
    def between(start: int, end: int) -> frozenset[Any]:
        if end - start == 1:
            return frozenset([values[start]])
        return frozenset(
            body(left, right)
            for cut in range(start + 1, end)
            for left in between(start, cut)
            for right in between(cut, end)
        )

    return set(between(0, len(values)))


@pytest.mark.parametrize("name", ["add", "multiply"])
@pytest.mark.parametrize("t", [T.F16, T.BF16, T.F8E4M3FN, T.F8E5M2, T.F6E3M2FN], ids=lambda t: t.mlir)
def test_small_floats_are_rounded_by_each_application(run: Any, t: ElementType, name: str) -> None:
    ufunc, start = {"add": (np.add, 0), "multiply": (np.multiply, 1)}[name]
    x = (np.random.default_rng(t).integers(1, 1 << min(t.bits + 1, 12), (40, 6)) / 8.0).astype(t.dtype)

    def body(a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return ufunc(np.float32(a), np.float32(b)).astype(t.dtype)

    text = reduce_text((40, 6), [1], [t], binary_body(name, t))
    (found,) = run(text, x, np.array(start).astype(t.dtype))
    for result, row in zip(found, x, strict=True):
        possible = attainable((np.array(start).astype(t.dtype)[()], *row), body)
        assert result in possible or np.isnan(np.float32(result))


def test_a_long_sum_of_small_floats_stays_close(run: Any) -> None:
    """One after the other would end at 256."""
    x = np.ones(600, T.BF16.dtype)
    (found,) = run(reduce_text((600,), [0], [T.BF16], binary_body("add", T.BF16)), x, T.BF16.dtype.type(0))
    assert abs(float(found) - 600) <= 8
