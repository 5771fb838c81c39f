"""Reports: the outcomes of the checks of a plugin, and the facts about it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError
from pjrt.conformance.plugin.outcome import Outcome, Verdict
from pjrt.models.output_path import writing

_FORMAT = "pjrt conformance report"
_VERSION = 1
"""The version of the file format; a later one has fields that this version of the package does not know."""

_MOST_FAILURES = 50
_MOST_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The report of ``check_plugin``.

    Attributes:
        plugin: the name or path of the plugin.
        facts: what the plugin states about itself: ``api_version``, ``attributes``, ``extensions``, ``functions``,
            ``platform``, ``platform_version``, ``devices``, ``memories``; and ``problem``, the reason why no client can
            be made, or an empty text. Empty if the run was interrupted before the plugin was loaded.
        outcomes: the outcome of each check.
        seconds: how long the run took.
        left: the number of checks that were not made, because the run was interrupted.
    """

    plugin: str
    facts: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0
    left: int = 0

    @property
    def passes(self) -> bool:
        """Whether all checks were made, and none failed."""
        return not self.failures and not self.left

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The checks that failed, crashed or hung."""
        return tuple(each for each in self.outcomes if each.verdict.is_failure)

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """The number of checks with each verdict."""
        counts = Counter(each.verdict for each in self.outcomes)
        return {verdict: counts[verdict] for verdict in Verdict}

    @property
    def unsupported(self) -> Mapping[str, int]:
        """The reasons why checks are unsupported, each with the number of checks that it concerns."""
        return Counter(each.found for each in self.outcomes if each.verdict is Verdict.UNSUPPORTED)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in machine-readable form."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "plugin": self.plugin,
            "passes": self.passes,
            "counts": {str(verdict): number for verdict, number in self.counts.items()},
            "facts": dict(self.facts),
            "unsupported": dict(self.unsupported),
            "outcomes": [each.as_dict() for each in self.outcomes],
            "seconds": self.seconds,
            "left": self.left,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a JSON file, which ``read`` reads.

        Raises:
            InvalidArgumentError: the file cannot be written.
        """
        with writing(path):
            Path(path).write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: str | os.PathLike[str]) -> PluginReport:
        """Return the report of a JSON file.

        Raises:
            NotFoundError: there is no such file.
            InvalidArgumentError: the file is no report, or one of a later version.
            DataLossError: the file is damaged.
        """
        name = os.fspath(path)
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise NotFoundError(f"{name}: there is no such file; give a report of pjrt conform --json") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"{name}: expected a report of pjrt conform --json: {error}") from error
        try:
            plain = json.loads(text)
        except ValueError as error:
            if _FORMAT in text:
                raise DataLossError(f"{name}: the report is damaged ({error}); make it again") from error
            plain = None
        if not isinstance(plain, dict) or plain.get("format") != _FORMAT:
            raise InvalidArgumentError(f"{name}: expected a report of pjrt conform --json, found another file")
        if plain.get("version") != _VERSION:
            raise InvalidArgumentError(
                f"{name}: expected a report of version {_VERSION}, found version {plain.get('version')!r}; "
                "make it again with this version of pjrt"
            )
        try:
            outcomes = tuple(Outcome.from_dict(each) for each in plain["outcomes"])
            seconds, left = float(plain["seconds"]), int(plain.get("left", 0))
            return PluginReport(str(plain["plugin"]), dict(plain["facts"]), outcomes, seconds, left)
        except (KeyError, TypeError, ValueError) as error:
            raise DataLossError(f"{name}: the report is damaged ({error!r}); make it again") from error

    def __str__(self) -> str:
        lines: list[str] = []
        rule = ""
        for each in self.failures[:_MOST_FAILURES]:
            lines.append(f"{each.verdict}: {each.check}: {each.message}")
            if each.rule != rule:
                rule = each.rule
                lines.append(f"    rule: {rule}")
            if each.call:
                lines.append(f"    in {each.call}")
        if len(self.failures) > _MOST_FAILURES:
            lines.append(f"{len(self.failures) - _MOST_FAILURES} more failures; --output and --html have all")
        if self.facts.get("problem"):
            lines.append(f"without a client: {self.facts['problem']}")
        for reason, count in self.unsupported.items():
            short = reason if len(reason) <= _MOST_CHARACTERS else f"{reason[:_MOST_CHARACTERS]}…"
            lines.append(f"unsupported: {short} ({count} {'check' if count == 1 else 'checks'})")
        lines += [f"advice: {each.check}: {text}" for each in self.outcomes for text in each.advice]
        numbers = [*self.counts.items(), ("not made", self.left)]
        counts = ", ".join(f"{number} {verdict}" for verdict, number in numbers if number)
        lines.append(f"{self.plugin}: {counts or 'no checks'}, in {self.seconds:.1f} s")
        return "\n".join(lines)
