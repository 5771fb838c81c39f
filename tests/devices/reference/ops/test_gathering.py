"""Gather: against its definition, element by element, for any dimension numbers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import TYPES, array, program, same, sample, tensor

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError

T = ElementType
every_type = pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)


@dataclass
class Gather:
    """One gather, with the specification's names."""

    operand: tuple[int, ...]
    indices: tuple[int, ...]
    offset_dims: list[int]
    collapsed: list[int]
    start_index_map: list[int]
    index_vector_dim: int
    slice_sizes: list[int]
    operand_batching: list[int] = field(default_factory=list)
    indices_batching: list[int] = field(default_factory=list)

    @property
    def result(self) -> tuple[int, ...]:
        batch = [size for d, size in enumerate(self.indices) if d != self.index_vector_dim]
        dropped = {*self.collapsed, *self.operand_batching}
        window = [size for d, size in enumerate(self.slice_sizes) if d not in dropped]
        shape = [-1] * (len(batch) + len(window))
        for d, size in zip(self.offset_dims, window, strict=True):
            shape[d] = size
        rest = iter(batch)
        return tuple(next(rest) if size == -1 else size for size in shape)

    def attributes(self) -> str:
        numbers = (
            f"offset_dims = {self.offset_dims}, collapsed_slice_dims = {self.collapsed}, "
            f"operand_batching_dims = {self.operand_batching}, "
            f"start_indices_batching_dims = {self.indices_batching}, start_index_map = {self.start_index_map}, "
            f"index_vector_dim = {self.index_vector_dim}"
        )
        return f"dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = {array(self.slice_sizes)}"

    def expected(self, x: Any, starts: Any) -> Any:
        """The definition, word for word."""
        out = np.empty(self.result, x.dtype)
        for place in itertools.product(*(range(size) for size in self.result)):
            batch = [i for d, i in enumerate(place) if d not in self.offset_dims]
            offset = iter(place[d] for d in self.offset_dims)
            where: list[Any] = list(batch)
            if self.index_vector_dim < len(self.indices):
                where.insert(self.index_vector_dim, slice(None))
            vector = np.atleast_1d(starts[tuple(where)])
            source = []
            for d, (size, width) in enumerate(zip(self.operand, self.slice_sizes, strict=True)):
                start = 0
                if d in self.start_index_map:
                    start = min(max(int(vector[self.start_index_map.index(d)]), 0), size - width)
                if d in self.operand_batching:
                    dim = self.indices_batching[self.operand_batching.index(d)]
                    start = batch[dim - (dim > self.index_vector_dim)]
                inside = 0 if d in self.collapsed or d in self.operand_batching else next(offset)
                source.append(start + inside)
            out[place] = x[tuple(source)]
        return out


