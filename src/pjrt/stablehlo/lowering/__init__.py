"""Helpers for translators of StableHLO: operations in the simpler forms that other libraries have.

Each takes a ``pjrt.stablehlo.Operation`` with static shapes and returns plain values: permutations, shapes, names.
Where an operation has no simple form, the result is ``None``, and the operation is better left to a fallback.
"""

from pjrt.stablehlo.lowering import (
    Broadcast,
    Convolution,
    MatrixProduct,
    NdGather,
    NdScatter,
    Pad,
    Pooling,
    SortKey,
    Window,
    broadcast,
    constant_array,
    constant_value,
    convolution,
    identity_of,
    matrix_product,
    nd_gather,
    nd_scatter,
    pad,
    pooling,
    reducer,
    selector,
    sort_keys,
    window,
)

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
