"""Systems of equations with triangular matrices, for stacks of them."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

_SMALL = 32
"""Up to this size row by row; larger ones in halves, so that most of the work is a product of matrices."""


def solve_triangular(a: Array, b: Array, lower: bool, unit: bool) -> Array:
    """``x`` with ``a x = b``: only the triangle that is named is looked at; with ``unit`` its diagonal is taken for
    ones.
    """
    x = np.array(np.broadcast_to(b, (*a.shape[:-2], *b.shape[-2:])))
    _solve(a, x, lower, unit)
    return x


def _solve(a: Array, x: Array, lower: bool, unit: bool) -> None:
    """Replaces ``x`` by the solution."""
    size = a.shape[-1]
    if size <= _SMALL:
        _row_by_row(a, x, lower, unit)
        return
    half = size // 2
    first, second = (slice(0, half), slice(half, size)) if lower else (slice(half, size), slice(0, half))
    _solve(a[..., first, first], x[..., first, :], lower, unit)
    x[..., second, :] -= np.matmul(a[..., second, first], x[..., first, :])
    _solve(a[..., second, second], x[..., second, :], lower, unit)


def _row_by_row(a: Array, x: Array, lower: bool, unit: bool) -> None:
    size = a.shape[-1]
    for i in range(size) if lower else range(size - 1, -1, -1):
        known = slice(0, i) if lower else slice(i + 1, size)
        x[..., i, :] -= np.matmul(a[..., i : i + 1, known], x[..., known, :])[..., 0, :]
        if not unit:
            x[..., i, :] /= a[..., i, i, None]
