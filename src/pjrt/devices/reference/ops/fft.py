"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op

_TRANSFORMS: dict[str, Any] = {
    "FFT": np.fft.fftn,
    "IFFT": np.fft.ifftn,
    "RFFT": np.fft.rfftn,
    "IRFFT": np.fft.irfftn,
}


@op("stablehlo.fft")
def fft(view: OpView) -> Kernel:
    """Transform the last dimensions, in double precision, and round."""
    kind, lengths = view.attr("fft_type"), tuple(view.attr("fft_length"))
    transform = _TRANSFORMS[kind]
    axes = tuple(range(-len(lengths), 0))
    result = view.result()
    dtype, wide = result.dtype, np.float64 if kind == "RFFT" else np.complex128
    empty = result.sizes if result.is_static and result.size == 0 else None

    def run(x: Any) -> Any:
        if empty is not None or 0 in lengths:
            return np.zeros(empty or x.shape, dtype)
        return transform(x.astype(wide), s=lengths, axes=axes).astype(dtype)

    points = max(int(np.prod(lengths)), 2)
    run.flops = 5.0 * (result.size if result.is_static else 0) * float(np.log2(points))  # type: ignore[attr-defined]
    return run
