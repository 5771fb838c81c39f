"""Ops on any element type and any shape, with sizes of zero and without dimensions, beside XLA: the same values.

The values are whole numbers whose sums and products are exact in every type, so that no order of rounding counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import tensor

from pjrt.api.element_type import ElementType

T = ElementType
TYPES = [T.PRED, T.S2, T.U2, T.S4, T.U4, T.S8, T.U8, T.S32, T.U64, T.F16, T.BF16, T.F32, T.F64, T.C64, T.F8E4M3FN]
NUMBERS = [t for t in TYPES if t is not T.PRED]

sizes = st.integers(0, 3)
shapes = st.lists(sizes, max_size=3)


def values(t: ElementType, shape: Any, seed: int) -> Any:
    """Zeros and ones, and -1 or the largest value where there is no sign."""
    x = np.random.default_rng(seed).integers(0 if t is T.PRED else -1, 2, shape)
    return x.astype(np.int8 if t.bits < 8 else np.float32 if t.is_floating else np.int64).astype(t.dtype)


def check(run: Any, on_xla: Any, text: str, *args: Any) -> None:
    for found, expected in zip(run(text, *args), on_xla(text, *args), strict=True):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)  # zeros of either sign: a sum may begin with one


def main(given: list[str], made: str, body: str) -> str:
    params = ", ".join(f"%a{i}: {t}" for i, t in enumerate(given))
    return f"func.func @main({params}) -> {made} {{ {body} return %0 : {made} }}"


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum", "compare", "select", "convert"]),
    t=st.sampled_from(NUMBERS),
    to=st.sampled_from(TYPES),
    shape=shapes,
    seed=st.integers(0, 99),
)
def test_element_by_element(
    run: Any, on_xla: Any, name: str, t: ElementType, to: ElementType, shape: list[int], seed: int
) -> None:
    given_type, x, y = tensor(shape, t), values(t, shape, seed), values(t, shape, seed + 1)
    if t.is_complex and name in ("maximum", "minimum"):
        name = "add"
    truth = tensor(shape, T.PRED)
    if name == "compare":
        body = f"%0 = stablehlo.compare EQ, %a0, %a1 : ({given_type}, {given_type}) -> {truth}"
        check(run, on_xla, main([given_type] * 2, truth, body), x, y)
    elif name == "select":
        body = f"%0 = stablehlo.select %a0, %a1, %a2 : {truth}, {given_type}"
        check(run, on_xla, main([truth, given_type, given_type], given_type, body), values(T.PRED, shape, seed), x, y)
    elif name == "convert":
        made = tensor(shape, to)
        body = f"%0 = stablehlo.convert %a0 : ({given_type}) -> {made}"
        check(
            run, on_xla, main([given_type], made, body), np.abs(x.astype(np.complex64)).astype(np.int8).astype(t.dtype)
        )
    else:
        check(run, on_xla, main([given_type] * 2, given_type, f"%0 = stablehlo.{name} %a0, %a1 : {given_type}"), x, y)


@settings(max_examples=15, deadline=None)
@given(data=st.data(), t=st.sampled_from(TYPES), seed=st.integers(0, 99))
def test_moving(run: Any, on_xla: Any, data: Any, t: ElementType, seed: int) -> None:
    shape = data.draw(shapes)
    edges = [(data.draw(st.integers(-1, 2)), data.draw(st.integers(-1, 2)), data.draw(sizes)) for _ in shape]
    made = [max(size - 1, 0) * inner + size + low + high for size, (low, high, inner) in zip(shape, edges, strict=True)]
    if any(size < 0 for size in made):
        return
    low, high, inner = (
        f"array<i64{': ' if shape else ''}{', '.join(str(edge[i]) for edge in edges)}>" for i in range(3)
    )
    attributes = f"edge_padding_low = {low}, edge_padding_high = {high}, interior_padding = {inner}"
    types = [tensor(shape, t), tensor([], t)]
    body = f'%0 = "stablehlo.pad"(%a0, %a1) {{{attributes}}} : ({", ".join(types)}) -> {tensor(made, t)}'
    check(run, on_xla, main(types, tensor(made, t), body), values(t, shape, seed), values(t, [], seed))


@settings(max_examples=15, deadline=None)
@given(
    t=st.sampled_from([t for t in NUMBERS if t.bits >= 8 and t is not T.F8E4M3FN]),  # XLA multiplies no others
    batch=st.lists(sizes, max_size=1),
    rows=st.lists(sizes, max_size=1),
    inner=st.lists(sizes, max_size=2),
    columns=st.lists(sizes, max_size=1),
    seed=st.integers(0, 99),
)
def test_products(
    run: Any,
    on_xla: Any,
    t: ElementType,
    batch: list[int],
    rows: list[int],
    inner: list[int],
    columns: list[int],
    seed: int,
) -> None:
    left, right, made = batch + rows + inner, batch + columns + inner, batch + rows + columns
    over = list(range(len(batch)))
    of_left, of_right = ([len(kept) + i for i in range(len(inner))] for kept in (batch + rows, batch + columns))
    numbers = (
        f"lhs_batching_dimensions = {over}, rhs_batching_dimensions = {over}, "
        f"lhs_contracting_dimensions = {of_left}, rhs_contracting_dimensions = {of_right}"
    )
    types = [tensor(left, t), tensor(right, t)]
    attributes = f"{{dot_dimension_numbers = #stablehlo.dot<{numbers}>}}"
    body = f'%0 = "stablehlo.dot_general"(%a0, %a1) {attributes} : ({", ".join(types)}) -> {tensor(made, t)}'
    check(run, on_xla, main(types, tensor(made, t), body), values(t, left, seed), values(t, right, seed + 1))


@settings(max_examples=15, deadline=None)
@given(
    t=st.sampled_from([T.S32, T.F32, T.BF16]),
    spatial=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 2)), max_size=2),
    batch=sizes,
    features=st.tuples(sizes, sizes),
    seed=st.integers(0, 99),
)
def test_convolutions(
    run: Any, on_xla: Any, t: ElementType, spatial: Any, batch: int, features: Any, seed: int
) -> None:
    x = [batch, *(size for size, _, _ in spatial), features[0]]
    kernel = [*(window for _, window, _ in spatial), *features]
    places = [max(0, (size - window) // stride + 1) if size >= window else 0 for size, window, stride in spatial]
    made = [batch, *places, features[1]]
    dims = "".join(f"{i}, " for i in range(len(spatial)))
    numbers = f"[b, {dims}f]x[{dims}i, o]->[b, {dims}f]"
    strides = f"array<i64{': ' if spatial else ''}{', '.join(str(stride) for _, _, stride in spatial)}>"
    attributes = (
        f"window_strides = {strides}, dimension_numbers = #stablehlo.conv<{numbers}>, "
        "feature_group_count = 1 : i64, batch_group_count = 1 : i64"
    )
    types = [tensor(x, t), tensor(kernel, t)]
    body = f'%0 = "stablehlo.convolution"(%a0, %a1) {{{attributes}}} : ({", ".join(types)}) -> {tensor(made, t)}'
    check(run, on_xla, main(types, tensor(made, t), body), values(t, x, seed), values(t, kernel, seed + 1))
