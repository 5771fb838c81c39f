"""Scatter: against its definition, update by update, for any dimension numbers and bodies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from programs import FLOATS, INTEGERS, TYPES, binary_body, program, same, sample, tensor

from pjrt.api.element_type import ElementType

T = ElementType


@dataclass
class Scatter:
    """One scatter, with the specification's names."""

    operand: tuple[int, ...]
    indices: tuple[int, ...]
    update: tuple[int, ...]
    window_dims: list[int]
    inserted: list[int]
    to_operand: list[int]
    index_vector_dim: int
    input_batching: list[int] = field(default_factory=list)
    indices_batching: list[int] = field(default_factory=list)
    unique: bool = False

    def attributes(self) -> str:
        numbers = (
            f"update_window_dims = {self.window_dims}, inserted_window_dims = {self.inserted}, "
            f"input_batching_dims = {self.input_batching}, scatter_indices_batching_dims = {self.indices_batching}, "
            f"scatter_dims_to_operand_dims = {self.to_operand}, index_vector_dim = {self.index_vector_dim}"
        )
        return f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = {str(self.unique).lower()}"

    def targets(self, indices: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """For each update whose whole window lies inside: its index, and that of the element it is for.

        The specification leaves the order open; it is window after window, as XLA does it.
        """
        outside = {*self.inserted, *self.input_batching}
        widths = iter(self.update[d] for d in self.window_dims)
        sizes = [1 if d in outside else next(widths) for d in range(len(self.operand))]
        found = []
        scatter_dims = [d for d in range(len(self.update)) if d not in self.window_dims]
        everywhere = itertools.product(*(range(size) for size in self.update))
        for place in sorted(everywhere, key=lambda p: [p[d] for d in (*scatter_dims, *self.window_dims)]):
            batch = [place[d] for d in scatter_dims]
            where: list[Any] = list(batch)
            if self.index_vector_dim < len(self.indices):
                where.insert(self.index_vector_dim, slice(None))
            vector = np.atleast_1d(indices[tuple(where)])
            start = [0] * len(self.operand)
            for component, d in zip(vector, self.to_operand, strict=True):
                start[d] = int(component)
            for d, dim in zip(self.input_batching, self.indices_batching, strict=True):
                start[d] = batch[dim - (dim > self.index_vector_dim)]
            window = iter(place[d] for d in self.window_dims)
            target = tuple(s + (0 if d in outside else next(window)) for d, s in enumerate(start))
            if all(0 <= s <= size - width for s, size, width in zip(start, self.operand, sizes, strict=True)):
                found.append((place, target))
        return found

    def text(self, body: str, t: ElementType, index: ElementType = T.S32) -> str:
        operands = [tensor(self.operand, t), tensor(self.indices, index), tensor(self.update, t)]
        return program("scatter", operands, tensor(self.operand, t), self.attributes(), body)


@st.composite
def scatters(draw: Any) -> Scatter:
    rank = draw(st.integers(1, 4))
    operand = [draw(st.integers(1, 3)) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    batched = order[: draw(st.integers(0, rank - 1))]
    mapped = order[len(batched) :][: draw(st.integers(0, rank - len(batched)))]
    inserted = sorted(d for d in range(rank) if d not in batched and draw(st.booleans()))
    window = [draw(st.integers(1, s)) for d, s in enumerate(operand) if d not in inserted and d not in batched]
    batch = [operand[d] for d in batched] + draw(st.lists(st.integers(0, 4), max_size=2))
    places = draw(st.permutations(range(len(batch))))
    shuffled = [0] * len(batch)
    for size, place in zip(batch, places, strict=True):
        shuffled[place] = size
    vector_dim = draw(st.integers(0, len(batch)))
    indices = list(shuffled)
    if len(mapped) == 1 and draw(st.booleans()):
        vector_dim = len(batch)
    else:
        indices.insert(vector_dim, len(mapped))
    pairs = sorted((d, place + (place >= vector_dim)) for d, place in zip(batched, places, strict=False))
    window_dims = sorted(draw(st.permutations(range(len(window) + len(batch))))[: len(window)])
    update = [-1] * (len(window) + len(batch))
    for d, size in zip(window_dims, window, strict=True):
        update[d] = size
    rest = iter(shuffled)
    return Scatter(
        operand=tuple(operand),
        indices=tuple(indices),
        update=tuple(next(rest) if size == -1 else size for size in update),
        window_dims=window_dims,
        inserted=inserted,
        to_operand=list(mapped),
        index_vector_dim=vector_dim,
        input_batching=[d for d, _ in pairs],
        indices_batching=[d for _, d in pairs],
    )


def body(name: str, t: ElementType = T.S32) -> str:
    s = tensor((), t)
    if name == "replace":
        return f'^bb0(%x: {s}, %y: {s}): "stablehlo.return"(%y) : ({s}) -> ()'
    if name == "keep":
        return f'^bb0(%x: {s}, %y: {s}): "stablehlo.return"(%x) : ({s}) -> ()'
    if name == "mix":  # 3x + y: the order of updates matters
        return (
            f"^bb0(%x: {s}, %y: {s}): %c = stablehlo.constant dense<3> : {s} %m = stablehlo.multiply %c, %x : {s} "
            f'%a = stablehlo.add %m, %y : {s} "stablehlo.return"(%a) : ({s}) -> ()'
        )
    return binary_body(name, t)


def wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


BODIES: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: wrap(x + y),
    "subtract": lambda x, y: wrap(x - y),
    "multiply": lambda x, y: wrap(x * y),
    "maximum": max,
    "minimum": min,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "replace": lambda x, y: y,
    "keep": lambda x, y: x,
    "mix": lambda x, y: wrap(3 * x + y),
}


@settings(max_examples=200, deadline=None)
@given(scatters(), st.sampled_from(sorted(BODIES)), st.sampled_from([T.S8, T.S32, T.S64, T.U64]), st.integers(0, 1000))
def test_any_scatter(run: Any, s: Scatter, name: str, t: ElementType, seed: int) -> None:
    x, updates = sample(T.S32, s.operand, seed), sample(T.S32, s.update, seed + 1)
    indices = np.random.default_rng(seed).integers(-1, 4, s.indices).astype(t.dtype)
    expected = x.copy()
    for place, target in s.targets(indices):
        expected[target] = BODIES[name](int(expected[target]), int(updates[place]))
    kept = x.copy()
    same(run(s.text(body(name), T.S32, t), x, indices, updates)[0], expected)
    same(x, kept)  # operands are never written to


@settings(max_examples=10, deadline=None, derandomize=True)  # a crash of XLA would end the run: always the same
@given(scatters(), st.sampled_from(["add", "replace", "mix", "maximum"]), st.integers(0, 1000))
def test_scatter_is_xla_s(run: Any, on_xla: Any, s: Scatter, name: str, seed: int) -> None:
    assume(s.to_operand)  # XLA takes a scatter whose index vectors are empty for one of nothing
    x, updates = sample(T.S32, s.operand, seed), sample(T.S32, s.update, seed + 1)
    indices = np.random.default_rng(seed).integers(-1, 4, s.indices).astype(np.int32)
    text = s.text(body(name), T.S32)
    same(run(text, x, indices, updates)[0], on_xla(text, x, indices, updates)[0])


POINTS = Scatter((5,), (4, 1), (4,), [], [0], [0], 1)
ROWS = Scatter((5, 3), (3, 1), (3, 3), [1], [0], [0], 1)


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)
@pytest.mark.parametrize("s", [POINTS, ROWS], ids=["points", "rows"])
def test_replacing(run: Any, s: Scatter, t: ElementType) -> None:
    x, updates = sample(t, s.operand), sample(t, s.update, 1)
    indices = np.array([1, 4, 1, 7][: s.indices[0]], np.int32).reshape(s.indices)
    expected = x.copy()
    for place, target in s.targets(indices):
        expected[target] = updates[place]
    same(run(s.text(body("replace", t), t), x, indices, updates)[0], expected)


