"""The comparison of an author's code with the interpreter while a program runs, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pjrt.api.errors import InternalError, UnimplementedError
from pjrt.devices.reference.core.block import Environment, Runner, Step
from pjrt.devices.reference.observers import Observer, StopError, Values, summary
from pjrt.host.device_memory import on_host
from pjrt.host_memory.difference import Difference
from pjrt.host_memory.tolerance import Tolerance

_INCOMPARABLE = frozenset(
    {
        "stablehlo.rng",
        "stablehlo.rng_bit_generator",
        "stablehlo.custom_call",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.recv",
        "stablehlo.send",
    }
)
"""Operations whose results an implementation may choose, and those that must not run a second time."""


@runtime_checkable
class Comparable(Runner, Protocol):
    """An author's code for a step, which knows what the interpreter computes in its place."""

    def interpreted(self, environment: Environment, operands: Values) -> Sequence[Any]:
        """Return the results of the interpreter for these values.

        Raises:
            UnimplementedError: the interpreter lacks the operation.
        """


class DifferenceError(StopError, InternalError):
    """A step of the author's code has another result than the interpreter has for the same inputs.

    Attributes:
        step: the step.
        inputs: its inputs.
        outputs: the results of the author's code.
        expected: the results of the interpreter.
    """

    def __init__(
        self, step: Step, device: str, number: int, difference: Difference, values: tuple[Values, ...]
    ) -> None:
        self.step = step
        self.inputs, self.outputs, self.expected = map(tuple, values)
        self._parts = step, device, number, difference, values
        shown = "; ".join(summary(value) for value in self.inputs)
        super().__init__(
            f"the first difference from the reference interpreter was made by {device} in {step}, result {number}: "
            f"{difference}; its inputs were {shown}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return DifferenceError, self._parts


class ReferenceComparison(Observer):
    """An observer that runs the interpreter's kernel on the inputs of each step that the author's code computed.

    It raises ``DifferenceError`` at the first step whose results are further apart than the tolerance.

    Args:
        tolerance: the tolerance; the defaults of the types are those of ``pjrt.compare``: the numbers in a real program
            are not as small and exact as those of ``pjrt test-device``.
    """

    def __init__(self, tolerance: Tolerance | None = None) -> None:
        self._tolerance = tolerance or Tolerance()

    def after_in(self, environment: Environment, step: Step, inputs: Values, outputs: Values) -> None:
        """Compare the results of a step that has run in an environment."""
        runner = step.runner
        if not isinstance(runner, Comparable) or step.name in _INCOMPARABLE:
            return
        if runner.device == "reference":  # the author declined, so these are the interpreter's results
            return
        # Copies: the interpreter may write into the memory of its operands.
        operands = [np.array(value) if isinstance(value, np.ndarray) else value for value in inputs]
        try:
            results = [on_host(value) for value in runner.interpreted(environment, operands)]
        except UnimplementedError:
            return
        for number, (value, expected) in enumerate(zip(outputs, results, strict=True)):
            if not isinstance(expected, np.ndarray | np.generic):
                continue
            difference = Difference.of(np.asarray(value), np.asarray(expected), self._tolerance)
            if not difference.agrees:
                raise DifferenceError(step, runner.device, number, difference, (inputs, outputs, results))
