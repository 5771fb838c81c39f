"""Differences of two arrays: how many elements, how far apart, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import format_shape
from pjrt.host_memory.tolerance import Tolerance

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 20
"""The number of elements that are compared at a time: each takes some 100 bytes meanwhile."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of an array from the expected one.

    Errors are those of elements that are finite in both. An element that is NaN in both agrees.

    Attributes:
        element_type: the type of the elements.
        shape: the shape of the expected array.
        mismatches: the number of elements that are further apart than the tolerance.
        severity: the largest error in units of the tolerance: more than 1 where elements differ, infinity where the
            tolerance is 0 or a NaN or an infinity is in one array only.
        max_absolute: the largest absolute error.
        max_relative: the largest relative error, where the expected value is not 0.
        max_ulp: the largest distance in units in the last place: how many numbers of the type lie between; of complex
            numbers that of a part, of integers the absolute error.
        nan_disagreements: the number of elements that are NaN in one array only.
        infinity_disagreements: the number of elements that are infinite in one array only, or differ in sign there.
        worst: the index of the element that is the furthest beyond its tolerance, or, where none is, the furthest off;
            None for arrays that are equal.
        value: the element there.
        expected: the expected element there.
        problem: why the arrays cannot be compared, such as another shape; empty if they can.
    """

    element_type: ElementType
    shape: tuple[int, ...]
    mismatches: int = 0
    severity: float = 0.0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    max_ulp: int = 0
    nan_disagreements: int = 0
    infinity_disagreements: int = 0
    worst: tuple[int, ...] | None = None
    value: Any = None
    expected: Any = None
    problem: str = ""

    @staticmethod
    def of(value: Array, expected: Array, tolerance: Tolerance | None = None) -> Difference:
        """Return the difference of an array from the expected one.

        Args:
            value: the array.
            expected: the expected array.
            tolerance: the tolerance; the defaults of the types if it is None.
        """
        kind = ElementType.of(expected.dtype)
        if value.shape != expected.shape or value.dtype != expected.dtype:
            other = format_shape(ElementType.of(value.dtype), value.shape)
            return Difference(
                kind,
                expected.shape,
                expected.size,
                severity=math.inf,
                problem=f"expected {format_shape(kind, expected.shape)}, found {other}",
            )
        return _Sum(value, expected, kind, tolerance or Tolerance()).difference()

    @property
    def agrees(self) -> bool:
        """Whether all elements are within the tolerance."""
        return self.mismatches == 0 and not self.problem

    def as_dict(self) -> dict[str, Any]:
        """Return the difference in machine-readable form; numbers that JSON does not have are texts."""
        return {
            "agrees": self.agrees,
            "element_type": self.element_type.name,
            "shape": list(self.shape),
            "mismatches": self.mismatches,
            "severity": _plain(self.severity),
            "max_absolute": _plain(self.max_absolute),
            "max_relative": _plain(self.max_relative),
            "max_ulp": self.max_ulp,
            "nan_disagreements": self.nan_disagreements,
            "infinity_disagreements": self.infinity_disagreements,
            "worst": None if self.worst is None else list(self.worst),
            "value": _plain(self.value),
            "expected": _plain(self.expected),
            **({"problem": self.problem} if self.problem else {}),
        }

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        if self.worst is None:
            return "equal"
        size = int(np.prod(self.shape, dtype=np.int64))
        at = f"[{', '.join(map(str, self.worst))}]"
        parts = [f"{self.mismatches} of {size} elements differ" if self.mismatches else "within the tolerance"]
        parts.append(
            f"max error {self.max_absolute:.3g} absolute, {self.max_relative:.3g} relative, {self.max_ulp} ulp"
        )
        if self.nan_disagreements:
            parts.append(f"{self.nan_disagreements} NaN in one only")
        if self.infinity_disagreements:
            parts.append(f"{self.infinity_disagreements} infinite in one only")
        return f"{'; '.join(parts)}; worst at {at}: {spelled(self.value)}, expected {spelled(self.expected)}"


def spelled(value: Any) -> str:
    """Return an element as text, with all digits that its type has."""
    return str(value) if isinstance(value, (bool, int, np.bool_)) else f"{value!s}"


def _plain(value: Any) -> Any:
    """Return an element as a value that JSON has."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    kind = ElementType.of(np.asarray(value).dtype)
    if kind.is_integer:
        return int(value)
    if kind.is_complex:
        return str(complex(value))
    number = float(value)
    return number if np.isfinite(number) else str(number)


