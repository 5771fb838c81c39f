"""Gather: slices of a value at places in an array of indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.chunks import chunks
from pjrt.devices.reference.numerics.gather_indexing import SliceLayout

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
