"""Windows that move over an operand, as the pooling of images that other libraries have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pjrt.stablehlo.lowering._types import Shape, inverse, sizes
from pjrt.stablehlo.lowering.window import window
from pjrt.stablehlo.operation import Operation


@dataclass(frozen=True, slots=True)
class Pooling:
    """A pooling of one image: (1, channels, spatial…).

    Transpose the operand by ``permutation``, reshape it to ``shape``, and pool it. Reshape the result to
    ``result_shape`` and transpose it by ``result_permutation``. The dimensions along which the window does not move
    are the channels.

    Attributes:
        permutation: the dimensions of the operand, those along which the window moves last.
        shape: the shape of the image.
        sizes: the size of the window along each spatial dimension.
        strides: its step.
        padding: the elements of the initial value before and after each spatial dimension; negative ones cut off.
        dilation: the distance of neighbouring elements of the window.
        result_shape: the shape of the result, before it is transposed.
        result_permutation: where the dimensions of the result go.
    """

    permutation: Shape
    shape: Shape
    sizes: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    result_shape: Shape
    result_permutation: Shape

    @property
    def running(self) -> str | None:
        """``"forward"`` or ``"backward"`` for the running sums of JAX's ``cumsum`` and their like: one dimension, and
        each result is made of all elements up to its own, or from its own on. None for other windows.
        """
        if len(self.sizes) != 1 or self.sizes[0] != self.shape[2] or self.strides[0] != 1 or self.dilation[0] != 1:
            return None
        rest = self.sizes[0] - 1
        return {(rest, 0): "forward", (0, rest): "backward"}.get(self.padding[0])


def pooling(operation: Operation) -> Pooling | None:
    """Return ``stablehlo.reduce_window`` or ``stablehlo.select_and_scatter`` as a pooling.

    The result's shape is that of ``reduce_window``, or of the source of ``select_and_scatter``. The result is ``None``
    for a window over spread elements (``base_dilations``), and for one over a scalar.
    """
    form = window(operation)
    operand = sizes(operation.operands[0])
    result = sizes(operation.results[0] if operation.name == "stablehlo.reduce_window" else operation.operands[1])
    if not operand or any(step != 1 for step in form.base_dilation):
        return None
    moving = form.moving or (len(operand) - 1,)
    others = tuple(d for d in range(len(operand)) if d not in moving)
    permutation = (*others, *moving)
    return Pooling(
        permutation=permutation,
        shape=(1, math.prod(operand[d] for d in others), *(operand[d] for d in moving)),
        sizes=tuple(form.sizes[d] for d in moving),
        strides=tuple(form.strides[d] for d in moving),
        padding=tuple(form.padding[d] for d in moving),
        dilation=tuple(form.window_dilation[d] for d in moving),
        result_shape=tuple(result[d] for d in permutation),
        result_permutation=inverse(permutation),
    )
