"""Arguments of models: one value as the array that its parameter takes."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

import pjrt.ifrt
from pjrt.api.buffer import Buffer
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import format_shape
from pjrt.stablehlo.call_signature import Parameter

Argument = np.ndarray[Any, Any] | pjrt.ifrt.Array


def fitted(client: pjrt.ifrt.Client, parameter: Parameter, value: Any) -> Argument:
    """Return a value as an array of the parameter's type and shape.

    Numbers of Python, and lists of them, take the parameter's element type. An array on the client's devices stays
    there.

    Raises:
        InvalidArgumentError: the value has another shape or element type, or is on the devices of another client.
    """
    array = _array(client, parameter, value)
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
    if _is_weak(value):
        return _converted(parameter, value)
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


def _is_weak(value: Any) -> bool:
    """Whether a value has no element type of its own: a number of Python, or a list of such."""
    if isinstance(value, list | tuple):
        return all(map(_is_weak, value))
    return isinstance(value, numbers.Number) and not isinstance(value, np.generic)


def _converted(parameter: Parameter, value: Any) -> Argument:
    """Return numbers of Python as an array of the parameter's type.

    Raises:
        InvalidArgumentError: the type cannot hold them, or lists differ in length.
    """
    try:
        array = np.array(value)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"expected {parameter}, found {value!r}: {error}") from error
    wanted = parameter.element_type
    if wanted is ElementType.PRED:
        is_possible = array.dtype.kind == "b" or not array.size
    elif wanted.is_integer:
        is_possible = array.dtype.kind in "biu" or not array.size
    else:
        is_possible = array.dtype.kind in ("biufc" if wanted.is_complex else "biuf")
    with np.errstate(all="ignore"):
        converted = array.astype(wanted.dtype) if is_possible else array
    if is_possible and wanted.is_integer:  # a conversion wraps numbers that are too large
        is_possible = bool(np.all(converted.astype(array.dtype) == array))
    if not is_possible:
        raise InvalidArgumentError(f"expected {parameter}, found {value!r}, which the type cannot hold")
    return converted


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
