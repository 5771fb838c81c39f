"""Outcomes of checks of a plugin."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


class Verdict(enum.StrEnum):
    """The verdict of a check."""

    PASSED = "passed"
    """The plugin did what the rule requires."""
    FAILED = "failed"
    """The plugin did something else."""
    UNSUPPORTED = "unsupported"
    """The plugin lacks something that it may lawfully leave out."""
    CRASHED = "crashed"
    """The process of the check ended."""
    HUNG = "hung"
    """The check was not done within the time limit."""

    @property
    def is_failure(self) -> bool:
        """Whether the plugin breaks the rule."""
        return self in (Verdict.FAILED, Verdict.CRASHED, Verdict.HUNG)


class Failed(Exception):  # noqa: N818  # a verdict
    """The plugin breaks the rule of a check.

    Attributes:
        expected: what the rule requires.
        found: what the plugin did.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected, self.found = expected, found


class Unsupported(Exception):  # noqa: N818  # a verdict
    """The plugin lacks something that it may lawfully leave out; the text is the same for all checks that need it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one check.

    Attributes:
        check: the name of the check.
        verdict: the verdict.
        tier: the tier of the check.
        functions: the functions of the C API that the check is about.
        rule: the rule of the check.
        expected: what the rule requires; empty unless the check failed.
        found: what the plugin did instead; of an unsupported check, what the plugin lacks.
        call: the call that did it, as text; empty if there is none.
        advice: what the plugin should do, but need not.
        printed: the end of what the process of the check printed, if the check failed.
        seconds: how long the check took.
        c_program: the calls of a check that failed as a program in C; empty if it made none.
        python_program: the same in Python.
        transcript: the calls, as ``transcript.calls`` reads them, until the programs are written.
    """

    check: str
    verdict: Verdict
    tier: str = ""
    functions: tuple[str, ...] = ()
    rule: str = ""
    expected: str = ""
    found: str = ""
    call: str = ""
    advice: tuple[str, ...] = ()
    printed: str = ""
    seconds: float = 0.0
    c_program: str = field(default="", repr=False)
    python_program: str = field(default="", repr=False)
    transcript: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome in machine-readable form; fields that are empty are left out."""
        plain = {name: value for name, value in asdict(self).items() if name != "transcript" and value not in ("", ())}
        lists = {name: list(value) for name, value in plain.items() if isinstance(value, tuple)}
        return {**plain, **lists, "verdict": str(self.verdict)}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Outcome:
        """Return the outcome that ``as_dict`` wrote.

        Raises:
            TypeError, ValueError: it is not such an outcome.
        """
        lists = {name: tuple(plain.get(name, ())) for name in ("functions", "advice")}
        return Outcome(**{**plain, **lists, "verdict": Verdict(plain["verdict"])})

    @property
    def message(self) -> str:
        """The expectation and the answer, in one sentence."""
        if self.verdict is Verdict.UNSUPPORTED:
            return self.found
        return f"expected {self.expected}, found {self.found}" if self.expected else self.found
