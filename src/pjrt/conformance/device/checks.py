"""Checks of a device: single questions with a name and an outcome, the findings, and those of operations."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from pjrt.api.client import Client
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError, StatusCode
from pjrt.conformance import values
from pjrt.conformance.judge import Judge, WrongResult, first_difference
from pjrt.conformance.operation_table import FUNCTION, Array, OperationCase, program_text, tensor
from pjrt.host_memory.difference import Difference, spelled


class Kind(enum.StrEnum):
    """The kind of a finding."""

    WRONG = "wrong"
    """A result differs from the expected one."""
    ERROR = "error"
    """The device raised an error where it should have had a result, or another error than the right one."""
    CRASH = "crash"
    """The process of the device ended."""
    HANG = "hang"
    """The device was not done within the time limit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a device.

    Attributes:
        check: the name of the check, such as ``stablehlo.add f32 edge values`` or ``donation``.
        kind: the kind.
        message: what was expected, and what was found.
        program: the program that shows it.
        inputs: the arguments as text, one for each.
        expected: the expected value as text; empty if the message says it all.
        value: the value that the device computed, as text.
    """

    check: str
    kind: Kind
    message: str
    program: str = ""
    inputs: tuple[str, ...] = ()
    expected: str = ""
    value: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding in machine-readable form."""
        return {**asdict(self), "kind": self.kind.value, "inputs": list(self.inputs)}

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> Finding:
        """Return the finding that ``as_dict`` wrote."""
        return Finding(**{**plain, "kind": Kind(plain["kind"]), "inputs": tuple(plain["inputs"])})

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.check}: {self.message}"]
        lines += [f"    {line}" for line in self.program.splitlines()]
        lines += [f"    {name}" for name in self.inputs]
        if self.expected or self.value:
            lines.append(f"    expected {self.expected}, found {self.value}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Skipped:
    """The outcome of a check that does not apply to the device.

    Attributes:
        reason: why.
    """

    reason: str


Outcome = Finding | Skipped | None
"""The outcome of a check; None where the device passed it."""


class Check(Protocol):
    """A check; its group is ``operations``, ``behaviour``, ``devices`` or ``jax``."""

    @property
    def name(self) -> str:
        """The name of the check in reports and filters."""

    @property
    def group(self) -> str:
        """The group of the check."""

    def run(self, session: Session) -> Outcome:
        """Return the outcome of the check."""


class Session:
    """The device under test: its clients, which are made when a check first needs them.

    Args:
        make: makes a client of the device from options.
        options: the options that the user gave.
        device: the name of the device, as of ``pjrt.client``.
    """

    def __init__(self, make: Callable[..., Client], options: Mapping[str, Any], device: str) -> None:
        self._make = make
        self.device = device
        self.options = dict(options)
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client that all checks share."""
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def new_client(self, **options: Any) -> Client:
        """Return a client that the caller closes; the options of the user win."""
        return self._make(**{**options, **self.options})

    def close(self) -> None:
        """Close the shared client, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None


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
