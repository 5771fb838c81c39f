"""``stablehlo.convolution`` in the order of dimensions that most libraries have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pjrt.stablehlo.lowering._types import Shape, expect_operation, inverse
from pjrt.stablehlo.operation import Operation


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of inputs (batch, feature, spatial…) with kernels (output feature, input feature, spatial…).

    Transpose the input by ``input_permutation`` and the kernel by ``kernel_permutation``, flip the kernel along
    ``flipped``, convolve, and transpose the result, which is (batch, output feature, spatial…), by
    ``result_permutation``. As everywhere in machine learning, "convolve" does not flip the kernel itself.

    Attributes:
        input_permutation: the dimensions of the input: batch, feature, spatial.
        kernel_permutation: the dimensions of the kernel: output feature, input feature, spatial.
        result_permutation: where the dimensions batch, output feature, spatial go in the result.
        strides: the step of the window along each spatial dimension.
        padding: the zeros before and after each spatial dimension; negative ones cut off.
        input_dilation: the distance of neighbouring elements of the input; zeros lie between them. Above 1 it is a
            transposed convolution.
        kernel_dilation: the distance of neighbouring elements of the kernel.
        flipped: the spatial dimensions, counted from 0, along which the kernel is flipped.
        feature_groups: the number of groups of features; each is convolved with its part of the kernels.
        batch_groups: the number of groups of the batch; each is convolved with its part of the kernels.
    """

    input_permutation: Shape
    kernel_permutation: Shape
    result_permutation: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    input_dilation: Shape
    kernel_dilation: Shape
    flipped: Shape
    feature_groups: int
    batch_groups: int


def convolution(operation: Operation) -> Convolution:
    """Return ``stablehlo.convolution`` in the usual order of dimensions."""
    expect_operation(operation, "stablehlo.convolution")
    numbers = operation.attribute("dimension_numbers")
    rank = len(numbers.input_spatial_dimensions)
    ones = (1,) * rank
    padding = np.reshape(operation.attribute("padding", np.zeros((rank, 2), np.int64)), (rank, 2)).tolist()
    result = (numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions)
    turned = operation.attribute("window_reversal", None) or ()
    return Convolution(
        input_permutation=(
            numbers.input_batch_dimension,
            numbers.input_feature_dimension,
            *numbers.input_spatial_dimensions,
        ),
        kernel_permutation=(
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ),
        result_permutation=inverse(result),
        strides=tuple(operation.attribute("window_strides", None) or ones),
        padding=tuple((low, high) for low, high in padding),
        input_dilation=tuple(operation.attribute("lhs_dilation", None) or ones),
        kernel_dilation=tuple(operation.attribute("rhs_dilation", None) or ones),
        flipped=tuple(dimension for dimension, turn in enumerate(turned) if turn),
        feature_groups=operation.attribute("feature_group_count", 1),
        batch_groups=operation.attribute("batch_group_count", 1),
    )
