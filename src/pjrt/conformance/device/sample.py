"""Sample programs: the simplest computation that a device runs, for checks of its behaviour."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.conformance import values
from pjrt.conformance.accuracy import FUNCTION
from pjrt.conformance.judge import Judge, first_difference
from pjrt.conformance.operation_case import Array, program_text, tensor

_OPERATIONS = {"add": 2, "multiply": 2, "subtract": 2, "maximum": 2, "divide": 2, "negate": 1, "abs": 1, "tanh": 1}
_TYPES = (ElementType.F32, ElementType.S32, ElementType.F16, ElementType.BF16, ElementType.F64, ElementType.S8)


@dataclass(frozen=True, slots=True)
class Sample:
    """An elementwise operation that a device runs, or, if it runs none of the simplest ones, no operation.

    Attributes:
        operation: the name of the operation, without ``stablehlo.``; empty for a program that returns its argument.
        arity: the number of operands.
        element_type: the type of the elements.
    """

    operation: str
    arity: int
    element_type: ElementType

    def program(self, shape: tuple[int, ...], donated: bool = False) -> str:
        """Return the program for arrays of a shape.

        Args:
            shape: the shape.
            donated: whether the result takes over the memory of the first argument.
        """
        type_ = tensor(shape, self.element_type)
        if self.operation:
            operands = ", ".join(f"%{name}" for name in "xy"[: self.arity])
            text = program_text(f"stablehlo.{self.operation} {operands} : {type_}", [type_] * self.arity, [type_])
        else:
            text = f"func.func @main(%x: {type_}) -> {type_} {{\n  return %x : {type_} }}"
        attribute = " {tf.aliasing_output = 0 : i32}" if donated else ""
        return text.replace(f"%x: {type_}", f"%x: {type_}{attribute}", 1)

    def inputs(self, shape: tuple[int, ...], seed: int = 0) -> list[Array]:
        """Return arguments of a shape."""
        return [values.ordinary(self.element_type, shape, 2 * seed + each) for each in range(self.arity)]

    def expected(self, inputs: list[Array]) -> Array:
        """Return the result that the reference interpreter computes."""
        return Judge(self.program(inputs[0].shape)).results(inputs)[0]

    def problem(self, result: object, inputs: list[Array]) -> str:
        """Return how a result differs from the expected one; empty if it does not."""
        wrong = first_difference([np.asarray(result)], [self.expected(inputs)], FUNCTION)
        return "" if wrong is None else str(wrong[1])


def sample_of(client: Client) -> Sample:
    """Return the simplest program that a device compiles."""
    for element_type in _TYPES:
        for operation, arity in _OPERATIONS.items():
            sample = Sample(operation, arity, element_type)
            try:
                client.compile(sample.program((3,))).delete()
            except PjrtError:
                continue
            return sample
    return Sample("", 1, ElementType.F32)
