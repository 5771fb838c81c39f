"""The error function and its kin, and the logarithm of the gamma function and its slope: scipy's, on f64 arrays.

Largest errors against mpmath, in ULP of f64: erf 1.9, erfc 5.4, erf_inv 2.0, lgamma 2,600 close to its zero at 2 (8 on
average), digamma 340 close to its zeros (1.5 on average). Narrower types are computed in f64 and rounded once.

Importing ``scipy.special`` takes 0.1 s, so only programs that use these functions import this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from pjrt.api.element_type import AnyDType
from pjrt.devices.reference.numerics.element_types import narrow_double

Array = Any

erf: Callable[[Array], Array] = special.erf


def erfc(x: Array) -> Array:
    """Return one minus the error function.

    For large arguments it is computed from ``erfcx``, the same without the factor ``exp(-x²)``: scipy's own has errors
    of hundreds of ULP there, and zeros in place of subnormal results.
    """
    complement = special.erfc(x)
    tail = (x > 0.5) & (x < 28)  # from 28 on, all is zero, and the squares of the largest numbers overflow
    if not tail.any():
        return complement
    # exp(-x²) is taken in two halves that do not underflow, and x² in two parts, the first of which is exact.
    coarse = np.trunc(x * 16) / 16
    half = np.exp(-coarse * coarse / 2)
    return np.where(tail, half * (special.erfcx(x) * np.exp((coarse - x) * (coarse + x))) * half, complement)


def erf_inv(x: Array) -> Array:
    """Return the inverse of the error function: infinite at -1 and 1, NaN beyond, -0 for -0."""
    return np.copysign(special.erfinv(x), x)


def lgamma(x: Array) -> Array:
    """Return the logarithm of the absolute value of the gamma function: infinite at its poles and both infinities."""
    size = np.abs(x)
    return np.where(size < 1e-300, -np.log(size), special.gammaln(np.where(np.isinf(x), size, x)))


def digamma(x: Array) -> Array:
    """Return the slope of ``lgamma``: NaN at the poles, zero among them."""
    return np.where(x == 0, np.nan, special.psi(x))


def rounded(function: Callable[[Array], Array], result: AnyDType) -> Callable[[Array], Array]:
    """Return a function on f64 arrays as one on arrays of any float type, with its results rounded once."""
    if result in (np.dtype(np.float64), np.dtype(np.float32)):
        return lambda x: function(x.astype(np.float64, copy=False)).astype(result, copy=False)
    return lambda x: narrow_double(function(x.astype(np.float64))).astype(result)
