"""Factorizations of stacks of matrices, by LAPACK's conventions, where ``numpy.linalg`` does not give them as they
are.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

Array = Any


def cholesky(matrices: Array) -> Array:
    """The lower factors, from the lower triangles; NaN where a matrix is not positive definite."""
    if matrices.shape[-1] == 0:
        return matrices
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        pass
    stack = matrices.reshape(-1, *matrices.shape[-2:])
    out = np.empty_like(stack)
    for i, matrix in enumerate(stack):
        try:
            out[i] = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            out[i] = np.tril(np.full(matrix.shape, np.nan, matrix.dtype))
    return out.reshape(matrices.shape)


def pivot_size(x: Array) -> Array:
    """By what LAPACK chooses pivots: of complex numbers the sum of both parts."""
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


def lu(matrices: Array) -> tuple[Array, Array, Array]:
    """Both triangles in one matrix, the row that each row was exchanged with (from 0), and the first zero pivot (from
    1; 0 for none).
    """
    a = np.array(matrices)
    *stack, rows, columns = a.shape
    steps = min(rows, columns)
    pivots, singular = np.zeros((*stack, steps), np.int64), np.zeros(stack, np.int64)
    for k in range(steps):
        row = k + pivot_size(a[..., k:, k]).argmax(-1)
        pivots[..., k] = row
        index = row[..., None, None]
        chosen, current = np.take_along_axis(a, index, -2), a[..., k : k + 1, :].copy()
        np.put_along_axis(a, np.broadcast_to(index, chosen.shape), current, -2)
        a[..., k : k + 1, :] = chosen
        pivot = a[..., k, k]
        singular = np.where((pivot == 0) & (singular == 0), k + 1, singular)
        a[..., k + 1 :, k] /= np.where(pivot == 0, 1, pivot)[..., None]
        a[..., k + 1 :, k + 1 :] -= a[..., k + 1 :, k, None] * a[..., k, None, k + 1 :]
    return a, pivots, singular


def order_after(pivots: Array, rows: int) -> Array:
    """The order that rows have after each was exchanged with the row of its pivot, one after the other."""
    order = np.broadcast_to(np.arange(rows), (*pivots.shape[:-1], rows)).copy()
    for k in range(pivots.shape[-1]):
        other = pivots[..., k, None]
        here, there = order[..., k, None].copy(), np.take_along_axis(order, other, -1)
        np.put_along_axis(order, other, here, -1)
        order[..., k, None] = there
    return order


def eigh(matrices: Array, triangle: Any) -> tuple[Array, Array]:
    """Eigenvalues, ascending, and vectors, from one triangle; NaN where they are not found."""
    try:
        return np.linalg.eigh(matrices, UPLO=triangle)
    except np.linalg.LinAlgError:
        pass
    values = np.full(matrices.shape[:-1], np.nan, matrices.real.dtype)
    vectors = np.full_like(matrices, np.nan)
    for place in np.ndindex(matrices.shape[:-2]):
        with contextlib.suppress(np.linalg.LinAlgError):
            values[place], vectors[place] = np.linalg.eigh(matrices[place], UPLO=triangle)
    return values, vectors


def householder_qr(matrices: Array) -> tuple[Array, Array]:
    """R with Householder's vectors below it, and their factors."""
    found, factors = np.linalg.qr(matrices, mode="raw")
    return np.swapaxes(found, -1, -2).astype(matrices.dtype), factors.astype(matrices.dtype)


def pivoted_qr(matrix: Array, first: Array) -> tuple[Array, Array, Array]:
    """R with Householder's vectors below it, the numbers of the columns in their new order (from 0), and the factors.

    Of one matrix, not a stack. The columns that ``first`` marks go to the front; of the others the longest that is left
    is next.
    """
    a, order = np.array(matrix), np.arange(matrix.shape[1])
    steps, fixed = min(a.shape), 0
    factors = np.zeros(steps, a.dtype)

    def exchange(i: int, j: int) -> None:
        a[:, [i, j]], order[[i, j]] = a[:, [j, i]], order[[j, i]]

    for column in np.flatnonzero(first):
        exchange(fixed, int(column))
        fixed += 1
    for k in range(steps):
        if k >= fixed:
            exchange(k, k + int(np.square(np.abs(a[k:, k:])).sum(0).argmax()))
        v, factors[k], beta = _reflector(a[k:, k])
        a[k:, k + 1 :] -= np.conjugate(factors[k]) * np.outer(v, np.conjugate(v) @ a[k:, k + 1 :])
        a[k, k], a[k + 1 :, k] = beta, v[1:]
    return a, order, factors


