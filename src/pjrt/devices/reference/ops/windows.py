"""Reductions of windows: reduce_window and select_and_scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from pjrt.devices.reference.core.block import Environment, Kernel, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.reducers import Reducer, body_on_reals
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.indexing import PadPlan, chunks

Array = Any


@op("stablehlo.reduce_window")
def reduce_window(view: OpView) -> Kernel:
    """Combine the elements of each of many windows, in their order, after an initial value.

    It goes one dimension after the other, the last one first, which keeps the order: the elements of a window are its
    rows combined.
    """
    reducer = Reducer(view.regions[0], view.results)
    count, plan = reducer.count, _planner(view)

    def run(environment: Environment, *values: Array) -> Any:
        operands, initial = [np.asarray(x) for x in values[:count]], reducer.open(values[count:])
        shape, groups = plan(operands[0].shape)
        if 0 in shape:
            return one_or_all([np.empty(shape, dtype) for dtype in reducer.closed])

        def totals_of(group: _Group) -> list[Array]:
            parts = reducer.open([x[group.source] for x in operands])
            totals = [group.padding.run(x, value) for x, value in zip(parts, initial, strict=True)]
            for slide in reversed(group.slides):
                totals = slide.run(reducer, environment, totals)
            return reducer.close(reducer.combine(environment, initial, totals))

        if len(groups) == 1:
            return one_or_all(totals_of(groups[0]))
        outs = [np.empty(shape, dtype) for dtype in reducer.closed]
        for group in groups:
            for out, total in zip(outs, totals_of(group), strict=True):
                out[group.target] = total
        return one_or_all(outs)

    return run


class _Group(NamedTuple):
    """Windows that are computed together: the part of the operand below them, its padding, and where they go."""

    source: tuple[slice, ...]
    padding: PadPlan
    slides: Sequence[_Slide]
    target: tuple[slice, ...]


def _planner(view: OpView) -> Callable[[tuple[int, ...]], tuple[tuple[int, ...], list[_Group]]]:
    """Return the function from the shape of operands to that of the result and to groups of windows.

    Many windows are cut along one dimension into groups, so that only chunks are padded and on the way to the result.
    """
    rank = view.operand().rank
    ones = (1,) * rank
    windows = tuple(view.attr("window_dimensions"))
    strides = tuple(view.attr("window_strides", None) or ones)
    between = tuple(dilation - 1 for dilation in view.attr("base_dilations", None) or ones)
    dilations = tuple(view.attr("window_dilations", None) or ones)
    low, high = padding_of(view, rank)

    @lru_cache(maxsize=8)
    def plan(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], list[_Group]]:
        padding = PadPlan.of(sizes, low, high, between)
        slides = [
            _Slide(axis, window, dilation, stride, padding.shape[axis])
            for axis, (window, dilation, stride) in enumerate(zip(windows, dilations, strides, strict=True))
        ]
        shape = tuple(slide.size for slide in slides)
        for slide in slides:
            parts = chunks(slide.size, math.prod(shape) // max(slide.size, 1))
            # Neighbouring groups share elements, which must not be many of each.
            if len(parts) > 1 and not between[slide.axis] and 4 * slide.reach <= parts[0].stop * slide.stride:
                return shape, [cut(sizes, slides, slide.axis, part) for part in parts]
        everything = (slice(None),) * rank
        return shape, [_Group(everything, padding, slides, everything)]

    def cut(sizes: tuple[int, ...], slides: Sequence[_Slide], axis: int, part: slice) -> _Group:
        slide, size = slides[axis], sizes[axis]
        first = part.start * slide.stride - low[axis]
        last = (part.stop - 1) * slide.stride + slide.reach + 1 - low[axis]
        begin, end = (min(max(place, 0), size) for place in (first, last))

        def replaced(values: Sequence[Any], value: Any) -> tuple[Any, ...]:
            return (*values[:axis], value, *values[axis + 1 :])

        padding = PadPlan.of(
            replaced(sizes, end - begin), replaced(low, begin - first), replaced(high, last - end), between
        )
        everything = (slice(None),) * rank
        return _Group(
            replaced(everything, slice(begin, end)),
            padding,
            replaced(slides, slide.part(part.stop - part.start)),
            replaced(everything, part),
        )

    return plan


def padding_of(view: OpView, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the attribute ``padding``, a table of low and high for each dimension, as two tuples; zeros by default."""
    padding = view.attr("padding", None)
    table = np.zeros((rank, 2), np.int64) if padding is None else np.reshape(padding, (rank, 2))
    return tuple(table[:, 0].tolist()), tuple(table[:, 1].tolist())


