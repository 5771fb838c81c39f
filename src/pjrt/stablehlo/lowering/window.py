"""The windows of ``stablehlo.reduce_window`` and ``stablehlo.select_and_scatter``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pjrt.stablehlo.lowering._types import Shape, expect_operation
from pjrt.stablehlo.operation import Operation


@dataclass(frozen=True, slots=True)
class Window:
    """A window that moves over all dimensions of an operand.

    Attributes:
        sizes: its size along each dimension.
        strides: its step.
        padding: the elements of the initial value before and after each dimension; negative ones cut off.
        base_dilation: the distance of neighbouring elements of the operand.
        window_dilation: the distance of neighbouring elements of the window.
    """

    sizes: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    base_dilation: Shape
    window_dilation: Shape

    @property
    def moving(self) -> Shape:
        """The dimensions of a pooling: those along which the window is not simply each element by itself."""
        return tuple(
            d
            for d in range(len(self.sizes))
            if (self.sizes[d], self.strides[d], self.padding[d], self.base_dilation[d]) != (1, 1, (0, 0), 1)
        )


def window(operation: Operation) -> Window:
    """Return the window of ``stablehlo.reduce_window`` or ``stablehlo.select_and_scatter``."""
    expect_operation(operation, "stablehlo.reduce_window", "stablehlo.select_and_scatter")
    rank = operation.operands[0].type.rank  # type: ignore[union-attr]
    ones = (1,) * rank
    padding = np.reshape(operation.attribute("padding", np.zeros((rank, 2), np.int64)), (rank, 2)).tolist()
    return Window(
        sizes=tuple(operation.attribute("window_dimensions", None) or ones),
        strides=tuple(operation.attribute("window_strides", None) or ones),
        padding=tuple((low, high) for low, high in padding),
        base_dilation=tuple(operation.attribute("base_dilations", None) or ones),
        window_dilation=tuple(operation.attribute("window_dilations", None) or ones),
    )
