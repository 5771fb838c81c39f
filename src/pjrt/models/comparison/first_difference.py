"""The first difference: the operation from which on two devices differ in a program, and why they do."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program
from pjrt.host_memory.difference import Difference

Array = np.ndarray[Any, Any]


class Cause(enum.StrEnum):
    """The reason for a difference.

    ``OPERATION``: on the same inputs the operation gives another result. ``ROUNDING``: on the same inputs it agrees,
    but its inputs in the program are apart by rounding, and it passes that on or amplifies it. ``CONTEXT``: on the same
    inputs it agrees when it is compiled alone, and differs when it is compiled with the program around it.
    ``FAILURE``: the device cannot compile or run it. ``UNKNOWN``: the search ended before it knew.
    """

    OPERATION = "operation"
    ROUNDING = "rounding"
    CONTEXT = "context"
    FAILURE = "failure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """The difference of one value of the program.

    Attributes:
        index: its index among the inputs or the results of the operation.
        name: its name, as ``pjrt.stablehlo.parse`` gives it, such as ``%3``.
        type: its type as MLIR spells it.
        difference: how far the device's value is from the judge's.
    """

    index: int
    name: str
    type: str
    difference: Difference

    def as_dict(self) -> dict[str, Any]:
        """Return it in machine-readable form."""
        return {"index": self.index, "name": self.name, "type": self.type, **self.difference.as_dict()}


@dataclass(frozen=True, slots=True)
class Suspect:
    """An operation whose result is apart on the same inputs, within the tolerance.

    Attributes:
        operation: the operation as text.
        location: its source location.
        difference: how far the device's result is from the judge's.
    """

    operation: str
    location: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class Case:
    """A small program that shows a difference, with its inputs.

    Attributes:
        program: the program.
        inputs: its arguments.
        expected: the judge's results; None where it has none.
        results: the device's results; None where it failed.
    """

    program: Program
    inputs: tuple[Array, ...] = field(repr=False)
    expected: tuple[Array, ...] | None = field(repr=False)
    results: tuple[Array, ...] | None = field(repr=False)

    def save(self, folder: Path, *, device: str, judge: str) -> None:
        """Write the case to a folder, which is made: ``program.mlir``, ``0.npy`` … for the inputs, and the results.

        Args:
            folder: the folder.
            device: the device's name, for the command that repeats the comparison.
            judge: the judge's name.

        Raises:
            InvalidArgumentError: the folder cannot be written.
        """
        from pjrt import stablehlo

        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = stablehlo.to_text(self.program, locations=True, trusted=True)
            (folder / "program.mlir").write_text(text, encoding="utf-8")
            for index, array in enumerate(self.inputs):
                np.save(folder / f"{index}.npy", array, allow_pickle=False)
            for name, arrays in (("expected", self.expected), ("results", self.results)):
                if arrays is not None:
                    named = {f"result_{index}": array for index, array in enumerate(arrays)}
                    np.savez(folder / f"{name}.npz", allow_pickle=False, **named)
            inputs = "".join(f" -i {index}={index}.npy" for index in range(len(self.inputs)))
            command = f"pjrt compare program.mlir -d {_from_anywhere(device)} -d {judge}{inputs}"
            (folder / "command.txt").write_text(f"{command}\n", encoding="utf-8")
        except OSError as error:
            raise InvalidArgumentError(
                f"cannot write the case to {str(folder)!r}: {error.strerror or error}"
            ) from error


@dataclass(frozen=True, slots=True, repr=False)
class FirstDifference:
    """The first operation of a program from which on a device differs from the judge.

    Attributes:
        device: the device's name.
        judge: the judge's name.
        cause: the reason.
        name: the name of the operation, such as ``stablehlo.tanh``; empty if the search ended before.
        operation: the operation as MLIR spells it; where the search ended before, the operations among which it is.
        location: its source location.
        function: the function that it is in.
        path: how to get there from the entry function: calls, iterations of loops and branches, the outermost first.
        inputs: its inputs in the program: how far they are apart.
        results: its results: on the same inputs for the cause ``OPERATION``, in the program otherwise.
        suspects: where rounding is the cause, the operations that round the most, on the same inputs.
        error: the device's error for the cause ``FAILURE``.
        notes: what the search left out, such as programs that the device did not compile.
        case: a program that shows the difference; None where there is none.
        compilations: the number of programs that both devices compiled for the search.
        seconds: the time of the search.
    """

    device: str
    judge: str
    cause: Cause
    name: str = ""
    operation: str = ""
    location: str = ""
    function: str = ""
    path: tuple[str, ...] = ()
    inputs: tuple[ValueDifference, ...] = ()
    results: tuple[ValueDifference, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    error: str = ""
    notes: tuple[str, ...] = ()
    case: Case | None = None
    compilations: int = 0
    seconds: float = 0.0

    def with_effort(self, compilations: int, seconds: float, notes: Sequence[str]) -> FirstDifference:
        """Return the same with the effort of the search."""
        return replace(self, compilations=compilations, seconds=seconds, notes=(*self.notes, *notes))

    def save_case(self, folder: str | Path) -> None:
        """Write the program that shows the difference, its inputs and the results to a folder.

        Raises:
            InvalidArgumentError: there is no such program, or the folder cannot be written.
        """
        if self.case is None:
            raise InvalidArgumentError("there is no case to save: the search ended before it had one")
        self.case.save(Path(folder), device=self.device, judge=self.judge)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding in machine-readable form, without the arrays of the case."""
        return {
            "device": self.device,
            "judge": self.judge,
            "cause": str(self.cause),
            "name": self.name,
            "operation": self.operation,
            "location": self.location,
            "function": self.function,
            "path": list(self.path),
            "inputs": [value.as_dict() for value in self.inputs],
            "results": [value.as_dict() for value in self.results],
            "suspects": [
                {"operation": each.operation, "location": each.location, **each.difference.as_dict()}
                for each in self.suspects
            ],
            "error": self.error,
            "notes": list(self.notes),
            "compilations": self.compilations,
            "seconds": self.seconds,
        }

    def __repr__(self) -> str:
        return f"<FirstDifference: {self._headline()}>"

    def _headline(self) -> str:
        return _HEADLINES[self.cause].format(device=self.device, judge=self.judge, name=self.name or "an operation")

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [f"  {line}" for line in self.operation.splitlines()]
        if self.location:
            lines.append(f"at {self.location}, in the function {self.function}")
        lines += [f"inside {step}" for step in self.path]
        lines += [f"error: {self.error}"] * bool(self.error)
        lines += [f"input {each.index}, {each.type}: {each.difference}" for each in self.inputs]
        lines += [f"result {each.index}, {each.type}: {each.difference}" for each in self.results]
        for each in self.suspects:
            lines.append(f"rounds on the same inputs: {_first_line(each.operation)} at {each.location}")
            lines.append(f"  {each.difference}")
        lines += [f"note: {note}" for note in self.notes]
        lines.append(f"found with {self.compilations} compilations in {self.seconds:.1f} s")
        return "\n".join(lines)


_HEADLINES: Mapping[Cause, str] = {
    Cause.OPERATION: "{name} differs: {device} and {judge} give different results on the same inputs",
    Cause.ROUNDING: "{name} is the first beyond the tolerance, by rounding: "
    "on the same inputs {device} and {judge} agree",
    Cause.CONTEXT: "{name} differs in the program only: alone, on the same inputs, {device} and {judge} agree",
    Cause.FAILURE: "{name} fails on {device}; {judge} runs it",
    Cause.UNKNOWN: "the search ended early; the first difference is among these operations",
}


def _from_anywhere(device: str) -> str:
    """Return the name of a device with its path made absolute, if it is one, quoted for a shell."""
    path, colon, function = device.rpartition(":")
    if colon and Path(path).is_file():
        return shlex.quote(f"{Path(path).resolve()}:{function}")
    return shlex.quote(str(Path(device).resolve()) if Path(device).is_file() else device)


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
