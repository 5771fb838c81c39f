"""Reductions, and batch normalization."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Environment, Kernel, one_or_all
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.reducers import Reducer
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.element_types import FLOAT, narrow, widen

Array = Any


@op("stablehlo.reduce")
def reduce(view: OpView) -> Kernel:
    """Combine all elements along some dimensions, in their order, after an initial value.

    The specification leaves open in which groups elements are combined. Here neighbours are, then their results, and so
    on, which keeps the error of sums of many small floats small.
    """
    axes = tuple(sorted(view.attr("dimensions")))
    reducer = Reducer(view.regions[0], view.results)
    if reducer.ufunc is not None and axes and not reducer.rounds:
        return _by_ufunc(view, reducer, axes)
    count = reducer.count

    def run(environment: Environment, *values: Array) -> Any:
        operands, initial = reducer.open(values[:count]), reducer.open(values[count:])
        kept = tuple(d for d in range(operands[0].ndim) if d not in axes)
        shape = tuple(operands[0].shape[d] for d in kept)
        size = math.prod(operands[0].shape[d] for d in axes)
        if size == 0 or 0 in shape:
            totals = [np.broadcast_to(value, shape) for value in initial]
        else:
            lines = [x.transpose(axes + kept).reshape(size, *shape) for x in operands]
            totals = reducer.combine(environment, initial, reducer.fold(environment, lines))
        return one_or_all(reducer.close(totals))

    return run


def _by_ufunc(view: OpView, reducer: Reducer, axes: tuple[int, ...]) -> Kernel:
    assert reducer.ufunc is not None
    (dtype,) = reducer.working
    rank = view.operand().rank
    reduction: Any = reducer.ufunc.reduce
    if len(axes) > 1 and axes == tuple(range(rank - len(axes), rank)):
        reduction = _of_last_dimensions(reduction, rank - len(axes))
    elif reducer.ufunc is np.add and dtype.kind in "fc" and axes == tuple(range(len(axes))) and len(axes) < rank:
        reduction = _sum_of_rows
    axis = axes if len(axes) > 1 else axes[0]

    def run_native(environment: Environment, x: Array, initial: Array) -> Array:
        return reduction(x, axis, dtype, None, False, initial)

    def run(environment: Environment, x: Array, initial: Array) -> Array:
        (start,) = reducer.open((initial,))
        # numpy converts the operand a few elements at a time.
        return reducer.close((reduction(x, axis, dtype, None, False, start),))[0]

    return run_native if reducer.is_native and view.operand().dtype == dtype else run


def _of_last_dimensions(reduction: Any, kept: int) -> Any:
    """Make several trailing dimensions one for a ufunc's ``reduce``: faster, and sums are pairwise throughout."""

    def run(x: Array, axis: Any, dtype: Any, out: None, keepdims: bool, initial: Array) -> Array:
        if not x.flags.c_contiguous or x.size == 0:
            return reduction(x, axis, dtype, out, keepdims, initial)
        return reduction(x.reshape(*x.shape[:kept], -1), kept, dtype, out, keepdims, initial)

    return run


_ADD: Any = np.add.reduce
_LONG = 512
"""More rows than this are added up in two rounds."""


def _sum_of_rows(x: Array, axis: Any, dtype: Any, out: None, keepdims: bool, initial: Array) -> Array:
    """Do as ``np.add.reduce`` along the leading dimensions.

    Of many rows it adds up chunks, and then the sums of chunks: numpy adds one row after the other, with an error that
    grows with their number.
    """
    count = math.prod(x.shape[: len(axis)] if isinstance(axis, tuple) else x.shape[:1])
    if count <= _LONG or not x.flags.c_contiguous or x.size == 0:
        return _ADD(x, axis, dtype, out, keepdims, initial)
    kept = x.shape[len(axis) if isinstance(axis, tuple) else 1 :]
    rows = x.reshape(count, -1)
    size = math.isqrt(count)
    whole = count - count % size
    chunks = _ADD(rows[:whole].reshape(-1, size, rows.shape[1]), 1)
    rest = _ADD(rows[whole:], 0, dtype, None, False, initial)
    return np.add(_ADD(chunks, 0), rest).reshape(kept)


