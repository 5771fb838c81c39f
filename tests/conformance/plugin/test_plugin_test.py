"""The checks of the contract, on the built-in devices and on the tiny plugin.

The official ones are in ``tests/export/test_official.py``, those of frameworks in ``test_framework.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pjrt.conformance import check_plugin
from pjrt.conformance.plugin.outcome import Outcome, Verdict

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE = 120.0
"""The seconds for a check on a machine that is busy with other tests; the slowest takes 3 where it is alone."""

pytestmark = pytest.mark.timeout(900)  # 1,800 processes take 40 seconds where nothing else runs


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_built_in_device_passes(name: str) -> None:
    report = check_plugin(name, {"num_devices": 2}, tiers=["contract"], jobs=2, time_limit=PATIENCE)
    assert report.passes, str(report)
    assert report.counts[Verdict.PASSED] > 400


def test_the_tiny_plugin_passes(tiny_library: Path) -> None:
    outcomes: list[Outcome] = []
    report = check_plugin(
        tiny_library,
        {"num_devices": 2},
        tiers=["contract"],
        programs=PROGRAMS,
        jobs=2,
        time_limit=PATIENCE,
        progress=outcomes.append,
    )
    assert report.passes, str(report)
    assert report.counts[Verdict.PASSED] > 400
    assert (report.facts["platform"], report.facts["devices"]) == ("tiny", 2)
    assert sorted(each.check for each in outcomes) == sorted(each.check for each in report.outcomes)
