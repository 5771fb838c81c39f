"""Reductions of windows: against their definitions, window by window, for any padding, strides and dilations."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from programs import FLOATS, INTEGERS, array, binary_body, program, same, sample, tensor

from pjrt.api.element_type import ElementType

T = ElementType


@dataclass
class Window:
    """One reduce_window, with the specification's names; a list of numbers has one a dimension."""

    shape: tuple[int, ...]
    dimensions: list[int]
    strides: list[int]
    base: list[int]
    window: list[int]
    padding: list[tuple[int, int]]

    @property
    def result(self) -> tuple[int, ...]:
        sizes = []
        for d, size in enumerate(self.shape):
            base = (size - 1) * self.base[d] + 1 if size else 0
            padded = base + sum(self.padding[d])
            reach = (self.dimensions[d] - 1) * self.window[d] + 1
            empty = padded <= 0 or reach > padded
            sizes.append(0 if empty else (padded - reach) // self.strides[d] + 1)
        return tuple(sizes)

    def attributes(self) -> str:
        padding = f"dense<{[list(pair) for pair in self.padding]}> : tensor<{len(self.shape)}x2xi64>"
        return (
            f"window_dimensions = {array(self.dimensions)}, window_strides = {array(self.strides)}, "
            f"base_dilations = {array(self.base)}, window_dilations = {array(self.window)}, padding = {padding}"
        )

    def text(self, region: str, types: list[ElementType]) -> str:
        operands = [tensor(self.shape, t) for t in types] + [tensor((), t) for t in types]
        return program("reduce_window", operands, [tensor(self.result, t) for t in types], self.attributes(), region)

    def elements(self, place: tuple[int, ...]) -> list[tuple[int, ...] | None]:
        """The indices of the elements in a window, in order; None for padding."""
        found: list[tuple[int, ...] | None] = []
        for offset in itertools.product(*(range(size) for size in self.dimensions)):
            index = []
            for d, size in enumerate(self.shape):
                at = place[d] * self.strides[d] + offset[d] * self.window[d] - self.padding[d][0]
                index.append(at // self.base[d] if at % self.base[d] == 0 and 0 <= at // self.base[d] < size else None)
            found.append(None if None in index else tuple(i for i in index if i is not None))
        return found


@st.composite
def windows(draw: Any, most: int = 3, dilated: bool = True) -> Window:
    rank = draw(st.integers(1, most))

    def numbers(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(rank)]

    ones = [1] * rank
    return Window(
        shape=tuple(numbers(1, 6)),
        dimensions=numbers(1, 4),
        strides=numbers(1, 3),
        base=numbers(1, 2) if dilated else ones,
        window=numbers(1, 2) if dilated else ones,
        padding=[(draw(st.integers(-1, 2)), draw(st.integers(-1, 2))) for _ in range(rank)],
    )


def wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


BODIES: dict[str, tuple[Callable[[int, int], int], int]] = {
    "add": (lambda x, y: wrap(x + y), 0),
    "multiply": (lambda x, y: wrap(x * y), 1),
    "maximum": (max, -(2**31)),
    "minimum": (min, 2**31 - 1),
    "xor": (lambda x, y: x ^ y, 0),
}


@settings(max_examples=120, deadline=None)
@given(windows(), st.sampled_from(sorted(BODIES)), st.integers(0, 100))
def test_any_reduce_window(run: Any, w: Window, name: str, seed: int) -> None:
    function, start = BODIES[name]
    x = sample(T.S32, w.shape, seed)
    (found,) = run(w.text(binary_body(name, T.S32), [T.S32]), x, np.int32(start))
    expected = np.empty(w.result, np.int32)
    for place in np.ndindex(*w.result):
        values = [start if index is None else int(x[index]) for index in w.elements(place)]
        expected[place] = functools.reduce(function, values, start)
    same(found, expected)


# x = a·x + b composed: associative, and not commutative. The first map is applied first.
COMPOSE = """^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
  %e = stablehlo.multiply %c, %a : tensor<i32>
  %f = stablehlo.multiply %c, %b : tensor<i32>
  %g = stablehlo.add %f, %d : tensor<i32>
  stablehlo.return %e, %g : tensor<i32>, tensor<i32>"""


@settings(max_examples=60, deadline=None)
@given(windows(), st.integers(0, 100))
def test_order_is_kept(run: Any, w: Window, seed: int) -> None:
    a, b = sample(T.S32, w.shape, seed), sample(T.S32, w.shape, seed + 1)
    found = run(w.text(COMPOSE, [T.S32, T.S32]), a, b, np.int32(1), np.int32(0))
    for place in np.ndindex(*w.result):
        slope, shift = 1, 0
        for index in w.elements(place):
            if index is not None:
                slope, shift = wrap(int(a[index]) * slope), wrap(int(a[index]) * shift + int(b[index]))
        assert (int(found[0][place]), int(found[1][place])) == (slope, shift)


@settings(max_examples=40, deadline=None)
@given(st.integers(5, 40), st.integers(1, 3), st.integers(1, 2), st.integers(0, 9))
def test_long_windows(run: Any, size: int, stride: int, dilation: int, seed: int) -> None:
    """Long ones are put together by doubling."""
    w = Window((80, 2), [size, 1], [stride, 1], [1, 1], [dilation, 1], [(size, 3), (0, 0)])
    a, b = sample(T.S32, w.shape, seed), sample(T.S32, w.shape, seed + 1)
    found = run(w.text(COMPOSE, [T.S32, T.S32]), a, b, np.int32(1), np.int32(0))
    for place in np.ndindex(*w.result):
        slope, shift = 1, 0
        for index in w.elements(place):
            if index is not None:
                slope, shift = wrap(int(a[index]) * slope), wrap(int(a[index]) * shift + int(b[index]))
        assert (int(found[0][place]), int(found[1][place])) == (slope, shift)


def test_a_cumulative_sum(run: Any) -> None:
    w = Window((1000,), [1000], [1], [1], [1], [(999, 0)])
    x = sample(T.S64, (1000,))
    same(run(w.text(binary_body("add", T.S64), [T.S64]), x, np.int64(0))[0], np.cumsum(x))


POOL = Window((4, 4), [2, 2], [2, 2], [1, 1], [1, 1], [(0, 0), (0, 0)])
WITH_ZERO = [t for t in FLOATS if t is not T.F8E8M0FNU]


@pytest.mark.parametrize("t", [*INTEGERS, *WITH_ZERO], ids=lambda t: t.mlir)
def test_pooling(run: Any, t: ElementType) -> None:
    x = np.array([[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]])
    zero = np.zeros((), t.dtype)
    same(
        run(POOL.text(binary_body("maximum", t), [t]), x.astype(t.dtype), zero)[0],
        np.array([[1, 1], [0, 1]]).astype(t.dtype),
    )
    x[2, 2:] = 0  # two bits hold no three
    expected = np.array([[2, 1], [0, 1]])
    if t is T.S2:
        expected[0, 0] = -2
    same(run(POOL.text(binary_body("add", t), [t]), x.astype(t.dtype), zero)[0], expected.astype(t.dtype))


def test_attributes_may_be_absent(run: Any) -> None:
    text = program(
        "reduce_window",
        [tensor((4,)), tensor(())],
        tensor((3,)),
        "window_dimensions = array<i64: 2>",
        binary_body("add", T.S32),
    )
    same(run(text, np.arange(4, dtype=np.int32), np.int32(10))[0], np.array([11, 13, 15], np.int32))


def test_no_window_fits(run: Any) -> None:
    w = Window((2, 3), [3, 1], [1, 1], [1, 1], [1, 1], [(0, 0), (0, 0)])
    same(
        run(w.text(binary_body("add", T.S32), [T.S32]), np.ones((2, 3), np.int32), np.int32(0))[0],
        np.empty((0, 3), np.int32),
    )


@settings(max_examples=10, deadline=None, derandomize=True)  # a crash of XLA would end the run: always the same
@given(windows(), st.sampled_from(["add", "maximum"]))
def test_reduce_window_is_xla_s(run: Any, on_xla: Any, w: Window, name: str) -> None:
    """Whole numbers, so zero ULP whatever the order."""
    x = np.random.default_rng(0).integers(-50, 50, w.shape).astype(np.float32)
    start = np.float32(0 if name == "add" else -np.inf)
    text = w.text(binary_body(name, T.F32), [T.F32])
    assert np.array_equal(run(text, x, start)[0], on_xla(text, x, start)[0])


def select_body(direction: str, t: ElementType = T.S32) -> str:
    s = tensor((), t)
    compare = f"%p = stablehlo.compare {direction}, %x, %y : ({s}, {s}) -> tensor<i1>"
    return f"^bb0(%x: {s}, %y: {s}): {compare} stablehlo.return %p : tensor<i1>"


def scatter_text(w: Window, direction: str, scatter: str, t: ElementType = T.S32) -> str:
    padding = f"dense<{[list(pair) for pair in w.padding]}> : tensor<{len(w.shape)}x2xi64>"
    attributes = f"window_dimensions = {array(w.dimensions)}, window_strides = {array(w.strides)}, padding = {padding}"
    operands = [tensor(w.shape, t), tensor(w.result, t), tensor((), t)]
    bodies = [select_body(direction, t), binary_body(scatter, t)]
    return program("select_and_scatter", operands, operands[0], attributes, bodies)


@settings(max_examples=80, deadline=None)
@given(
    windows(dilated=False),
    st.sampled_from(["GE", "GT", "LE"]),
    st.sampled_from(["add", "subtract", "maximum"]),
    st.integers(0, 99),
)
def test_any_select_and_scatter(run: Any, w: Window, direction: str, scatter: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = random.integers(-3, 3, w.shape).astype(np.int32)
    source = random.integers(-9, 9, w.result).astype(np.int32)
    keeps = {"GE": int.__ge__, "GT": int.__gt__, "LE": int.__le__}[direction]
    combine = {"add": int.__add__, "subtract": int.__sub__, "maximum": max}[scatter]
    expected = np.full(w.shape, 5, np.int32)
    for place in np.ndindex(*w.result):
        inside = [index for index in w.elements(place) if index is not None]
        if not inside:
            continue
        chosen = inside[0]
        for index in inside[1:]:
            if not keeps(int(x[chosen]), int(x[index])):
                chosen = index
        expected[chosen] = combine(int(expected[chosen]), int(source[place]))
    same(run(scatter_text(w, direction, scatter), x, source, np.int32(5))[0], expected)


@pytest.mark.parametrize("t", [*INTEGERS, *WITH_ZERO], ids=lambda t: t.mlir)
def test_the_gradient_of_pooling(run: Any, t: ElementType) -> None:
    x = np.array([[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]]).astype(t.dtype)
    source = np.array([[1, 0], [1, 1]]).astype(t.dtype)
    expected = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]).astype(t.dtype)
    text = scatter_text(POOL, "GE", "add", t)
    same(run(text, x, source, np.zeros((), t.dtype))[0], expected)


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(windows(most=2, dilated=False))
def test_select_and_scatter_is_xla_s(run: Any, on_xla: Any, w: Window) -> None:
    """Small whole numbers, so zero ULP. Windows of padding only are left to each implementation."""
    low_is_small = all(max(pair) < size for pair, size in zip(w.padding, w.dimensions, strict=True))
    assume(low_is_small and min(min(pair) for pair in w.padding) >= 0 and 0 not in w.result)
    random = np.random.default_rng(0)
    x = random.permutation(int(np.prod(w.shape))).reshape(w.shape).astype(np.float32)
    source = random.integers(-9, 9, w.result).astype(np.float32)
    text = scatter_text(w, "GE", "add", T.F32)
    assert np.array_equal(run(text, x, source, np.float32(0))[0], on_xla(text, x, source, np.float32(0))[0])
