"""Python numbers as elements of a type: ``3.0`` for an ``f32``, ``[1, 2]`` for an ``s32[2]``.

Python's numbers have no element type of their own. They become the type that the program takes if that type can hold
their value: an ``f32`` takes every finite number up to its largest, rounded, and an ``s32`` takes whole numbers only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError

_Array = np.ndarray[Any, Any]
_NUMBERS = (bool, int, float, complex)


def are_python_numbers(value: object) -> bool:
    """Whether a value is a Python number, or nested lists and tuples of nothing else; numpy's scalars are not."""
    if isinstance(value, list | tuple):
        return all(map(are_python_numbers, value))
    return type(value) in _NUMBERS


def number_array(value: Any, element_type: ElementType) -> _Array:
    """Return Python numbers, or nested lists and tuples of them, as an array of an element type.

    Raises:
        InvalidArgumentError: the type cannot hold one of the numbers, or the lists are of different lengths.
    """
    dtype = element_type.dtype
    numbers = _natural(value)
    if numbers.dtype == object:
        numbers = _of_large_integers(numbers, element_type)
    if numbers.dtype.kind == "c" and not element_type.is_complex:
        _check(numbers, numbers.imag == 0, element_type)
        numbers = numbers.real
    if element_type is ElementType.PRED or element_type.is_integer:
        low, high = _range(element_type)
        with np.errstate(invalid="ignore"):
            whole = np.isfinite(numbers) & (numbers == np.floor(numbers)) if numbers.dtype.kind == "f" else True
        _check(numbers, whole & (numbers >= low) & (numbers <= high), element_type)
        return numbers.astype(dtype)
    with np.errstate(all="ignore"):
        elements = numbers.astype(dtype)
        wide = elements.astype(np.complex128 if element_type.is_complex else np.float64)
        # A number that is too large becomes infinite or, in types without infinities, not a number or the largest one.
        same_kind = (np.isfinite(wide) == np.isfinite(numbers)) & (np.isnan(wide) == np.isnan(numbers))
    _check(numbers, same_kind, element_type)
    return elements


def _natural(value: Any) -> _Array:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"expected lists of equal lengths, found {_shortened(value)}: {error}") from error


def _of_large_integers(numbers: _Array, element_type: ElementType) -> _Array:
    """Return numbers, of which one at least is an integer of more than 64 bits, as an array that can be compared."""
    if element_type is ElementType.PRED or element_type.is_integer:
        raise _misfit(next(n for n in numbers.flat if type(n) is int and n.bit_length() > 63), element_type)
    try:
        return numbers.astype(np.complex128 if any(type(n) is complex for n in numbers.flat) else np.float64)
    except OverflowError:
        raise _misfit(max((n for n in numbers.flat if type(n) is int), key=abs), element_type) from None


def _check(numbers: _Array, fitting: Any, element_type: ElementType) -> None:
    fitting = np.broadcast_to(fitting, numbers.shape)
    if not fitting.all():
        raise _misfit(numbers[~fitting].flat[0].item(), element_type)


def _misfit(number: complex, element_type: ElementType) -> InvalidArgumentError:
    return InvalidArgumentError(f"expected {_values_of(element_type)}, found {_shortened(number)}")


def _values_of(element_type: ElementType) -> str:
    name = element_type.name.lower()
    if element_type is ElementType.PRED:
        return f"True or False for the element type {name}"
    if element_type.is_integer:
        low, high = _range(element_type)
        return f"whole numbers from {low} to {high} for the element type {name}"
    kind = "numbers" if element_type.is_complex else "real numbers"
    return f"{kind} that the element type {name} can hold"


def _range(element_type: ElementType) -> tuple[int, int]:
    if element_type is ElementType.PRED:
        return 0, 1
    if element_type.name[0] == "U":
        return 0, 2**element_type.bits - 1
    half = 2 ** (element_type.bits - 1)
    return -half, half - 1


def _shortened(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "an integer of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."
