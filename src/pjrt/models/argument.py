"""Arguments of models: one value as the array that its parameter takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

import pjrt.ifrt
from pjrt.api.buffer import Buffer
from pjrt.api.element_type import ElementType, are_python_numbers, number_array
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import format_shape
from pjrt.stablehlo.signatures import Parameter

Argument: TypeAlias = np.ndarray[Any, Any] | pjrt.ifrt.Array


def fitted(client: pjrt.ifrt.Client, parameter: Parameter, value: Any) -> Argument:
    """Return a value as an array of the parameter's type and shape.

    Numbers of Python, and lists of them, take the parameter's element type. An array on the client's devices stays
    there. Of a parameter that the program does not need, any value of Python will do.

    Raises:
        InvalidArgumentError: the value has another shape or element type, or is on the devices of another client.
    """
    if parameter.argument is None and not hasattr(value, "shape"):
        return np.zeros(
            [size if isinstance(size, int) else 0 for size in parameter.shape], parameter.element_type.dtype
        )
    return _checked(parameter, _array(client, parameter, value))


def all_fitted(client: pjrt.ifrt.Client, parameters: Sequence[Parameter], values: Sequence[Any]) -> list[Argument]:
    """Return a value for each parameter as an array of its type and shape, as ``fitted`` does.

    Raises:
        InvalidArgumentError: the number of values differs, or one does not fit its parameter.
    """
    if len(values) != len(parameters):
        raise wrong_count(parameters, len(values))
    return [fitted(client, *pair) for pair in zip(parameters, values, strict=True)]


def wrong_count(parameters: Sequence[Parameter], count: int) -> InvalidArgumentError:
    """Return the error for a number of arguments that is not that of the parameters."""
    listed = "; ".join(map(str, parameters)) or "none"
    return InvalidArgumentError(f"expected {len(parameters)} arguments ({listed}), found {count}")


def fitted_on_host(parameter: Parameter, value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array of the parameter's type and shape on the host, also one that is on devices.

    Raises:
        InvalidArgumentError: as for ``fitted``.
    """
    return np.asarray(_checked(parameter, _host_array(parameter, value)))


def _checked(parameter: Parameter, array: Argument) -> Argument:
    if _element_type(array) is None:
        raise _misfit(parameter, array, "give an array of numbers")
    if not _is_of_shape(parameter, array.shape):
        raise _misfit(parameter, array, "give an array of that shape")
    found = _element_type(array)
    if found is not parameter.element_type:
        name = parameter.element_type.dtype.name
        raise _misfit(parameter, array, f"convert it, such as with array.astype({name!r})")
    return array


def _array(client: pjrt.ifrt.Client, parameter: Parameter, value: Any) -> Argument:
    if isinstance(value, pjrt.ifrt.Array):
        if value.client.pjrt_client is not client.pjrt_client:
            raise InvalidArgumentError(
                f"expected {parameter} on the devices of {client.pjrt_client!r}, found an array of "
                f"{value.client.pjrt_client!r}: copy it to the host with numpy.asarray first"
            )
        return value
    if isinstance(value, Buffer):
        return _of_buffer(client, value)
    return _host_array(parameter, value)


def _host_array(parameter: Parameter, value: Any) -> Argument:
    if are_python_numbers(value):
        try:
            return number_array(value, parameter.element_type)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{parameter}: {error.message}") from error
    try:
        array = np.asarray(value)
    except Exception as error:  # __array__ of any class
        raise InvalidArgumentError(
            f"expected {parameter}, found {type(value).__name__}, which is no array: {error}"
        ) from error
    if array.dtype.kind == "O":
        raise InvalidArgumentError(f"expected {parameter}, found {type(value).__name__}, which is no array")
    return array


def _of_buffer(client: pjrt.ifrt.Client, buffer: Buffer) -> Argument:
    if buffer.client is not client.pjrt_client:
        return np.asarray(buffer)
    sharding = pjrt.ifrt.SingleDeviceSharding(buffer.device, buffer.memory_space.kind)
    return pjrt.ifrt.Array(client, pjrt.ifrt.ArraySpec(buffer.shape, buffer.element_type, sharding), [buffer])


def _is_of_shape(parameter: Parameter, shape: tuple[int, ...]) -> bool:
    return len(shape) == len(parameter.shape) and all(
        wanted == size or not isinstance(wanted, int) for wanted, size in zip(parameter.shape, shape, strict=True)
    )


def _element_type(array: Argument) -> ElementType | None:
    if isinstance(array, pjrt.ifrt.Array):
        return array.element_type
    try:
        return ElementType.of(array.dtype)
    except InvalidArgumentError:  # a dtype without an element type, such as of text
        return None


def _misfit(parameter: Parameter, array: Argument, advice: str) -> InvalidArgumentError:
    found = _element_type(array)
    described = f"{array.dtype}{list(array.shape)}" if found is None else format_shape(found, array.shape)
    return InvalidArgumentError(f"expected {parameter}, found {described}: {advice}")
