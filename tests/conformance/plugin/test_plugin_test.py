"""The checks of a plugin, on the built-in devices and on the tiny plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from pjrt.conformance import check_plugin
from pjrt.conformance.plugin.outcome import Verdict

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_built_in_device_passes(name: str) -> None:
    report = check_plugin(name, jobs=2)
    assert report.passes, str(report)
    assert report.counts[Verdict.PASSED] > 20


def test_the_tiny_plugin_passes(tiny_library: Path) -> None:
    report = check_plugin(tiny_library, {"num_devices": 2}, programs=PROGRAMS, jobs=2)
    assert report.passes, str(report)
    assert report.facts["platform"] == "tiny"
    assert report.facts["devices"] == 2
