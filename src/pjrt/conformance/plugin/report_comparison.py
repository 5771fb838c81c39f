"""The comparison of two reports: of a plugin and of an earlier version of it, or of two plugins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pjrt.conformance.plugin.outcome import Outcome, Verdict
from pjrt.conformance.plugin.plugin_report import PluginReport

_LISTS = {"functions": "function", "extensions": "extension", "memories": "memory"}
_FACTS = ("platform", "platform_version", "api_version", "devices", "problem")


@dataclass(frozen=True, slots=True)
class Change:
    """A check whose verdict differs between two reports.

    Attributes:
        check: the name of the check.
        before: its verdict in the baseline; empty if the baseline does not have the check.
        after: its verdict now; empty if the check was not made.
        message: what was expected and found now; of a check that is not made now, empty.
    """

    check: str
    before: str
    after: str
    message: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the change in machine-readable form."""
        return {"check": self.check, "before": self.before, "after": self.after, "message": self.message}


@dataclass(frozen=True, slots=True)
class ReportComparison:
    """The differences between a report and a baseline.

    Attributes:
        newly_failed: checks that fail, and did not fail in the baseline or were not in it.
        newly_unsupported: checks that passed in the baseline, and are unsupported now.
        newly_passed: checks that pass, and did not pass in the baseline.
        still_failing: checks that fail in both.
        not_made: checks of the baseline that were not made.
        capabilities: what the plugin has gained or lost, and facts that differ, as texts.
    """

    newly_failed: tuple[Change, ...]
    newly_unsupported: tuple[Change, ...]
    newly_passed: tuple[Change, ...]
    still_failing: tuple[Change, ...]
    not_made: tuple[str, ...]
    capabilities: tuple[str, ...]

    @staticmethod
    def of(report: PluginReport, baseline: PluginReport) -> ReportComparison:
        """Compare a report with a baseline."""
        earlier = {each.check: each for each in baseline.outcomes}
        changes = [(each, earlier.get(each.check)) for each in report.outcomes]
        made = {each.check for each in report.outcomes}

        def chosen(condition: Any) -> tuple[Change, ...]:
            return tuple(_change(new, old) for new, old in changes if condition(new, old))

        return ReportComparison(
            chosen(lambda new, old: _failed(new) and not _failed(old)),
            chosen(lambda new, old: new.verdict is Verdict.UNSUPPORTED and _passed(old)),
            chosen(lambda new, old: _passed(new) and old is not None and not _passed(old)),
            chosen(lambda new, old: _failed(new) and _failed(old)),
            tuple(name for name in earlier if name not in made),
            tuple(_capabilities(report, baseline)),
        )

    @property
    def is_worse(self) -> bool:
        """Whether a check fails that did not, or is unsupported though it passed."""
        return bool(self.newly_failed or self.newly_unsupported)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison in machine-readable form."""
        return {
            "is_worse": self.is_worse,
            "newly_failed": [each.as_dict() for each in self.newly_failed],
            "newly_unsupported": [each.as_dict() for each in self.newly_unsupported],
            "newly_passed": [each.as_dict() for each in self.newly_passed],
            "still_failing": [each.as_dict() for each in self.still_failing],
            "not_made": list(self.not_made),
            "capabilities": list(self.capabilities),
        }

    def __str__(self) -> str:
        lines = [f"newly {each.after}: {each.check}: {each.message}" for each in self.newly_failed]
        lines += [f"newly unsupported: {each.check}: {each.message}" for each in self.newly_unsupported]
        lines += [f"newly passed: {each.check}" for each in self.newly_passed]
        lines += self.capabilities
        numbers = (
            (len(self.newly_failed), "newly failed"),
            (len(self.newly_unsupported), "newly unsupported"),
            (len(self.newly_passed), "newly passed"),
            (len(self.still_failing), "still failing"),
            (len(self.not_made), "not made"),
        )
        counts = ", ".join(f"{number} {text}" for number, text in numbers if number)
        return "\n".join([*lines, f"beside the baseline: {counts or 'nothing changed'}"])


def _change(now: Outcome, before: Outcome | None) -> Change:
    return Change(now.check, "" if before is None else str(before.verdict), str(now.verdict), now.message)


def _failed(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.verdict.is_failure


def _passed(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.verdict is Verdict.PASSED


def _capabilities(report: PluginReport, baseline: PluginReport) -> Iterator[str]:
    for key, word in _LISTS.items():
        now, before = (list(each.facts.get(key) or ()) for each in (report, baseline))
        yield from (f"gained: {word} {name}" for name in now if name not in before)
        yield from (f"lost: {word} {name}" for name in before if name not in now)
    for key in _FACTS:
        if report.facts.get(key) != baseline.facts.get(key):
            old, new = _spelled(baseline.facts.get(key)), _spelled(report.facts.get(key))
            yield f"changed: {key.replace('_', ' ')} from {old} to {new}"


def _spelled(value: Any) -> str:
    return ".".join(map(str, value)) if isinstance(value, list) else str(value) if value else "nothing"
