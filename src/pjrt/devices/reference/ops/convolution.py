"""Convolution, with any order of dimensions, strides, padding, dilations and groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.indexing import CHUNK, PadPlan
from pjrt.devices.reference.numerics.linear_algebra import matmul_of

Array = Any
Shape = tuple[int, ...]
Padding = Sequence[Sequence[int]]


def most_patches(elements: int, window: int) -> int:
    """Return how many elements of windows may be laid out side by side at a time.

    They are many times those of the input. A sixteenth of the ``elements`` of input and result together is enough, but
    not fewer than 256 windows: a product of matrices with fewer rows is slower.
    """
    return max(CHUNK, elements // 16, 256 * window)


@op("stablehlo.convolution")
def convolution(view: OpView) -> Kernel:
    """Add up products over a window that moves over the spatial dimensions."""
    rank = view.operand().rank - 2
    padding = np.reshape(view.attr("padding", np.zeros((rank, 2), np.int64)), (rank, 2)).tolist()
    convolve = _convolver(view)

    def run(x: Array, kernel: Array) -> Array:
        return convolve(x, kernel, padding)

    return run


@op("stablehlo.dynamic_conv")
def dynamic_conv(view: OpView) -> Kernel:
    """Convolve with a padding that is an operand."""
    convolve = _convolver(view)
    return view.fitted(lambda x, kernel, padding: convolve(x, kernel, padding.tolist()))


def _convolver(view: OpView) -> Callable[[Array, Array, Padding], Array]:
    """Return the convolution of an op as a function of input, kernel and padding."""
    numbers = view.attr("dimension_numbers")
    rank = view.operand().rank - 2
    ones = (1,) * rank
    sliding = _Sliding(
        strides=tuple(view.attr("window_strides", None) or ones),
        input_dilation=tuple(view.attr("lhs_dilation", None) or ones),
        kernel_dilation=tuple(view.attr("rhs_dilation", None) or ones),
        feature_groups=view.attr("feature_group_count", 1),
        batch_groups=view.attr("batch_group_count", 1),
        product=matmul_of(view.operand(0).element, view.operand(1).element, view.result().element),
    )
    turned = tuple(slice(None, None, -1 if turn else 1) for turn in view.attr("window_reversal", None) or ())
    of_input = (numbers.input_batch_dimension, *numbers.input_spatial_dimensions, numbers.input_feature_dimension)
    of_kernel = (
        *numbers.kernel_spatial_dimensions,
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
    )
    of_output = (numbers.output_batch_dimension, *numbers.output_spatial_dimensions, numbers.output_feature_dimension)
    back = tuple(int(i) for i in np.argsort(of_output))
    in_order = back == tuple(range(len(back)))

    def run(x: Array, kernel: Array, padding: Padding) -> Array:
        result = sliding.run(x.transpose(of_input), kernel.transpose(of_kernel)[turned], padding)
        return result if in_order else result.transpose(back)  # a view would be copied when the program returns it

    return run


@dataclass(frozen=True)
class _Sliding:
    """A convolution of inputs (batch, spatial…, feature) with kernels (spatial…, input feature, output feature).

    The windows are laid out side by side, so that one product of matrices computes all of them. At most one of the two
    numbers of groups is above 1, and each group is a matrix of a stack.
    """

    strides: Shape
    input_dilation: Shape
    kernel_dilation: Shape
    feature_groups: int
    batch_groups: int
    product: Callable[[Array, Array], Array]

    def run(self, x: Array, kernel: Array, padding: Padding) -> Array:
        windows = self._windows(self._padded(x, padding), kernel.shape[:-2])
        groups, batch = windows.shape[:2]
        rank = len(self.strides)
        spatial = windows.shape[2 : 2 + rank]
        outputs = kernel.shape[-1]
        matrices = self._matrices(kernel, groups)
        result = np.empty((batch, *spatial, outputs), self._dtype(windows, matrices))
        out = np.moveaxis(result.reshape(batch, *spatial, groups, outputs // groups), -2, 0)
        if out.size:
            for part in _parts(windows, rank, most_patches(x.size + out.size, matrices.shape[1])):
                chosen = windows[part]
                patches = chosen.reshape(groups, math.prod(chosen.shape[1 : 2 + rank]), matrices.shape[1])
                out[part] = self.product(patches, matrices).reshape(*chosen.shape[: 2 + rank], outputs // groups)
        return result

    def _padded(self, x: Array, padding: Padding) -> Array:
        low, high = ([0, *(int(edge[side]) for edge in padding), 0] for side in (0, 1))
        between = [0, *(dilation - 1 for dilation in self.input_dilation), 0]
        return PadPlan.of(x.shape, low, high, between).run(x, np.zeros((), x.dtype))

    def _windows(self, x: Array, kernel: Shape) -> Array:
        """Return a view of each window at each place: (group, batch, place…, position in the window…, feature)."""
        batch, *sizes, features = x.shape
        places = tuple(
            max(0, (size - (window - 1) * dilation - 1) // stride + 1)
            for size, window, dilation, stride in zip(sizes, kernel, self.kernel_dilation, self.strides, strict=True)
        )
        batch_stride, *steps, feature_stride = x.strides
        batches, features = batch // self.batch_groups, features // self.feature_groups
        groups = self.feature_groups * self.batch_groups
        group_stride = feature_stride * features if self.feature_groups > 1 else batch_stride * batches
        bits = x if x.dtype.isbuiltin == 1 else x.view(f"u{x.dtype.itemsize}")  # as_strided takes numpy's types only
        return as_strided(
            bits,
            (groups, batches, *places, *kernel, features),
            (
                group_stride,
                batch_stride,
                *(step * stride for step, stride in zip(steps, self.strides, strict=True)),
                *(step * dilation for step, dilation in zip(steps, self.kernel_dilation, strict=True)),
                feature_stride,
            ),
            writeable=False,
        ).view(x.dtype)

    @staticmethod
    def _matrices(kernel: Array, groups: int) -> Array:
        """Return the kernel as a stack of matrices (group, position and input feature, output feature)."""
        inner, outputs = math.prod(kernel.shape[:-1]), kernel.shape[-1]
        return np.moveaxis(kernel.reshape(inner, groups, outputs // groups), 1, 0)

    def _dtype(self, windows: Array, matrices: Array) -> Any:
        """Return the type of the product, by an empty one."""
        empty = np.empty((1, 1, 0), windows.dtype), np.empty((1, 0, 1), matrices.dtype)
        return self.product(*empty).dtype


def _parts(windows: Array, rank: int, largest: int) -> list[tuple[slice, ...]]:
    """Return slices of the batch, and of the first spatial dimension if need be, of at most ``largest`` elements."""
    batch = windows.shape[1]
    each = windows.size // batch
    if each <= largest or not rank:
        count = max(1, largest // max(each, 1))
        return [(slice(None), slice(i, i + count)) for i in range(0, batch, count)]
    places = windows.shape[2]
    rows = max(1, largest * places // each)
    return [(slice(None), slice(i, i + 1), slice(j, j + rows)) for i in range(batch) for j in range(0, places, rows)]
