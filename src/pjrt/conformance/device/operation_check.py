"""Checks of single operations: a device's results beside those of the reference interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.api.client import Client
from pjrt.api.errors import PjrtError, StatusCode
from pjrt.conformance.device.checks import Outcome, Session, Skipped
from pjrt.conformance.device.finding import Finding, Kind
from pjrt.conformance.judge import Judge, WrongResult
from pjrt.conformance.operation_case import Array, OperationCase
from pjrt.host_memory.difference import Difference, spelled

_SHOWN = 24
"""The most elements of an array that a finding shows."""


@dataclass(frozen=True, slots=True)
class OperationCheck:
    """A check of one case of an operation.

    Attributes:
        case: the case.
        declared: whether the device declares that it runs the operation on this element type; if not, it may decline.
    """

    case: OperationCase
    declared: bool

    @property
    def name(self) -> str:
        """The name of the case."""
        return self.case.label

    @property
    def group(self) -> str:
        """The group ``operations``."""
        return "operations"

    def run(self, session: Session) -> Outcome:
        """Run the case on the device, and compare the results."""
        try:
            judge = Judge(self.case.program)
        except PjrtError as error:
            return Skipped(f"the reference interpreter does not run it: {error.message}")
        finding = self._finding(session.client, judge, self.case)
        if not isinstance(finding, _Wrong):
            return finding
        if self.case.elementwise and finding.place is not None and self.case.inputs[0].shape:
            smaller = self.case.of_one_element(finding.place)
            again = self._finding(session.client, Judge(smaller.program), smaller)
            if isinstance(again, _Wrong):
                return again.finding
        return finding.finding

    def _finding(self, client: Client, judge: Judge, case: OperationCase) -> _Wrong | Outcome:
        try:
            results = run_on(client, case.program, case.inputs)
        except PjrtError as error:
            if error.code is StatusCode.UNIMPLEMENTED and not self.declared:
                return Skipped(f"the device does not run it: {error.message}")
            return self._finding_of(case, Kind.ERROR, error.message)
        wrong = judge.wrong_result(case, results)
        if wrong is None:
            return None
        if wrong.difference is None:
            return self._finding_of(case, Kind.WRONG, wrong.message)
        return _Wrong(self._wrong(case, wrong, wrong.difference), wrong.difference.worst)

    def _finding_of(self, case: OperationCase, kind: Kind, message: str) -> Finding:
        return Finding(case.label, kind, message, case.program, shown_inputs(case.inputs))

    def _wrong(self, case: OperationCase, wrong: WrongResult, difference: Difference) -> Finding:
        right, value = "", ""
        if difference.worst is not None and difference.shape:
            place = f"[{', '.join(map(str, difference.worst))}]"
            right = f"{spelled(difference.expected)} at {place}"
            value = spelled(difference.value)
            if wrong.expected is not None and wrong.result is not None and wrong.expected.size <= _SHOWN:
                right, value = shown(wrong.expected), shown(wrong.result)
        elif difference.worst is not None:
            right, value = spelled(difference.expected), spelled(difference.value)
        return Finding(case.label, Kind.WRONG, wrong.message, case.program, shown_inputs(case.inputs), right, value)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """A finding, and the place of the element that is the furthest off."""

    finding: Finding
    place: tuple[int, ...] | None


def run_on(client: Client, program: str, inputs: Sequence[Any]) -> list[Array]:
    """Return the results of a program on the first device of a client.

    Raises:
        PjrtError: the device cannot compile or run it.
    """
    executable = client.compile(program)
    try:
        return [np.asarray(result) for result in executable(*inputs)]
    finally:
        executable.delete()


def shown_inputs(inputs: Sequence[Array]) -> tuple[str, ...]:
    """Return arguments as text, one for each, under the names that programs have for them."""
    return tuple(f"%{name} = {shown(each)}" for name, each in zip("xyzuvw", inputs, strict=False))


def shown(array: Array) -> str:
    """Return an array as text; the first elements of a large one."""
    if array.ndim == 0:
        return spelled(array[()])
    return np.array2string(array, threshold=_SHOWN, edgeitems=3, separator=", ").replace("\n", "")
