"""Kernels: functions of an author that each compute one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.shape_spec import format_shape
from pjrt.devices.reference.core import block
from pjrt.devices.reference.core.values import TOKEN
from pjrt.stablehlo.operation import Operation
from pjrt.stablehlo.types import TensorType, TokenType, ValueType

Kernel = Callable[..., Any]
"""An author's kernel: ``kernel(operation, *arrays)`` returns an array for each result, or ``NotImplemented`` to leave
the operation to the fallback.
"""

INTERPRETER = "reference"
"""The device whose kernels are the fallback."""


class AuthorKernel:
    """An author's kernel of one operation of a program, with the interpreter's as its fallback.

    Args:
        device: the name of the author's device.
        function: the kernel.
        operation: the operation.
        fallback: the interpreter's kernel, or the error of an operation that it lacks.
        environment: whether the interpreter's kernel takes its environment first.
    """

    __slots__ = ("_declined", "_device", "_environment", "_fallback", "_function", "_operation", "_types")

    def __init__(
        self,
        device: str,
        function: Kernel,
        operation: Operation,
        fallback: block.Kernel | PjrtError,
        environment: bool,
    ) -> None:
        self._device = device
        self._function = function
        self._operation = operation
        self._fallback = fallback
        self._environment = environment
        self._types = [value.type for value in operation.results]
        self._declined = False

    @property
    def device(self) -> str:
        """The device that computes the operation: the author's until the kernel declines."""
        return INTERPRETER if self._declined else self._device

    def __call__(self, *values: Any) -> Any:
        """Return the results of the operation."""
        if not self._declined:
            arrays = values[1:] if self._environment else values
            results = self._function(self._operation, *map(read_only, arrays))
            if results is not NotImplemented:
                return checked(results, self._types, f"the kernel of {self._operation.name}")
            # The types and attributes are the same in every run, so the next run need not ask again.
            self._declined = True
        if isinstance(self._fallback, PjrtError):
            raise UnimplementedError(
                f"the kernel of {self._operation.name} declined the operation, and no other can run it: "
                f"{self._fallback.message}"
            )
        return self._fallback(*values)


def read_only(value: Any) -> Any:
    """Return a value as an array that cannot be written to: the interpreter may use its memory again."""
    if value is TOKEN:
        return None
    if isinstance(value, tuple):
        return tuple(map(read_only, value))
    view = np.asarray(value).view()
    view.flags.writeable = False
    return view


def checked(results: Any, types: Sequence[ValueType], source: str) -> Any:
    """Return the results of an author's function in the form of a kernel's, after a check of their types.

    Args:
        results: one array, or a sequence of them.
        types: the types in the program.
        source: the name of the function, for messages.

    Raises:
        InternalError: the number of results, an element type or a shape is not the program's.
    """
    if len(types) == 1 and not (isinstance(results, (tuple, list)) and len(results) == 1):
        return _checked(results, types[0], source)
    if not isinstance(results, (tuple, list)) or len(results) != len(types):
        count = len(results) if isinstance(results, (tuple, list)) else f"one {type(results).__name__}"
        raise InternalError(f"{source}: expected a sequence of {len(types)} results, found {count}")
    values = [_checked(result, type_, source) for result, type_ in zip(results, types, strict=True)]
    return values[0] if len(values) == 1 else values


def _checked(result: Any, type_: ValueType, source: str) -> Any:
    if isinstance(type_, TokenType):
        return TOKEN
    if not isinstance(type_, TensorType):
        return result
    array = np.asarray(result)
    if array.dtype == type_.dtype and (
        array.shape == type_.shape
        or (
            array.ndim == type_.rank
            and all(want in (None, have) for want, have in zip(type_.shape, array.shape, strict=True))
        )
    ):
        return array
    raise InternalError(f"{source}: expected a result of type {type_}, found {_described(array)}")


def _described(array: Any) -> str:
    try:
        return format_shape(ElementType.of(array.dtype), array.shape)
    except InvalidArgumentError:
        return f"an array of numpy dtype {array.dtype} and shape {array.shape}"
