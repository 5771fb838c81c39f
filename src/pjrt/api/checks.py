"""Checks of arguments, and of the options of devices, with what was expected and found.

Annotations declare what a function takes. These checks enforce it at run time, where a mistake would otherwise become
an ``AttributeError`` far from the call. Each returns the argument, so that a check can stand where the argument is
first used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.printable import perhaps

T = TypeVar("T")


def expect(value: T, kind: type[Any] | tuple[type[Any], ...], what: str) -> T:
    """Return a value that must have a type.

    Args:
        value: an argument.
        kind: the type, or several.
        what: a description of the argument, as the end of the sentence "expected …".

    Raises:
        InvalidArgumentError: the value has another type.
    """
    if isinstance(value, kind):
        return value
    raise unexpected(value, what)


def unexpected(value: object, what: str) -> InvalidArgumentError:
    """Return the error for an argument that is not as expected."""
    text = repr(value)
    if len(text) > 80:
        text = f"{text[:77]}..."
    return InvalidArgumentError(f"expected {what}, found {text} of type {type(value).__name__}")


def expect_all(values: Iterable[T], kind: type[Any] | tuple[type[Any], ...], what: str) -> list[T]:
    """Return a list of values that must have a type; ``what`` describes one of them.

    Raises:
        InvalidArgumentError: the argument is not a sequence, or a value has another type.
    """
    return [expect(value, kind, what) for value in expect_sequence(values, f"a sequence, of {what} each")]


class SingleValue:
    """The base of what is one value although one can iterate over it, such as a buffer."""

    __slots__ = ()


def expect_sequence(values: Iterable[T], what: str) -> Sequence[T]:
    """Return a sequence of values: a list or tuple unchanged, other iterables as a list.

    Raises:
        InvalidArgumentError: the argument is not iterable, or is text, bytes or a buffer, which is one value.
    """
    if isinstance(values, (list, tuple)):
        return values
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes, bytearray, SingleValue)):
        return list(values)
    raise unexpected(values, what)


def expect_int(value: object, what: str) -> int:
    """Return a whole number, which may be numpy's; booleans are not numbers.

    Raises:
        InvalidArgumentError: the value is not a whole number.
    """
    if type(value) is int:
        return value
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)  # type: ignore[arg-type]  # The call finds out whether it is one.
        except TypeError:
            pass
    raise unexpected(value, what)


def expect_bytes(value: object, what: str) -> bytes:
    """Return the bytes of a ``bytes``, ``bytearray`` or ``memoryview``.

    Raises:
        InvalidArgumentError: the value is none of these.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise unexpected(value, what)


def expect_callable(value: object, what: str) -> Callable[..., Any]:
    """Return a function or another callable.

    Raises:
        InvalidArgumentError: the value is not callable.
    """
    if callable(value):
        return value
    raise unexpected(value, what)


def expect_array(value: Any) -> np.ndarray[Any, Any]:
    """Return the array that ``numpy.asarray`` makes of a value.

    Raises:
        InvalidArgumentError: numpy cannot make an array of the value, such as of rows of different lengths.
    """
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"expected an array, or a value that numpy makes one of: {error}") from error


def expect_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the caller's array, which must be writable and of a shape and dtype, to copy a value to.

    Raises:
        InvalidArgumentError: the argument is no such array.
    """
    if isinstance(out, np.ndarray) and out.shape == shape and out.dtype == dtype and out.flags.writeable:
        return out
    description = f"type {type(out).__name__}"
    if isinstance(out, np.ndarray):
        description = f"{'a writable' if out.flags.writeable else 'a read-only'} array of {out.dtype}{list(out.shape)}"
    raise InvalidArgumentError(f"expected a writable array of {dtype}{list(shape)} to copy to, found {description}")


_MOST_DEVICES = 4096
"""A larger number of virtual devices is taken for a mistake."""

_MOST_DIGITS = 9
"""Python refuses to read a number of thousands of digits, and no topology has a number of devices of ten."""


def check_option_names(platform: str, options: Mapping[str, object], known: Sequence[str]) -> None:
    """Raise an error for an option that a client does not have.

    Raises:
        InvalidArgumentError: an option is unknown.
    """
    for name in options:
        if name not in known:
            raise InvalidArgumentError(
                f"the device '{platform}' has no option {name!r}{perhaps(name, known)}; it has "
                f"{', '.join(known) or 'none'}"
            )


def check_num_devices(platform: str, options: Mapping[str, object]) -> int:
    """Return the option ``num_devices``, the number of virtual devices; 1 is the default.

    Raises:
        InvalidArgumentError: the option is not a number of devices.
    """
    count = options.get("num_devices", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_DEVICES:
        raise InvalidArgumentError(
            f"the option num_devices of the device '{platform}' is a number from 1 to {_MOST_DEVICES}, found {count!r}"
        )
    return count


def topology_options(platform: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a topology whose name is its number of devices, which becomes the option ``num_devices``.

    Args:
        platform: the device's name, for messages.
        name: the number, such as ``8``; empty for the default.
        options: the other options; ``num_devices`` may stand there instead of in the name.

    Raises:
        InvalidArgumentError: the name is not a number, or the options have ``num_devices`` too.
    """
    if not name:
        return dict(options)
    if not name.isdecimal() or len(name) > _MOST_DIGITS or "num_devices" in options:
        raise InvalidArgumentError(
            f"a topology of the device '{platform}' is named by the number of its devices, such as '8', or has the "
            f"option num_devices instead; found the name {name!r} and the options {dict(options)}"
        )
    return {**options, "num_devices": int(name)}
