"""Inputs: arrays for the parameters of a program, from texts such as ``random:0`` or ``x=FILE.npy``.

They are the values of the command's ``--input`` options, and messages call them so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, naming
from pjrt.api.loaded_executable import MOST_CHOICES, choices, key_of
from pjrt.api.shape_spec import format_shape
from pjrt.models.binding import Binding, numbers_by_name
from pjrt.models.inputs.input_files import RAW, array_of_bytes, arrays_in, members_in, with_type
from pjrt.models.inputs.input_values import are_numbers, filled, is_filler, numbers
from pjrt.models.model_file import ModelFile
from pjrt.stablehlo.shapes.argument_shapes import known_shapes
from pjrt.stablehlo.signatures import Parameter

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Source:
    """One input: the parameter that it names, its value, and the text as written."""

    target: str
    value: str
    option: str


@dataclass(frozen=True)
class Input:
    """The array for one parameter.

    Attributes:
        array: the array.
        matched_by_type: the place in a file that the array came from, if it was matched by its type alone; empty if
            it was matched by a name, an index or the order of the options.
    """

    array: Array
    matched_by_type: str = ""


def make_arguments(
    parameters: Sequence[Parameter], options: Sequence[str], shapes: Mapping[str, Sequence[int]] | None = None
) -> list[Input]:
    """Return the arrays for a program's parameters.

    A file of several arrays fills the parameters that it names. If it names none, each array goes to the one free
    parameter of its type and shape. A single array or number fills the first free parameter. After the name of a nested
    argument (``cache=out.npz:result[1]``) a file fills the members of that argument. ``random:SEED``, ``zeros`` and
    ``ones`` fill all that are free after that.

    Args:
        parameters: the parameters, such as those of a ``ModelFile``.
        options: the inputs: each a file, a number or nested lists of numbers, ``random:SEED``, ``zeros`` or ``ones``,
            optionally after the name or the index of a parameter and an equals sign.
        shapes: shapes of parameters with dynamic sizes by their names or indices, and sizes by their symbols, for what
            has no shape of its own. Sizes that follow from these or from the arrays in files need not be given.

    Raises:
        InvalidArgumentError: an option has no known form, an array does not fit or fits several parameters,
            parameters have no value, or arrays are left over.
        NotFoundError: a file or a name in it does not exist.
    """
    chosen: dict[int, Input] = {}
    fillers: list[_Source] = []
    stated, parameters = parameters, _sized(parameters, shapes or {})
    for option in options:
        source = _parse(option, parameters)
        if is_filler(source.value):
            fillers.append(source)
        elif source.target and len(places := _find(parameters, source)) == 1:
            _fill(chosen, places[0], _one_array(source, places[0]), source)
        elif source.target:
            _fill_members(chosen, parameters, source)
        elif source.value.endswith(RAW) or are_numbers(source.value):
            parameter = _first_open(chosen, parameters, source)
            _fill(chosen, parameter, _one_array(source, parameter), source)
        else:
            _fill_from_file(chosen, parameters, source)
    parameters = _sized(
        stated, dict[Any, Any](shapes or {}) | {index: each.array.shape for index, each in chosen.items()}
    )
    for source in sorted(fillers, key=lambda source: not source.target):  # those that name their parameter first
        places = _find(parameters, source) if source.target else parameters
        for parameter in places:
            if len(places) == 1 and source.target:
                _fill(chosen, parameter, filled(source.value, parameter), source)
            elif parameter.index not in chosen:
                chosen[parameter.index] = Input(filled(source.value, parameter))
    open_ones = [str(p) for p in parameters if p.index not in chosen]
    if open_ones:
        raise InvalidArgumentError(
            f"the program has {len(parameters)} arguments, --input gave {len(chosen)}; "
            f"without a value: {'; '.join(open_ones)}; "
            "give files, or --input random:0 or --input zeros for the rest"
        )
    return [chosen[p.index] for p in parameters]


def values_of(
    file: ModelFile, inputs: Sequence[Any] | Mapping[str, Any] | str, shapes: Mapping[str, Sequence[int]] | None = None
) -> list[Any]:
    """Return a value for each parameter of a model file.

    Args:
        file: the model file.
        inputs: texts such as ``random:0`` or ``x=FILE.npy``, as ``make_arguments`` takes them, or one of them; or
            values, flat or nested as the model takes them, in a sequence or by name.
        shapes: for texts that make arrays of dynamic parameters, as for ``make_arguments``.

    Raises:
        InvalidArgumentError: inputs are missing, unknown or left over, or a text has no known form.
        NotFoundError: a file does not exist.
    """
    texts = [inputs] if isinstance(inputs, str) else inputs
    binding = Binding(file.parameters, file.input_tree)
    if isinstance(texts, Mapping):
        return binding.leaves((), texts)
    if not all(isinstance(each, str) for each in texts):
        return binding.leaves(texts, {})
    with naming(file.source):
        return [each.array for each in make_arguments(file.parameters, texts, shapes)]


def _sized(parameters: Sequence[Parameter], shapes: Mapping[Any, Sequence[int]]) -> Sequence[Parameter]:
    """Return the parameters with static shapes, where these follow from the given ones."""
    if not shapes:
        return parameters
    sizes = zip(parameters, known_shapes(shapes, parameters), strict=True)
    return [parameter if shape is None else replace(parameter, shape=shape) for parameter, shape in sizes]


def files_of(options: Sequence[str]) -> list[Path]:
    """Return the existing files that ``--input`` options name."""
    texts = [part for option in options for part in (option, option.partition("=")[2])]
    paths = [Path(part) for text in texts for part in (text, text.rpartition(":")[0]) if part]
    return [path for path in paths if path.is_file()]


def _parse(option: str, parameters: Sequence[Parameter]) -> _Source:
    target, equals, value = option.partition("=")
    names = {name for p in parameters for name in (p.name, key_of(p.name)) if name}
    if equals and (target in names or target.isdigit() or _members(target, parameters)):
        return _Source(target, value, option)
    if equals and not Path(option).exists() and (is_filler(value) or are_numbers(value) or value.endswith(RAW)):
        raise InvalidArgumentError(
            f"--input {option}: the program has no argument called {target!r}; it has {_choices(parameters, target)}"
        )
    return _Source("", option, option)


def _choices(parameters: Sequence[Parameter], wrong: str) -> str:
    if len(parameters) > MOST_CHOICES:
        return choices([each.name or str(each.index) for each in parameters], wrong)
    return "; ".join(map(str, parameters)) or "none"


def _find(parameters: Sequence[Parameter], source: _Source) -> Sequence[Parameter]:
    """Return the parameter that an input names, or the members of the nested argument that it names."""
    for parameter in parameters:
        if source.target in (parameter.name, key_of(parameter.name), str(parameter.index)):
            return [parameter]
    members = _members(source.target, parameters)
    if members:
        return members
    raise InvalidArgumentError(
        f"--input {source.option}: the program has arguments 0 to {len(parameters) - 1}, found {source.target}"
    )


def _members(root: str, parameters: Sequence[Parameter]) -> list[Parameter]:
    return [each for each in parameters if root and each.name.startswith((f"{root}[", f"{root}."))]


def _fill_members(chosen: dict[int, Input], parameters: Sequence[Parameter], source: _Source) -> None:
    """Fill the members of a nested argument from a file."""
    by_name = {each.name: each for each in parameters}
    for path, array in members_in(source.value, source.option, source.target).items():
        if source.target + path not in by_name:
            raise InvalidArgumentError(
                f"--input {source.option}: expected members of {source.target} "
                f"({', '.join(each.name for each in _members(source.target, parameters))}), found {path} too"
            )
        _fill(chosen, by_name[source.target + path], array, source)


def _fill(
    chosen: dict[int, Input], parameter: Parameter, array: Array, source: _Source, matched_by_type: str = ""
) -> None:
    if parameter.index in chosen:
        raise InvalidArgumentError(f"--input {source.option}: {parameter} has a value already")
    fitted = _fitted(parameter, array)
    if fitted is None:
        raise InvalidArgumentError(f"--input {source.option}: expected {parameter}, found {_describe(array)}")
    chosen[parameter.index] = Input(fitted, matched_by_type)


def _fitted(parameter: Parameter, array: Array) -> Array | None:
    """Return the array as the parameter takes it; None if it is of another type or shape."""
    array = with_type(array, parameter.element_type.dtype)
    sizes_fit = len(array.shape) == len(parameter.shape) and all(
        want == have or not isinstance(want, int) for want, have in zip(parameter.shape, array.shape, strict=True)
    )
    return array if array.dtype == parameter.element_type.dtype and sizes_fit else None


def _describe(array: Array) -> str:
    try:
        return format_shape(ElementType.of(array.dtype), array.shape)
    except InvalidArgumentError:
        return f"an array of numpy dtype {array.dtype} and shape {array.shape}"


def _one_array(source: _Source, parameter: Parameter) -> Array:
    if source.value.endswith(RAW):
        return array_of_bytes(source.value, parameter, source.option)
    if are_numbers(source.value):
        return _numbers(source, parameter)
    arrays = arrays_in(source.value, source.option, most_bytes=_most_bytes([parameter]))
    if len(arrays) != 1:
        raise InvalidArgumentError(
            f"--input {source.option}: expected one array for {parameter}, "
            f"the file has {len(arrays)}: {', '.join(arrays)}; add :NAME"
        )
    return next(iter(arrays.values()))


def _most_bytes(parameters: Sequence[Parameter]) -> int | None:
    """Return the bytes of the largest argument; None if a size of one is known only when the program is called."""
    if any(parameter.is_dynamic for parameter in parameters):
        return None
    return max((math.prod(each.sizes) * each.element_type.dtype.itemsize for each in parameters), default=0)


def _numbers(source: _Source, parameter: Parameter) -> Array:
    try:
        return numbers(source.value, parameter)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--input {source.option}: {parameter}: {error.message}") from error


def _first_open(chosen: dict[int, Input], parameters: Sequence[Parameter], source: _Source) -> Parameter:
    for parameter in parameters:
        if parameter.index not in chosen:
            return parameter
    raise InvalidArgumentError(
        f"--input {source.option}: the program has {len(parameters)} arguments, {len(chosen)} with a value; it is left "
        "over"
    )


def _fill_from_file(chosen: dict[int, Input], parameters: Sequence[Parameter], source: _Source) -> None:
    arrays = arrays_in(source.value, source.option, most_bytes=_most_bytes(parameters))
    by_index = {each.index: each for each in parameters}
    by_name = {name: by_index[number] for name, number in numbers_by_name(parameters).items()}
    # The name of a .npy file is not the name of an argument.
    matches = [] if source.value.endswith(".npy") else [name for name in arrays if name in by_name]
    if matches:
        unknown = ", ".join(name for name in arrays if name not in by_name)
        if unknown:
            raise InvalidArgumentError(
                f"--input {source.option}: expected the names of the program's arguments ({', '.join(by_name)}), "
                f"found {unknown} too; take one array with :NAME"
            )
        for name in matches:
            _fill(chosen, by_name[name], arrays[name], source)
        return
    open_ones = [p for p in parameters if p.index not in chosen]
    if len(open_ones) < len(arrays):
        raise InvalidArgumentError(
            f"--input {source.option}: the program has {len(parameters)} arguments, {len(chosen)} with a value; "
            f"{', '.join(map(repr, list(arrays)[len(open_ones) :]))} left over"
        )
    if len(arrays) == 1:
        (array,) = arrays.values()
        _fill(chosen, open_ones[0], array, source)
        return
    for name, parameter in _matched_by_type(arrays, open_ones, source).items():
        _fill(chosen, parameter, arrays[name], source, f"{source.value}:{name}")


def _matched_by_type(
    arrays: Mapping[str, Array], parameters: Sequence[Parameter], source: _Source
) -> dict[str, Parameter]:
    """Return the parameter of each array of a file without their names, by type and shape.

    Raises:
        InvalidArgumentError: an array fits several parameters or none, or several arrays fit one.
    """
    matched: dict[str, Parameter] = {}
    for name, array in arrays.items():
        fitting = [p for p in parameters if _fitted(p, array) is not None]
        if len(fitting) != 1:
            which = "; ".join(map(str, fitting)) or f"none; open are: {'; '.join(map(str, parameters))}"
            raise _unclear(source, f"{name!r}, {_describe(array)}, fits {which}")
        rival = next((other for other, parameter in matched.items() if parameter is fitting[0]), None)
        if rival is not None:
            raise _unclear(source, f"{rival!r} and {name!r} both fit {fitting[0]}")
        matched[name] = fitting[0]
    return matched


def _unclear(source: _Source, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"--input {source.option}: none of its names is an argument's, and the types of its arrays are ambiguous: "
        f"{why}; name the argument of each, such as --input 0={source.value}:NAME"
    )
