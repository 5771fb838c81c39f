"""Accuracies: how near the result of one operation must be to the reference interpreter's.

They are a floor for devices, and tighter than the default tolerances of ``pjrt.compare``, which allow for the errors of
a whole model. The StableHLO specification leaves the accuracy of most operations to the implementation.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.host_memory.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The largest error that is allowed, in units in the last place of the result's type.

    Attributes:
        wide: units in the last place of results of 32 bits and more.
        half: the same of f16 and bf16: most devices compute these in f32 and round once.
        narrow: the same of floating-point types of 8 bits and fewer.
        absolute: how many units in the last place of the number 1 a result may be off besides: for functions that are
            zero where their argument is not, such as a logarithm, and for sums in which numbers cancel.
        signs: whether zeros must have the right sign, where results must be equal.
    """

    wide: float
    half: float
    narrow: float
    absolute: float = 0.0
    signs: bool = True

    @property
    def is_exact(self) -> bool:
        """Whether results must be equal."""
        return not self.wide

    def tolerance(self, element_type: ElementType) -> Tolerance:
        """Return the tolerance for results of a type.

        Results below twice the smallest normal number may be zero: devices flush smaller ones, XLA's own CPU and GPU
        devices too, also on the way to a result.
        """
        if self.is_exact or not (element_type.is_floating or element_type.is_complex):
            return Tolerance(0.0, 0.0)
        info = ml_dtypes.finfo(_part(element_type))  # type: ignore[no-untyped-call]
        bits = element_type.bits // 2 if element_type.is_complex else element_type.bits
        ulps = self.wide if bits >= 32 else self.half if bits == 16 else self.narrow
        eps = float(info.eps)
        return Tolerance(ulps * eps, 2 * float(info.smallest_normal) + self.absolute * eps)


def _part(element_type: ElementType) -> AnyDType:
    if element_type.is_complex:
        return np.dtype(np.float32 if element_type is ElementType.C64 else np.float64)
    return element_type.dtype


EXACT = Accuracy(0, 0, 0)
"""Operations that compute no new number: they move, compare, choose or round to an integer; integers; signs."""

CHOSEN = Accuracy(0, 0, 0, signs=False)
"""``maximum``, ``minimum`` and ``clamp``: whether 0.0 is larger than -0.0 differs between versions of IEEE 754."""

ROUNDED = Accuracy(1, 1, 1)
"""One rounding of the exact result, in any direction: addition, subtraction, multiplication."""

DIVIDED = Accuracy(4, 1, 1)
"""Division and roots, which devices without an instruction for them approximate and correct once."""

FUNCTION = Accuracy(32, 4, 1)
"""Functions such as ``exponential``: f32 approximations are up to some ten units off, XLA's own among them."""

CROSSING = Accuracy(32, 4, 1, absolute=4)
"""Functions that are zero where their argument is not: near there the error counts beside the number 1."""

SOLVED = Accuracy(256, 32, 4, absolute=256)
"""Transforms and solvers: many roundings, whose order is the device's own."""
