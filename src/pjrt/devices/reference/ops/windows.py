"""Reductions of windows: reduce_window and select_and_scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Environment, Kernel, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.reducers import Reducer, body_on_reals
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.padding import PadPlan

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
        operands, initial = reducer.open(values[:count]), reducer.open(values[count:])
        padding, slides = plan(operands[0].shape)
        shape = tuple(slide.size for slide in slides)
        if 0 in shape:
            totals = [np.empty(shape, dtype) for dtype in reducer.working]
        else:
            totals = [padding.run(np.asarray(x), value) for x, value in zip(operands, initial, strict=True)]
            for slide in reversed(slides):
                totals = slide.run(reducer, environment, totals)
            totals = reducer.combine(environment, initial, totals)
        return one_or_all(reducer.close(totals))

    return run


def _planner(view: OpView) -> Callable[[tuple[int, ...]], tuple[PadPlan, list[_Slide]]]:
    """Return the function that plans the padding, and the windows of each dimension, for operands of a shape."""
    rank = view.operand().rank
    ones = (1,) * rank
    windows = tuple(view.attr("window_dimensions"))
    strides = tuple(view.attr("window_strides", None) or ones)
    between = tuple(dilation - 1 for dilation in view.attr("base_dilations", None) or ones)
    dilations = tuple(view.attr("window_dilations", None) or ones)
    low, high = padding_of(view, rank)

    @lru_cache(maxsize=8)
    def plan(sizes: tuple[int, ...]) -> tuple[PadPlan, list[_Slide]]:
        padding = PadPlan.of(sizes, low, high, between)
        shape = (
            max(0, (extent - (window - 1) * dilation - 1) // stride + 1) if extent and window else 0
            for extent, window, dilation, stride in zip(padding.shape, windows, dilations, strides, strict=True)
        )
        parts = zip(range(rank), windows, dilations, strides, shape, strict=True)
        return padding, [_Slide(*part) for part in parts]

    return plan


def padding_of(view: OpView, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the attribute ``padding``, a table of low and high for each dimension, as two tuples; zeros by default."""
    padding = view.attr("padding", None)
    table = np.zeros((rank, 2), np.int64) if padding is None else np.reshape(padding, (rank, 2))
    return tuple(table[:, 0].tolist()), tuple(table[:, 1].tolist())


class _Slide:
    """Windows of one dimension: ``window`` elements, ``dilation`` apart, every ``stride`` positions, ``size`` times."""

    def __init__(self, axis: int, window: int, dilation: int, stride: int, size: int) -> None:
        self.axis, self.window, self.dilation, self.stride, self.size = axis, window, dilation, stride, size

    def run(self, reducer: Reducer, environment: Environment, arrays: Sequence[Array]) -> list[Array]:
        """Return the elements of each window combined, in their order."""
        if self.window == 1 and self.stride == 1:
            return [self._cut(x, 0, self.size, 1) for x in arrays]
        positions = arrays[0].shape[self.axis]
        by_doubling = 2 * self.window.bit_length() * positions
        if self.window > 4 and self.window * self.size > by_doubling:
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
        full = arrays[0].shape[self.axis] - (self.window - 1) * self.dilation
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
        (data,) = reducer.take([np.full(operand.size, initial, operand.dtype)], owned=True)
        updates = np.asarray(source).reshape(-1)
        if source.size:
            rows, inside = plan(operand.shape, source.shape).run(select, where, environment, np.asarray(operand))
            if inside is not None:
                rows, updates = rows[inside], updates[inside]
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