def apply_reflectors(vectors: Array, factors: Array, values: Array, left: bool, adjoint: bool) -> Array:
    """``Q x``, or ``x Q``, where Q (or with ``adjoint`` its adjoint) is the product of the reflections ``1 - factor v
    v*``.

    The vectors are below the diagonal, each with a one on it that is not written down.
    """
    found, factors = np.array(values), np.conjugate(factors) if adjoint else factors
    steps = range(factors.shape[-1])
    for k in reversed(steps) if left != adjoint else steps:
        v = vectors[..., k:, k, None].copy()
        v[..., 0, :] = 1
        across, factor = np.conjugate(v.swapaxes(-1, -2)), factors[..., k, None, None]
        if left:
            found[..., k:, :] -= factor * v * np.matmul(across, found[..., k:, :])
        else:
            found[..., :, k:] -= factor * np.matmul(found[..., :, k:], v) * across
    return found


def product_of_reflectors(vectors: Array, factors: Array) -> Array:
    """The first columns of the product of the reflections ``1 - factor v v*``; as many as ``vectors`` has.

    The vectors are below the diagonal, each with a one on it that is not written down.
    """
    *stack, rows, columns = vectors.shape
    found = np.zeros((*stack, rows, columns), vectors.dtype)
    found[..., np.arange(min(rows, columns)), np.arange(min(rows, columns))] = 1
    for k in reversed(range(factors.shape[-1])):
        v = vectors[..., k:, k].copy()
        v[..., 0] = 1
        along = np.matmul(np.conjugate(v)[..., None, :], found[..., k:, :])
        found[..., k:, :] -= factors[..., k, None, None] * v[..., None] * along
    return found


def hessenberg(matrices: Array) -> tuple[Array, Array]:
    """The Hessenberg form with Householder's vectors below it, and their factors."""
    a = np.array(matrices)
    size = a.shape[-1]
    factors = np.zeros((*a.shape[:-2], max(size - 1, 0)), a.dtype)
    for k in range(size - 1):
        v, factor, beta = _reflector(a[..., k + 1 :, k])
        left = np.matmul(np.conjugate(v)[..., None, :], a[..., k + 1 :, k + 1 :])
        a[..., k + 1 :, k + 1 :] -= np.conjugate(factor)[..., None, None] * v[..., None] * left
        right = np.matmul(a[..., :, k + 1 :], v[..., None])
        a[..., :, k + 1 :] -= factor[..., None, None] * right * np.conjugate(v)[..., None, :]
        a[..., k + 1, k] = beta
        a[..., k + 2 :, k] = v[..., 1:]
        factors[..., k] = factor
    return a, factors


def _reflector(x: Array) -> tuple[Array, Array, Array]:
    """A vector (with a leading one), its factor and what its adjoint reflection leaves of ``x`` at the first place."""
    alpha = x[..., 0]
    rest = np.sqrt((np.abs(x[..., 1:]) ** 2).sum(-1))
    size = np.sqrt(np.abs(alpha) ** 2 + rest**2)
    trivial = (rest == 0) & (np.imag(alpha) == 0)
    beta = np.where(trivial, np.real(alpha), -np.copysign(size, np.real(alpha))).astype(x.dtype)
    safe = np.where(trivial, 1, beta)
    factor = np.where(trivial, 0, (beta - alpha) / safe).astype(x.dtype)
    v = x / np.where(trivial, 1, alpha - beta)[..., None]
    v = np.where(trivial[..., None], 0, v).astype(x.dtype)
    v[..., 0] = 1
    return v, factor, beta
