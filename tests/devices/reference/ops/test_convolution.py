"""Convolution against its definition, one product at a time, in whole numbers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt.api.element_type import ElementType
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.ops import convolution as module

T = ElementType


def tensor(shape: Any, t: ElementType) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{t.mlir}>"


def defined(x: Any, kernel: Any, case: dict[str, Any]) -> Any:
    """The definition, for input (batch, feature, spatial…), kernel (output, input, spatial…), output as the input."""
    padding, strides, dilations = case["padding"], case["strides"], case["kernel_dilation"]
    batch, _, *sizes = x.shape
    outputs, per_group, *window = kernel.shape
    groups, batch_groups = case["groups"], case["batch_groups"]
    wide = [(size - 1) * d + 1 if size else 0 for size, d in zip(sizes, case["input_dilation"], strict=True)]
    extents = [w + low + high for w, (low, high) in zip(wide, padding, strict=True)]
    reach = [(w - 1) * d + 1 for w, d in zip(window, dilations, strict=True)]
    places = [max(0, (e - r) // s + 1) if e >= r else 0 for e, r, s in zip(extents, reach, strides, strict=True)]
    out = np.zeros((batch // batch_groups, outputs, *places), np.int64)
    for n, o, place in product(range(out.shape[0]), range(outputs), product(*map(range, places))):
        for c, at in product(range(per_group), product(*map(range, window))):
            index = []
            for d, (p, k) in enumerate(zip(place, at, strict=True)):
                step = window[d] - 1 - k if case["reversal"][d] else k
                padded = p * strides[d] + step * dilations[d] - padding[d][0]
                if padded < 0 or padded % case["input_dilation"][d] or padded >= wide[d]:
                    break
                index.append(padded // case["input_dilation"][d])
            else:
                row = n + (o * batch_groups // outputs) * (batch // batch_groups)
                feature = c + (o * groups // outputs) * per_group
                out[(n, o, *place)] += int(x[(row, feature, *index)]) * int(kernel[(o, c, *at)])
    return out


def text_of(
    x: Any, kernel: Any, made: Any, orders: Any, case: dict[str, Any], types: Any = (T.S32, T.S32, T.S32)
) -> str:
    """The op, with each operand's and the result's dimensions in an order of its own."""
    rank = len(case["strides"])
    names = [["b", "f", *map(str, range(rank))], ["o", "i", *map(str, range(rank))], ["b", "f", *map(str, range(rank))]]
    spelled = [", ".join(name[d] for d in order) for name, order in zip(names, orders, strict=True)]
    given_ = [tensor([a.shape[d] for d in o], t) for a, o, t in zip((x, kernel, made), orders, types, strict=True)]
    window = (
        f"stride = {case['strides']}, pad = {case['padding']}, lhs_dilate = {case['input_dilation']}, "
        f"rhs_dilate = {case['kernel_dilation']}, reverse = {str(case['reversal']).lower()}"
    )
    return f"""func.func @main(%a: {given_[0]}, %b: {given_[1]}) -> {given_[2]} {{
      %0 = stablehlo.convolution(%a, %b)
        dim_numbers = [{spelled[0]}]x[{spelled[1]}]->[{spelled[2]}], window = {{{window}}}
        {{batch_group_count = {case["batch_groups"]} : i64, feature_group_count = {case["groups"]} : i64}}
        : ({given_[0]}, {given_[1]}) -> {given_[2]}
      return %0 : {given_[2]} }}"""


@st.composite
def convolutions(draw: st.DrawFn) -> Any:
    rank = draw(st.integers(0, 2))
    few = st.integers(1, 2)
    groups = draw(st.sampled_from([1, 2, 3]))
    batch_groups = 1 if groups > 1 else draw(few)
    per_dimension = st.lists(few, min_size=rank, max_size=rank)
    case = {
        "strides": draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)),
        "input_dilation": draw(per_dimension),
        "kernel_dilation": draw(per_dimension),
        "reversal": draw(st.lists(st.booleans(), min_size=rank, max_size=rank)),
        "groups": groups,
        "batch_groups": batch_groups,
    }
    window = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    sizes = draw(st.lists(st.integers(3, 5), min_size=rank, max_size=rank))
    case["padding"] = [[draw(st.integers(-1, 2)), draw(st.integers(-1, 2))] for _ in range(rank)]
    per_group = draw(few)
    outputs = groups * batch_groups * draw(few)
    x = (batch_groups * draw(few), per_group * groups, *sizes)
    kernel = (outputs, per_group, *window)
    orders = [draw(st.permutations(range(rank + 2))) for _ in range(3)]
    return case, x, kernel, orders


@settings(max_examples=80, deadline=None)
@given(convolutions())
def test_against_the_definition(generated: Any) -> None:
    case, x_shape, kernel_shape, orders = generated
    random = np.random.default_rng(0)
    x = random.integers(-9, 10, x_shape).astype(np.int32)
    kernel = random.integers(-9, 10, kernel_shape).astype(np.int32)
    expected = defined(x, kernel, case)
    if 0 in expected.shape:
        return  # the dialect has no windows that fit nowhere
    text = text_of(x, kernel, expected, orders, case)
    turned = [np.ascontiguousarray(a.transpose(o)) for a, o in zip((x, kernel), orders, strict=False)]
    (found,) = Evaluator(mlir.parse(text)).run(turned)
    assert np.array_equal(found, expected.transpose(orders[2]))


SIMPLE = {
    "strides": [1, 2],
    "input_dilation": [1, 1],
    "kernel_dilation": [1, 1],
    "reversal": [False, False],
    "padding": [[1, 1], [0, 1]],
    "groups": 1,
    "batch_groups": 1,
}
PLAIN = [range(4)] * 3


@pytest.mark.parametrize(
    "t",
    [t for t in T if t not in (T.INVALID, T.TOKEN, T.S1, T.U1, T.PRED, T.F8E8M0FNU)],
    ids=lambda t: t.mlir,
)
def test_every_type(run: Any, t: ElementType) -> None:
    random = np.random.default_rng(0)
    low = 0 if t.name[0] == "U" else -1
    x, kernel = random.integers(low, 2, (2, 2, 4, 5)), random.integers(low, 2, (3, 2, 2, 2))
    kernel[:, :, 1] = 0  # no more than four products of one a place: exact in every type but the unsigned small ones
    expected = defined(x, kernel, SIMPLE)
    text = text_of(x, kernel, expected, PLAIN, SIMPLE, (t, t, t))
    (found,) = run(text, x.astype(t.dtype), kernel.astype(t.dtype))
    assert found.dtype == t.dtype
    if t.is_integer:
        wide = found.astype(np.uint64 if t is T.U64 else np.int64)
        mask = (1 << t.bits) - 1
        assert [int(v) & mask for v in wide.ravel()] == [int(v) & mask for v in expected.ravel()]
    else:
        assert np.array_equal(found.astype(np.complex128), expected)


@pytest.mark.parametrize(("t", "wide"), [(T.S8, T.S32), (T.BF16, T.F32), (T.F32, T.F64)])
def test_a_result_wider_than_the_operands(run: Any, t: ElementType, wide: ElementType) -> None:
    random = np.random.default_rng(0)
    x, kernel = random.integers(-100, 101, (1, 3, 6, 6)), random.integers(-100, 101, (2, 3, 3, 3))
    expected = defined(x, kernel, SIMPLE)
    text = text_of(x, kernel, expected, PLAIN, SIMPLE, (t, t, wide))
    (found,) = run(text, x.astype(t.dtype), kernel.astype(t.dtype))
    assert np.array_equal(found.astype(np.int64), expected)


@pytest.mark.parametrize("limit", [1, 30, 200])
def test_large_ones_are_done_in_rounds(run: Any, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(module, "most_patches", lambda elements, window: limit)
    random = np.random.default_rng(0)
    x, kernel = (random.integers(-9, 10, s).astype(np.int32) for s in ((3, 4, 5, 6), (4, 2, 3, 3)))
    case = {**SIMPLE, "groups": 2}
    expected = defined(x, kernel, case)
    (found,) = run(text_of(x, kernel, expected, PLAIN, case), x, kernel)
    assert np.array_equal(found, expected)


def test_padding_may_be_an_operand(run: Any) -> None:
    random = np.random.default_rng(0)
    x, kernel = (random.integers(-9, 10, s).astype(np.float32) for s in ((1, 1, 5, 6), (1, 1, 3, 3)))
    expected = defined(x, kernel, SIMPLE)
    text = """func.func @main(%a: tensor<1x1x5x6xf32>, %b: tensor<1x1x3x3xf32>, %p: tensor<2x2xi32>) ->
    tensor<1x1x5x3xf32> {
      %0 = "stablehlo.dynamic_conv"(%a, %b, %p) {window_strides = array<i64: 1, 2>,
        dimension_numbers = #stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>,
        feature_group_count = 1 : i64, batch_group_count = 1 : i64}
        : (tensor<1x1x5x6xf32>, tensor<1x1x3x3xf32>, tensor<2x2xi32>) -> tensor<1x1x5x3xf32>
      return %0 : tensor<1x1x5x3xf32> }"""
    (found,) = run(text, x, kernel, np.array(SIMPLE["padding"], np.int32))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("x", "kernel", "made"),
    [
        ((1, 0, 4, 1), (1, 1, 1, 1), (1, 0, 4, 1)),
        ((1, 2, 4, 1), (3, 3, 1, 2), (1, 0, 2, 2)),
        ((0, 4, 4, 1), (2, 2, 1, 2), (0, 3, 3, 2)),
        ((1, 4, 4, 1), (2, 2, 1, 0), (1, 3, 3, 0)),
        ((1, 4, 4, 0), (2, 2, 0, 2), (1, 3, 3, 2)),
        ((0, 4, 4, 0), (2, 2, 0, 0), (0, 3, 3, 0)),
    ],
)
def test_sizes_of_zero(run: Any, x: Any, kernel: Any, made: Any) -> None:
    """A result without elements has its shape, and sums of nothing are zero."""
    types = ["x".join(map(str, shape)) + "xf32" for shape in (x, kernel, made)]
    text = f"""func.func @main(%a: tensor<{types[0]}>, %b: tensor<{types[1]}>) -> tensor<{types[2]}> {{
      %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{}}
        {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : (tensor<{types[0]}>, tensor<{types[1]}>) -> tensor<{types[2]}>
      return %0 : tensor<{types[2]}> }}"""
    (found,) = run(text, np.ones(x, np.float32), np.ones(kernel, np.float32))
    assert found.shape == made
    assert not found.any()
