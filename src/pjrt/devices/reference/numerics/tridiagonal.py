"""Systems of equations with tridiagonal matrices, for stacks of them, by elimination with row exchanges."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def solve_tridiagonal(
    lower: Array, main: Array, upper: Array, right: Array, perturb: bool = False
) -> tuple[Array, tuple[Array, Array, Array], Array]:
    """The solution, the three diagonals of the upper triangle that is left, and its first zero pivot (from 1; 0 for
    none).

    Row ``i`` has ``lower[i]`` before its diagonal and ``upper[i]`` behind it. With ``perturb`` a pivot by which the
    solution would overflow is moved away from zero.
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
    """By how much pivots are moved: the rounding error of the largest element."""
    info: Any = np.finfo(diagonals[0].dtype)
    largest = np.max([np.abs(diagonal).max(-1) for diagonal in diagonals], 0)
    return np.maximum(info.eps * largest, info.tiny)


def _moved(pivot: Array, rest: Array, step: Array) -> Array:
    """A pivot by which ``rest`` can be divided without an overflow."""
    info: Any = np.finfo(pivot.dtype)
    size = np.abs(rest).max(-1, initial=0)
    while (close := (pivot == 0) | (np.abs(pivot) * (info.max / 4) < size)).any() and np.isfinite(step).all():
        pivot = np.where(close, pivot + np.where(np.real(pivot) < 0, -step, step), pivot).astype(pivot.dtype)
        step = np.where(close, 2 * step, step)
    return pivot


def _pivot_size(x: Array) -> Array:
    """Return the size by which LAPACK chooses pivots: of complex numbers the sum of both parts."""
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)