class _Sum:
    """The difference of two arrays of the same type and shape, summed up a chunk at a time."""

    def __init__(self, value: Array, expected: Array, kind: ElementType, tolerance: Tolerance) -> None:
        self._value, self._expected, self._kind = value, expected, kind
        self._rtol, self._atol = tolerance.of(kind)
        self._tells_zeros_apart = tolerance.tells_zeros_apart
        self._counts: dict[str, int] = {"mismatches": 0, "nan_disagreements": 0, "infinity_disagreements": 0}
        self._largest: dict[str, float] = {"max_absolute": 0.0, "max_relative": 0.0}
        self._max_ulp = 0
        self._furthest, self._at = (0.0, 0.0), -1  # the severity and the error of the worst element, and its place

    def difference(self) -> Difference:
        values, expected = self._value.reshape(-1), self._expected.reshape(-1)
        for begin in range(0, values.size, _CHUNK):
            self._add(values[begin : begin + _CHUNK], expected[begin : begin + _CHUNK], begin)
        facts: Mapping[str, Any] = {
            **self._counts,
            **self._largest,
            "max_ulp": self._max_ulp,
            "severity": self._furthest[0],
        }
        if self._at < 0:
            return Difference(self._kind, self._expected.shape, **facts)
        worst = tuple(int(i) for i in np.unravel_index(self._at, self._expected.shape))
        return Difference(
            self._kind,
            self._expected.shape,
            **facts,
            worst=worst,
            value=self._value[worst],
            expected=self._expected[worst],
        )

    def _add(self, values: Array, expected: Array, begin: int) -> None:
        if not (self._kind.is_floating or self._kind.is_complex):
            self._add_exact(values, expected, begin)
            return
        wide = np.complex128 if self._kind.is_complex else np.float64
        with np.errstate(all="ignore"):
            a, b = values.astype(wide), expected.astype(wide)
            nan = np.isnan(a) != np.isnan(b)
            infinite = (np.isinf(a) | np.isinf(b)) & ~nan & ~np.isnan(a) & (a != b)
            finite = np.isfinite(a) & np.isfinite(b)
            size = np.abs(b)
            error = np.where(finite, np.abs(a - b), 0.0)
            relative = np.where(finite & (size > 0), error / np.where(size > 0, size, 1.0), 0.0)
            allowed = self._atol + self._rtol * np.where(finite, size, 0.0)
            # Where nothing is allowed, every error is infinitely far beyond it, and the largest one is the worst.
            severity = np.where(error > 0, np.where(allowed > 0, error / allowed, np.inf), 0.0)
        beyond = nan | infinite
        if self._tells_zeros_apart:
            beyond |= _other_zero(a.real, b.real) | _other_zero(a.imag, b.imag)
        severity[beyond] = np.inf
        if severity.size:
            self._place(severity, np.where(beyond, np.inf, error), begin)
        self._count("mismatches", (error > allowed) | beyond)
        self._count("nan_disagreements", nan)
        self._count("infinity_disagreements", infinite)
        self._enlarge("max_absolute", error)
        self._enlarge("max_relative", relative)
        if finite.any():
            distance = ulp_distance(values[finite], expected[finite])
            self._max_ulp = max(self._max_ulp, int(distance.max(initial=0)))

    def _add_exact(self, values: Array, expected: Array, begin: int) -> None:
        differ = values != expected
        self._count("mismatches", differ)
        if not differ.any():
            return
        # Python's integers: the distance of two numbers of 64 bits need not fit into 64 bits.
        errors = [abs(int(a) - int(b)) for a, b in zip(values[differ].tolist(), expected[differ].tolist(), strict=True)]
        largest = max(errors)
        sizes = [abs(int(b)) for b in expected[differ].tolist()]
        self._largest["max_absolute"] = max(self._largest["max_absolute"], float(largest))
        relative = max((error / size for error, size in zip(errors, sizes, strict=True) if size), default=0.0)
        self._largest["max_relative"] = max(self._largest["max_relative"], relative)
        self._max_ulp = max(self._max_ulp, largest)
        if (math.inf, float(largest)) > self._furthest:
            self._furthest = math.inf, float(largest)
            self._at = begin + int(np.flatnonzero(differ)[errors.index(largest)])

    def _count(self, name: str, where: Array) -> None:
        self._counts[name] += int(np.count_nonzero(where))

    def _enlarge(self, name: str, errors: Array) -> None:
        self._largest[name] = max(self._largest[name], float(errors.max(initial=0.0)))

    def _place(self, severity: Array, error: Array, begin: int) -> None:
        largest = float(severity.max())
        at = int(np.where(severity == largest, error, -1.0).argmax())
        if (largest, float(error[at])) > self._furthest:
            self._furthest, self._at = (largest, float(error[at])), begin + at


def _other_zero(a: Array, b: Array) -> Array:
    other: Array = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    return other


def ulp_distance(a: Array, b: Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return how many numbers of their type lie between finite floating-point numbers, element by element.

    Neighbours have the distance 1, as have the number below 0 and the one above it the distance 2. Of complex numbers
    it is the larger distance of the two parts.

    Raises:
        InvalidArgumentError: the arrays are of different types, or of one that is not floating-point.
    """
    kind = ElementType.of(a.dtype)
    if a.dtype != b.dtype or not (kind.is_floating or kind.is_complex):
        raise InvalidArgumentError(f"expected two arrays of one floating-point type, found {a.dtype} and {b.dtype}")
    if kind.is_complex:
        part = np.float32 if kind is ElementType.C64 else np.float64
        pairs = [np.ascontiguousarray(each).reshape(-1).view(part) for each in (a, b)]
        return ulp_distance(*pairs).reshape(-1, 2).max(axis=1).reshape(a.shape)  # type: ignore[no-any-return]
    bits = a.dtype.itemsize * 8
    words = [np.ascontiguousarray(each).view(f"u{bits // 8}").astype(np.uint64) for each in (a, b)]
    if kind is ElementType.F8E8M0FNU:  # which has no sign
        return np.where(words[0] > words[1], words[0] - words[1], words[1] - words[0])
    sign = np.uint64(1 << (kind.bits - 1))  # in the lowest bits, where an element has less than a byte
    (a_size, b_size), (a_sign, b_sign) = [w & (sign - np.uint64(1)) for w in words], [w & sign for w in words]
    apart = np.where(a_size > b_size, a_size - b_size, b_size - a_size)
    return np.where(a_sign == b_sign, apart, a_size + b_size)