@st.composite
def gathers(draw: Any) -> Gather:
    rank = draw(st.integers(1, 4))
    operand = [draw(st.integers(1, 3)) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    batched = order[: draw(st.integers(0, rank - 1))]
    mapped = order[len(batched) :][: draw(st.integers(0, rank - len(batched)))]
    sizes = [draw(st.integers(1, size)) for size in operand]
    collapsed = sorted(d for d in range(rank) if d not in batched and draw(st.booleans()))
    for d in (*collapsed, *batched):
        sizes[d] = 1
    batch = [operand[d] for d in batched] + draw(st.lists(st.integers(0, 3), max_size=2))
    places = draw(st.permutations(range(len(batch))))
    shuffled = [0] * len(batch)
    for size, place in zip(batch, places, strict=True):
        shuffled[place] = size
    vector_dim = draw(st.integers(0, len(batch)))
    implicit = len(mapped) == 1 and draw(st.booleans())
    indices = list(shuffled)
    if implicit:
        vector_dim = len(batch)
    else:
        indices.insert(vector_dim, len(mapped))
    pairs = sorted((d, place + (place >= vector_dim)) for d, place in zip(batched, places, strict=False))
    window = rank - len(collapsed) - len(batched)
    offsets = sorted(draw(st.permutations(range(window + len(batch))))[:window])
    return Gather(
        operand=tuple(operand),
        indices=tuple(indices),
        offset_dims=offsets,
        collapsed=collapsed,
        start_index_map=list(mapped),
        index_vector_dim=vector_dim,
        slice_sizes=sizes,
        operand_batching=[d for d, _ in pairs],
        indices_batching=[d for _, d in pairs],
    )


@pytest.mark.full
@settings(max_examples=150, deadline=None)
@given(gathers(), st.sampled_from([T.S8, T.S32, T.S64, T.U32, T.U64]), st.integers(0, 1000))
def test_any_gather(run: Any, g: Gather, t: ElementType, seed: int) -> None:
    x = sample(T.S32, g.operand, seed)
    starts = np.random.default_rng(seed).integers(-3, 6, g.indices).astype(t.dtype)
    (found,) = run(
        program("gather", [tensor(g.operand), tensor(g.indices, t)], tensor(g.result), g.attributes()), x, starts
    )
    same(found, g.expected(x, starts))


@settings(max_examples=25, deadline=None)
@given(gathers(), st.integers(0, 1000))
def test_the_same_with_slice_sizes_that_are_computed(run: Any, g: Gather, seed: int) -> None:
    x = sample(T.S32, g.operand, seed)
    starts = np.random.default_rng(seed).integers(-3, 6, g.indices).astype(np.int32)
    numbers, _, _ = g.attributes().partition(", slice_sizes")
    operands = [tensor(g.operand), tensor(g.indices), tensor((len(g.operand),), T.S64)]
    text = program("dynamic_gather", operands, tensor(g.result), numbers)
    same(run(text, x, starts, np.array(g.slice_sizes, np.int64))[0], g.expected(x, starts))


def test_slice_sizes_beyond_the_operand_are_refused(run: Any) -> None:
    numbers, _, _ = Gather((5,), (2,), [0], [], [0], 1, [1]).attributes().partition(", slice_sizes")
    text = program("dynamic_gather", [tensor((5,)), tensor((2,)), tensor((1,), T.S64)], "tensor<?x?xi32>", numbers)
    text = text.replace("offset_dims = [0]", "offset_dims = [1]")
    x, starts = np.arange(5, dtype=np.int32), np.zeros(2, np.int32)
    same(run(text, x, starts, np.array([2]))[0], np.array([[0, 1], [0, 1]], np.int32))
    for width in (6, -1):
        with pytest.raises(InvalidArgumentError, match="within the operand's shape"):
            run(text, x, starts, np.array([width]))


def test_slice_sizes_in_dimensions_that_the_result_drops(run: Any) -> None:
    numbers, _, _ = Gather((3, 4), (2, 1), [1], [0], [0], 1, [1, 4]).attributes().partition(", slice_sizes")
    text = program("dynamic_gather", [tensor((3, 4)), tensor((2, 1)), tensor((2,), T.S64)], tensor((2, 4)), numbers)
    x, starts = np.arange(12, dtype=np.int32).reshape(3, 4), np.zeros((2, 1), np.int32)
    for width in (0, 2):
        with pytest.raises(InvalidArgumentError, match=r"slice sizes of 1 in the dimensions \[0\], which .* drops"):
            run(text, x, starts, np.array([width, 4]))


EMBEDDING = Gather((6, 4), (2, 3, 1), [2], [0], [0], 2, [1, 4])
COLUMNS = Gather((4, 6), (3,), [0], [1], [1], 1, [4, 1])
PARTS = Gather((4, 6), (3,), [0], [1], [1], 1, [3, 1])


@every_type
@pytest.mark.parametrize("g", [EMBEDDING, COLUMNS, PARTS], ids=["rows", "columns", "parts"])
def test_gather(run: Any, g: Gather, t: ElementType) -> None:
    x = sample(t, g.operand)
    starts = np.arange(np.prod(g.indices)).reshape(g.indices).astype(np.int32)
    text = program("gather", [tensor(g.operand, t), tensor(g.indices)], tensor(g.result, t), g.attributes())
    same(run(text, x, starts)[0], g.expected(x, starts))


def test_large_unsigned_indices_are_clamped_to_the_end(run: Any) -> None:
    g = Gather((5,), (2,), [], [0], [0], 1, [1])
    starts = np.array([2**64 - 1, 2**63], np.uint64)
    text = program("gather", [tensor((5,)), tensor((2,), T.U64)], tensor((2,)), g.attributes())
    same(run(text, np.arange(5, dtype=np.int32), starts)[0], np.array([4, 4], np.int32))


@settings(max_examples=10, deadline=None, derandomize=True)  # a crash of XLA would end the run: always the same
@given(gathers(), st.integers(0, 1000))
def test_gather_is_xla_s(run: Any, on_xla: Any, g: Gather, seed: int) -> None:
    x = sample(T.S32, g.operand, seed)
    starts = np.random.default_rng(seed).integers(-3, 6, g.indices).astype(np.int32)
    text = program("gather", [tensor(g.operand), tensor(g.indices)], tensor(g.result), g.attributes())
    same(run(text, x, starts)[0], on_xla(text, x, starts)[0])


@every_type
def test_torch_index_select(run: Any, t: ElementType) -> None:
    x, index = sample(t, (3, 4)), np.array([[3, 0], [1, 9]], np.int32)
    text = program(
        "torch_index_select",
        [tensor((3, 4), t), tensor((2, 2))],
        tensor((3, 2, 2), t),
        "dim = 1 : i64, batch_dims = 0 : i64",
    )
    same(run(text, x, index)[0], np.array([[[row[3], row[0]], [row[1], row[3]]] for row in x], t.dtype))


def test_torch_index_select_in_batches(run: Any) -> None:
    x, index = sample(T.S32, (2, 3, 4, 2)), np.array([[3, 0, 1], [2, 2, 0]], np.int32)
    text = program(
        "torch_index_select",
        [tensor(x.shape), tensor((2, 3))],
        tensor((2, 3, 3, 2)),
        "dim = 2 : i64, batch_dims = 1 : i64",
    )
    expected = np.array([[[x[b, i, index[b, k]] for k in range(3)] for i in range(3)] for b in range(2)])
    same(run(text, x, index)[0], expected)
