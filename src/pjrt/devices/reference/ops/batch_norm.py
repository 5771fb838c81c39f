"""Batch normalization: for inference, for training, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.element_types import FLOAT, narrow, widen

Array = Any


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