@op("stablehlo.map", quantized=True)
def map_(view: OpView) -> Kernel:
    """Apply a function of scalars at each position of the operands."""
    region = view.regions[0]
    return lambda environment, *operands: one_or_all(region.vectorized(environment, *operands))


@op("stablehlo.batch_norm_inference")
def batch_norm_inference(view: OpView) -> Kernel:
    """Normalize each feature with a mean and a variance from the operands, then scale and shift it."""
    frame = _Frame(view)

    def run(x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> Array:
        x, scale, offset, mean, variance = frame.open(x, scale, offset, mean, variance)
        deviation = np.sqrt(frame.spread(variance) + frame.epsilon)
        return frame.close((x - frame.spread(mean)) / deviation * frame.spread(scale) + frame.spread(offset))

    return run


@op("stablehlo.batch_norm_training")
def batch_norm_training(view: OpView) -> Kernel:
    """Normalize each feature with its own mean and variance, and return these too."""
    frame = _Frame(view)

    def run(x: Array, scale: Array, offset: Array) -> list[Array]:
        x, scale, offset = frame.open(x, scale, offset)
        mean = frame.mean(x)
        centered = x - frame.spread(mean)
        variance = frame.mean(np.square(centered))
        normalized = centered / np.sqrt(frame.spread(variance) + frame.epsilon)
        result = normalized * frame.spread(scale) + frame.spread(offset)
        return [frame.close(value) for value in (result, mean, variance)]

    return run


@op("stablehlo.batch_norm_grad")
def batch_norm_grad(view: OpView) -> Kernel:
    """Return the gradients of ``batch_norm_training`` with respect to operand, scale and offset."""
    frame = _Frame(view)

    def run(x: Array, scale: Array, mean: Array, variance: Array, gradient: Array) -> list[Array]:
        x, scale, mean, variance, gradient = frame.open(x, scale, mean, variance, gradient)
        centered = x - frame.spread(mean)
        inverse = 1 / np.sqrt(variance + frame.epsilon)
        normalized = centered * frame.spread(inverse)
        of_offset = gradient.sum(frame.others)
        of_scale = (gradient * normalized).sum(frame.others)
        count = max(x.size // max(mean.size, 1), 1)
        remaining = gradient - frame.spread(of_offset) / count - normalized * frame.spread(of_scale) / count
        of_operand = frame.spread(scale * inverse) * remaining
        return [frame.close(value) for value in (of_operand, of_scale, of_offset)]

    return run


class _Frame:
    """The common part of the three ops: the feature dimension, epsilon, and the type to compute in."""

    def __init__(self, view: OpView) -> None:
        operand = view.operand()
        if operand.element not in FLOAT:
            raise view.unimplemented(f"the specification does not define it on {operand.element.mlir}")
        feature = view.attr("feature_index")
        self.others = tuple(d for d in range(operand.rank) if d != feature)
        self.shape = tuple(-1 if d == feature else 1 for d in range(operand.rank))
        self._widen: Callable[[Array], Array] = widen(operand.element)
        self.close: Callable[[Array], Array] = narrow(operand.element)
        self.epsilon: Any = view.attr("epsilon")

    def open(self, *values: Array) -> list[Array]:
        """Return the operands in the type to compute in."""
        return [self._widen(value) for value in values]

    def mean(self, x: Array) -> Array:
        """Return the mean of each feature; NaN, without a warning, where there is no element."""
        count = math.prod(x.shape[d] for d in self.others)
        return np.divide(x.sum(self.others), x.dtype.type(count))

    def spread(self, value: Array) -> Array:
        """Return a value for each feature, in a shape that broadcasts against the operand."""
        return value.reshape(self.shape)