SUMMABLE = [t for t in (*INTEGERS, *FLOATS, T.C64, T.C128) if t is not T.F8E8M0FNU]  # that one has no zero


@pytest.mark.parametrize("t", SUMMABLE, ids=lambda t: t.mlir)
def test_adding_small_numbers_where_indices_collide(run: Any, t: ElementType) -> None:
    x, updates = (
        np.array([0, 1, 0, 1, 0]).astype(t.dtype),
        np.array([1, 0, -1 if t not in INTEGERS else 0, 1]).astype(t.dtype),
    )
    indices = np.array([[1], [4], [1], [0]], np.int32)
    expected = np.array([1, 2 - (t not in INTEGERS), 0, 1, 0])
    (found,) = run(POINTS.text(body("add", t), t), x, indices, updates)
    if t in INTEGERS and t.bits == 2 and t.name[0] == "S":
        expected = (expected + 2) % 4 - 2
    same(found, expected.astype(t.dtype))


@pytest.mark.parametrize(
    ("name", "expected"), [("add", [1, 1, 0, 1]), ("multiply", [0, 0, 0, 1]), ("xor", [1, 0, 0, 1])]
)
def test_booleans(run: Any, name: str, expected: list[int]) -> None:
    s = Scatter((4,), (3, 1), (3,), [], [0], [0], 1)
    x, updates = np.array([0, 1, 0, 1], np.bool_), np.array([1, 0, 1], np.bool_)
    indices = np.array([[0], [1], [1]], np.int32)
    same(run(s.text(body(name, T.PRED), T.PRED), x, indices, updates)[0], np.array(expected, np.bool_))


