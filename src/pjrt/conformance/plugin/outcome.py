"""Outcomes of checks of a plugin."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
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
        expected: what the rule requires; empty unless the check failed.
        found: what the plugin did instead; of an unsupported check, what the plugin lacks.
        call: the call that did it, as text; empty if there is none.
        advice: texts that the plugin should have, but need not.
        printed: the end of what the process of the check printed.
        seconds: how long the check took.
        transcript: the calls of a check that failed, as ``transcript.calls`` reads them.
    """

    check: str
    verdict: Verdict
    expected: str = ""
    found: str = ""
    call: str = ""
    advice: tuple[str, ...] = ()
    printed: str = ""
    seconds: float = 0.0
    transcript: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome in machine-readable form, without the transcript."""
        names = ("check", "verdict", "expected", "found", "call", "advice", "printed", "seconds")
        return {name: getattr(self, name) for name in names}

    @property
    def message(self) -> str:
        """What was expected and what was found, in one sentence."""
        if self.verdict is Verdict.UNSUPPORTED:
            return self.found
        return f"expected {self.expected}, found {self.found}" if self.expected else self.found
