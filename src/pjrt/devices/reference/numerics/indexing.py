"""Which elements a kernel works on: chunks, padding, and the indices of gather and scatter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

CHUNK = 1 << 16
"""Elements of a chunk. Fewer cost more calls of numpy than they save."""


def chunks(length: int, each: int, at_least: int = 1) -> list[slice]:
    """Return slices of a dimension of some length, where every index has ``each`` elements: a chunk in each slice.

    Where indices have many elements, a slice still has ``at_least`` so many of them.
    """
    count = max(at_least, CHUNK // max(each, 1))
    return [slice(start, min(start + count, length)) for start in range(0, length, count)]


@dataclass(frozen=True)
class PadPlan:
    """The plan to pad values of one shape.

    The elements ``x[source]`` go to ``out[target]``; the rest of ``out``, of shape ``shape``, is the padding value.
    ``whole`` is True where no padding is added, so that ``x[source]`` is the result.
    """

    shape: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]
    whole: bool

    @classmethod
    def of(cls, sizes: Sequence[int], low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> PadPlan:
        """Return the plan for ``low`` and ``high`` edges (negative ones cut) and ``interior`` padding.

        Interior padding comes first, so that cutting may cut padding too.
        """
        shape, source, target = [], [], []
        whole = True
        for size, before, after, between in zip(sizes, low, high, interior, strict=True):
            step = between + 1
            extent = max(before + after + size + max(size - 1, 0) * between, 0)
            first = max(0, -(before // step))
            last = min(size - 1, (extent - 1 - before) // step)
            count = max(last - first + 1, 0)
            start = before + first * step
            shape.append(extent)
            source.append(slice(first, first + count))
            target.append(slice(start, start + (count - 1) * step + 1, step) if count else slice(0, 0))
            whole = whole and count == extent
        return cls(tuple(shape), tuple(source), tuple(target), whole)

    def run(self, x: Any, value: Any) -> Any:
        """Return ``x`` padded with ``value``."""
        if self.whole:
            return x[self.source]
        out = np.empty(self.shape, x.dtype)
        out.fill(value)
        out[self.target] = x[self.source]
        return out


# Trailing dimensions that every slice covers whole are one *row*: contiguous memory, moved as one. The operand is then
# a table of rows, and a slice is a list of row numbers: the number of its first row plus offsets that are the same for
# every slice.

Array = Any


class SliceLayout:
    """Slices of one size in operands of one shape, at places given by an array of indices.

    Args:
        operand: the shape of the operand.
        slice_sizes: the sizes of a slice, one a dimension of the operand.
        index_map: for each component of an index vector the dimension of the operand.
        operand_batching, indices_batching: batching dimensions of the operand and of the indices, pairwise.
        indices: the shape of the indices.
        index_vector_dim: the dimension of the indices that holds index vectors; their rank if they are scalars.
    """

    def __init__(
        self,
        operand: Sequence[int],
        slice_sizes: Sequence[int],
        index_map: Sequence[int],
        operand_batching: Sequence[int],
        indices_batching: Sequence[int],
        indices: Sequence[int],
        index_vector_dim: int,
    ) -> None:
        self.operand = tuple(operand)
        self.slice_sizes = tuple(slice_sizes)
        self.index_map = tuple(index_map)
        self.indices = tuple(indices)
        self.index_vector_dim = index_vector_dim
        self.batch_shape = tuple(size for i, size in enumerate(indices) if i != index_vector_dim)
        self.count = math.prod(self.batch_shape)
        self.limits = tuple(self.operand[d] - self.slice_sizes[d] for d in self.index_map)
        lead = self._leading(set(index_map) | set(operand_batching))
        self._lead = lead
        self.row = math.prod(self.operand[lead:])
        strides = [math.prod(self.operand[d + 1 : lead]) for d in range(lead)]
        self.table = (math.prod(self.operand[:lead]), self.row)
        self._strides = tuple(strides[d] for d in self.index_map)
        self.rows_of_slice = math.prod(self.slice_sizes[:lead])
        self._lead_strides = strides
        self.batching = self._batching_indices(operand_batching, indices_batching)
        self._base = self._rows_of(self.batching.values(), [strides[d] for d in self.batching])

    def _leading(self, moving: set[int]) -> int:
        """Return the number of dimensions that are not part of a row."""
        lead = len(self.operand)
        while lead and lead - 1 not in moving and self.slice_sizes[lead - 1] == self.operand[lead - 1]:
            lead -= 1
        return lead

    def _batching_indices(self, operand_dims: Sequence[int], indices_dims: Sequence[int]) -> dict[int, Array]:
        """Return, for each batching dimension of the operand, the index of each slice."""
        positions = {}
        for operand_dim, indices_dim in zip(operand_dims, indices_dims, strict=True):
            position = indices_dim - (indices_dim > self.index_vector_dim)
            shape = [1] * len(self.batch_shape)
            shape[position] = self.batch_shape[position]
            line = np.arange(shape[position], dtype=np.int64).reshape(shape)
            positions[operand_dim] = np.broadcast_to(line, self.batch_shape).reshape(-1)
        return positions

    @cached_property
    def offsets(self) -> Array:
        """The row numbers of a slice, relative to its first one."""
        return _offsets(self.slice_sizes[: self._lead], self._lead_strides)

    def vectors(self, indices: Array, part: slice = slice(None)) -> Array:
        """Return the index vectors, or some of them, as a table: a row for each slice, a column for each component."""
        indices = np.asarray(indices)
        if self.index_vector_dim == len(self.indices):
            table = indices.reshape(self.count, 1)
        else:
            if self.index_vector_dim != len(self.indices) - 1:
                indices = np.moveaxis(indices, self.index_vector_dim, -1)
            table = indices.reshape(self.count, len(self.index_map))
        table = table[part]
        if table.dtype == np.uint64:  # numbers that do not fit into int64 are beyond any limit
            table = np.minimum(table, np.uint64(np.iinfo(np.int64).max))
        return np.array(table.T, np.int64, order="C").T  # components are contiguous

    def clamped(self, vectors: Array) -> list[Array]:
        """Move the starts of slices as far as needed to lie inside the operand, and return their components."""
        columns = vectors.T
        for column, limit in zip(columns, self.limits, strict=True):
            np.clip(column, 0, limit, out=column)
        return list(columns)

    def inside(self, vectors: Array) -> Array | None:
        """Return the mask of the slices that lie wholly inside the operand; None where all do."""
        mask = np.ones(len(vectors), np.bool_)
        for i, limit in enumerate(self.limits):
            mask &= vectors[:, i].view(np.uint64) <= limit  # negative numbers are larger than any limit
        return None if mask.all() else mask

    def starts(self, components: Sequence[Array], part: slice = slice(None)) -> Array:
        """Return the number of the first row of each slice, or of a part of them, by the components of its start."""
        if self.batching:
            return self._rows_of([*components, self._base[part]], [*self._strides, 1])
        return self._rows_of(components, self._strides, part)

    def _rows_of(self, components: Iterable[Array], strides: Iterable[int], part: slice = slice(None)) -> Array:
        total: Array = None
        for component, stride in zip(components, strides, strict=True):
            part = component if stride == 1 else component * stride
            total = part if total is None else total + part
        return np.zeros(self.count, np.int64)[part] if total is None else total

    def rows(self, starts: Array) -> Array:
        """Return the numbers of all rows of slices that start at these rows: a table with a line for each slice."""
        if self.rows_of_slice == 1:
            return starts.reshape(-1, 1)
        return starts.reshape(-1, 1) + self.offsets


def _offsets(sizes: Sequence[int], strides: Sequence[int]) -> Array:
    offsets = np.zeros(1, np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        offsets = (offsets[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return offsets
