"""Values for inputs that need no file: numbers in the option itself, zeros, ones and random numbers."""

from __future__ import annotations

import ast
import math
import re
import sys
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType, number_array
from pjrt.api.errors import InvalidArgumentError, ResourceExhaustedError
from pjrt.stablehlo.signatures import Parameter

Array = np.ndarray[Any, Any]

_CONSTANTS = ("zeros", "ones")
_NUMBERS_BEGIN = re.compile(r"[\[(]|[+-]?(?:\.?\d|inf\b|nan\b)|true\b|false\b", re.IGNORECASE)
_FILE_ENDS = re.compile(r"\.(npy|npz|safetensors|bin)(:[^:]*)?$")
_WORDS = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}


def is_filler(text: str) -> bool:
    """Whether a source makes an array for any parameter: ``zeros``, ``ones`` or ``random:SEED``."""
    return text in _CONSTANTS or text == "random" or text.startswith("random:")


def filled(text: str, parameter: Parameter) -> Array:
    """Return the array that ``zeros``, ``ones`` or ``random:SEED`` makes for a parameter.

    Raises:
        InvalidArgumentError: the parameter's shape is dynamic, or the seed is not a whole number.
        ResourceExhaustedError: there is not enough memory for the array.
    """
    shape = tuple(size for size in parameter.shape if isinstance(size, int))
    if len(shape) != len(parameter.shape):
        raise InvalidArgumentError(
            f"--input {text} cannot make {parameter}: its shape is dynamic; give it by --shape, or give a file"
        )
    seed = "0" if text in _CONSTANTS else text.partition(":")[2]
    if not (seed.isascii() and seed.isdigit()):
        raise InvalidArgumentError(
            f"--input {text}: expected random:SEED with a whole number from 0 up, such as random:0"
        )
    try:
        if text in _CONSTANTS:
            return np.full(shape, text == "ones", parameter.element_type.dtype)
        return _random(np.random.default_rng([int(seed), parameter.index]), shape, parameter.element_type)
    except (MemoryError, ValueError) as error:
        # A ValueError: a number of bytes, or of digits of the seed, that no machine holds.
        raise ResourceExhaustedError(f"--input {text} cannot make {parameter}: {error}") from error


def _random(generator: np.random.Generator, shape: tuple[int, ...], kind: ElementType) -> Array:
    if kind is ElementType.PRED:
        return generator.random(shape) < 0.5
    if kind.is_integer:
        low, high = _small_range(kind)
        return generator.integers(low, high, shape).astype(kind.dtype)
    if kind.is_complex:
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(kind.dtype)
    return np.asarray(generator.standard_normal(shape)).astype(kind.dtype)


def _small_range(kind: ElementType) -> tuple[int, int]:
    """Return a range so small that sums and products of a few numbers do not overflow, where the type allows it."""
    if kind.name[0] == "U":
        return 0, min(2**kind.bits, 16)
    return (-8, 8) if kind.bits > 4 else (0, 2)


def are_numbers(text: str) -> bool:
    """Whether a source begins as a number or a list of numbers does; no name of a file with a suffix does."""
    return _NUMBERS_BEGIN.match(text) is not None and not _FILE_ENDS.search(text)


def numbers(text: str, parameter: Parameter) -> Array:
    """Return the number, or the nested lists of numbers, of a text as an array for a parameter.

    ``true``, ``false``, ``inf`` and ``nan`` are numbers too, and ``1+2j`` is a complex one.

    Raises:
        InvalidArgumentError: the text is not a number or a list of them, or the parameter's type cannot hold one.
    """
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            f"expected a number such as 3.5, or a list such as [1, 2, 3], found {text!r}"
        ) from error
    return number_array(value, parameter.element_type)


def _value(node: ast.expr) -> Any:
    """Return the number or the nested lists of numbers that an expression spells.

    Raises:
        ValueError: it spells something else.
        InvalidArgumentError: a number is larger than any that Python has.
    """
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Constant(value=bool() | int() | float() | complex() as number):
            if isinstance(number, float) and math.isinf(number):
                raise InvalidArgumentError(
                    f"expected numbers up to {sys.float_info.max}, found a larger one; write inf"
                )
            return number
        case ast.Name(id=name) if name.lower() in _WORDS:
            return _WORDS[name.lower()]
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return +_number(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=real, op=ast.Add(), right=ast.Constant(value=complex() as imaginary)):
            return _number(real) + imaginary
        case ast.BinOp(left=real, op=ast.Sub(), right=ast.Constant(value=complex() as imaginary)):
            return _number(real) - imaginary
    raise ValueError("not a number")


def _number(node: ast.expr) -> Any:
    value = _value(node)
    if isinstance(value, list):
        raise ValueError("not a number")
    return value
