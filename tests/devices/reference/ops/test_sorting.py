"""Sort: comparators that compare keys, and any others, against Python's sort by the same comparison."""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import TYPES, program, same, sample, tensor

from pjrt.api.element_type import ElementType
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.fast.sorting import find_sort_keys, merge_order

T = ElementType
REAL = [t for t in TYPES if not t.is_complex]


def compare(direction: str, kind: str, a: str, b: str, t: ElementType, out: str = "%p") -> str:
    s = tensor((), t)
    return f"{out} = stablehlo.compare {direction}, {a}, {b}, {kind} : ({s}, {s}) -> tensor<i1>"


def kind_of(t: ElementType) -> str:
    if t.is_floating:
        return "TOTALORDER"
    return "SIGNED" if t.name[0] == "S" else "UNSIGNED"


def body(types: list[ElementType], *lines: str) -> str:
    arguments = ", ".join(f"%{side}{i}: {tensor((), t)}" for i, t in enumerate(types) for side in "ab")
    return f"^bb0({arguments}): {' '.join(lines)} stablehlo.return %p : tensor<i1>"


def sort_text(shape: tuple[int, ...], types: list[ElementType], region: str, axis: int = 0) -> str:
    operands = [tensor(shape, t) for t in types]
    return program("sort", operands, operands, f"dimension = {axis} : i64, is_stable = true", region)


def total_key(x: Any, t: ElementType) -> int:
    """The place of a float in the total order, from its bits."""
    bits = int.from_bytes(x.tobytes(), "little")
    if t is T.F8E8M0FNU:
        return bits  # has no sign
    sign = 1 << (t.bits - 1)
    if t.name.endswith("FNUZ") and bits == sign:
        return -sign - 1  # NaN
    return -(bits & (sign - 1)) - 1 if bits & sign else bits


@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("t", REAL, ids=lambda t: t.mlir)
def test_one_operand(run: Any, t: ElementType, direction: str) -> None:
    x = sample(t, (60,))
    text = sort_text((60,), [t], body([t], compare(direction, kind_of(t), "%a0", "%b0", t)))
    key = (lambda v: total_key(v, t)) if t.is_floating else int
    same(run(text, x)[0], np.array(sorted(x, key=key, reverse=direction == "GT"), t.dtype))


@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("t", REAL, ids=lambda t: t.mlir)
def test_an_index_sorted_along_is_stable(run: Any, t: ElementType, direction: str) -> None:
    x = sample(t, (80,))
    x[40:] = x[:40]
    text = sort_text((80,), [t, T.S32], body([t, T.S32], compare(direction, kind_of(t), "%a0", "%b0", t)))
    ordered, order = run(text, x, np.arange(80, dtype=np.int32))
    key = (lambda v: total_key(v, t)) if t.is_floating else int
    sign = -1 if direction == "GT" else 1
    expected = sorted(range(80), key=lambda i: (sign * key(x[i]), i))
    same(order, np.array(expected, np.int32))
    same(ordered, x[expected])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 1, 3), (2, 0, 3)])
def test_any_dimension(run: Any, shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.int32)
    lines = [compare("LT", "SIGNED", "%a0", "%b0", T.S32)]
    same(run(sort_text(shape, [T.S32], body([T.S32], *lines), axis), x)[0], np.sort(x, axis))
    both = run(sort_text(shape, [T.S32, T.S64], body([T.S32, T.S64], *lines), axis), x, x.astype(np.int64) * 7)
    same(both[0], np.sort(x, axis))
    same(both[1], np.sort(x, axis).astype(np.int64) * 7)


TWO_KEYS = [
    compare("LT", "SIGNED", "%a0", "%b0", T.S32, "%l"),
    compare("EQ", "SIGNED", "%a0", "%b0", T.S32, "%e"),
    compare("GT", "FLOAT", "%a1", "%b1", T.F32, "%g"),
    "%h = stablehlo.and %e, %g : tensor<i1>",
    "%p = stablehlo.or %l, %h : tensor<i1>",
]