def test_unique_indices(run: Any) -> None:
    s = Scatter((5,), (3, 1), (3,), [], [0], [0], 1, unique=True)
    x, indices, updates = np.arange(5, dtype=np.int32), np.array([[3], [0], [9]], np.int32), np.full(3, 10, np.int32)
    same(run(s.text(body("add"), T.S32), x, indices, updates)[0], np.array([10, 1, 2, 13, 4], np.int32))
    same(run(s.text(body("mix"), T.S32), x, indices, updates)[0], np.array([10, 1, 2, 19, 4], np.int32))


SEVERAL = """
^bb0(%a: tensor<i32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<f32>):
  %p = stablehlo.compare LT, %b, %d : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %i = stablehlo.select %p, %c, %a : tensor<i1>, tensor<i32>
  %v = stablehlo.select %p, %d, %b : tensor<i1>, tensor<f32>
  stablehlo.return %i, %v : tensor<i32>, tensor<f32>
"""


def test_several_inputs_together(run: Any) -> None:
    """The largest value at each place, and who brought it."""
    random = np.random.default_rng(0)
    indices = random.integers(0, 7, (60, 1)).astype(np.int32)
    values, names = random.standard_normal(60).astype(np.float32), np.arange(60, dtype=np.int32)
    operands = [tensor((7,)), tensor((7,), T.F32), tensor((60, 1)), tensor((60,)), tensor((60,), T.F32)]
    attributes = Scatter((7,), (60, 1), (60,), [], [0], [0], 1).attributes()
    text = program("scatter", operands, operands[:2], attributes, SEVERAL)
    start = np.full(7, -np.inf, np.float32)
    who, best = run(text, np.full(7, -1, np.int32), start, indices, names, values)
    for place in range(7):
        mine = np.flatnonzero(indices[:, 0] == place)
        assert who[place] == mine[np.argmax(values[mine])]
        assert best[place] == values[mine].max()


CAPTURING = """
func.func @main(%x: tensor<3xi32>, %i: tensor<4x1xi32>, %u: tensor<4xi32>, %k: tensor<i32>) -> tensor<3xi32> {
  %r = "stablehlo.scatter"(%x, %i, %u) ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %m = stablehlo.multiply %b, %k : tensor<i32>
      %s = stablehlo.add %a, %m : tensor<i32>
      stablehlo.return %s : tensor<i32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
      index_vector_dim = 1>} : (tensor<3xi32>, tensor<4x1xi32>, tensor<4xi32>) -> tensor<3xi32>
  return %r : tensor<3xi32>
}
"""


def test_a_body_that_uses_a_value_from_around(run: Any) -> None:
    x, updates = np.array([1, 2, 3], np.int32), np.array([1, 10, 100, 1000], np.int32)
    indices = np.array([[0], [2], [0], [2]], np.int32)
    same(run(CAPTURING, x, indices, updates, np.int32(2))[0], np.array([203, 2, 2023], np.int32))


