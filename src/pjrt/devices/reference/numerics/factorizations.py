"""Factorizations of stacks of matrices: NaN where numpy raises an error for all, and LAPACK's routines by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any

_COMPLEX_NAMES = {"orgqr": "ungqr", "ormqr": "unmqr", "sytrd": "hetrd"}


def lapack(name: str, dtype: Any) -> Callable[..., Any]:
    """Return scipy's function for a LAPACK routine, named as for real matrices and without the letter of the type.

    It takes one matrix, not a stack, and none that is empty.
    """
    from scipy.linalg import lapack  # takes a while to import

    dtype = np.dtype(dtype)
    name = _COMPLEX_NAMES.get(name, name) if dtype.kind == "c" else name
    letter = {"f": "s", "d": "d", "F": "c", "D": "z"}[dtype.char]
    routine: Callable[..., Any] = getattr(lapack, letter + name)
    return routine


def cholesky(matrices: Array) -> Array:
    """Return the lower factors, from the lower triangles; NaN where a matrix is not positive definite."""
    if matrices.shape[-1] == 0:
        return matrices
    with contextlib.suppress(np.linalg.LinAlgError):
        return np.linalg.cholesky(matrices)
    factors = np.tril(np.full_like(matrices, np.nan))
    for index in np.ndindex(matrices.shape[:-2]):
        with contextlib.suppress(np.linalg.LinAlgError):
            factors[index] = np.linalg.cholesky(matrices[index])
    return factors


def eigh(matrices: Array, triangle: Any) -> tuple[Array, Array]:
    """Return eigenvalues, ascending, and vectors, from one triangle; NaN where LAPACK does not find them."""
    with contextlib.suppress(np.linalg.LinAlgError):
        return np.linalg.eigh(matrices, UPLO=triangle)
    values = np.full(matrices.shape[:-1], np.nan, matrices.real.dtype)
    vectors = np.full_like(matrices, np.nan)
    for index in np.ndindex(matrices.shape[:-2]):
        with contextlib.suppress(np.linalg.LinAlgError):
            values[index], vectors[index] = np.linalg.eigh(matrices[index], UPLO=triangle)
    return values, vectors


def order_after(pivots: Array, rows: int) -> Array:
    """Return the order of rows after each was exchanged with the row of its pivot, one after the other."""
    order = np.broadcast_to(np.arange(rows), (*pivots.shape[:-1], rows)).copy()
    for k in range(pivots.shape[-1]):
        other = pivots[..., k, None]
        here, there = order[..., k, None].copy(), np.take_along_axis(order, other, -1)
        np.put_along_axis(order, other, here, -1)
        order[..., k, None] = there
    return order