def test_two_keys(run: Any) -> None:
    """Up by the first, down by the second, in which the two zeros are equal."""
    random = np.random.default_rng(1)
    first = random.integers(0, 4, 100).astype(np.int32)
    second = random.choice(np.array([-0.0, 0.0, 1.5, -2.5], np.float32), 100)
    types = [T.S32, T.F32, T.S32]
    text = sort_text((100,), types, body(types, *TWO_KEYS))
    found = run(text, first, second, np.arange(100, dtype=np.int32))
    expected = sorted(range(100), key=lambda i: (first[i], -second[i] if second[i] else 0.0, i))
    same(found[2], np.array(expected, np.int32))
    same(found[1], second[expected])


# What jax compares floats by: zeros alike, NaN alike and last.
CANONICAL = [
    "%zero = stablehlo.constant dense<0.0> : tensor<f32>",
    "%nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>",
    *(
        f"%{side}z = stablehlo.compare EQ, %{side}0, %zero, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1> "
        f"%{side}1 = stablehlo.select %{side}z, %zero, %{side}0 : tensor<i1>, tensor<f32> "
        f"%{side}n = stablehlo.compare NE, %{side}0, %{side}0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1> "
        f"%{side}2 = stablehlo.select %{side}n, %nan, %{side}1 : tensor<i1>, tensor<f32>"
        for side in "ab"
    ),
    compare("LT", "TOTALORDER", "%a2", "%b2", T.F32),
]


def test_computed_keys(run: Any, on_xla: Any) -> None:
    x = np.random.default_rng(2).choice(np.array([0.0, -0.0, np.nan, -np.nan, 1, -np.inf, np.inf], np.float32), 50)
    text = sort_text((50,), [T.F32], body([T.F32], *CANONICAL))
    rank = [np.inf if np.isnan(v) else v for v in x]
    expected = x[sorted(range(50), key=lambda i: (rank[i], np.isnan(x[i]), i))]
    same(run(text, x)[0], expected)
    same(on_xla(text, x)[0], expected)


ODD = {
    # by absolute difference from 5 modulo 7, computed on the left and on the right
    "modular": [
        "%c = stablehlo.constant dense<7> : tensor<i32>",
        "%l = stablehlo.remainder %a0, %c : tensor<i32>",
        "%r = stablehlo.remainder %b0, %c : tensor<i32>",
        compare("LT", "SIGNED", "%l", "%r", T.S32),
    ],
    # a - b < 0: left and right meet outside of a comparison
    "difference": [
        "%d = stablehlo.subtract %a0, %b0 : tensor<i32>",
        "%z = stablehlo.constant dense<0> : tensor<i32>",
        compare("LT", "SIGNED", "%d", "%z", T.S32),
    ],
    # not (a >= b)
    "negated": [
        compare("GE", "SIGNED", "%a0", "%b0", T.S32, "%q"),
        "%p = stablehlo.not %q : tensor<i1>",
    ],
    # b > a
    "swapped": [compare("GT", "SIGNED", "%b0", "%a0", T.S32)],
}


def python_order(name: str, x: Any) -> list[int]:
    if name == "modular":
        return sorted(range(len(x)), key=lambda i: (int(np.fmod(x[i], 7)), i))
    return sorted(range(len(x)), key=lambda i: (int(x[i]), i))


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("size", [2, 3, 7, 64, 257])
def test_other_comparators(run: Any, name: str, size: int) -> None:
    x = np.random.default_rng(size).integers(-30, 30, size).astype(np.int32)
    text = sort_text((size,), [T.S32, T.S32], body([T.S32, T.S32], *ODD[name]))
    same(run(text, x, np.arange(size, dtype=np.int32))[1], np.array(python_order(name, x), np.int32))


