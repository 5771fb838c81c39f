"""Products of matrices on every element type, for dot products and convolutions.

Small floats are multiplied and added up in f32 and rounded once at the end, and complex64 in complex128. For complex128
there is no wider type, and the fast routines add up the products of parts before they subtract, which can cancel: there
each product is rounded first, as the specification has it. Integers wrap. Sums of integers that f64 holds exactly are
added up in f64, for which there is a fast routine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.numerics.chunks import CHUNK, chunks
from pjrt.devices.reference.numerics.element_types import BOOLEAN, INTEGER, compute_dtype
from pjrt.devices.reference.numerics.rounding import converter

Array = Any
Product = Callable[[Array, Array], Array]

_EXACT = float(1 << 53)

_SIDE = 256
"""Rows and columns of a chunk of a product of matrices: with fewer, the fast routines are slower."""


def matmul_of(left: ElementType, right: ElementType, result: ElementType) -> Product:
    """Return ``matmul`` for stacks of these element types, with sums in the result's type or a wider one."""
    if result in BOOLEAN:
        return _in_chunks(lambda x, y: np.matmul(x.astype(np.float32), y.astype(np.float32)) > 0)
    if result in INTEGER:
        return _in_chunks(_integer_matmul(left, right, result))
    if result is ElementType.C128:
        return _in_order
    dtype = result.dtype
    if result is ElementType.C64:
        return _in_chunks(lambda x, y: np.matmul(x.astype(np.complex128), y.astype(np.complex128)).astype(dtype))
    wide = np.result_type(*(compute_dtype(t) for t in (left, right, result)))
    if wide == dtype == left.dtype == right.dtype:
        return np.matmul
    return _in_chunks(lambda x, y: np.matmul(x.astype(wide), y.astype(wide)).astype(dtype))


def _in_chunks(product: Product) -> Product:
    """Return a product that converts its operands as one that has only chunks of them converted at a time."""

    def run(x: Array, y: Array) -> Array:
        if x.size + y.size <= 2 * CHUNK:
            return product(x, y)
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        x, y = (np.broadcast_to(z, (*batch, *z.shape[-2:])) for z in (x, y))
        out = np.empty((*batch, x.shape[-2], y.shape[-1]), product(x[..., :0, :0], y[..., :0, :0]).dtype)
        fill(x, y, out)
        return out

    def fill(x: Array, y: Array, out: Array) -> None:
        rows, columns = out.shape[-2:]
        if out.ndim > 2 and len(out) > 1 and x.size + y.size > 2 * CHUNK:
            for part in chunks(len(out), (x.size + y.size) // len(out)):
                fill(x[part], y[part], out[part])
            return
        for row in chunks(rows, x.size // max(rows, 1), min(columns, _SIDE)):
            for column in chunks(columns, y.size // max(columns, 1), min(rows, _SIDE)):
                out[..., row, column] = product(x[..., row, :], y[..., column])

    return run


def _in_order(x: Array, y: Array) -> Array:
    """Return the product of matrices, with whole products added up one after the other."""
    return np.einsum("...ik,...kj->...ij", x, y)


def _integer_matmul(left: ElementType, right: ElementType, result: ElementType) -> Product:
    # Wrapping at the end is the same as wrapping on the way, so the sums may be taken in the widest type.
    wide = np.dtype(np.uint64 if result.bits == 64 and result.name[0] == "U" else np.int64)
    narrow = converter(ElementType.of(wide), result)
    largest = [_largest_magnitude(t) for t in (left, right)]

    def run(x: Array, y: Array) -> Array:
        terms = x.shape[-1]
        if _fits(largest[0], largest[1], terms) or _fits(_magnitude(x), _magnitude(y), terms):
            exact = np.matmul(_as_double(x), _as_double(y))
            return narrow(exact.astype(np.int64).astype(wide))
        return narrow(np.matmul(x.astype(wide), y.astype(wide)))

    return run


def _as_double(x: Array) -> Array:
    if x.dtype.isbuiltin != 1:  # ml_dtypes has no conversion from integers below 8 bits to f64
        x = x.astype(np.int8)
    return x.astype(np.float64)


def _fits(x: float, y: float, terms: int) -> bool:
    return x * y * max(terms, 1) < _EXACT


def _largest_magnitude(t: ElementType) -> float:
    return 1.0 if t in BOOLEAN else 2.0 ** (t.bits - (t.name[0] == "S")) if t in INTEGER else np.inf


def _magnitude(x: Array) -> float:
    if x.size == 0:
        return 0.0
    if x.dtype.kind not in "iu":
        return np.inf
    return max(abs(float(x.max())), abs(float(x.min())))
