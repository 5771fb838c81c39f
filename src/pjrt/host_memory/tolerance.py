"""Tolerances: how far two devices may be apart before their results count as different."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError

DEFAULT_TOLERANCES = {
    ElementType.F64: (1e-10, 1e-11),
    ElementType.F32: (1e-4, 1e-5),
    ElementType.F16: (1e-2, 1e-3),
    ElementType.BF16: (5e-2, 5e-3),
    ElementType.C64: (1e-4, 1e-5),
    ElementType.C128: (1e-10, 1e-11),
}
"""The default relative and absolute tolerance of each type. That of other floating-point types is 0.25 and 0.05, two
steps of the type with 3 bits of mantissa."""

_OF_NARROW_TYPES = (0.25, 0.05)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerance of a comparison: values agree where ``|value - expected| <= atol + rtol * |expected|``.

    Integers and truth values agree only where they are equal, whatever the tolerance.

    Attributes:
        rtol: the relative tolerance; None for the default of each type, see ``DEFAULT_TOLERANCES``.
        atol: the absolute tolerance; None for the default of each type.
        tells_zeros_apart: whether +0 and -0 differ. They are the same number, but 1 divided by them is not.
    """

    rtol: float | None = None
    atol: float | None = None
    tells_zeros_apart: bool = False

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise InvalidArgumentError(f"expected {name} to be a number from 0 up, found {value!r}")

    def of(self, element_type: ElementType) -> tuple[float, float]:
        """Return the relative and the absolute tolerance for a type; 0 and 0 if it is compared exactly."""
        if not (element_type.is_floating or element_type.is_complex):
            return 0.0, 0.0
        rtol, atol = DEFAULT_TOLERANCES.get(element_type, _OF_NARROW_TYPES)
        return rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol
