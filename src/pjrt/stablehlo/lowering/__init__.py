"""Helpers for translators of StableHLO: operations in the simpler forms that other libraries have.

Each takes a ``pjrt.stablehlo.Operation`` with static shapes and returns plain values: permutations, shapes, names.
Where an operation has no simple form, the result is ``None``, and the operation is better left to a fallback.
"""

from pjrt.stablehlo.lowering.constant import constant_array, constant_value
from pjrt.stablehlo.lowering.convolution import Convolution, convolution
from pjrt.stablehlo.lowering.gather import NdGather, nd_gather
from pjrt.stablehlo.lowering.matrix_product import MatrixProduct, matrix_product
from pjrt.stablehlo.lowering.movement import Broadcast, Pad, broadcast, pad
from pjrt.stablehlo.lowering.pooling import Pooling, pooling
from pjrt.stablehlo.lowering.reducer import identity_of, reducer, selector
from pjrt.stablehlo.lowering.scatter import NdScatter, nd_scatter
from pjrt.stablehlo.lowering.sorting import SortKey, sort_keys
from pjrt.stablehlo.lowering.window import Window, window

__all__ = [
    "Broadcast",
    "Convolution",
    "MatrixProduct",
    "NdGather",
    "NdScatter",
    "Pad",
    "Pooling",
    "SortKey",
    "Window",
    "broadcast",
    "constant_array",
    "constant_value",
    "convolution",
    "identity_of",
    "matrix_product",
    "nd_gather",
    "nd_scatter",
    "pad",
    "pooling",
    "reducer",
    "selector",
    "sort_keys",
    "window",
]
