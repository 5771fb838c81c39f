"""The page of a report: a matrix of functions, each failure with its reproductions, and what the plugin lacks."""

from __future__ import annotations

from typing import Any

from pjrt.capi.layer.schema import FUNCTIONS
from pjrt.conformance.plugin.check import Tier
from pjrt.conformance.plugin.outcome import Verdict
from pjrt.conformance.plugin.plugin_report import PluginReport
from pjrt.conformance.plugin.report_comparison import ReportComparison
from pjrt.models.report.page import page

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
