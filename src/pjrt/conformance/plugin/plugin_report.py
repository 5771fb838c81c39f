"""Reports: the outcomes of the checks of a plugin, and the facts about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pjrt.conformance.plugin.outcome import Outcome, Verdict

FORMAT = "pjrt conformance report"
VERSION = 1


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The report of ``check_plugin``.

    Attributes:
        plugin: the name or path of the plugin.
        facts: what the plugin states about itself: ``api_version``, ``attributes``, ``extensions``, ``functions``,
            ``platform``, ``platform_version``, ``devices``, ``memories``; and ``problem``, the reason why no client can
            be made, or an empty text.
        outcomes: the outcome of each check.
        seconds: how long the run took.
    """

    plugin: str
    facts: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0

    @property
    def passes(self) -> bool:
        """Whether no check failed."""
        return not self.failures

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
        """What the plugin lacks, and the number of checks that need it."""
        return Counter(each.found for each in self.outcomes if each.verdict is Verdict.UNSUPPORTED)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in machine-readable form."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "plugin": self.plugin,
            "passes": self.passes,
            "counts": {str(verdict): number for verdict, number in self.counts.items()},
            "facts": dict(self.facts),
            "unsupported": dict(self.unsupported),
            "outcomes": [each.as_dict() for each in self.outcomes],
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        lines = []
        for each in self.failures:
            lines.append(f"{each.verdict}: {each.check}: {each.message}")
            if each.call:
                lines.append(f"    in {each.call}")
        for reason, count in self.unsupported.items():
            lines.append(f"unsupported: {reason} ({count} {'check' if count == 1 else 'checks'})")
        counts = ", ".join(f"{number} {verdict}" for verdict, number in self.counts.items() if number)
        lines.append(f"{self.plugin}: {counts or 'no checks'}, in {self.seconds:.1f} s")
        return "\n".join(lines)
