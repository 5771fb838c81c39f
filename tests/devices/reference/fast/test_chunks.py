"""Chunks: the results of operations that go through large arrays chunk by chunk are those of small arrays, bit by bit.

The tests make chunks small, in place of arrays large.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import array, program, tensor

from pjrt.api.element_type import ElementType
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir, op_view, reducers
from pjrt.devices.reference.numerics import indexing, linear_algebra

T = ElementType
BODY = """^bb0(%a: tensor<{t}>, %b: tensor<{t}>):
  %d = stablehlo.abs %b : tensor<{t}>
  %c = stablehlo.{function} %a, %d : tensor<{t}>
  stablehlo.return %c : tensor<{t}>"""


def evaluate(text: str, *arguments: Any) -> Any:
    (result,) = Evaluator(mlir.parse(text)).run(arguments)
    return result


def assert_same_in_chunks(text: str, *arguments: Any) -> None:
    whole = evaluate(text, *arguments)
    with pytest.MonkeyPatch.context() as patch:
        for module in (indexing, linear_algebra, reducers, op_view):
            patch.setattr(module, "CHUNK", 6)
        found = evaluate(text, *arguments)
    assert (found.dtype, found.shape, found.tobytes()) == (whole.dtype, whole.shape, whole.tobytes())


def values(t: ElementType, *shape: int) -> Any:
    random = np.random.default_rng(0)
    return (random.standard_normal(shape) if t.is_floating else random.integers(-50, 50, shape)).astype(t.dtype)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.data(),
    st.sampled_from([T.F32, T.BF16, T.S32]),
    st.sampled_from(["add", "maximum"]),
)
def test_reduce(shape: list[int], data: Any, t: ElementType, function: str) -> None:
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    kept = [size for d, size in enumerate(shape) if d not in axes]
    types = [tensor(shape, t), tensor((), t)]
    text = program(
        "reduce", types, [tensor(kept, t)], f"dimensions = {array(axes)}", BODY.format(t=t.mlir, function=function)
    )
    x = values(t, *shape[::-1]).transpose() if data.draw(st.booleans()) else values(t, *shape)
    assert_same_in_chunks(text, x, np.zeros((), t.dtype))


@given(st.data(), st.sampled_from([T.F32, T.BF16]), st.sampled_from(["add", "maximum"]))
def test_reduce_window(data: Any, t: ElementType, function: str) -> None:
    rank = data.draw(st.integers(1, 2))

    def numbers(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    shape, windows, strides, base, dilations = (
        numbers(1, 40),
        numbers(1, 7),
        numbers(1, 3),
        numbers(1, 2),
        numbers(1, 2),
    )
    low, high = numbers(-1, 9), numbers(-1, 9)
    sizes = []
    for d in range(rank):
        extent = max(0, (shape[d] - 1) * base[d] + 1 + low[d] + high[d])
        reach = (windows[d] - 1) * dilations[d] + 1
        sizes.append(max(0, (extent - reach) // strides[d] + 1))
    attributes = (
        f"window_dimensions = {array(windows)}, window_strides = {array(strides)}, base_dilations = {array(base)}, "
        f"window_dilations = {array(dilations)}, "
        f"padding = dense<{[list(edges) for edges in zip(low, high, strict=True)]}> : tensor<{rank}x2xi64>"
    )
    types = [tensor(shape, t), tensor((), t)]
    text = program("reduce_window", types, [tensor(sizes, t)], attributes, BODY.format(t=t.mlir, function=function))
    assert_same_in_chunks(text, values(t, *shape), np.ones((), t.dtype))


@pytest.mark.parametrize("function", ["add", "maximum"])
def test_scatter_and_gather(function: str) -> None:
    indices = np.random.default_rng(0).integers(-1, 8, (40, 2), dtype=np.int32)
    types = [tensor((7, 8), T.F32), tensor((40, 2), T.S32), tensor((40,), T.F32)]
    numbers = (
        "scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], "
        "scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>"
    )
    text = program("scatter", types, types[:1], numbers, BODY.format(t="f32", function=function))
    x = values(T.F32, 7, 8)
    assert_same_in_chunks(text, x, indices, values(T.F32, 40))
    numbers = (
        "dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], "
        "index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>"
    )
    assert_same_in_chunks(program("gather", types[:2], types[2:], numbers), x, indices)


def test_gather_and_scatter_with_batching_dimensions() -> None:
    indices = np.random.default_rng(0).integers(0, 5, (30, 1), dtype=np.int32)
    types = [tensor((30, 5), T.F32), tensor((30, 1), T.S32), tensor((30,), T.F32)]
    numbers = (
        "dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], "
        "start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1>, "
        "slice_sizes = array<i64: 1, 1>"
    )
    x = values(T.F32, 30, 5)
    assert_same_in_chunks(program("gather", types[:2], types[2:], numbers), x, indices)
    numbers = (
        "scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], "
        "scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>"
    )
    text = program("scatter", types, types[:1], numbers, BODY.format(t="f32", function="add"))
    assert_same_in_chunks(text, x, indices, values(T.F32, 30))


@pytest.mark.parametrize("t", [T.S8, T.S4, T.U64, T.BF16, T.C64, T.PRED], ids=lambda t: t.mlir)
@pytest.mark.parametrize(
    ("left", "right"), [((300, 5), (5, 280)), ((300, 5), (5, 1)), ((1, 5), (5, 600)), ((3, 2, 5), (3, 5, 4))]
)
def test_products(t: ElementType, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    product = linear_algebra.matmul_of(t, t, t)
    x, y = (values(T.S8, *shape).astype(t.dtype) for shape in (left, right))
    with pytest.MonkeyPatch.context() as patch:
        for module in (indexing, linear_algebra):
            patch.setattr(module, "CHUNK", 6)
        found = product(x, y)
    expected = np.matmul(x.astype(object), y.astype(object))
    if t is T.PRED:
        expected = np.matmul(x.astype(int), y.astype(int)) > 0
    if t is T.S4:
        expected = ((expected + 8) % 16 - 8).astype(np.int8)
    if t is T.S8:
        expected = (expected + 128) % 256 - 128
    if t is T.U64:
        expected %= 1 << 64
    assert (found.astype(ml_dtypes.bfloat16 if t is T.BF16 else found.dtype) == expected.astype(t.dtype)).all()


def test_a_map_of_many_elements() -> None:
    types = [tensor((20, 3), T.BF16)] * 2
    text = program("map", types, types[:1], "dimensions = array<i64: 0, 1>", BODY.format(t="bf16", function="add"))
    assert_same_in_chunks(text, values(T.BF16, 20, 3), values(T.BF16, 3, 20).transpose())
