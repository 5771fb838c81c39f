"""Products of matrices, their decompositions, and triangular systems."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.reference.numerics.element_types import BOOLEAN, INTEGER, compute_dtype, converter
from pjrt.devices.reference.numerics.indexing import CHUNK, chunks

# Small floats are multiplied and added up in f32 and rounded once at the end, and complex64 in complex128. For
# complex128 there is no wider type, and the fast routines add up the products of parts before they subtract, which can
# cancel: there each product is rounded first, as the specification has it. Integers wrap. Sums of integers that f64
# holds exactly are added up in f64, for which there is a fast routine.

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
    dtype = result.dtype
    if result is ElementType.C128:
        if left is right is result:
            return _in_order
        return _in_chunks(lambda x, y: _in_order(x.astype(dtype), y.astype(dtype)))
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


# Factorizations and solvers for stacks of matrices: numpy's, with NaN where it raises an error for all, and LAPACK's.
# Triangular systems of 200 unknowns are solved by BLAS with errors within 3 units in the last place, as by forward
# substitution.

COMPLEX_NAMES = {"orgqr": "ungqr", "ormqr": "unmqr", "syevd": "heevd", "sytrd": "hetrd"}
"""LAPACK routines with another name for complex matrices."""


def lapack(name: str, dtype: Any) -> Callable[..., Any]:
    """Return scipy's function for a LAPACK routine, named as for real matrices and without the letter of the type.

    It takes one matrix, not a stack, and none that is empty.
    """
    from scipy.linalg import lapack  # takes a while to import

    letter = lapack_letter(dtype)
    routine: Callable[..., Any] = getattr(lapack, letter + (COMPLEX_NAMES.get(name, name) if letter in "cz" else name))
    return routine


def lapack_letter(dtype: Any) -> str:
    """Return LAPACK's letter for a type.

    Raises:
        InvalidArgumentError: LAPACK has no such type.
    """
    letter = {"f": "s", "d": "d", "F": "c", "D": "z"}.get(np.dtype(dtype).char)
    if letter is None:
        raise InvalidArgumentError(f"expected a matrix of a type of LAPACK: f32, f64, c64 or c128; found {dtype}")
    return letter


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


def adjoint(matrices: Array) -> Array:
    """Return the conjugate transposes."""
    return np.conjugate(matrices.swapaxes(-1, -2))


def solve_triangular(a: Array, b: Array, lower: bool, unit: bool) -> Array:
    """Return ``x`` with ``a x = b``.

    Args:
        a: the matrices; only one triangle is read.
        b: the right sides.
        lower: whether the lower triangle is read, else the upper one.
        unit: whether the diagonal is taken for ones.
    """
    from scipy.linalg import blas  # takes a while to import

    x = np.array(np.broadcast_to(b, (*a.shape[:-2], *b.shape[-2:])))
    if x.size:
        solve = getattr(blas, f"{blas.find_best_blas_type((a, x))[0]}trsm")
        for index in np.ndindex(x.shape[:-2]):
            x[index] = solve(1, a[index], x[index], lower=lower, diag=unit)
    return x


def solve_tridiagonal(
    lower: Array, main: Array, upper: Array, right: Array, perturb: bool = False
) -> tuple[Array, tuple[Array, Array, Array], Array]:
    """Solve tridiagonal systems, by elimination with row exchanges.

    Return the solution, the three diagonals of the remaining upper triangle, and its first zero pivot (from 1; 0 for
    none).

    Row ``i`` has ``lower[i]`` before its diagonal and ``upper[i]`` behind it. With ``perturb`` a pivot by which the
    solution would overflow is moved away from zero, which LAPACK does not offer.
    """
    size = main.shape[-1]
    pivots, first, x = np.array(main), np.array(upper), np.array(right)
    first[..., -1:] = 0
    second = np.zeros_like(pivots)
    for row in range(size - 1):
        below = lower[..., row + 1]
        exchange = _pivot_size(below) > _pivot_size(pivots[..., row])
        current = [pivots[..., row].copy(), first[..., row].copy(), second[..., row].copy()]
        following = [below, pivots[..., row + 1].copy(), first[..., row + 1].copy()]
        chosen = [np.where(exchange, b, a) for a, b in zip(current, following, strict=True)]
        other = [np.where(exchange, a, b) for a, b in zip(current, following, strict=True)]
        factor = np.where(chosen[0] == 0, 0, other[0] / np.where(chosen[0] == 0, 1, chosen[0]))
        pivots[..., row], first[..., row], second[..., row] = chosen
        pivots[..., row + 1] = other[1] - factor * chosen[1]
        first[..., row + 1] = other[2] - factor * chosen[2]
        swap = exchange[..., None]
        top = np.where(swap, x[..., row + 1, :], x[..., row, :])
        x[..., row + 1, :] = np.where(swap, x[..., row, :], x[..., row + 1, :]) - factor[..., None] * top
        x[..., row, :] = top
    zero = pivots == 0
    singular = np.where(zero.any(-1), zero.argmax(-1) + 1, 0) if size else np.zeros(main.shape[:-1], np.int64)
    step = _step(pivots, first, second) if perturb and size else None
    for row in reversed(range(size)):
        rest = x[..., row, :]
        if row + 1 < size:
            rest = rest - first[..., row, None] * x[..., row + 1, :]
        if row + 2 < size:
            rest = rest - second[..., row, None] * x[..., row + 2, :]
        pivot = pivots[..., row] if step is None else _moved(pivots[..., row], rest, step)
        x[..., row, :] = rest / pivot[..., None]
    return x, (pivots, first, second), singular


def _step(*diagonals: Array) -> Array:
    """Return the distance by which pivots are moved: the rounding error of the largest element."""
    info: Any = np.finfo(diagonals[0].dtype)
    largest = np.max([np.abs(diagonal).max(-1) for diagonal in diagonals], 0)
    return np.maximum(info.eps * largest, info.tiny)


def _moved(pivot: Array, rest: Array, step: Array) -> Array:
    """Return a pivot by which ``rest`` can be divided without an overflow."""
    info: Any = np.finfo(pivot.dtype)
    size = np.abs(rest).max(-1, initial=0)
    while (close := (pivot == 0) | (np.abs(pivot) * (info.max / 4) < size)).any() and np.isfinite(step).all():
        pivot = np.where(close, pivot + np.where(np.real(pivot) < 0, -step, step), pivot).astype(pivot.dtype)
        step = np.where(close, 2 * step, step)
    return pivot


def _pivot_size(x: Array) -> Array:
    """Return the size by which LAPACK chooses pivots: of complex numbers the sum of both parts."""
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)