class _Slide:
    """Windows of one dimension: ``window`` elements, ``dilation`` apart, every ``stride`` positions, ``size`` times.

    From its first to its last element a window goes ``reach`` positions.
    """

    def __init__(self, axis: int, window: int, dilation: int, stride: int, positions: int) -> None:
        self.axis, self.window, self.dilation, self.stride = axis, window, dilation, stride
        self.reach = (window - 1) * dilation
        self.size = max(0, (positions - self.reach - 1) // stride + 1) if positions and window else 0
        self._by_doubling = window > 4 and window * self.size > 2 * window.bit_length() * positions

    def part(self, size: int) -> _Slide:
        """Return some of the windows, combined in the same way."""
        slide = copy(self)
        slide.size = size
        return slide

    def run(self, reducer: Reducer, environment: Environment, arrays: Sequence[Array]) -> list[Array]:
        """Return the elements of each window combined, in their order."""
        if self.window == 1 and self.stride == 1:
            return [self._cut(x, 0, self.size, 1) for x in arrays]
        if self._by_doubling:
            return self._doubling(reducer, environment, arrays)
        return self._halving(reducer, environment, arrays, 0, self.window)

    def _halving(
        self, reducer: Reducer, environment: Environment, arrays: Sequence[Array], first: int, count: int
    ) -> list[Array]:
        """Return some elements of each window combined: the halves first, which keeps the error of long sums small."""
        if count == 1:
            return [self._cut(x, first * self.dilation, self.size, self.stride) for x in arrays]
        half = count // 2
        left = self._halving(reducer, environment, arrays, first, half)
        right = self._halving(reducer, environment, arrays, first + half, count - half)
        return reducer.combine(environment, left, right, owned=half > 1)

    def _doubling(self, reducer: Reducer, environment: Environment, arrays: Sequence[Array]) -> list[Array]:
        """Return windows put together from windows whose sizes are powers of two."""
        full = arrays[0].shape[self.axis] - self.reach
        power, covered = 1, 0
        powers = list(arrays)
        total: list[Array] | None = None
        while True:
            if self.window & power:
                piece = [self._cut(x, covered * self.dilation, full, 1) for x in powers]
                total = piece if total is None else reducer.combine(environment, total, piece)
                covered += power
            if covered == self.window:
                return [self._cut(x, 0, self.size, self.stride) for x in total or ()]
            shift = power * self.dilation
            size = powers[0].shape[self.axis] - shift
            left, right = ([self._cut(x, at, size, 1) for x in powers] for at in (0, shift))
            powers = reducer.combine(environment, left, right)
            power *= 2

    def _cut(self, x: Array, start: int, size: int, stride: int) -> Array:
        return x[(slice(None),) * self.axis + (slice(start, start + (size - 1) * stride + 1, stride),)]


@op("stablehlo.select_and_scatter")
def select_and_scatter(view: OpView) -> Kernel:
    """Select one element in each window, and combine at its place all source values whose windows selected it."""
    return select_and_scatter_with(view, np.where)


def select_and_scatter_with(view: OpView, where: Callable[[Array, Array, Array], Array]) -> Kernel:
    """Return the kernel of ``select_and_scatter``, by a function that chooses between two arrays."""
    select = body_on_reals(view.regions[0])
    reducer = Reducer(view.regions[1], view.results)
    rank = view.operand().rank
    ones = (1,) * rank
    windows = tuple(view.attr("window_dimensions", None) or ones)
    strides = tuple(view.attr("window_strides", None) or ones)
    low, high = padding_of(view, rank)

    @lru_cache(maxsize=8)
    def plan(sizes: tuple[int, ...], shape: tuple[int, ...]) -> _Selection:
        return _Selection(sizes, shape, windows, strides, low, high)

    def run(environment: Environment, operand: Array, source: Array, initial: Array) -> Array:
        rows = np.empty(0, np.int64)
        updates = np.asarray(source).reshape(-1)
        if source.size:
            rows, inside = plan(operand.shape, source.shape).run(select, where, environment, np.asarray(operand))
            if inside is not None:
                rows, updates = rows[inside], updates[inside]
        # Not before the selection, which holds several arrays.
        (data,) = reducer.take([np.full(operand.size, initial, operand.dtype)], owned=True)
        if rows.size:
            reducer.accumulate(environment, [data], rows, reducer.open([updates]))
        return reducer.close([data])[0].reshape(operand.shape)

    return run


class _Selection:
    """Windows of an operand, of which each selects an element."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        shape: tuple[int, ...],
        windows: tuple[int, ...],
        strides: tuple[int, ...],
        low: tuple[int, ...],
        high: tuple[int, ...],
    ) -> None:
        self._shape = shape
        self._padding = PadPlan.of(sizes, low, high, (0,) * len(sizes))
        self._offsets = list(product(*(range(window) for window in windows)))
        self._cuts = [
            tuple(
                slice(offset, offset + (count - 1) * stride + 1, stride)
                for offset, count, stride in zip(offsets, shape, strides, strict=True)
            )
            for offsets in self._offsets
        ]
        steps = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
        self._distances = np.array(
            [sum(offset * step for offset, step in zip(offsets, steps, strict=True)) for offsets in self._offsets]
        )
        self._origins = [
            ((np.arange(count) * stride - before) * step).reshape((-1,) + (1,) * (len(shape) - d - 1))
            for d, (count, stride, before, step) in enumerate(zip(shape, strides, low, steps, strict=True))
        ]

    def run(self, select: Any, where: Any, environment: Environment, operand: Array) -> tuple[Array, Array | None]:
        """Return the place of each window's selected element in the flat operand, and the mask of the windows that have
        one: those of padding only have none. The mask is None where all have one.
        """
        padded = self._padding.run(operand, operand.dtype.type(0))
        real = None if self._padding.whole else self._padding.run(np.ones(operand.shape, np.bool_), False)
        chosen, numbers = padded[self._cuts[0]], np.zeros(self._shape, np.int32)
        has_element: Array = None if real is None else real[self._cuts[0]]
        for number, cut in enumerate(self._cuts[1:], 1):
            candidate = padded[cut]
            better = np.logical_not(select(environment, chosen, candidate)[0])
            if real is not None:
                better = real[cut] & (better | ~has_element)
                has_element = has_element | real[cut]
            chosen = where(better, candidate, chosen)
            numbers = where(better, np.full((), number, np.int32), numbers)
        places = self._distances[numbers]
        for line in self._origins:
            places += line
        inside = None if has_element is None or has_element.all() else has_element.reshape(-1)
        return places.reshape(-1), inside