def test_sums_of_floats_are_taken_in_order(run: Any, on_xla: Any) -> None:
    """Zero ULP from XLA on f32: both add the updates of a place one after the other."""
    random = np.random.default_rng(3)
    s = Scatter((20, 3), (200, 1), (200, 3), [1], [0], [0], 1)
    x, updates = (random.standard_normal(shape).astype(np.float32) for shape in (s.operand, s.update))
    indices = random.integers(-2, 22, s.indices).astype(np.int32)
    text = s.text(body("add", T.F32), T.F32)
    same(run(text, x, indices, updates)[0], on_xla(text, x, indices, updates)[0])
    expected = x.copy()
    for place, target in s.targets(indices):
        expected[target] += updates[place]
    same(run(text, x, indices, updates)[0], expected)


@pytest.mark.parametrize(("t", "end"), [(T.BF16, 256), (T.F8E4M3FN, 16), (T.F16, 300)], ids=lambda v: str(v))
def test_small_floats_are_rounded_by_each_update(run: Any, on_xla: Any, t: ElementType, end: int) -> None:
    """Ones are added one after the other, until one more is rounded away."""
    operand, update, indices = tensor((1,), t), tensor((300,), t), tensor((300, 1), T.S32)
    numbers = "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    attributes = f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>"
    text = program("scatter", [operand, indices, update], [operand], attributes, binary_body("add", t))
    args = np.zeros(1, t.dtype), np.zeros((300, 1), np.int32), np.ones(300).astype(t.dtype)
    assert float(run(text, *args)[0][0]) == end
    if t is T.BF16:
        assert float(on_xla(text, *args)[0][0]) == end


@pytest.mark.parametrize("rows", [1, 3, 500])
@pytest.mark.parametrize("name", ["add", "maximum", "subtract"])
def test_many_updates_of_wide_rows(run: Any, rows: int, name: str) -> None:
    random = np.random.default_rng(rows)
    x, update = random.standard_normal((rows, 32), np.float32), random.standard_normal((700, 32), np.float32)
    indices = random.integers(-1, rows + 1, (700, 1), dtype=np.int32)
    expected = x.copy()
    function = {"add": np.add, "maximum": np.maximum, "subtract": np.subtract}[name]
    for (row,), values in zip(indices, update, strict=True):
        if 0 <= row < rows:
            expected[row] = function(expected[row], values)
    case = Scatter(x.shape, indices.shape, update.shape, [1], [0], [0], 1)
    t, i, u = (tensor(v.shape, e) for v, e in ((x, T.F32), (indices, T.S32), (update, T.F32)))
    body = (
        f"({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %c = stablehlo.{name} %a, %b : tensor<f32> "
        "stablehlo.return %c : tensor<f32> })"
    )
    text = (
        f"func.func @main(%x: {t}, %i: {i}, %u: {u}) -> {t} {{\n"
        f'  %0 = "stablehlo.scatter"(%x, %i, %u) {body} {{{case.attributes()}}} : ({t}, {i}, {u}) -> {t}\n'
        f"  return %0 : {t} }}"
    )
    (result,) = run(text, x, indices, update)
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("operand", "indices", "update", "window_dims", "inserted"),
    [
        ((3, 0), (2,), (2, 0), [1], [0]),  # no element in a window
        ((3, 2), (0,), (0, 2), [1], [0]),  # no window
        ((0, 2), (2,), (2, 2), [1], [0]),  # no place
        ((0,), (1,), (1,), [], [0]),
        ((3,), (0,), (0,), [], [0]),
        ((4, 0, 5), (2,), (2, 0, 5), [1, 2], [0]),
    ],
)
@pytest.mark.parametrize("name", ["add", "maximum", "subtract"])
def test_nothing_to_update(
    run: Any, operand: Any, indices: Any, update: Any, window_dims: list[int], inserted: list[int], name: str
) -> None:
    s = Scatter(operand, indices, update, window_dims, inserted, [0], len(indices))
    types = [tensor(s.operand), tensor(s.indices), tensor(s.update)]
    text = program("scatter", types, types[0], s.attributes(), binary_body(name, T.S32))
    x = np.arange(np.prod(operand), dtype=np.int32).reshape(operand)
    (found,) = run(text, x, np.ones(indices, np.int32), np.ones(update, np.int32))
    same(found, x)
