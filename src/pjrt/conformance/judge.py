"""The judge: the reference interpreter, whose results are the expected ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance.operation_table import Accuracy, Array, OperationCase
from pjrt.devices.reference import Evaluator
from pjrt.host_memory.difference import Difference
from pjrt.stablehlo import read, to_module


@dataclass(frozen=True, slots=True)
class WrongResult:
    """The fault of the results of a case.

    Attributes:
        message: the problem in one sentence.
        difference: the difference of the first result that is wrong; None where the results cannot be compared.
        result: that result.
        expected: what it should be.
    """

    message: str
    difference: Difference | None = None
    result: Array | None = None
    expected: Array | None = None


class Judge:
    """A program as the reference interpreter runs it.

    Args:
        program: the program, as text.

    Raises:
        UnimplementedError: the interpreter lacks an operation of the program.
        InvalidArgumentError: the program breaks a rule of StableHLO.
    """

    def __init__(self, program: str) -> None:
        with to_module(read(program), trusted=True) as module:
            self._evaluator = Evaluator(module, fold=False)

    def results(self, inputs: Sequence[Any]) -> list[Array]:
        """Return the expected results for these arguments."""
        return [np.asarray(each) for each in self._evaluator.run(inputs)]

    def wrong_result(self, case: OperationCase, results: Sequence[Array]) -> WrongResult | None:
        """Return what is wrong with the results of a case; None if they are right."""
        if case.verify is not None:
            problem = case.verify(results)
            return WrongResult(problem) if problem else None
        expected = self.results(case.inputs)
        if len(results) != len(expected):
            return WrongResult(f"expected {len(expected)} results, found {len(results)}")
        wrong = first_difference(results, expected, case.accuracy)
        if wrong is None:
            return None
        if case.alternatives is not None:
            other = first_difference(results, self.results(case.alternatives), case.accuracy)
            if other is None:
                return None
        number, difference = wrong
        where = f"result {number}: " if len(results) > 1 else ""
        return WrongResult(where + str(difference), difference, results[number], expected[number])


def first_difference(
    results: Sequence[Array], expected: Sequence[Array], accuracy: Accuracy
) -> tuple[int, Difference] | None:
    """Return the number of the first result that differs, and its difference; None if all agree."""
    for number, (result, right) in enumerate(zip(results, expected, strict=True)):
        difference = Difference.of(result, right, accuracy.tolerance(ElementType.of(right.dtype)))
        if not difference.agrees:
            return number, difference
        if accuracy.is_exact and accuracy.signs and difference.element_type.is_floating:
            difference = _of_signs(result, right)
            if not difference.agrees:
                return number, difference
    return None


def _of_signs(result: Array, expected: Array) -> Difference:
    """Return the difference of the signs of zeros, which are equal as numbers."""
    element_type = ElementType.of(expected.dtype)
    with np.errstate(all="ignore"):
        differ = (result == 0) & (expected == 0) & (np.signbit(result) != np.signbit(expected))
    if not differ.any():
        return Difference(element_type, expected.shape)
    worst = tuple(int(each[0]) for each in np.nonzero(differ)) if expected.ndim else ()
    return Difference(
        element_type,
        expected.shape,
        int(np.count_nonzero(differ)),
        severity=1.0,
        worst=worst,
        value=result[worst],
        expected=expected[worst],
    )
