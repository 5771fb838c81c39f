"""Data movement: every op on every element type, against its definition element by element.

No element's value changes, so every comparison is of bits.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import TYPES, array, program, same, sample, tensor

from pjrt.api.element_type import ElementType

T = ElementType
every_type = pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
few = settings(max_examples=40, deadline=None)


def counted(shape: tuple[int, ...]) -> Any:
    return np.arange(math.prod(shape), dtype=np.int32).reshape(shape)


def indices(shape: Any) -> Any:
    return itertools.product(*(range(size) for size in shape))


@every_type
def test_reshape_keeps_the_order(run: Any, t: ElementType) -> None:
    x = sample(t, (3, 4))
    (found,) = run(program("reshape", [tensor((3, 4), t)], tensor((2, 1, 6), t)), x)
    flat = [x[i, j] for i in range(3) for j in range(4)]
    same(found, np.array(flat, t.dtype).reshape(2, 1, 6))


def test_reshape_of_a_scalar_and_of_nothing(run: Any) -> None:
    same(run(program("reshape", [tensor(())], tensor((1, 1))), np.int32(7))[0], np.array([[7]], np.int32))
    same(run(program("reshape", [tensor((1, 1))], tensor(())), np.array([[7]], np.int32))[0], np.array(7, np.int32))
    same(run(program("reshape", [tensor((0, 3))], tensor((5, 0))), counted((0, 3)))[0], counted((5, 0)))


@every_type
def test_transpose(run: Any, t: ElementType) -> None:
    x = sample(t, (2, 3, 4))
    (found,) = run(
        program("transpose", [tensor((2, 3, 4), t)], tensor((4, 2, 3), t), "permutation = array<i64: 2, 0, 1>"), x
    )
    expected = np.empty((4, 2, 3), t.dtype)
    for i, j, k in indices((4, 2, 3)):
        expected[i, j, k] = x[j, k, i]
    same(found, expected)


@few
@given(shapes.flatmap(lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))))
def test_any_transpose(run: Any, case: Any) -> None:
    shape, order = case
    x = counted(shape)
    result = tuple(shape[d] for d in order)
    (found,) = run(program("transpose", [tensor(shape)], tensor(result), f"permutation = {array(order)}"), x)
    expected = np.empty(result, np.int32)
    for index in indices(result):
        source = [0] * len(shape)
        for position, dimension in zip(index, order, strict=True):
            source[dimension] = position
        expected[index] = x[tuple(source)]
    same(found, expected)


@every_type
def test_broadcast_in_dim(run: Any, t: ElementType) -> None:
    x = sample(t, (3, 1))
    attributes = "broadcast_dimensions = array<i64: 2, 0>"
    (found,) = run(program("broadcast_in_dim", [tensor((3, 1), t)], tensor((2, 2, 3), t), attributes), x)
    expected = np.empty((2, 2, 3), t.dtype)
    for i, j, k in indices((2, 2, 3)):
        expected[i, j, k] = x[k, 0]
    same(found, expected)


@st.composite
def broadcasts(draw: Any) -> Any:
    result = draw(st.lists(st.integers(0, 3), max_size=4))
    count = draw(st.integers(0, len(result)))
    dimensions = draw(st.permutations(range(len(result))))[:count]
    operand = [draw(st.sampled_from([1, result[d]])) for d in dimensions]
    return tuple(operand), tuple(result), dimensions


@few
@given(broadcasts())
def test_any_broadcast_in_dim(run: Any, case: Any) -> None:
    shape, result, dimensions = case
    x = counted(shape)
    text = program("broadcast_in_dim", [tensor(shape)], tensor(result), f"broadcast_dimensions = {array(dimensions)}")
    expected = np.empty(result, np.int32)
    for index in indices(result):
        expected[index] = x[tuple(0 if s == 1 else index[d] for s, d in zip(shape, dimensions, strict=True))]
    same(run(text, x)[0], expected)
    back, order = tensor(shape[::-1]), list(reversed(range(len(shape))))
    turned = f"""func.func @main(%a: {back}) -> {tensor(result)} {{
      %t = stablehlo.transpose %a, dims = {order} : ({back}) -> {tensor(shape)}
      %0 = stablehlo.broadcast_in_dim %t, dims = {list(dimensions)} : ({tensor(shape)}) -> {tensor(result)}
      return %0 : {tensor(result)} }}"""
    same(run(turned, x.T.copy())[0], expected)  # an operand that is not contiguous


@every_type
def test_broadcast(run: Any, t: ElementType) -> None:
    x = sample(t, (3,))
    (found,) = run(
        program("broadcast", [tensor((3,), t)], tensor((2, 2, 3), t), "broadcast_sizes = array<i64: 2, 2>"), x
    )
    same(found, np.array([[x, x], [x, x]], t.dtype))


@every_type
def test_slice(run: Any, t: ElementType) -> None:
    x = sample(t, (5, 6))
    attributes = f"start_indices = {array([1, 0])}, limit_indices = {array([4, 6])}, strides = {array([2, 4])}"
    (found,) = run(program("slice", [tensor((5, 6), t)], tensor((2, 2), t), attributes), x)
    same(found, np.array([[x[1, 0], x[1, 4]], [x[3, 0], x[3, 4]]], t.dtype))


@st.composite
def slices(draw: Any) -> Any:
    shape = draw(shapes)
    parts = []
    for size in shape:
        start = draw(st.integers(0, size))
        parts.append((start, draw(st.integers(start, size)), draw(st.integers(1, 5))))
    return shape, parts


@few
@given(slices())
def test_any_slice(run: Any, case: Any) -> None:
    shape, parts = case
    x = counted(shape)
    starts, limits, strides = ([part[i] for part in parts] for i in range(3))
    result = tuple(-(-(limit - start) // stride) for start, limit, stride in parts)
    attributes = f"start_indices = {array(starts)}, limit_indices = {array(limits)}, strides = {array(strides)}"
    expected = np.empty(result, np.int32)
    for index in indices(result):
        expected[index] = x[tuple(s + i * k for s, i, k in zip(starts, index, strides, strict=True))]
    same(run(program("slice", [tensor(shape)], tensor(result), attributes), x)[0], expected)


@every_type
def test_pad(run: Any, t: ElementType) -> None:
    x, value = sample(t, (3,)), sample(t, (1,), seed=1)[0]
    attributes = (
        "edge_padding_low = array<i64: 2>, edge_padding_high = array<i64: -1>, interior_padding = array<i64: 1>"
    )
    (found,) = run(program("pad", [tensor((3,), t), tensor((), t)], tensor((6,), t), attributes), x, value)
    same(found, np.array([value, value, x[0], value, x[1], value], t.dtype))


@st.composite
def pads(draw: Any) -> Any:
    shape, low, high, between = draw(shapes), [], [], []
    for size in shape:
        inner = draw(st.integers(0, 2))
        full = size + max(size - 1, 0) * inner
        low.append(draw(st.integers(-full, 3)))
        high.append(draw(st.integers(-full - min(low[-1], 0) if low[-1] < 0 else -full, 3)))
        between.append(inner)
    return shape, low, high, between


@settings(max_examples=80, deadline=None)
@given(pads())
def test_any_pad(run: Any, case: Any) -> None:
    shape, low, high, between = case
    x = counted(shape)
    full = [size + max(size - 1, 0) * inner for size, inner in zip(shape, between, strict=True)]
    result = tuple(a + b + size for a, b, size in zip(low, high, full, strict=True))
    attributes = (
        f"edge_padding_low = {array(low)}, edge_padding_high = {array(high)}, interior_padding = {array(between)}"
    )
    expected = np.full(result, -1, np.int32)
    for index in indices(shape):
        place = tuple(before + i * (inner + 1) for before, i, inner in zip(low, index, between, strict=True))
        if all(0 <= p < size for p, size in zip(place, result, strict=True)):
            expected[place] = x[index]
    same(run(program("pad", [tensor(shape), tensor(())], tensor(result), attributes), x, np.int32(-1))[0], expected)


@every_type
def test_concatenate(run: Any, t: ElementType) -> None:
    x, y, z = sample(t, (2, 3)), sample(t, (2, 0), 1), sample(t, (2, 1), 2)
    operands = [tensor(v.shape, t) for v in (x, y, z)]
    (found,) = run(program("concatenate", operands, tensor((2, 4), t), "dimension = 1 : i64"), x, y, z)
    same(found, np.array([[*x[0], *z[0]], [*x[1], *z[1]]], t.dtype))


def test_concatenate_of_one_and_along_the_first(run: Any) -> None:
    x = counted((2, 3))
    same(run(program("concatenate", [tensor((2, 3))], tensor((2, 3)), "dimension = 0 : i64"), x)[0], x)
    (found,) = run(program("concatenate", [tensor((2, 3))] * 2, tensor((4, 3)), "dimension = 0 : i64"), x, x + 6)
    same(found, counted((4, 3)))


@every_type
def test_reverse(run: Any, t: ElementType) -> None:
    x = sample(t, (2, 3, 2))
    (found,) = run(program("reverse", [tensor((2, 3, 2), t)], tensor((2, 3, 2), t), "dimensions = array<i64: 0, 1>"), x)
    expected = np.empty((2, 3, 2), t.dtype)
    for i, j, k in indices((2, 3, 2)):
        expected[i, j, k] = x[1 - i, 2 - j, k]
    same(found, expected)


@every_type
@pytest.mark.parametrize(("start", "first"), [(1, 1), (-5, 0), (100, 3)])
def test_dynamic_slice_stays_inside(run: Any, t: ElementType, start: int, first: int) -> None:
    x = sample(t, (5,))
    text = program(
        "dynamic_slice", [tensor((5,), t), tensor((), T.S64)], tensor((2,), t), "slice_sizes = array<i64: 2>"
    )
    same(run(text, x, np.int64(start))[0], np.array([x[first], x[first + 1]], t.dtype))


@few
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(-6, 6)), max_size=3),
    st.sampled_from([T.S8, T.S32, T.S64, T.U64]),
)
def test_any_dynamic_slice_and_update(run: Any, dims: Any, t: ElementType) -> None:
    shape = tuple(size for size, _, _ in dims)
    window = tuple(min(size, width) for size, width, _ in dims)
    given = [start if t is not T.U64 or start >= 0 else 2**64 + start for _, _, start in dims]
    starts = [np.array(start, t.dtype) for start in given]
    firsts = [min(max(start, 0), size - width) for start, size, width in zip(given, shape, window, strict=True)]
    x, scalars = counted(shape), [tensor((), t)] * len(shape)
    text = program("dynamic_slice", [tensor(shape), *scalars], tensor(window), f"slice_sizes = {array(window)}")
    cut, pasted = np.empty(window, np.int32), x.copy()
    for index in indices(window):
        place = tuple(i + first for i, first in zip(index, firsts, strict=True))
        cut[index], pasted[place] = x[place], -x[place]
    same(run(text, x, *starts)[0], cut)
    text = program("dynamic_update_slice", [tensor(shape), tensor(window), *scalars], tensor(shape))
    same(run(text, x, -cut, *starts)[0], pasted)


@every_type
def test_dynamic_update_slice(run: Any, t: ElementType) -> None:
    x, update = sample(t, (3, 3)), sample(t, (1, 2), 1)
    operands = [tensor((3, 3), t), tensor((1, 2), t), tensor((), T.S32), tensor((), T.S32)]
    kept = x.copy()
    (found,) = run(program("dynamic_update_slice", operands, operands[0]), x, update, np.int32(1), np.int32(7))
    expected = np.array([x[0], [x[1, 0], *update[0]], x[2]], t.dtype)
    same(found, expected)
    same(x, kept)  # operands are never written to
