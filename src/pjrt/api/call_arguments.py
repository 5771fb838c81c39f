"""The arguments of the short form ``executable(…)``: by position, by name, and as Python numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pjrt.api.array_value import ArrayValue
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.python_numbers import are_python_numbers, number_array
from pjrt.api.shape_spec import format_shape

WITHOUT_TYPE = frozenset((bool, int, float, complex, list, tuple))
"""The Python types whose values take the element type of the parameter."""

MOST_CHOICES = 12
"""The most names that a message lists."""

_MISSING = object()


class _Spec(Protocol):
    @property
    def element_type(self) -> ElementType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class _Executable(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def parameter_names(self) -> Sequence[str]: ...

    @property
    def parameter_specs(self) -> Sequence[_Spec]: ...


def bound(executable: _Executable, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Sequence[Any]:
    """Return the arguments of a call in the order of the parameters, with arrays in place of Python numbers.

    Raises:
        InvalidArgumentError: a name is unknown or ambiguous, a parameter has two values or none, or its type cannot
            hold a number.
        UnimplementedError: there are keywords, and the device does not report the names.
    """
    values = _in_order(executable, arguments, keywords) if keywords else arguments
    if not any(map(are_python_numbers, values)):
        return values
    try:
        specs = executable.parameter_specs
    except UnimplementedError:
        return values  # numpy's types for Python's numbers, in the hope that they are right
    return [
        _number_array(executable, number, value, specs) if are_python_numbers(value) else value
        for number, value in enumerate(values)
    ]


def explained(error: InvalidArgumentError, executable: _Executable, arguments: Sequence[Any]) -> InvalidArgumentError:
    """Return the error of a call; where an array has another element type than its parameter, one that names it."""
    try:
        specs = executable.parameter_specs
    except PjrtError:
        return error
    for number, (value, spec) in enumerate(zip(arguments, specs, strict=False)):
        if isinstance(value, ArrayValue):
            continue
        array = np.asarray(value)
        if spec.element_type is not ElementType.TOKEN and array.dtype != spec.element_type.dtype:
            return InvalidArgumentError(
                f"argument {number} of {executable.name!r} must be {format_shape(spec.element_type, spec.shape)}, "
                f"found a numpy array of {_type_of(array)}; convert it, such as with "
                f"array.astype({spec.element_type.dtype.name!r})"
            )
    return error


def _type_of(array: np.ndarray[Any, Any]) -> str:
    try:
        return format_shape(ElementType.of(array.dtype), array.shape)
    except InvalidArgumentError:  # such as of text
        return f"{array.dtype}{list(array.shape)}"


def key_of(name: str) -> str:
    """Return the last key of a parameter's name: ``conv.bias`` of JAX's ``weights['conv.bias']``."""
    member = re.search(r"\['([^']*)'\]$", name)
    return member[1] if member else name


def _in_order(executable: _Executable, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    names = executable.parameter_names
    program = executable.name
    if len(arguments) > len(names):
        raise InvalidArgumentError(f"{program!r} takes {len(names)} arguments, found {len(arguments)} by position")
    values = [*arguments, *[_MISSING] * (len(names) - len(arguments))]
    for keyword, value in keywords.items():
        number = _number_of(keyword, names, program)
        if values[number] is not _MISSING:
            raise InvalidArgumentError(
                f"argument {number} of {program!r} has two values: one by position, one as {keyword!r}; leave one out"
            )
        values[number] = value
    missing = [_labelled(number, names) for number, value in enumerate(values) if value is _MISSING]
    if missing:
        raise InvalidArgumentError(
            f"{program!r} takes {len(names)} arguments, found none for {', '.join(missing)}; give each a value, by "
            "position or by name"
        )
    return values


def choices(names: Sequence[str], wrong: str) -> str:
    """Return names for the message about a wrong one: all of a few, and of many those that are most like it."""
    if len(names) <= MOST_CHOICES:
        return ", ".join(names)
    import difflib  # only for messages

    closest = difflib.get_close_matches(wrong, names, MOST_CHOICES // 2, cutoff=0)
    return f"{', '.join(closest)}, … of {len(names)}"


def _number_of(keyword: str, names: Sequence[str], program: str) -> int:
    places = [number for number, name in enumerate(names) if name == keyword]
    places = places or [number for number, name in enumerate(names) if keyword and key_of(name) == keyword]
    if len(places) == 1:
        return places[0]
    if places:
        raise InvalidArgumentError(
            f"{keyword!r} is the name of several arguments of {program!r}: "
            f"{', '.join(_labelled(number, names) for number in places)}; give them by position"
        )
    if not any(names):
        raise InvalidArgumentError(
            f"the arguments of {program!r} have no names, found {keyword!r}; give them by position "
            '(JAX keeps names, and MLIR text has them as locations: %x: tensor<f32> loc("x"))'
        )
    advice = ""
    if any(name.startswith((f"{keyword}[", f"{keyword}.")) for name in names):
        advice = "; pjrt.load_model takes nested arguments"
    candidates = choices([name for name in names if name], keyword)
    raise InvalidArgumentError(
        f"expected the names of arguments of {program!r} ({candidates}), found {keyword!r}{advice}"
    )


def _number_array(executable: _Executable, number: int, value: Any, specs: Sequence[_Spec]) -> Any:
    if number >= len(specs) or specs[number].element_type is ElementType.TOKEN:
        return value  # the device refuses it
    spec = specs[number]
    try:
        return number_array(value, spec.element_type)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"argument {number} of {executable.name!r}, {format_shape(spec.element_type, spec.shape)}: {error.message}"
        ) from error


def _labelled(number: int, names: Sequence[str]) -> str:
    return f"{number} ({names[number]})" if names[number] else str(number)
