"""Gather and scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.reference.core.block import Environment, Kernel, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.reducers import Reducer
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.indexing import SliceLayout, chunks

Array = Any


@op("stablehlo.gather", quantized=True)
def gather(view: OpView) -> Kernel:
    """Take slices of the operand at ``start_indices``, each moved as far as needed to lie inside."""
    sizes = tuple(view.attr("slice_sizes"))
    numbers = view.attr("dimension_numbers")
    operand, indices = view.operand(0), view.operand(1)
    if operand.is_static and indices.is_static:
        return gatherer(operand.sizes, indices.sizes, sizes, numbers)
    return lambda x, starts: gatherer(x.shape, starts.shape, sizes, numbers)(x, starts)


@op("stablehlo.dynamic_gather", quantized=True)
def dynamic_gather(view: OpView) -> Kernel:
    """Compute ``gather`` with slice sizes that the program computes."""
    numbers = view.attr("dimension_numbers")
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)

    def run(x: Array, starts: Array, sizes: Array) -> Array:
        widths = tuple(int(size) for size in sizes)
        if any(widths[dimension] != 1 for dimension in dropped):
            raise InvalidArgumentError(
                f"expected slice sizes of 1 in the dimensions {sorted(dropped)}, which the result drops, found {widths}"
            )
        if not all(0 <= width <= size for width, size in zip(widths, x.shape, strict=True)):
            raise InvalidArgumentError(f"expected slice sizes within the operand's shape {x.shape}, found {widths}")
        return gatherer(x.shape, starts.shape, widths, numbers)(x, starts)

    return view.fitted(run)


def gatherer(
    operand: tuple[int, ...], indices: tuple[int, ...], slice_sizes: tuple[int, ...], numbers: Any
) -> Callable[[Array, Array], Array]:
    """Return the function that gathers from operands of one shape at indices of another."""
    layout = SliceLayout(
        operand,
        slice_sizes,
        numbers.start_index_map,
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
        indices,
        numbers.index_vector_dim,
    )
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = tuple(size for d, size in enumerate(slice_sizes) if d not in dropped)
    arrange = _arrangement(layout.batch_shape, window, numbers.offset_dims)
    if 0 in window or layout.count == 0:
        empty = arrange(np.empty((*layout.batch_shape, *window), np.bool_)).shape
        return lambda x, starts: np.empty(empty, x.dtype)
    if layout.count == 1 and not layout.batching:
        return _single(layout, window, arrange)
    if len(layout.index_map) == 1 and not layout.batching:
        axis = layout.index_map[0]
        whole = all(size == operand[d] for d, size in enumerate(slice_sizes) if d != axis)
        if whole and axis > 0 and slice_sizes[axis] == 1:
            return _along(layout, axis, arrange, window)
    if layout.rows_of_slice == 1:
        return _by_rows(layout, window, arrange)
    return _by_windows(layout, window, arrange, dropped)


def _arrangement(
    batch: tuple[int, ...], window: tuple[int, ...], offset_dims: Sequence[int]
) -> Callable[[Array], Array]:
    """Return the function from (batch…, window…) to the result's order: the window's dimensions are ``offset_dims``."""
    rank = len(batch) + len(window)
    offsets = set(offset_dims)
    batch_dims = [d for d in range(rank) if d not in offsets]
    source = [0] * rank
    for position, dimension in enumerate((*batch_dims, *offset_dims)):
        source[dimension] = position
    order = tuple(source)
    if order == tuple(range(rank)):
        return lambda picked: picked
    return lambda picked: picked.transpose(order)


def _single(layout: SliceLayout, window: tuple[int, ...], arrange: Callable[[Array], Array]) -> Kernel:
    """Return the kernel for one slice: a view of the operand."""
    shape = (*layout.batch_shape, *window)

    def run(x: Array, indices: Array) -> Array:
        index = [slice(0, size) for size in layout.slice_sizes]
        flat = np.asarray(indices).reshape(-1).tolist()
        for dimension, start, limit in zip(layout.index_map, flat, layout.limits, strict=True):
            first = min(max(start, 0), limit)
            index[dimension] = slice(first, first + layout.slice_sizes[dimension])
        return arrange(x[tuple(index)].reshape(shape))

    return run


def _along(layout: SliceLayout, axis: int, arrange: Callable[[Array], Array], window: tuple[int, ...]) -> Kernel:
    """Return the kernel for single positions along one dimension, with all of the others."""
    limit = layout.operand[axis] - 1
    # numpy puts the batch where the axis was: bring it to the front first, as every arrangement expects.
    order = (axis, *(d for d in range(len(layout.operand)) if d != axis))
    shape = (*layout.batch_shape, *window)

    def run(x: Array, indices: Array) -> Array:
        picks = np.minimum(np.maximum(layout.vectors(indices)[:, 0], 0), limit)
        return arrange(x.take(picks, axis).transpose(order).reshape(shape))

    return run


def _by_rows(layout: SliceLayout, window: tuple[int, ...], arrange: Callable[[Array], Array]) -> Kernel:
    """Return the kernel for slices of one row each."""
    shape = (*layout.batch_shape, *window)
    table = layout.table if layout.row != 1 else (layout.table[0],)

    parts = chunks(layout.count, layout.row)

    def run(x: Array, indices: Array) -> Array:
        lines, out = x.reshape(table), np.empty(shape, x.dtype)
        picked = out.reshape(layout.count, *table[1:])
        for part in parts:
            rows = layout.starts(layout.clamped(layout.vectors(indices, part)), part)
            # Of rows that exist; without a check of each, numpy takes half of the time.
            lines.take(rows, 0, picked[part], mode="clip")
        return arrange(out)

    return run


def _by_windows(
    layout: SliceLayout, window: tuple[int, ...], arrange: Callable[[Array], Array], dropped: Collection[int]
) -> Kernel:
    """Return the kernel for any slices: it picks from a table of all slices of the operand, which overlap in memory."""
    places = [limit + 1 for limit in layout.limits] + [layout.operand[d] for d in layout.batching]
    moving = (*layout.index_map, *layout.batching)
    inner = [d for d in range(len(layout.operand)) if d not in dropped]
    strides = [math.prod(layout.operand[d + 1 :]) for d in range(len(layout.operand))]
    steps = [strides[d] for d in (*moving, *inner)]
    table = (*places, *window)
    shape = (*layout.batch_shape, *window)
    batching = tuple(layout.batching.values())

    def run(x: Array, indices: Array) -> Array:
        x = np.ascontiguousarray(x)
        slices = np.ndarray(table, x.dtype, x, 0, [step * x.itemsize for step in steps])
        index = (*layout.clamped(layout.vectors(indices)), *batching)
        picked = slices[index] if index else np.broadcast_to(slices, (layout.count, *window))
        return arrange(picked.reshape(shape))

    return run


@op("stablehlo.torch_index_select", quantized=True)
def torch_index_select(view: OpView) -> Kernel:
    """Pick positions along dimension ``dim``; the ``batch_dims`` leading dimensions go with those of the indices."""
    axis, batched = view.attr("dim"), view.attr("batch_dims")
    if not batched:
        return lambda x, index: x.take(np.minimum(np.maximum(index.astype(np.int64), 0), x.shape[axis] - 1), axis)

    def run(x: Array, index: Array) -> Array:
        batch, between, tail = x.shape[:batched], x.shape[batched:axis], x.shape[axis + 1 :]
        picks = np.minimum(np.maximum(index.astype(np.int64), 0), x.shape[axis] - 1)
        size = math.prod(batch)
        flat = x.reshape(size, math.prod(between), x.shape[axis], math.prod(tail))
        chosen = picks.reshape(size, 1, -1, 1)
        return np.take_along_axis(flat, chosen, 2).reshape(*batch, *between, *index.shape[batched:], *tail)

    return run


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
    return _scatter_by_rows(layout, order, reducer, unique)


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


def _scatter_by_rows(layout: SliceLayout, order: tuple[int, ...], reducer: Reducer, unique: bool) -> Scatter:
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
