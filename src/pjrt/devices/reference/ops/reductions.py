"""Reductions of whole dimensions, and functions mapped over values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pjrt.devices.reference._blocks import Environment
from pjrt.devices.reference._combining import Combiner
from pjrt.devices.reference._registry import Kernel, op
from pjrt.devices.reference._view import OpView

Array = Any


@op("stablehlo.reduce")
def reduce(view: OpView) -> Kernel:
    """Combines all elements along some dimensions, in their order, after an initial value.

    The specification leaves open in which groups elements are combined; here neighbours are.
    """
    axes = tuple(sorted(view.attr("dimensions")))
    combiner = Combiner(view.regions[0], view.results)
    if combiner.ufunc is not None and axes:
        return _by_ufunc(view, combiner, axes)
    count = combiner.count

    def run(environment: Environment, *values: Array) -> Any:
        operands, initial = combiner.open(values[:count]), combiner.open(values[count:])
        kept = tuple(d for d in range(operands[0].ndim) if d not in axes)
        shape = tuple(operands[0].shape[d] for d in kept)
        size = math.prod(operands[0].shape[d] for d in axes)
        if size == 0 or 0 in shape:
            found = [np.broadcast_to(value, shape) for value in initial]
        else:
            lines = [x.transpose(axes + kept).reshape(size, *shape) for x in operands]
            found = combiner.combine(environment, initial, combiner.fold(environment, lines, 0))
        results = combiner.close(found)
        return results[0] if count == 1 else results

    return run


def _by_ufunc(view: OpView, combiner: Combiner, axes: tuple[int, ...]) -> Kernel:
    assert combiner.ufunc is not None
    (dtype,) = combiner.working
    reduction: Any = combiner.ufunc.reduce
    axis = axes if len(axes) > 1 else axes[0]

    def run_native(environment: Environment, x: Array, initial: Array) -> Array:
        return reduction(x, axis, dtype, None, False, initial)

    def run(environment: Environment, x: Array, initial: Array) -> Array:
        (wide,), (start,) = combiner.open((x,)), combiner.open((initial,))
        return combiner.close((reduction(wide, axis, dtype, None, False, start),))[0]

    return run_native if combiner.is_native and view.operand().dtype == dtype else run


@op("stablehlo.map", quantized=True)
def map_(view: OpView) -> Kernel:
    """A function of scalars at each position of its operands."""
    region = view.regions[0]
    single = len(view.results) == 1

    def run(environment: Environment, *operands: Array) -> Any:
        found = region.vectorized(environment, *operands)
        return found[0] if single else found

    return run
