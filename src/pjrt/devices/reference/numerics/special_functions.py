"""Special functions that numpy lacks, on f64 arrays: the error function and its kin, and the logarithm of the gamma
function and its slope.

Error functions after W. J. Cody, "Rational Chebyshev approximation for the error function" (1969); their inverse from
M. Giles, "Approximating the erfinv function" (2010), improved by one step of Newton's method; the gamma function after
C. Lanczos (1964).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.devices.reference.fast.select import select_by_mask
from pjrt.devices.reference.numerics.rounding import narrow_double

Array = Any

# Cody's coefficients, highest power first: near zero, up to 4, and beyond.
_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_MIDDLE = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ),
    (
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ),
)
_FAR = (
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (
        1.0,
        2.56852019228982242,
        1.87295284992346725,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ),
)
_NEAR_LIMIT, _MIDDLE_LIMIT = 0.46875, 4.0


def erf(x: Array) -> Array:
    """The error function."""
    near, size = _erf_near_zero(x), np.abs(x)
    if not (size > _NEAR_LIMIT).any():
        return near
    tail = np.copysign(1 - _erfc_of_positive(np.maximum(size, _NEAR_LIMIT)), x)
    return select_by_mask(size <= _NEAR_LIMIT, near, tail)


def erfc(x: Array) -> Array:
    """One minus the error function, without cancellation for large arguments."""
    size = np.abs(x)
    tail = _erfc_of_positive(np.maximum(size, _NEAR_LIMIT))
    return select_by_mask(size <= _NEAR_LIMIT, 1 - _erf_near_zero(x), select_by_mask(x < 0, 2 - tail, tail))


def erf_inv(x: Array) -> Array:
    """The inverse of the error function; infinite at -1 and 1, NaN beyond."""
    w = -np.log((1 - x) * (1 + x))
    central = _polynomial(
        w - 2.5,
        (
            2.81022636e-08,
            3.43273939e-07,
            -3.5233877e-06,
            -4.39150654e-06,
            0.00021858087,
            -0.00125372503,
            -0.00417768164,
            0.246640727,
            1.50140941,
        ),
    )
    outer = _polynomial(
        np.sqrt(w) - 3,
        (
            -0.000200214257,
            0.000100950558,
            0.00134934322,
            -0.00367342844,
            0.00573950773,
            -0.0076224613,
            0.00943887047,
            1.00167406,
            2.83297682,
        ),
    )
    guess = select_by_mask(w < 5, central, outer) * x
    steps = 1
    if (w > _GILES_LIMIT).any():
        steps = 2  # the first guess is a rougher one there
        guess = np.where(w > _GILES_LIMIT, np.copysign(_erfc_inv_of_tiny(1 - np.abs(x)), x), guess)
    for _ in range(steps):  # the error of the complement, which does not cancel, over the slope
        size = np.abs(guess)
        error = select_by_mask(size < 0.5, erf(size) - np.abs(x), (1 - np.abs(x)) - erfc(size))
        step = error * (math.sqrt(math.pi) / 2) * np.exp(guess * guess)
        guess = np.copysign(size - step / (1 + size * step), x)
    return np.where(np.abs(x) == 1, np.copysign(np.inf, x), np.where(x == 0, x, guess))


_GILES_LIMIT = 15.0


def _erfc_inv_of_tiny(y: Array) -> Array:
    """About where ``erfc`` is ``y``, from its first asymptotic term: ``exp(-x²) / (x sqrt(pi))``."""
    x = np.sqrt(-np.log(y))
    for _ in range(3):
        x = np.sqrt(-np.log(y * x * math.sqrt(math.pi)))
    return x


def _erf_near_zero(x: Array) -> Array:
    square = np.where(np.abs(x) <= _NEAR_LIMIT, x * x, 0)
    return x * _rational(square, _NEAR)


def _erfc_of_positive(x: Array) -> Array:
    scale = np.exp(-x * x)
    middle = scale * _rational(np.minimum(x, _MIDDLE_LIMIT), _MIDDLE)
    if not (x > _MIDDLE_LIMIT).any():
        return middle
    inverse = 1 / np.square(np.maximum(x, _MIDDLE_LIMIT))
    far = scale / x * (1 / math.sqrt(math.pi) - inverse * _rational(inverse, _FAR))
    # exp(-x²) with x² split in two, the first with few bits, keeps the digits that the product loses.
    coarse = np.trunc(x * 16) / 16
    correction = np.exp(-coarse * coarse) * np.exp(-(x - coarse) * (x + coarse))
    far = far * np.where(scale > 0, correction / np.where(scale > 0, scale, 1), 1)
    return np.where(x <= _MIDDLE_LIMIT, middle, np.where(np.isinf(x), 0.0, far))


_LANCZOS_G = 7
_LANCZOS = (
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)


def lgamma(x: Array) -> Array:
    """The logarithm of the absolute value of the gamma function; infinite at its poles."""
    reflect = x < 0.5
    z = np.where(reflect, -x, x - 1)
    series = np.full(np.shape(z), 0.99999999999980993)
    for i, coefficient in enumerate(_LANCZOS):
        series = series + coefficient / (z + (i + 1))
    t = z + (_LANCZOS_G + 0.5)
    found = 0.5 * math.log(2 * math.pi) + (z + 0.5) * np.log(t) - t + np.log(series)
    # Reflection: |gamma(x) gamma(1 - x)| = pi / |sin(pi x)|, with the sine taken of the fraction for its digits.
    fraction = np.abs(x - np.rint(x))
    mirrored = math.log(math.pi) - np.log(np.sin(math.pi * fraction)) - found
    found = np.where(reflect, mirrored, found)
    return np.where(np.isinf(x), np.inf, np.where((x == 1) | (x == 2), 0.0, found))


_DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_DIGAMMA_SHIFT = 10


def digamma(x: Array) -> Array:
    """The slope of ``lgamma``; NaN at the poles."""
    reflect = x < 0.5
    z = np.where(reflect, 1 - x, x)
    shifted = z + _DIGAMMA_SHIFT
    inverse = 1 / (shifted * shifted)
    series = _polynomial(inverse, tuple(reversed(_DIGAMMA_SERIES))) * inverse
    found = np.log(shifted) - 0.5 / shifted - series
    for k in range(_DIGAMMA_SHIFT):
        found = found - 1 / (z + k)
    fraction = x - np.rint(x)
    mirrored = found - math.pi / np.tan(math.pi * fraction)
    found = np.where(reflect, mirrored, found)
    pole = (x <= 0) & (fraction == 0)
    return np.where(pole, np.nan, np.where(x == np.inf, np.inf, found))


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    found = np.full(np.shape(x), coefficients[0])
    for coefficient in coefficients[1:]:
        found *= x
        found += coefficient
    return found


def _rational(x: Array, coefficients: tuple[Sequence[float], Sequence[float]]) -> Array:
    return _polynomial(x, coefficients[0]) / _polynomial(x, coefficients[1])


CHUNK = 1 << 13
"""So many elements at a time keep all temporaries of a function in the processor's cache."""


def in_chunks(function: Callable[[Array], Array], result: AnyDType) -> Callable[[Array], Array]:
    """A function on f64 arrays as one on arrays of any real type, evaluated a chunk at a time and rounded to
    ``result``.
    """

    def run(x: Array) -> Array:
        if x.size <= CHUNK:
            return narrow_to(function(x.astype(np.float64)), result)
        flat = np.ascontiguousarray(x).reshape(-1)
        out = np.empty(flat.size, result)
        for start in range(0, flat.size, CHUNK):
            out[start : start + CHUNK] = narrow_to(function(flat[start : start + CHUNK].astype(np.float64)), result)
        return out.reshape(x.shape)

    return run


def narrow_to(x: Array, dtype: AnyDType) -> Array:
    """f64 rounded to a float type, once."""
    if dtype in (np.dtype(np.float64), np.dtype(np.float32)):
        return x.astype(dtype, copy=False)
    return narrow_double(x).astype(dtype)
