"""Scatter: updates combined with a value at places in an array of indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Environment, Kernel, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.reducers import Reducer
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.chunks import chunks
from pjrt.devices.reference.numerics.gather_indexing import SliceLayout

Array = Any
Scatter = Callable[[Environment, Sequence[Array], Array, Sequence[Array], bool], list[Array]]
"""A function from the inputs, the indices, the updates, and whether the inputs may be written to, to the results."""


@op("stablehlo.scatter")
def scatter(view: OpView) -> Kernel:
    """Combine the inputs with each of the updates at its place, one window after the other.

    A window of updates that does not lie wholly inside the inputs is left out, as XLA does; the specification leaves
    it open.
    """
    reducer = Reducer(view.regions[0], view.results)
    count, static = reducer.count, static_scatter(view, reducer)

    def run(environment: Environment, *values: Array) -> Any:
        operands, indices, updates = values[:count], values[count], values[count + 1 :]
        shapes = [np.shape(x) for x in (operands[0], indices, updates[0])]
        apply = static or _scatterer(shapes, view, reducer)
        return one_or_all(apply(environment, operands, indices, updates, False))

    return run


def static_scatter(view: OpView, reducer: Reducer) -> Scatter | None:
    """Return the function that scatters into operands of the op's shapes, or None where they are not static."""
    types = [view.operand(0), view.operand(reducer.count), view.operand(reducer.count + 1)]
    if not all(type_.is_static for type_ in types):
        return None
    return _scatterer([type_.sizes for type_ in types], view, reducer)


def _scatterer(shapes: Sequence[tuple[int, ...]], view: OpView, reducer: Reducer) -> Scatter:
    """Return the function that scatters into operands of one shape, for indices and updates of the other two."""
    operand, indices, update = shapes
    if 0 in operand or 0 in update:  # there is nothing to update, or nothing to update it with
        return lambda environment, operands, indices, updates, owned: reducer.close(reducer.take(operands, owned))
    numbers, unique = view.attr("scatter_dimension_numbers"), bool(view.attr("unique_indices", False))
    window_dims = tuple(numbers.update_window_dims)
    scatter_dims = tuple(d for d in range(len(update)) if d not in window_dims)
    outside = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    window = iter(update[d] for d in window_dims)
    layout = SliceLayout(
        operand,
        [1 if d in outside else next(window) for d in range(len(operand))],
        numbers.scattered_dims_to_operand_dims,
        numbers.input_batching_dims,
        numbers.scatter_indices_batching_dims,
        indices,
        numbers.index_vector_dim,
    )
    order = scatter_dims + window_dims
    if layout.count == 1 or math.prod(layout.slice_sizes) >= _LARGE:
        return _by_slices(layout, order, reducer)
    return _by_rows(layout, order, reducer, unique)


_LARGE = 2048
"""Windows of this many elements or more each get a turn of a Python loop."""


def _by_slices(layout: SliceLayout, order: tuple[int, ...], reducer: Reducer) -> Scatter:
    """Return the function for few or large windows: one slice of the operand after the other."""
    sizes, limits = layout.slice_sizes, layout.limits
    batching = [(dimension, line.tolist()) for dimension, line in layout.batching.items()]

    def run(
        environment: Environment, operands: Sequence[Array], indices: Array, updates: Sequence[Array], owned: bool
    ) -> list[Array]:
        data = reducer.take(operands, owned)
        new = [x.transpose(order).reshape(layout.count, *sizes) for x in reducer.open(updates)]
        for number, vector in enumerate(layout.vectors(indices).tolist()):
            if not all(0 <= start <= limit for start, limit in zip(vector, limits, strict=True)):
                continue
            index: list[Any] = [slice(0, size) for size in sizes]
            for dimension, start in zip(layout.index_map, vector, strict=True):
                index[dimension] = slice(start, start + sizes[dimension])
            for dimension, line in batching:
                index[dimension] = slice(line[number], line[number] + 1)
            place = (*index, ...)  # with the dots it is a view, even of a scalar
            reducer.update(environment, [x[place] for x in data], [x[number] for x in new])
        return reducer.close(data)

    return run


def _by_rows(layout: SliceLayout, order: tuple[int, ...], reducer: Reducer, unique: bool) -> Scatter:
    table = layout.table if layout.row != 1 else layout.table[:1]
    tail = table[1:]
    parts = chunks(layout.count, layout.rows_of_slice * layout.row)

    def run(
        environment: Environment, operands: Sequence[Array], indices: Array, updates: Sequence[Array], owned: bool
    ) -> list[Array]:
        data = reducer.take(operands, owned)
        flat = [x.reshape(table) for x in data]
        slices = [x.transpose(order).reshape(layout.count, layout.rows_of_slice, *tail) for x in updates]
        for part in parts:  # row numbers, and the order in which rows come, take several times the memory of small rows
            vectors = layout.vectors(indices, part)
            new = reducer.open([x[part] for x in slices])
            starts = layout.starts([vectors[:, i] for i in range(len(layout.limits))], part)
            inside = layout.inside(vectors)
            if inside is not None:
                starts, new = starts[inside], [x[inside] for x in new]
            rows = layout.rows(starts).reshape(-1)
            reducer.accumulate(environment, flat, rows, [x.reshape(-1, *tail) for x in new], unique)
        return reducer.close(data)

    return run
