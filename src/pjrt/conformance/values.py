"""Values for tests of operations: edge values of a type, ordinary ones, and ones whose sums are exact."""

from __future__ import annotations

import functools
import math
from typing import Any

import ml_dtypes
import numpy as np

from pjrt.api.element_type import ElementType

Array = np.ndarray[Any, Any]

BOOLEANS = (ElementType.PRED,)
SIGNED = tuple(ElementType[f"S{bits}"] for bits in (2, 4, 8, 16, 32, 64))
UNSIGNED = tuple(ElementType[f"U{bits}"] for bits in (2, 4, 8, 16, 32, 64))
INTEGERS = SIGNED + UNSIGNED
UNSIGNED_FLOATS = (ElementType.F8E8M0FNU,)
"""Floating-point types with neither zero nor sign; no arithmetic is defined on them."""

FLOATS = tuple(each for each in ElementType if each.is_floating and each not in UNSIGNED_FLOATS)
COMPLEX = (ElementType.C64, ElementType.C128)
NUMBERS = INTEGERS + FLOATS + COMPLEX
EVERY = BOOLEANS + NUMBERS + UNSIGNED_FLOATS


def size(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)


@functools.cache
def edges(element: ElementType) -> Array:
    """Return the edge values of a type: zeros, ones, the smallest and largest numbers, infinities, NaN, a few others.

    Denormal numbers are not among them (``denormals``). For types of at most 4 bits these are all values.
    """
    if element is ElementType.PRED:
        return np.array([False, True])
    if element.is_complex:
        parts = edges(ElementType.F32 if element is ElementType.C64 else ElementType.F64)
        finite = parts[np.isfinite(parts) & (np.abs(parts) < 10) & (np.abs(parts) >= 0.1)].astype(element.dtype)
        zeros = np.array([0, 1j, -1j, 3 - 2j, 0.5 + 100j], element.dtype)
        return np.concatenate([finite, finite[::-1] * np.array(1j, element.dtype), zeros])
    if element.bits <= 4:
        return _all_bits(element)
    if element.is_integer:
        info = ml_dtypes.iinfo(element.dtype)  # type: ignore[no-untyped-call]
        numbers = {int(info.min), int(info.min) + 1, -7, -2, -1, 0, 1, 2, 7, 1 << (element.bits // 2)}
        numbers |= {int(info.max) - 1, int(info.max)}
        return np.array([n for n in sorted(numbers) if info.min <= n <= info.max], element.dtype)
    bounds = ml_dtypes.finfo(element.dtype)  # type: ignore[no-untyped-call]
    largest, tiny = float(bounds.max), float(bounds.smallest_normal)
    numbers_ = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, -2.5, 3.0, 7.0, largest, -largest, tiny, -tiny]
    return _unique(np.array([*numbers_, math.inf, -math.inf, math.nan]).astype(element.dtype), element)


@functools.cache
def every_value(element: ElementType) -> Array:
    """Return all values of a type of at most 8 bits, and the edge values of others."""
    return _all_bits(element) if element.bits <= 8 and element is not ElementType.PRED else edges(element)


@functools.cache
def denormals(element: ElementType) -> Array:
    """Return numbers of a floating-point type below its smallest normal one, in a vector that may be empty."""
    info = ml_dtypes.finfo(element.dtype)  # type: ignore[no-untyped-call]
    least, tiny = float(info.smallest_subnormal), float(info.smallest_normal)
    numbers = np.array([least, -least, tiny / 2, -tiny / 2]).astype(element.dtype)
    wide = np.abs(numbers.astype(np.float64))
    return numbers[(wide > 0) & (wide < tiny)]


def ordinary(element: ElementType, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return numbers of moderate size, with fractions if the type has them."""
    generator = np.random.default_rng(seed)
    if element is ElementType.PRED:
        return np.asarray(generator.random(shape) < 0.5)
    if element.is_integer:
        info = ml_dtypes.iinfo(element.dtype)  # type: ignore[no-untyped-call]
        low, high = max(int(info.min), -100), min(int(info.max), 100)
        return np.asarray(generator.integers(low, high + 1, shape)).astype(element.dtype)
    normal = np.asarray(generator.standard_normal(shape))
    if element in UNSIGNED_FLOATS:
        return np.abs(normal + 0.01).astype(element.dtype)
    if element.is_complex:
        return (normal + 1j * np.asarray(generator.standard_normal(shape))).astype(element.dtype)
    return normal.astype(element.dtype)


def exact(element: ElementType, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return small integers: a few dozen sums and products of them are exact in most types, in any order.

    Of ``f4E2M1FN``, which has no 5, no more than four are of one sign.
    """
    generator = np.random.default_rng(seed)
    signed = element not in UNSIGNED and element not in BOOLEANS
    numbers = np.asarray(generator.integers(-1 if signed else 0, 2, shape))
    if element is ElementType.F4E2M1FN:
        for sign in (-1, 1):
            same = numbers == sign
            numbers[same & (np.cumsum(same).reshape(shape) > 4)] = 0
    return numbers.astype(element.dtype)


def mixed(element: ElementType, shape: tuple[int, ...]) -> Array:
    """Return edge values among ordinary ones: for operations that must not change a single bit."""
    numbers = ordinary(element, (size(shape),), seed=1)
    special = edges(element)
    count = min(numbers.size // 2, special.size)
    numbers[: 2 * count : 2] = special[:count]
    return numbers.reshape(shape)


def flushed(array: Array) -> Array:
    """Return an array with its denormal numbers as zeros of the same sign."""
    tiny = float(ml_dtypes.finfo(array.dtype).smallest_normal)  # type: ignore[no-untyped-call]
    wide = array.astype(np.float64)
    return np.where(np.abs(wide) < tiny, np.copysign(0.0, wide), wide).astype(array.dtype)


def _all_bits(element: ElementType) -> Array:
    if element.is_integer:
        info = ml_dtypes.iinfo(element.dtype)  # type: ignore[no-untyped-call]
        return np.arange(int(info.min), int(info.max) + 1).astype(element.dtype)
    return np.arange(1 << element.bits).astype(np.uint8).view(element.dtype)


def _unique(numbers: Array, element: ElementType) -> Array:
    """Return the numbers without those that the type has rounded to the same bits."""
    words = numbers.view(f"u{element.dtype.itemsize}")
    _, places = np.unique(words, return_index=True)
    return numbers[np.sort(places)]
