"""Findings: what is wrong with a device, each with the smallest program that shows it."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any


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
