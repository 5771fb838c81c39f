"""Ops without operands: constants and counting."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op


@op("stablehlo.constant", "chlo.constant", elementwise=True, quantized=True)
def constant(view: OpView) -> Kernel:
    """Return the value in the program."""
    value = view.constant()
    return lambda: value


@op("stablehlo.iota")
def iota(view: OpView) -> Kernel:
    """Count along one dimension."""
    result = view.result()
    along, sizes = view.attr("iota_dimension"), result.sizes
    return lambda: counted(sizes, along, result.element)


def counted(sizes: tuple[int, ...], along: int, element: Any) -> Any:
    """Return an array of some sizes whose elements are their own index along a dimension."""
    shape = [1] * len(sizes)
    shape[along] = sizes[along]
    wide = np.int64 if not element.is_floating or element.dtype == np.float64 else np.float32
    line = np.arange(sizes[along], dtype=wide).astype(element.dtype)
    return np.broadcast_to(line.reshape(shape), sizes)
