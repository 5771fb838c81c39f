"""Arguments of a wrong Python type: refused alike by all devices, with what was expected and what was found.

Annotations say what a function takes; these checks say it at run time, where a mistake would otherwise be an
``AttributeError`` far from the call that made it. Each gives the argument back, so that a check can stand where the
argument is first used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from pjrt.api.errors import InvalidArgumentError

T = TypeVar("T")


def expect(value: T, kind: type[Any] | tuple[type[Any], ...], what: str) -> T:
    """The value, which is of a type.

    Args:
        value: an argument.
        kind: the type, or several.
        what: what the argument is to be, as the end of the sentence "expected …".

    Raises:
        InvalidArgumentError: it is of another type.
    """
    if isinstance(value, kind):
        return value
    raise unexpected(value, what)


def unexpected(value: object, what: str) -> InvalidArgumentError:
    """The error for an argument that is not what it is to be."""
    text = repr(value)
    if len(text) > 80:
        text = f"{text[:77]}..."
    return InvalidArgumentError(f"expected {what}, found {text} of type {type(value).__name__}")


def expect_all(values: Iterable[T], kind: type[Any] | tuple[type[Any], ...], what: str) -> list[T]:
    """The values as a list, each of a type; ``what`` is said of one of them.

    Raises:
        InvalidArgumentError: they are no values one after the other, or one is of another type.
    """
    return [expect(value, kind, what) for value in expect_sequence(values, f"a sequence, of {what} each")]


def expect_sequence(values: Iterable[T], what: str) -> Sequence[T]:
    """The values, which can be counted and taken one after the other: a list or tuple as it is, others as a list.

    Raises:
        InvalidArgumentError: they cannot, or are text or bytes.
    """
    if isinstance(values, (list, tuple)):
        return values
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes, bytearray)):
        return list(values)
    raise unexpected(values, what)


def expect_int(value: object, what: str) -> int:
    """A whole number, also one of numpy's; no truth value.

    Raises:
        InvalidArgumentError: it is none.
    """
    if type(value) is int:
        return value
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)  # type: ignore[arg-type]  # that is the question
        except TypeError:
            pass
    raise unexpected(value, what)


def expect_bytes(value: object, what: str) -> bytes:
    """Bytes, from anything that is some: ``bytes``, ``bytearray`` or a ``memoryview``.

    Raises:
        InvalidArgumentError: it is none of them.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise unexpected(value, what)


def expect_callable(value: object, what: str) -> Callable[..., Any]:
    """A function, or what else can be called.

    Raises:
        InvalidArgumentError: it cannot.
    """
    if callable(value):
        return value
    raise unexpected(value, what)


def expect_array(value: Any) -> np.ndarray[Any, Any]:
    """What numpy makes an array of, as that array.

    Raises:
        InvalidArgumentError: numpy cannot make one of it, such as of rows of different lengths.
    """
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"expected an array, or what numpy makes one of: {error}") from error