def test_which_comparators_come_down_to_keys() -> None:
    def ordering(lines: list[str], types: list[ElementType]) -> Any:
        arguments = ", ".join(f"%{side}{i}: {tensor((), t)}" for i, t in enumerate(types) for side in "ab")
        text = f"func.func @main({arguments}) -> tensor<i1> {{ {' '.join(lines)} return %p : tensor<i1> }}"
        return find_sort_keys(Evaluator(mlir.parse(text)).region)

    assert sorting_facts(ordering(TWO_KEYS, [T.S32, T.F32])) == [(T.S32, False, False), (T.F32, True, False)]
    assert sorting_facts(ordering(CANONICAL, [T.F32])) == [(T.F32, False, True)]
    assert sorting_facts(ordering(ODD["negated"], [T.S32])) == [(T.S32, False, False)]
    assert sorting_facts(ordering(ODD["swapped"], [T.S32])) == [(T.S32, False, False)]
    assert sorting_facts(ordering(ODD["modular"], [T.S32])) == [(T.S32, False, False)]
    assert ordering(ODD["difference"], [T.S32]) is None
    assert ordering([compare("LE", "SIGNED", "%a0", "%b0", T.S32)], [T.S32]) is None


def sorting_facts(ordering: Any) -> list[tuple[Any, ...]]:
    return [(key.element, key.descending, key.total) for key in ordering.keys]


def test_left_and_right_keys_that_differ(run: Any) -> None:
    """a < b with its low two bits cleared, which is a/4 < b/4: sorted by a, equals would change places."""
    lines = [
        "%c = stablehlo.constant dense<-4> : tensor<i32>",
        "%s = stablehlo.and %b0, %c : tensor<i32>",
        compare("LT", "SIGNED", "%a0", "%s", T.S32),
    ]
    x = np.random.default_rng(0).integers(-20, 20, 50).astype(np.int32)
    same(
        run(sort_text((50,), [T.S32], body([T.S32], *lines)), x)[0], np.array(sorted(x, key=lambda v: v // 4), np.int32)
    )


@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("optimize", [True, False])
def test_nan_that_compares_with_nothing_loses_no_element(direction: str, optimize: bool) -> None:
    x = np.array([3, np.nan, 1, np.nan, 2, -1, np.nan, 0], np.float32)
    text = sort_text((8,), [T.F32], body([T.F32], compare(direction, "FLOAT", "%a0", "%b0", T.F32)))
    (found,) = Evaluator(mlir.parse(text), optimize=optimize).run([x])
    assert sorted(found[~np.isnan(found)]) == [-1, 0, 1, 2, 3]


def test_a_contradictory_comparator_gives_some_order(run: Any) -> None:
    for answer in ("true", "false"):
        lines = [f"%p = stablehlo.constant dense<{answer}> : tensor<i1>"]
        x = np.random.default_rng(0).permutation(37).astype(np.int32)
        (found,) = run(sort_text((37,), [T.S32], body([T.S32], *lines)), x)
        assert sorted(found) == list(range(37))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=70), st.integers(1, 3))
def test_merging_is_a_stable_sort(values: list[int], rows: int) -> None:
    table = np.stack([np.roll(values, row) for row in range(rows)])
    order = merge_order(lambda left, right: left[0] < right[0], [table])
    assert np.array_equal(order, np.argsort(table, axis=1, kind="stable"))


def test_merging_calls_the_comparator_few_times() -> None:
    calls: list[int] = []
    table = np.random.default_rng(0).standard_normal((1, 1 << 10))
    merge_order(lambda left, right: calls.append(1) or left[0] < right[0], [table])
    assert len(calls) <= 11 * 12 // 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.booleans())
def test_floats_in_total_order(run: Any, values: list[float], descending: bool) -> None:
    x = np.array(values, np.float32)
    text = sort_text(
        x.shape, [T.F32], body([T.F32], compare("GT" if descending else "LT", "TOTALORDER", "%a0", "%b0", T.F32))
    )

    def order(a: Any, b: Any) -> int:
        one, two = (struct.unpack("<i", struct.pack("<f", v))[0] for v in (a, b))
        one, two = (v if v >= 0 else -(v & 0x7FFFFFFF) - 1 for v in (one, two))
        return (one > two) - (one < two)

    expected = sorted(x, key=functools.cmp_to_key(order), reverse=descending)
    (found,) = run(text, x)
    kept = ~np.isnan(found)  # packing a NaN through a Python float need not keep its bits
    assert np.array_equal(found[kept].view(np.uint32), np.array(expected, np.float32)[kept].view(np.uint32))
