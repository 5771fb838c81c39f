"""Reports: the outcomes of the checks of a plugin with facts about it, their comparison, and their page."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pjrt.abi.schema import FUNCTIONS
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError
from pjrt.conformance.plugin.check import Outcome, Tier, Verdict
from pjrt.conformance.plugin.strengths import Strength
from pjrt.models.output_path import writing
from pjrt.models.report.page import page

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
            ``platform``, ``platform_version``, ``devices``, ``device_kinds``, ``memories``; and ``problem``, the reason
            why no client can be made, or an empty text. Beside them what it was checked with: its ``package`` and
            ``library_sha256``, empty if it has none, ``versions`` of packages and frameworks, and ``system``. Empty if
            the run was interrupted before the plugin was loaded.
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
        """Whether all checks were made, and none failed that is required."""
        return not self.left and not self.failed[Strength.REQUIRED]

    @property
    def passes_strictly(self) -> bool:
        """Whether all checks were made, and none failed."""
        return not self.failures and not self.left

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The checks that failed, crashed or hung; those that are required come first."""
        order = list(Strength)
        failed = (each for each in self.outcomes if each.verdict.is_failure)
        return tuple(sorted(failed, key=lambda each: order.index(each.strength)))

    @property
    def failed(self) -> Mapping[Strength, int]:
        """The number of checks of each strength that failed, crashed or hung."""
        counts = Counter(each.strength for each in self.outcomes if each.verdict.is_failure)
        return {strength: counts[strength] for strength in Strength}

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
        """Return the report in machine-readable form; ``sha256`` is the hash of all the rest."""
        plain = {
            "format": _FORMAT,
            "version": _VERSION,
            "plugin": self.plugin,
            "passes": self.passes,
            "passes_strictly": self.passes_strictly,
            "failed": {str(strength): number for strength, number in self.failed.items()},
            "counts": {str(verdict): number for verdict, number in self.counts.items()},
            "facts": dict(self.facts),
            "unsupported": dict(self.unsupported),
            "outcomes": [each.as_dict() for each in self.outcomes],
            "seconds": self.seconds,
            "left": self.left,
        }
        return plain | {"sha256": _digest(plain)}

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
            DataLossError: the file is damaged, or was changed by hand.
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
        stated = plain.get("sha256", "")  # earlier reports have none
        if stated and stated != _digest(plain):
            raise DataLossError(
                f"{name}: expected a report whose sha256 is {stated}, found one of {_digest(plain)}: it was changed "
                "after it was made; make it again"
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
            strength = "" if each.strength is Strength.REQUIRED else f" ({each.strength})"
            lines.append(f"{each.verdict}{strength}: {each.check}: {each.message}")
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
        if self.failures:
            lines.append(f"not passed: {', '.join(f'{number} {strength}' for strength, number in self.failed.items())}")
        lines.append(f"{self.plugin}: {counts or 'no checks'}, in {self.seconds:.1f} s")
        return "\n".join(lines)


def _digest(plain: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a report: of its JSON with sorted keys and no spaces, without the hash and a baseline."""
    hashed = {key: value for key, value in plain.items() if key not in ("sha256", "baseline")}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


_LISTS = {"functions": "function", "extensions": "extension", "memories": "memory", "device_kinds": "kind of device"}
_FACTS = ("platform", "platform_version", "api_version", "devices", "system", "problem")


@dataclass(frozen=True, slots=True)
class Change:
    """A check whose verdict differs between two reports.

    Attributes:
        check: the name of the check.
        before: its verdict in the baseline; empty if the baseline does not have the check.
        after: its verdict now; empty if the check was not made.
        message: what was expected and found now; of a check that is not made now, empty.
        strength: how much a failure of the check matters.
    """

    check: str
    before: str
    after: str
    message: str = ""
    strength: Strength = Strength.REQUIRED

    def as_dict(self) -> dict[str, str]:
        """Return the change in machine-readable form."""
        texts = {"check": self.check, "before": self.before, "after": self.after, "message": self.message}
        return texts | {"strength": str(self.strength)}


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
        """Whether a check that is required fails and did not, or a check is unsupported though it passed."""
        required = (each for each in self.newly_failed if each.strength is Strength.REQUIRED)
        return any(required) or bool(self.newly_unsupported)

    @property
    def is_strictly_worse(self) -> bool:
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
    old = "" if before is None else str(before.verdict)
    return Change(now.check, old, str(now.verdict), now.message, now.strength)


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
        if key in baseline.facts and report.facts.get(key) != baseline.facts[key]:
            old, new = _spelled(baseline.facts[key]), _spelled(report.facts.get(key))
            yield f"changed: {key.replace('_', ' ')} from {old} to {new}"

    old_versions, new_versions = (each.facts.get("versions") or {} for each in (baseline, report))
    if old_versions:  # earlier reports have none
        for name in sorted({*old_versions, *new_versions}):
            if old_versions.get(name) != new_versions.get(name):
                old, new = _spelled(old_versions.get(name)), _spelled(new_versions.get(name))
                yield f"changed: version of {name} from {old} to {new}"


def _spelled(value: Any) -> str:
    return ".".join(map(str, value)) if isinstance(value, list) else str(value) if value else "nothing"


_PACKAGE = "pjrt.conformance.plugin"


def report_page(report: PluginReport, baseline: PluginReport | None = None) -> str:
    """Return the page of a report as HTML: one file, which needs no network.

    Args:
        report: the report.
        baseline: an earlier report, whose differences are shown.
    """
    data = {
        **report.as_dict(),
        "tiers": [str(each) for each in Tier],
        "verdicts": [str(each) for each in Verdict],
        "failures": [str(each) for each in Verdict if each.is_failure],
        "strengths": [str(each) for each in Strength],
        "matrix": _matrix(report),
        "baseline": None if baseline is None else _side_by_side(report, baseline),
    }
    scripts = ("elements.js", f"{_PACKAGE}:report_page.js")
    return page(f"{report.plugin} - pjrt conform", data, scripts, (f"{_PACKAGE}:report_page.css",))


def _matrix(report: PluginReport) -> list[dict[str, Any]]:
    """Return a row for each function: whether the plugin has it, and the numbers of the outcomes that are about it."""
    present = set(report.facts.get("functions", ()))
    rows = {name: {"name": name, "extension": each.extension, "has": name in present, "checks": []}
            for name, each in FUNCTIONS.items()}  # fmt: skip
    for number, outcome in enumerate(report.outcomes):
        for name in outcome.functions:
            if name in rows:
                rows[name]["checks"].append(number)  # type: ignore[attr-defined]
    return [row for row in rows.values() if row["has"] or row["checks"]]


def _side_by_side(report: PluginReport, baseline: PluginReport) -> dict[str, Any]:
    return {
        "plugin": baseline.plugin,
        "counts": {str(verdict): number for verdict, number in baseline.counts.items()},
        "verdicts": {each.check: str(each.verdict) for each in baseline.outcomes},
        **ReportComparison.of(report, baseline).as_dict(),
    }
