"""Kernels: functions of an author that each compute one operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.devices.author.values import ResultTypes, Values, places
from pjrt.devices.reference.core import block
from pjrt.stablehlo.operation import Operation

Kernel = Callable[..., Any]
"""An author's kernel: ``kernel(operation, *arrays)`` returns an array for each result, or ``NotImplemented`` to leave
the operation to the fallback. On a device with memory of its own, it takes and returns handles.
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
        fallback_environment: whether the interpreter's kernel takes the environment first.
        values: the form of the values that the kernel takes and returns.
        constants: the positions of operands that are the same in every run.

    Attributes:
        environment: whether a call has the environment first.
        flops: the floating-point operations, where the interpreter's kernel knows them.
    """

    __slots__ = (
        "_constants",
        "_declined",
        "_device",
        "_fallback",
        "_fallback_environment",
        "_function",
        "_operation",
        "_source",
        "_types",
        "_values",
        "environment",
        "flops",
    )

    def __init__(
        self,
        device: str,
        function: Kernel,
        operation: Operation,
        fallback: block.Kernel | PjrtError,
        fallback_environment: bool,
        values: Values,
        constants: Collection[int],
    ) -> None:
        self._device = device
        self._function = function
        self._operation = operation
        self._fallback = fallback
        self._fallback_environment = fallback_environment
        self._values = values
        self._constants = places(constants)
        self._types = ResultTypes([value.type for value in operation.results])
        self._source = f"the kernel of {operation.name}"
        self._declined = False
        self.environment = fallback_environment or values.needs_environment
        self.flops = getattr(fallback, "flops", None)

    @property
    def device(self) -> str:
        """The device that computes the operation: the author's until the kernel declines."""
        return INTERPRETER if self._declined else self._device

    def interpreted(self, environment: block.Environment, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of the fallback, each as one value of a sequence.

        Raises:
            UnimplementedError: the interpreter lacks the operation.
        """
        if isinstance(self._fallback, PjrtError):
            raise UnimplementedError(self._fallback.message)
        results = self._fallback(environment, *operands) if self._fallback_environment else self._fallback(*operands)
        return [results] if len(self._operation.results) == 1 else list(results)

    def __call__(self, *values: Any) -> Any:
        """Return the results of the operation."""
        environment, operands = (values[0], values[1:]) if self.environment else (None, values)
        if not self._declined:
            results: Any = NotImplemented
            try:
                arguments = self._values.arguments(environment, operands, self._constants)
            except UnimplementedError:  # the author's memory has no arrays of such a type
                arguments = []
            else:
                results = self._function(self._operation, *self._values.bare(arguments))
            if results is not NotImplemented:
                return self._values.results(environment, results, self._types, self._source, arguments)
            # The types and attributes are the same in every run, so the next run need not ask again.
            self._declined = True
        if isinstance(self._fallback, PjrtError):
            raise UnimplementedError(
                f"the kernel of {self._operation.name} declined the operation, and no other can run it: "
                f"{self._fallback.message}"
            )
        return self._fallback(environment, *operands) if self._fallback_environment else self._fallback(*operands)
